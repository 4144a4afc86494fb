"""One call on its way through the slots, and back out.

This is the hot path: it is written in as few steps as it can be, and says in comments why a step is
where it is. The order is: find the node, and then, under the engine's lock, take the time once, ask
all checks and count. Checking and counting under one lock is what keeps threads from overshooting
together.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Self

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.errors import BlockException, ErrorEntryFreeException
from seckill.sentinel.words import EntryType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from seckill.sentinel.context import Context
    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.node import ClusterNode, DefaultNode, StatisticNode


class EntryState(enum.Enum):
    """How far an entry has come."""

    NEW = "new"
    WAITING = "waiting"
    PASSED = "let in"
    UNCHECKED = "let in unchecked"
    BLOCKED = "refused"
    ENDED = "ended"


# Members of an enumeration are found slowly; names of a module are found fast.
_IN = EntryType.IN
_OUT = EntryType.OUT
_COMMON = ResourceType.COMMON
_NEW = EntryState.NEW
_WAITING = EntryState.WAITING
_PASSED = EntryState.PASSED
_UNCHECKED = EntryState.UNCHECKED
_BLOCKED = EntryState.BLOCKED
_ENDED = EntryState.ENDED


class _Burden:
    """What few entries have to carry, kept apart so that making the others is cheap."""

    __slots__ = ("held", "occupied", "origin_node", "probes", "taken")

    def __init__(self) -> None:
        self.origin_node: StatisticNode | None = None
        self.occupied = False
        self.held: list[Callable[[], None]] = []
        self.probes: list[Callable[[Entry], None]] = []
        self.taken: list[Callable[[], None]] = []


class Entry:
    """One use of a resource: ``with sentinel.entry("name"):`` or ``async with`` the same.

    Entering decides. A refusal is raised as a ``BlockException``; a paced call waits for its turn.
    An exception that leaves the block is counted against the resource (a refusal from inside is
    not).

    Attributes:
        engine: the ``Sentinel`` that made it.
        name: of the resource.
        args: what hot-parameter rules look at.
        count: units this one call acquires.
        entry_type: which way the traffic flows.
        prioritized: whether it may borrow from the next moment.
        state: how far it has come.
        error: the exception that the call ended with, so far as known.
        parent: the entry, or else the context, it was made in. Set once it is decided on.
        context: the context it was made in. Set once it is decided on.
        node: its place in the call tree. Set once it is decided on.
        start_ns: when it was decided on.
    """

    __slots__ = (
        "_burden",
        "_rest",
        "args",
        "context",
        "count",
        "engine",
        "entry_type",
        "error",
        "name",
        "node",
        "parent",
        "prioritized",
        "resource_type",
        "start_ns",
        "state",
    )

    context: Context
    node: DefaultNode
    parent: Context | Entry
    start_ns: int
    _rest: tuple[Callable[[Entry, int], BlockException | int | None], ...]

    def __init__(
        self,
        engine: Sentinel,
        name: str,
        *args: object,
        count: int = 1,
        entry_type: EntryType = _OUT,
        resource_type: int = _COMMON,
        prioritized: bool = False,
    ) -> None:
        if count < 0:
            raise ValueError(f"an entry cannot acquire {count} units")
        self.engine = engine
        self.name = name
        self.args = args
        self.count = count
        self.entry_type = entry_type
        self.resource_type = resource_type
        self.prioritized = prioritized
        self.state = _NEW
        self.error: BaseException | None = None
        self._burden: _Burden | None = None

    def __enter__(self) -> Self:
        outcome = self.decide()
        while outcome is not None:
            if isinstance(outcome, int):
                self.engine.waiter.wait(outcome)
                outcome = self.decide()
            else:
                raise outcome
        return self

    async def __aenter__(self) -> Self:
        outcome = self.decide()
        while outcome is not None:
            if isinstance(outcome, int):
                await self.engine.waiter.wait_async(outcome)
                outcome = self.decide()
            else:
                raise outcome
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    # One function, because a call to another costs a tenth of the whole.
    def decide(self) -> BlockException | int | None:  # noqa: C901, PLR0912, PLR0915
        """Go as far as possible without waiting.

        For those who wait in their own way; everybody else uses ``with``.

        Returns:
            None when the call is let in (``exit`` has to follow), a ``BlockException`` when it is
            refused, or the nanoseconds to wait before calling this again.

        Raises:
            ErrorEntryFreeException: when the entry was decided before.

        Complexity: linear in the rules of the resource.
        """
        engine = self.engine
        if self.state is _NEW:
            self.parent = parent = engine.current.get()
            self.context = context = parent.context
            node = context.nodes.get(self.name)
            if node is None or not engine.enabled:
                node = engine.node_for(self, parent)
                if node is None:
                    self.state = _UNCHECKED
                    return None
            self.node = node
            cluster = node.cluster
            if context.origin:
                self._take_up().origin_node = engine.origin_node(cluster, context.origin)
            checks = None
        elif self.state is _WAITING:
            # The original lets a call that has borrowed skip every check that is left.
            checks = () if self.occupied and engine.borrowers_skip_checks else self._rest
            node = self.node
            cluster = node.cluster
        else:
            raise ErrorEntryFreeException(f"the entry of {self.name!r} was entered before")
        outcome = None
        # Twice as fast as a with statement.
        engine.acquire()
        try:
            # Inside the lock, so that the readings of all threads are in the order of their
            # decisions.
            now_ns = engine.tick() + engine.offset_ns
            if checks is None:
                self.start_ns = now_ns
                checks = cluster.checks
            for check in checks:
                try:
                    outcome = check(self, now_ns)
                except Exception as error:  # noqa: BLE001  a fault of ours must never stop the caller
                    engine.note_internal_error(error)
                    continue
                if outcome is not None:
                    break
            if outcome is None:
                cluster.concurrency += 1
                if self._burden is not None or self.entry_type is _IN or node.own is not None:
                    self._count_pass(now_ns)
                else:
                    # A bucket or a place to be closed is rare: the usual pass is a few additions.
                    if now_ns >= cluster.bucket_end_ns:
                        cluster.roll(now_ns)
                    count = self.count
                    cluster.window_passed += count
                    log = cluster.log
                    if log is not None:
                        if now_ns < log.open_end_ns:
                            log.total += count
                            log.open_count += count
                            log.open_ns = now_ns
                        else:
                            log.add(now_ns, count)
                self.state = _PASSED
                try:
                    for told in cluster.on_pass:
                        told(self)
                except Exception as error:  # noqa: BLE001  as above
                    engine.note_internal_error(error)
            elif isinstance(outcome, int):
                self._rest = checks[checks.index(check) + 1 :]
                self.state = _WAITING
            else:
                self.state = _BLOCKED
                self._count_block(outcome, now_ns)
        finally:
            engine.release()
        if outcome is None:
            # From here on this is the innermost thing.
            engine.current.set(self)
        elif engine.block_listeners and not isinstance(outcome, int):
            engine.tell_block(self, outcome)
        if engine.notices:
            engine.tell_notices()
        return outcome

    def __exit__(  # noqa: C901, PLR0912  one function, as above
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self.engine
        if error is not None:
            self.set_error(error)
        if self.state is not _PASSED:
            self._end_unusually()
            return
        self.state = _ENDED
        current = engine.current
        late = None
        if current.get() is self:
            current.set(self.parent)
        else:
            late = self._unwind()
        engine.acquire()
        try:
            now_ns = engine.tick() + engine.offset_ns
            count = self.count
            node = self.node
            cluster = node.cluster
            # By the milliseconds of a clock face: rounding the span itself down would be half a
            # millisecond too short on average.
            rt_ms = now_ns // NANOSECONDS_PER_MS - self.start_ns // NANOSECONDS_PER_MS
            if now_ns >= cluster.bucket_end_ns:
                cluster.roll(now_ns)
            cluster.window_success += count
            cluster.window_rt_ms += rt_ms
            if rt_ms < cluster.bucket_min_rt_ms:  # noqa: PLR1730  three times as fast as min
                cluster.bucket_min_rt_ms = rt_ms
            cluster.concurrency -= 1
            if self.error is not None:
                cluster.window_exceptions += count
            if self._burden is not None or self.entry_type is _IN or node.own is not None:
                self._count_complete(now_ns, rt_ms)
            for told in cluster.on_exit:
                told(self, now_ns)
        except Exception as fault:  # noqa: BLE001  a fault of ours must never stop the caller
            engine.note_internal_error(fault)
        finally:
            engine.release()
        if engine.notices:
            engine.tell_notices()
        if late is not None:
            raise late

    def exit(self) -> None:
        """End the call: count it as finished, and as failed if ``set_error`` was called.

        Raises:
            ErrorEntryFreeException: when it has ended before, or was never let in, or when an entry
                inside it has not ended yet; in the last case all of them are ended first.
        """
        self.__exit__(None, None, None)

    def set_error(self, error: BaseException) -> None:
        """Count the call as failed when it ends.

        Refusals are no failures, nor is anything outside ``Exception``: a cancelled task or a
        closed generator says nothing about the resource. The engine's ``traces`` may leave out
        more.
        """
        if not isinstance(error, Exception):
            self._abandon_probes()
        elif not isinstance(error, BlockException) and self.engine.traces(error):
            self.error = error

    # For slots.

    @property
    def cluster(self) -> ClusterNode:
        """The node of the resource."""
        return self.node.cluster

    @property
    def children(self) -> dict[str, DefaultNode]:
        """The places in the call tree just inside this one. A context has the same."""
        return self.node.children

    @property
    def origin_node(self) -> StatisticNode | None:
        """The counters of the caller at this resource; None if it gave no name."""
        return None if self._burden is None else self._burden.origin_node

    @property
    def occupied(self) -> bool:
        """Whether a check has already counted the pass, at the expense of a later moment."""
        return self._burden is not None and self._burden.occupied

    def occupy(self) -> None:
        """Say that a check has counted the pass already."""
        self._take_up().occupied = True

    def hold(self, give_back: Callable[[], None]) -> None:
        """Have something given back when the entry ends."""
        self._take_up().held.append(give_back)

    def took(self, give_back: Callable[[], None]) -> None:
        """Have something given back if a later check refuses. Called under the lock."""
        self._take_up().taken.append(give_back)

    def probe(self, give_up: Callable[[Entry], None]) -> None:
        """Make this the probe of a breaker, to be told if a later check refuses after all."""
        self._take_up().probes.append(give_up)

    def _take_up(self) -> _Burden:
        if self._burden is None:
            self._burden = _Burden()
        return self._burden

    def _count_pass(self, now_ns: int) -> None:
        """The counting of a pass where more than the resource's own node is concerned."""
        cluster = self.cluster
        if self.occupied:
            # The check that borrowed has counted it; only the calls in flight are left.
            for node in self._other_nodes():
                node.concurrency += 1
            return
        cluster.roll(now_ns)
        cluster.window_passed += self.count
        if cluster.log is not None:
            cluster.log.add(now_ns, self.count)
        for node in self._other_nodes():
            node.add_pass(now_ns, self.count)

    def _count_block(self, block: BlockException, now_ns: int) -> None:
        cluster = self.cluster
        if now_ns >= cluster.bucket_end_ns:
            cluster.roll(now_ns)
        cluster.window_blocked += self.count
        self.engine.count_block(block)
        if self._burden is not None or self.entry_type is _IN or self.node.own is not None:
            for node in self._other_nodes():
                node.add_block(now_ns, self.count)
            self._abandon_probes()
            if self._burden is not None:
                for give_back in self._burden.taken:
                    give_back()

    def _count_complete(self, now_ns: int, rt_ms: int) -> None:
        failed = self.error is not None
        for node in self._other_nodes():
            node.add_complete(now_ns, self.count, rt_ms, failed=failed)
        if self._burden is not None:
            for give_back in self._burden.held:
                give_back()

    def _other_nodes(self) -> list[StatisticNode]:
        """Every node that counts this entry besides the resource's own."""
        nodes = []
        if self.node.own is not None:
            nodes.append(self.node.own)
        if self.origin_node is not None:
            nodes.append(self.origin_node)
        if self.entry_type is _IN:
            nodes.append(self.engine.inbound)
        return nodes

    def _abandon_probes(self) -> None:
        """Give probes back: a refused or cancelled call says nothing about the resource."""
        if self._burden is not None and self._burden.probes:
            with self.engine.lock:
                for give_up in self._burden.probes:
                    give_up(self)

    def _end_unusually(self) -> None:
        if self.state is not _UNCHECKED:
            raise ErrorEntryFreeException(
                f"the entry of {self.name!r} has no end to come: it is {self.state.value}"
            )
        self.state = _ENDED

    def _unwind(self) -> ErrorEntryFreeException | None:
        """End what is still open inside this; None if it is merely ended from another task."""
        current = self.engine.current
        inside: list[Entry] = []
        innermost = current.get()
        while isinstance(innermost, Entry) and innermost is not self:
            inside.append(innermost)
            innermost = innermost.parent
        if innermost is not self:
            return None
        for entry in inside:
            if entry.state is _PASSED:
                entry.exit()
        current.set(self.parent)
        return ErrorEntryFreeException(
            f"the entry of {self.name!r} was ended before {len(inside)} inside it, "
            f"the innermost of {inside[0].name!r}; all are ended now"
        )
