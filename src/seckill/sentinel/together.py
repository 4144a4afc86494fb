"""Many calls that end at once: what their ends have in common is done once.

A server that answers in batches ends dozens of calls in one moment. The lock, the clock and the
look for what still runs inside a call are most of the price of an ``exit``.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from seckill.sentinel.clock import NANOSECONDS_PER_MS
from seckill.sentinel.entry import Entry, EntryState
from seckill.sentinel.errors import ErrorEntryFreeException

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seckill.sentinel.context import Context
    from seckill.sentinel.engine import Sentinel
    from seckill.sentinel.node import ClusterNode, StatisticNode

__all__ = ["end_together"]

_PASSED = EntryState.PASSED
_ENDED = EntryState.ENDED
_COUNTED_BY: Final = attrgetter("cluster", "inbound")


def end_together(engine: Sentinel, entries: Sequence[Entry]) -> None:
    """End calls as ``exit`` of one after the other would, those in a row at one instant.

    Args:
        engine: that made them.
        entries: that were let in; with ``set_error`` called where a call has failed.

    Raises:
        ErrorEntryFreeException: as ``exit`` of the first that does; all have ended by then.

    Complexity: linear; least where calls in a row are of one resource that is entered in one
        context, without a breaker, and carry nothing of their own, such as the counters of a caller
        or a place that they hold.
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
        for (cluster, _), alike in groupby(entries, _COUNTED_BY):
            # Who wants to hear of ends hears of each, and a place in the tree is an entry's own.
            if cluster.on_exit or cluster.shared:
                for entry in alike:
                    _end(engine, cluster, [entry], now_ns)
            else:
                _end(engine, cluster, list(alike), now_ns)
    if engine.notices:
        engine.tell_notices()


def _end(engine: Sentinel, cluster: ClusterNode, entries: Sequence[Entry], now_ns: int) -> None:
    """End calls under the lock that are counted alike: the inner part of ``Entry._complete``.

    Args:
        cluster: the counters of their resource.
        entries: a single one where the resource is shared, or somebody wants to hear of its ends.
    """
    try:
        now_ms = now_ns // NANOSECONDS_PER_MS
        count = sum([entry.count for entry in entries])
        failed_count = sum([entry.count for entry in entries if entry.error is not None])
        rts_ms = [now_ms - entry.start_ns // NANOSECONDS_PER_MS for entry in entries]
        nodes: list[StatisticNode] = [cluster]
        if cluster.shared and (own := entries[0].place.own) is not None:
            nodes.append(own)
        if entries[0].inbound:
            nodes.append(engine.inbound)
        for node in nodes:
            node.add_completes(now_ns, count, rts_ms, failed_count=failed_count)
        for told in cluster.on_exit:
            told(entries[0], now_ns)
    except Exception as fault:  # noqa: BLE001  a fault of ours must never stop the caller
        engine.note_internal_error(fault)
