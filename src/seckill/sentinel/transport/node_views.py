"""Numbers as the original's commands show them: objects for the dashboard, tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seckill.sentinel.transport.counts import Counts, TreeRow

TABLE_ROWS_MAX: Final = 30
NAME_WIDTH_MAX: Final = 79

_NODE_WIDTHS: Final = (4, 0, 10, 10, 10, 11, 9, 6, 10, 11, 9, 11)
_NODE_HEADINGS: Final = (
    *("idx", "id", "thread", "pass", "blocked", "success"),
    *("total", "aRt", "1m-pass", "1m-block", "1m-all", "exception"),
)
_ORIGIN_WIDTHS: Final = (4, 0, 10, 10, 11, 9, 6, 10, 11, 9)
_ORIGIN_HEADINGS: Final = (
    *("idx", "origin", "threadNum", "passQps", "blockQps"),
    *("totalQps", "aRt", "1m-pass", "1m-block", "1m-total"),
)
_LEGEND: Final = (
    "\r\n\r\nt:threadNum  pq:passQps  bq:blockQps  tq:totalQps  rt:averageRt  "
    "prq: passRequestQps 1mp:1m-pass 1mb:1m-block 1mt:1m-total\r\n"
)


def node_object(counts: Counts, now_ms: int) -> dict[str, object]:
    """One resource, as the dashboard reads it. All numbers are whole."""
    return {
        "averageRt": int(counts.average_rt_ms),
        "blockQps": counts.blocked,
        "exceptionQps": counts.exceptions,
        "oneMinuteBlock": counts.minute_blocked,
        "oneMinuteException": counts.minute_exceptions,
        "oneMinutePass": counts.minute_passed,
        "oneMinuteTotal": counts.minute_total,
        "passQps": counts.passed,
        "resource": counts.name,
        "successQps": counts.success,
        "threadNum": counts.concurrency,
        "timestamp": now_ms,
        "totalQps": counts.total,
    }


def tree_objects(rows: Sequence[TreeRow], now_ms: int) -> list[dict[str, object]]:
    """The call tree, as the dashboard reads it: the root has no parent, and comes first."""
    found = []
    for index, row in enumerate(rows):
        shown = node_object(row.counts, now_ms)
        shown["id"] = str(index + 1)
        if row.parent >= 0:
            shown["parentId"] = str(row.parent + 1)
        found.append(shown)
    return found


def tree_text(rows: Sequence[TreeRow], name: str = "") -> str:
    """The call tree for people.

    Args:
        rows: the tree.
        name: of one context only, or a part of the names of several; empty for all.
    """
    children: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        children.setdefault(row.parent, []).append(index)
    roots = children.get(-1, [])
    if name:
        contexts = [index for root in roots for index in children.get(root, ())]
        exact = [index for index in contexts if rows[index].counts.name == name]
        roots = exact or [index for index in contexts if name in rows[index].counts.name]
    lines = []
    waiting = [(0, index) for index in reversed(roots)]
    while waiting:
        level, index = waiting.pop()
        lines.append("-" * level + _tree_line(rows[index]))
        waiting.extend((level + 1, child) for child in reversed(children.get(index, [])))
    return "".join(lines) + _LEGEND


def _tree_line(row: TreeRow) -> str:
    counts = row.counts
    kind = "EntranceNode: " if row.entrance else ""
    return (
        f"{kind}{counts.name}(t:{counts.concurrency} pq:{counts.passed:.1f} "
        f"bq:{counts.blocked:.1f} tq:{counts.total:.1f} rt:{counts.average_rt_ms:.1f} "
        f"prq:{counts.success:.1f} 1mp:{counts.minute_passed} 1mb:{counts.minute_blocked} "
        f"1mt:{counts.minute_total})\n"
    )


def node_table(found: Iterable[Counts]) -> str:
    """Resources for people, ``TABLE_ROWS_MAX`` at most."""
    rows = [
        (
            counts.name,
            str(counts.concurrency),
            f"{counts.passed:.1f}",
            f"{counts.blocked:.1f}",
            f"{counts.success:.1f}",
            f"{counts.total:.1f}",
            f"{counts.average_rt_ms:.1f}",
            str(counts.minute_passed),
            str(counts.minute_blocked),
            str(counts.minute_total),
            f"{counts.exceptions:.1f}",
        )
        for counts in list(found)[:TABLE_ROWS_MAX]
    ]
    return _table(_NODE_HEADINGS, _NODE_WIDTHS, rows)


def origin_table(resource: str, callers: Iterable[Counts]) -> str:
    """The callers of a resource for people, ``TABLE_ROWS_MAX`` at most."""
    rows = [
        (
            counts.name,
            str(counts.concurrency),
            f"{counts.passed:.1f}",
            f"{counts.blocked:.1f}",
            f"{counts.total:.1f}",
            f"{counts.average_rt_ms:.1f}",
            str(counts.minute_passed),
            str(counts.minute_blocked),
            str(counts.minute_total),
        )
        for counts in list(callers)[:TABLE_ROWS_MAX]
    ]
    return f"id: {resource}\n\n" + _table(_ORIGIN_HEADINGS, _ORIGIN_WIDTHS, rows)


def _table(
    headings: tuple[str, ...], widths: tuple[int, ...], rows: Sequence[tuple[str, ...]]
) -> str:
    """Left-aligned columns; a name that is too long goes on in the lines below."""
    width = min(NAME_WIDTH_MAX, max((len(row[0]) for row in rows), default=0))
    width = max(width, len(headings[1]))
    all_widths = (widths[0], width + 1, *widths[2:])
    lines = [_table_line(headings, all_widths)]
    for number, (name, *rest) in enumerate(rows, 1):
        parts = [name[start : start + width] for start in range(0, len(name), width)] or [""]
        lines.append(_table_line((str(number), parts[0], *rest), all_widths))
        lines.extend(_table_line(("", part), all_widths) for part in parts[1:])
    return "".join(lines)


def _table_line(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    # One space at least, so that a long number does not run into the next.
    padded = (cell.ljust(width - 1) + " " for cell, width in zip(cells, widths, strict=False))
    return "".join(padded) + "\n"
