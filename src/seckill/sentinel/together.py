"""Many calls that end at once: what their ends have in common is done once.

A server that answers in batches ends dozens of calls in one moment. The lock, the clock and the
look for what still runs inside a call are most of the price of an ``exit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.entry import Entry, EntryState
from seckill.sentinel.errors import ErrorEntryFreeException

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seckill.sentinel.context import Context
    from seckill.sentinel.engine import Sentinel

__all__ = ["end_together"]

_PASSED = EntryState.PASSED
_ENDED = EntryState.ENDED


def end_together(engine: Sentinel, entries: Sequence[Entry]) -> None:
    """End calls as ``exit`` of one after the other would, those in a row at one instant.

    Args:
        engine: that made them.
        entries: that were let in; with ``set_error`` called where a call has failed.

    Raises:
        ErrorEntryFreeException: as ``exit`` of the first that does; all have ended by then.

    Complexity: about a quarter of ``exit`` for each that carries nothing of its own, such as the
        counters of its caller or a place that it holds.
    """
    # Those that the running code is inside of have to look what else is open inside them.
    around: set[Context | Entry] = set()
    innermost = engine.lock.find()
    while isinstance(innermost, Entry):
        around.add(innermost)
        innermost = innermost.parent
    late: ErrorEntryFreeException | None = None
    ordinary: list[Entry] = []
    for entry in entries:
        if entry.state is _PASSED and entry._burden is None and entry not in around:  # noqa: SLF001
            entry.state = _ENDED
            ordinary.append(entry)
            continue
        # In their order: a breaker may open between two of them.
        _end_ordinary(engine, ordinary)
        ordinary = []
        try:
            entry.exit()
        except ErrorEntryFreeException as error:
            if late is None:
                late = error
    _end_ordinary(engine, ordinary)
    if late is not None:
        raise late


def _end_ordinary(engine: Sentinel, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    with engine.lock:
        now_ns = engine.lock.read_ns()
        for entry in entries:
            _end(engine, entry, now_ns)
    if engine.notices:
        engine.tell_notices()


def _end(engine: Sentinel, entry: Entry, now_ns: int) -> None:
    """End one under the lock: the inner part of ``Entry._complete``."""
    try:
        rt_ms = now_ns // NANOSECONDS_PER_MS - entry.start_ns // NANOSECONDS_PER_MS
        cluster, count, failed = entry.cluster, entry.count, entry.error is not None
        cluster.add_complete(now_ns, count, rt_ms, failed=failed)
        if cluster.shared:
            own = entry.place.own
            if own is not None:
                own.add_complete(now_ns, count, rt_ms, failed=failed)
        if entry.inbound:
            engine.inbound.add_complete(now_ns, count, rt_ms, failed=failed)
        for told in cluster.on_exit:
            told(entry, now_ns)
    except Exception as fault:  # noqa: BLE001  a fault of ours must never stop the caller
        engine.note_internal_error(fault)
