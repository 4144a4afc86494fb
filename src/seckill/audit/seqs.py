"""A set of sequence numbers kept as intervals: a complete log of a million places is one."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

__all__ = ["SeqSet"]


class SeqSet:
    """Integers from 1, as disjoint intervals in order.

    Memory grows with the number of gaps, not with the number of members. Adding in ascending
    order, the usual case, is O(1); elsewhere O(log intervals), and O(intervals) to insert one.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, seqs: Iterable[int] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for seq in seqs:
            self.add(seq)

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self._firsts, seq) - 1
        return at >= 0 and seq <= self._lasts[at]

    def __len__(self) -> int:
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeqSet):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"SeqSet({list(self.intervals())})"

    def __iter__(self) -> Iterator[int]:
        for first, last in self.intervals():
            yield from range(first, last + 1)

    @property
    def last(self) -> int:
        """The greatest member; 0 when empty."""
        return self._lasts[-1] if self._lasts else 0

    def intervals(self) -> Iterator[tuple[int, int]]:
        """The intervals as (first, last), ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, seq: int) -> bool:
        """Add a number; False when it was there."""
        if self._lasts and seq == self._lasts[-1] + 1:
            self._lasts[-1] = seq
            return True
        if not self._lasts or seq > self._lasts[-1]:
            self._firsts.append(seq)
            self._lasts.append(seq)
            return True
        return self.add_interval(seq, seq) > 0

    def add_interval(self, first: int, last: int) -> int:
        """Add first..last; returns how many of them are new."""
        start = bisect_right(self._firsts, first) - 1
        if start < 0 or self._lasts[start] < first - 1:
            start += 1
        end = bisect_right(self._firsts, last + 1)
        known = sum(self._lasts[start:end]) - sum(self._firsts[start:end]) + end - start
        if start < end:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[end - 1])
        self._firsts[start:end] = [first]
        self._lasts[start:end] = [last]
        return last - first + 1 - known

    def update(self, other: "SeqSet") -> None:
        """Add the members of another set."""
        for first, last in other.intervals():
            self.add_interval(first, last)

    def missing(self, last: int) -> "SeqSet":
        """The numbers from 1 to ``last`` that are not members."""
        gaps = SeqSet()
        expected = 1
        for first, end in self.intervals():
            if first > last:
                break
            if first > expected:
                gaps.add_interval(expected, first - 1)
            expected = end + 1
        if expected <= last:
            gaps.add_interval(expected, last)
        return gaps

    def minus(self, other: "SeqSet") -> "SeqSet":
        """The members that are not members of another set."""
        rest = SeqSet()
        taken = list(other.intervals())
        at = 0
        for first, last in self.intervals():
            start = first
            while at < len(taken) and taken[at][0] <= last:
                taken_first, taken_last = taken[at]
                if taken_first > start:
                    rest.add_interval(start, taken_first - 1)
                start = max(start, taken_last + 1)
                if taken_last > last:
                    break  # it may reach into the next interval as well
                at += 1
            if start <= last:
                rest.add_interval(start, last)
        return rest
