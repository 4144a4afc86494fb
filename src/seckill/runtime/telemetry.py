"""Metrics of all processes of one host, without a server in each and without files that pile up.

Every metric, with every value that its label can have, is declared in one table
(``metric_table.py``). So each process slot has one memory-mapped file of a fixed layout: a number
is a cell, counting is an addition in memory, and any process can read all files and answer
``/metrics``. A slot that is started again goes on with its counters; its gauges begin at zero.
The usual multi-process mode of Prometheus' library makes a file for each process that ever was,
and never removes one; here there are as many files as there are slots.
"""

import contextlib
import hashlib
import mmap
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from pathlib import Path
from typing import Final, Protocol, cast

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Kind",
    "Layout",
    "Merge",
    "Metric",
    "Metrics",
    "read_slots",
    "reset_gauges",
]

_MAGIC: Final = b"SECKMETR"
_HASH_BYTES: Final = 32
_HEADER_BYTES: Final = 64
_CELL: Final = struct.Struct("=d")


class Kind(StrEnum):
    """What a metric is, in the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """What the gauges of several processes make together."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Metric:
    """The declaration of one metric.

    Attributes:
        name: as Prometheus shows it, unit last.
        labels: each label with all values that it can have; fixed, so memory is bounded.
        bounds: of a histogram: upper bounds of its buckets, rising, without infinity.
        merge: of a gauge.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Merge = Merge.SUM

    def __post_init__(self) -> None:
        assert (self.kind is Kind.HISTOGRAM) == bool(self.bounds), self.name
        assert list(self.bounds) == sorted(set(self.bounds)), self.name
        assert (self.kind is Kind.COUNTER) == self.name.endswith("_total"), self.name

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in the order in which values are given."""
        return tuple(name for name, _ in self.labels)

    @property
    def children(self) -> tuple[tuple[str, ...], ...]:
        """Every combination of label values; one empty combination without labels."""
        return tuple(product(*(values for _, values in self.labels)))

    @property
    def cells_each(self) -> int:
        """Cells of one combination: a histogram has its buckets, infinity, and its sum."""
        return len(self.bounds) + 2 if self.kind is Kind.HISTOGRAM else 1


class Layout:
    """Where each number of a table of metrics lies in a file."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics: Final = {metric.name: metric for metric in metrics}
        assert len(self.metrics) == len(metrics), "a name stands twice in the table"
        self._cells: dict[tuple[str, tuple[str, ...]], int] = {}
        cell = 0
        for metric in metrics:
            for values in metric.children:
                self._cells[metric.name, values] = cell
                cell += metric.cells_each
        self.cells_count: Final = cell
        self.hash: Final = hashlib.sha256(repr(tuple(metrics)).encode()).digest()

    def cell(self, name: str, values: Sequence[str]) -> int:
        """First cell of one combination of label values.

        Raises:
            KeyError: the table has no such metric, or no such value: an error in this program.
        """
        return self._cells[name, tuple(values)]

    def values_of(self, name: str) -> tuple[str, ...]:
        """Every value of a metric's one label. Raises KeyError when there is no such metric."""
        ((_, values),) = self.metrics[name].labels
        return values

    @property
    def file_bytes(self) -> int:
        """Size of a file of this layout."""
        return _HEADER_BYTES + self.cells_count * _CELL.size

    @property
    def header(self) -> bytes:
        """What such a file begins with."""
        return (_MAGIC + self.hash).ljust(_HEADER_BYTES, b"\0")


class _Cells(Protocol):
    """A view of float64 cells: what a memoryview is once it is cast, which its type cannot say."""

    def __getitem__(self, cell: int, /) -> float: ...

    def __setitem__(self, cell: int, value: float, /) -> None: ...


class Counter:
    """One number that only grows."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, cells: _Cells, cell: int) -> None:
        self._cells = cells
        self._cell = cell

    def inc(self, by: float = 1.0) -> None:
        """Count ``by`` more; not negative. For one thread: two could lose a count."""
        self._cells[self._cell] += by

    @property
    def value(self) -> float:
        """What this slot has counted."""
        return self._cells[self._cell]


class Gauge:
    """One number that goes up and down."""

    __slots__ = ("_cell", "_cells")

    def __init__(self, cells: _Cells, cell: int) -> None:
        self._cells = cells
        self._cell = cell

    def set(self, value: float) -> None:
        """It is ``value`` now."""
        self._cells[self._cell] = value

    def inc(self, by: float = 1.0) -> None:
        """It is ``by`` more than before; negative for less."""
        self._cells[self._cell] += by

    @property
    def value(self) -> float:
        """What it is in this slot."""
        return self._cells[self._cell]


class Histogram:
    """How often values fell between which bounds, and their sum."""

    __slots__ = ("_bounds", "_cell", "_cells", "_sum")

    def __init__(self, cells: _Cells, cell: int, bounds: tuple[float, ...]) -> None:
        self._cells = cells
        self._cell = cell
        self._bounds = bounds
        self._sum = cell + len(bounds) + 1

    def observe(self, value: float) -> None:
        """Count one value."""
        cells = self._cells
        cells[self._cell + bisect_left(self._bounds, value)] += 1.0
        cells[self._sum] += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many values: as many additions as bounds lie among them, and not one for each."""
        ordered = sorted(values)
        cells, cell, bounds = self._cells, self._cell, self._bounds
        done, at, count = 0, bisect_left(bounds, ordered[0]) if ordered else 0, len(ordered)
        while done < count:
            upto = bisect_right(ordered, bounds[at]) if at < len(bounds) else count
            if upto > done:
                cells[cell + at] += upto - done
                done = upto
            at += 1
        cells[self._sum] += sum(ordered)

    @property
    def count(self) -> float:
        """How many values this slot has counted."""
        return sum(self._cells[cell] for cell in range(self._cell, self._sum))


class Metrics:
    """The numbers of one process slot. One process at a time may have a slot.

    Ask for a number once and keep it: asking looks it up, counting does not.

    Args:
        folder: where the files of this host are.
        slot: such as ``web-0``.
        layout: the table.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, folder: Path, slot: str, layout: Layout) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._layout = layout
        path = folder / slot
        _set_aside_other_layout(path, layout)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A new file is made of zeros, which is what every number begins with.
            os.ftruncate(file, layout.file_bytes)
            self._map = mmap.mmap(file, layout.file_bytes)
        finally:
            os.close(file)
        self._map[:_HEADER_BYTES] = layout.header
        self._view = memoryview(self._map)[_HEADER_BYTES:].cast("d")
        self._cells = cast("_Cells", self._view)
        for cell in _gauge_cells(layout):
            self._cells[cell] = 0.0

    def counter(self, name: str, *label_values: str) -> Counter:
        """A counter of the table. Raises KeyError when there is none of this name and labels."""
        self._check(name, Kind.COUNTER)
        return Counter(self._cells, self._layout.cell(name, label_values))

    def gauge(self, name: str, *label_values: str) -> Gauge:
        """A gauge of the table. Raises KeyError when there is none of this name and labels."""
        self._check(name, Kind.GAUGE)
        return Gauge(self._cells, self._layout.cell(name, label_values))

    def histogram(self, name: str, *label_values: str) -> Histogram:
        """A histogram of the table. Raises KeyError when there is none of this name and labels."""
        self._check(name, Kind.HISTOGRAM)
        bounds = self._layout.metrics[name].bounds
        return Histogram(self._cells, self._layout.cell(name, label_values), bounds)

    def _check(self, name: str, kind: Kind) -> None:
        if self._layout.metrics[name].kind is not kind:
            raise KeyError(f"{name} is no {kind}")

    def close(self) -> None:
        """Give the file back. No number of this object may be used any more."""
        self._view.release()
        self._map.close()


def reset_gauges(folder: Path, slot: str, layout: Layout) -> None:
    """Set the gauges of a dead slot to zero: what it said of itself is over. Counters stay.

    Raises:
        OSError: the file is there and cannot be written.
    """
    with contextlib.suppress(FileNotFoundError), (folder / slot).open("r+b") as file:
        if file.read(_HEADER_BYTES) == layout.header:
            for cell in _gauge_cells(layout):
                os.pwrite(file.fileno(), bytes(_CELL.size), _HEADER_BYTES + cell * _CELL.size)


def read_slots(folder: Path, layout: Layout) -> Iterator[tuple[float, ...]]:
    """The cells of every slot that there ever was in this layout; other files are skipped."""
    unpack = struct.Struct(f"={layout.cells_count}d").unpack
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            content = path.read_bytes()
            if len(content) == layout.file_bytes and content.startswith(layout.header):
                yield unpack(content[_HEADER_BYTES:])


def _set_aside_other_layout(path: Path, layout: Layout) -> None:
    """Move a file of another version of the table out of the way: its cells mean other things."""
    with contextlib.suppress(FileNotFoundError):
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if header and header != layout.header:
            path.replace(path.with_name(f"{path.name}.other-layout"))


def _gauge_cells(layout: Layout) -> Iterator[int]:
    for metric in layout.metrics.values():
        if metric.kind is Kind.GAUGE:
            for values in metric.children:
                yield layout.cell(metric.name, values)
