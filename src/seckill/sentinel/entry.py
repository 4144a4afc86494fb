"""One call on its way through the slots, and back out.

This is the hot path: it is written in as few steps as it can be, and says in comments why a step is
where it is. The order is: find the node, and then, under the engine's lock, take the time once, ask
all checks and count. Checking and counting under one lock is what keeps threads from overshooting
together.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Self

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.errors import BlockException, ErrorEntryFreeException
from seckill.sentinel.words import EntryType, ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from seckill.sentinel.context import Context
    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.node import ClusterNode, DefaultNode, StatisticNode
    from seckill.sentinel.present import Present


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
    not). ``Sentinel.entry`` makes them; see ``entry_maker``.

    Attributes:
        engine: the ``Sentinel`` that made it.
        name: of the resource.
        args: what hot-parameter rules look at.
        count: units this one call acquires.
        inbound: whether the traffic comes from outside.
        state: how far it has come.
        parent: the entry, or else the context, it was made in. Set once it is decided on.
        context: the context it was made in. Set once it is decided on.
        cluster: the counters of the resource. Set once it is decided on, but for one let in
            unchecked.
    """

    # In the order of their first use, as far as Python keeps to it.
    __slots__ = (
        "_alone",
        "_burden",
        "_error",
        "_present",
        "_prioritized",
        "_resource_type",
        "_rest",
        "_start",
        "args",
        "cluster",
        "context",
        "count",
        "inbound",
        "name",
        "parent",
        "state",
    )

    args: tuple[object, ...]
    cluster: ClusterNode
    context: Context
    count: int
    inbound: bool
    name: str
    parent: Context | Entry
    state: EntryState
    # Whether it is the only one open where it is, with nothing to be forgotten at its end: then its
    # end need not look around.
    _alone: bool
    _burden: _Burden | None
    _error: BaseException | None
    # These two are there only where they are not as usual.
    _prioritized: bool
    _resource_type: int
    _present: Present
    _rest: tuple[Callable[[Entry, int], BlockException | int | None], ...]
    # When it was decided on, as ``Present.tick`` counts.
    _start: float

    # One function, because a call to another costs a thirtieth of the whole; and what it is told is
    # no keyword, because the default of one is looked up the slow way.
    def _enter(self, waits: bool = True) -> Self | BlockException | int:  # noqa: C901, FBT001, FBT002, PLR0911, PLR0912
        """Enter, the short way if it can be gone.

        That is the usual call: its resource is counted once, its rules say only how many may pass,
        and it fits.

        Args:
            waits: for its turn, and raises a refusal; else gives them back as ``decide`` does.
        """
        present = self._present
        if self.state is not _NEW:
            return self._enter_long(waits)
        # A name of its own for each: what is called by its attribute is looked up the slow way.
        find = present.find
        parent = find()
        if parent.state is _ENDED:
            parent = parent.parent
        self.context = context = parent.context
        if parent is not context:
            while parent.state is _ENDED:
                parent = parent.parent
            if parent is not context:
                # An entry: only a context is its own.
                parent._alone = self._alone = False  # type: ignore[union-attr]  # noqa: SLF001
        self.parent = parent
        cluster = context.known.get(self.name)
        if cluster is None:
            return self._enter_long(waits)
        tick = present.tick
        now = tick()
        if now >= present.end:
            present.turn()
            if now >= present.end:
                return self._enter_long(waits)
        # One step to all other threads from the last comparison with ``end`` on, see
        # ``present.py``: no calls, no loops.
        passed = cluster.passed + self.count
        if passed > cluster.ceiling:
            return self._enter_long(waits)
        if self.inbound:
            inbound = present.inbound
            if inbound.bucket_end_ns is not present.bucket_end_ns or inbound.places is not None:
                return self._enter_long(waits)
        place_ns = present.place_ns
        if cluster.place_ns is not place_ns:
            if cluster.bucket_end_ns is not present.bucket_end_ns:
                return self._enter_renewed(cluster, waits)
            places = cluster.places
            if places is not None:
                end = cluster.places_end
                if end == cluster.places_size:
                    return self._enter_renewed(cluster, waits)
                places[end] = cluster.passed - cluster.place_base
                places[end + 1] = place_ns
                cluster.places_end = end + 2
                cluster.place_base = cluster.passed
            cluster.place_ns = place_ns
        cluster.passed = passed
        cluster.concurrency += 1
        if self.inbound:
            inbound.passed += self.count
            inbound.concurrency += 1
        self.cluster = cluster
        self._start = now
        self.state = _PASSED
        # To here. From now on this is the innermost thing.
        put = present.put
        put(self)
        return self

    def _enter_renewed(
        self,
        cluster: ClusterNode,
        waits: bool,  # noqa: FBT001  as of _enter
    ) -> Self | BlockException | int:
        """Bring the counters of a resource up to date, and try the short way once more."""
        present = self._present
        present.acquire()
        try:
            cluster.renew(present.read_ns())
        finally:
            present.release()
        if cluster.bucket_end_ns is present.bucket_end_ns:
            return self._enter(waits)
        return self._enter_long(waits)

    if TYPE_CHECKING:

        def __enter__(self) -> Self: ...

    else:
        __enter__ = _enter

    def _enter_long(
        self,
        waits: bool,  # noqa: FBT001  as of _enter
    ) -> Self | BlockException | int:
        outcome = self._decide()
        while waits and outcome is not None:
            if not isinstance(outcome, int):
                raise outcome
            self.engine.waiter.wait(outcome)
            outcome = self._decide()
        return self if outcome is None else outcome

    def decide(self) -> BlockException | int | None:
        """Go as far as possible without waiting.

        For those who wait in their own way; everybody else uses ``with``.

        Returns:
            None when the call is let in (``exit`` has to follow), a ``BlockException`` when it is
            refused, or the nanoseconds to wait before calling this again.

        Raises:
            ErrorEntryFreeException: when the entry was decided before.

        Complexity: linear in the rules of the resource.
        """
        outcome = self._enter(False)
        return None if outcome is self else outcome  # type: ignore[return-value]

    async def __aenter__(self) -> Self:
        outcome = self.decide()
        while outcome is not None:
            if not isinstance(outcome, int):
                raise outcome
            await self.engine.waiter.wait_async(outcome)
            outcome = self.decide()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _decide(self) -> BlockException | int | None:
        if self.state is _NEW:
            return self._decide_first()
        if self.state is not _WAITING:
            raise ErrorEntryFreeException(f"the entry of {self.name!r} was entered before")
        # The original lets a call that has borrowed skip every check that is left.
        skips = self.occupied and self.engine.borrowers_skip_checks
        return self._ask(() if skips else self._rest)

    def _decide_first(self) -> BlockException | int | None:
        engine = self._present.engine
        context = self.context
        self._alone = False
        node = context.nodes.get(self.name)
        if node is None or not engine.enabled:
            node = engine.node_for(self, self.parent)
            if node is None:
                self._start = self._present.tick()
                self.state = _UNCHECKED
                return None
        self.cluster = cluster = node.cluster
        if context.origin:
            self._take_up().origin_node = engine.origin_node(cluster, context.origin)
            return self._ask(None)
        outcome = self._ask(None)
        if (self.name in context.known) is (cluster.limit < 0):
            engine.note_known(node, context)
        return outcome

    def _ask(  # noqa: C901, PLR0912, PLR0915  one function: what is done under the lock, in order
        self, checks: tuple[Callable[[Entry, int], BlockException | int | None], ...] | None
    ) -> BlockException | int | None:
        """Ask these checks, or else all of the resource, and count; the long way."""
        present = self._present
        engine = present.engine
        cluster = self.cluster
        outcome = None
        # What ``present.acquire`` and ``release`` do: calling them costs a tenth of the whole.
        present.take()
        try:
            present.depth += 1
            present.end = 0
            # Inside the lock, so that the readings of all threads are in the order of their
            # decisions.
            now_raw_ns = present.tick_ns()
            if now_raw_ns >= present.next_raw_ns:
                present.turn_locked(now_raw_ns)
            now_ns = now_raw_ns + present.offset_ns
            if checks is None:
                self._start = now_raw_ns * present.per_ns
                checks = cluster.checks
                if cluster.limit >= 0 and cluster.used(now_ns) + self.count <= cluster.limit:
                    checks = ()
            for check in checks:
                try:
                    outcome = check(self, now_ns)
                except Exception as error:  # noqa: BLE001  a fault of ours must never stop the caller
                    engine.note_internal_error(error)
                    continue
                if outcome is not None:
                    break
            if outcome is None:
                if self._burden is None and not cluster.shared:
                    cluster.add_pass(now_ns, self.count)
                    if self.inbound:
                        present.inbound.add_pass(now_ns, self.count)
                else:
                    self._count_pass(now_ns)
                self.state = _PASSED
                if cluster.on_pass:
                    self._tell_pass()
            elif isinstance(outcome, int):
                self._rest = checks[checks.index(check) + 1 :]
                self.state = _WAITING
            else:
                self.state = _BLOCKED
                self._count_block(outcome, now_ns)
        finally:
            present.depth -= 1
            if not present.depth and not present.locks_always:
                present.end = present.after
            present.give()
        if outcome is None:
            present.put(self)
        elif engine.block_listeners and not isinstance(outcome, int):
            engine.tell_block(self, outcome)
        if engine.notices:
            engine.tell_notices()
        return outcome

    def _tell_pass(self) -> None:
        try:
            for told in self.cluster.on_pass:
                told(self)
        except Exception as error:  # noqa: BLE001  a fault of ours must never stop the caller
            self._present.engine.note_internal_error(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        present = self._present
        # Whoever notes an error or enters something inside takes ``_alone`` away. Of the others
        # what they carry is looked at, and whether they are the innermost.
        if (
            error is None
            and self.state is _PASSED
            and (self._alone or self._is_innermost_and_simple())
        ):
            tick = present.tick
            now = tick()
            # One step to all other threads from here, see ``present.py``: no calls, no loops.
            cluster = self.cluster
            # Ends in the millisecond that it began in, so the bucket is the same as well; and no
            # resource has got somebody since who wants to hear of ends, see ``begin``.
            if self._start >= present.begin and now < present.end:
                cluster.window_success += self.count
                cluster.concurrency -= 1
                if cluster.bucket_min_rt_ms:
                    cluster.bucket_min_rt_ms = 0
                if self.inbound:
                    inbound = present.inbound
                    inbound.window_success += self.count
                    inbound.concurrency -= 1
                    inbound.bucket_min_rt_ms = 0
                self.state = _ENDED
                # To here. Whoever finds this as the innermost thing looks at its parent, so it need
                # not be put back; but a call's arguments are not kept longer than it lasts, and the
                # entry around this one shall end the short way, too.
                if not self._alone:
                    put = present.put
                    put(self.parent)
                return
        self._complete(error)

    def _is_innermost_and_simple(self) -> bool:
        return (
            self._error is None
            and self._burden is None
            and self.cluster.ceiling >= 0
            and self._present.find() is self
        )

    def _complete(self, error: BaseException | None) -> None:  # noqa: C901, PLR0912  as above
        """End the call the long way."""
        present = self._present
        engine = present.engine
        if error is not None:
            self.set_error(error)
        if self.state is not _PASSED:
            self._end_unusually()
            return
        self.state = _ENDED
        late = None
        if present.find() is self:
            present.put(self.parent)
        else:
            late = self._unwind()
        present.take()
        try:
            present.depth += 1
            present.end = 0
            now_raw_ns = present.tick_ns()
            if now_raw_ns >= present.next_raw_ns:
                present.turn_locked(now_raw_ns)
            now_ns = now_raw_ns + present.offset_ns
            # By the milliseconds of a clock face: rounding the span itself down would be half a
            # millisecond too short on average.
            rt_ms = now_ns // NANOSECONDS_PER_MS - self.start_ns // NANOSECONDS_PER_MS
            cluster = self.cluster
            failed = self._error is not None
            cluster.add_complete(now_ns, self.count, rt_ms, failed=failed)
            if self._burden is None and not cluster.shared:
                if self.inbound:
                    present.inbound.add_complete(now_ns, self.count, rt_ms, failed=failed)
            else:
                for node in self._other_nodes():
                    node.add_complete(now_ns, self.count, rt_ms, failed=failed)
                if self._burden is not None:
                    for give_back in self._burden.held:
                        give_back()
            for told in cluster.on_exit:
                told(self, now_ns)
        except Exception as fault:  # noqa: BLE001  a fault of ours must never stop the caller
            engine.note_internal_error(fault)
        finally:
            present.depth -= 1
            if not present.depth and not present.locks_always:
                present.end = present.after
            present.give()
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
            self._error = error
            self._alone = False

    # For slots.

    @property
    def engine(self) -> Sentinel:
        """The engine that made it."""
        return self._present.engine

    @property
    def entry_type(self) -> EntryType:
        """Which way the traffic flows."""
        return _IN if self.inbound else _OUT

    @property
    def resource_type(self) -> int:
        """What the resource stands for."""
        return getattr(self, "_resource_type", _COMMON)

    @property
    def prioritized(self) -> bool:
        """Whether it may borrow from the next moment."""
        return getattr(self, "_prioritized", False)

    @property
    def error(self) -> BaseException | None:
        """The exception that the call ended with, so far as known."""
        return self._error

    # Found when somebody asks, because the usual call is done before anybody could.

    @property
    def node(self) -> DefaultNode | None:
        """Its place in the call tree; None until it is decided on, and if let in unchecked."""
        return None if getattr(self, "cluster", None) is None else self.place

    @property
    def place(self) -> DefaultNode:
        """``node`` for slots: they see no entry that has none."""
        cluster = self.cluster
        node = self.context.nodes.get(cluster.name)
        # Beyond the bound of places it has that of another context.
        return next(iter(cluster.contexts.values())) if node is None else node

    @property
    def start_ns(self) -> int:
        """When it was decided on, nanoseconds since the epoch; 0 until then."""
        return 0 if self.state is _NEW else self._present.epoch_ns(self._start)

    @property
    def children(self) -> dict[str, DefaultNode]:
        """The places in the call tree just inside this one. A context has the same."""
        return self.place.children

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
        """Count a pass where more is concerned than the resource's own node and the inbound one."""
        nodes = [self.cluster, *self._other_nodes()]
        if self.occupied:
            # The check that borrowed has counted it; only the calls in flight are left.
            for node in nodes:
                node.concurrency += 1
        else:
            for node in nodes:
                node.add_pass(now_ns, self.count)

    def _count_block(self, block: BlockException, now_ns: int) -> None:
        self.cluster.add_block(now_ns, self.count)
        self._present.engine.count_block(block)
        for node in self._other_nodes():
            node.add_block(now_ns, self.count)
        self._abandon_probes()
        if self._burden is not None:
            for give_back in self._burden.taken:
                give_back()

    def _other_nodes(self) -> list[StatisticNode]:
        """Every node that counts this entry besides the resource's own.

        Not kept from the way in for the way out: from the moment a second context enters the
        resource its node counts this call as well, in flight as it is.
        """
        nodes = []
        own = self.place.own
        if own is not None:
            nodes.append(own)
        if self._burden is not None and self._burden.origin_node is not None:
            nodes.append(self._burden.origin_node)
        if self.inbound:
            nodes.append(self._present.inbound)
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
        """End what is still open inside this, and leave it; the error if there was something."""
        present = self._present
        inside: list[Entry] = []
        innermost = present.find()
        while isinstance(innermost, Entry) and innermost is not self:
            if innermost.state is not _ENDED:
                inside.append(innermost)
            innermost = innermost.parent
        if innermost is not self:
            # It is merely ended from another task.
            return None
        for entry in inside:
            if entry.state is _PASSED:
                entry.exit()
        present.put(self.parent)
        if not inside:
            return None
        return ErrorEntryFreeException(
            f"the entry of {self.name!r} was ended before {len(inside)} inside it, "
            f"the innermost of {inside[0].name!r}; all are ended now"
        )


def entry_maker(present: Present) -> Callable[..., Entry]:
    """The function that makes an engine's entries; its signature is ``Sentinel.entry``."""

    # The usual call says nothing but a name: the default of each keyword would be looked up.
    def entry(name: str, *args: object, **how: Any) -> Entry:
        made = Entry()
        made._present = present  # noqa: SLF001  it is made here: a constructor costs a third more
        made.name = name
        made.args = args
        made.count = 1
        made.inbound = False
        made.state = _NEW
        made._alone = not args  # noqa: SLF001
        made._burden = None  # noqa: SLF001
        made._error = None  # noqa: SLF001
        if how:
            if len(how) == 1 and "entry_type" in how:
                # All that most requests from outside say: half a call is saved.
                made.inbound = how["entry_type"] is _IN
            else:
                say_how(made, **how)
        return made

    return entry


def say_how(
    entry: Entry,
    /,
    count: int = 1,
    entry_type: EntryType = _OUT,
    resource_type: int = _COMMON,
    prioritized: bool = False,  # noqa: FBT001, FBT002  by position it costs half
) -> None:
    """Say of a new entry what ``Sentinel.entry`` takes as keywords.

    Raises:
        ValueError: the count is negative.
    """
    if count < 0:
        raise ValueError(f"an entry cannot acquire {count} units")
    entry.count = count
    entry.inbound = entry_type is _IN
    if resource_type != _COMMON:
        entry._resource_type = resource_type  # noqa: SLF001  as in entry_maker
    if prioritized:
        entry._prioritized = True  # noqa: SLF001
