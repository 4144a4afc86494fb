"""Numbers as people and the dashboard see them."""

from __future__ import annotations

from seckill.sentinel.transport import Counts, TreeRow
from seckill.sentinel.transport.node_views import (
    node_object,
    node_table,
    origin_table,
    tree_objects,
    tree_text,
)

BUY = Counts(
    name="buy",
    concurrency=2,
    passed=7,
    blocked=3,
    success=4,
    exceptions=1,
    rt_ms=10,
    minute_passed=70,
    minute_blocked=30,
    minute_exceptions=5,
)
ROWS = [
    TreeRow(parent=-1, entrance=True, counts=Counts(name="machine-root")),
    TreeRow(parent=0, entrance=True, counts=Counts(name="shop")),
    TreeRow(parent=0, entrance=True, counts=Counts(name="shop-2")),
    TreeRow(parent=1, entrance=False, counts=BUY),
    TreeRow(parent=2, entrance=False, counts=Counts(name="buy")),
]


def test_a_node_has_every_field_that_the_dashboard_reads() -> None:
    assert node_object(BUY, 1_000) == {
        "resource": "buy",
        "threadNum": 2,
        "passQps": 7,
        "blockQps": 3,
        "totalQps": 10,
        "averageRt": 2,
        "successQps": 4,
        "exceptionQps": 1,
        "oneMinutePass": 70,
        "oneMinuteBlock": 30,
        "oneMinuteException": 5,
        "oneMinuteTotal": 100,
        "timestamp": 1_000,
    }


def test_each_child_comes_after_its_parent_and_the_root_has_none() -> None:
    shown = tree_objects(ROWS, 1_000)
    seen: set[object] = set()
    for node in shown:
        assert ("parentId" in node) == bool(seen)
        assert not seen or node["parentId"] in seen
        seen.add(node["id"])
    assert len(seen) == len(ROWS)


def test_the_tree_as_text() -> None:
    lines = tree_text(ROWS).split("\n")
    assert [line.split("(")[0] for line in lines[:5]] == [
        "EntranceNode: machine-root",
        "-EntranceNode: shop",
        "--buy",
        "-EntranceNode: shop-2",
        "--buy",
    ]
    assert lines[2] == "--buy(t:2 pq:7.0 bq:3.0 tq:10.0 rt:2.5 prq:4.0 1mp:70 1mb:30 1mt:100)"


def test_one_context_of_the_tree_by_its_name_or_a_part() -> None:
    assert tree_text(ROWS, "shop").startswith("EntranceNode: shop(")
    assert "shop-2" not in tree_text(ROWS, "shop")
    assert tree_text(ROWS, "hop").count("EntranceNode") == 2
    assert tree_text(ROWS, "nothing").count("EntranceNode") == 0


def test_tables_have_a_row_each_and_long_names_go_on_below() -> None:
    table = node_table([BUY, Counts(name="x" * 100)]).splitlines()
    assert table[0].split() == (
        [
            "idx",
            "id",
            "thread",
            "pass",
            "blocked",
            "success",
            "total",
            "aRt",
            "1m-pass",
            "1m-block",
            "1m-all",
            "exception",
        ]
    )
    assert table[1].split() == [
        "1",
        "buy",
        "2",
        "7.0",
        "3.0",
        "4.0",
        "10.0",
        "2.5",
        "70",
        "30",
        "100",
        "1.0",
    ]
    assert table[2].split()[1] == "x" * 79
    assert table[3].split() == ["x" * 21]
    assert len(node_table([BUY] * 50).splitlines()) == 31


def test_callers_as_a_table() -> None:
    lines = origin_table("buy", [Counts(name="app-1", passed=12_345_678_901)]).splitlines()
    assert lines[0] == "id: buy"
    assert lines[2].split()[:4] == ["idx", "origin", "threadNum", "passQps"]
    assert lines[3].split()[:4] == ["1", "app-1", "0", "12345678901.0"]
    assert len(origin_table("buy", []).splitlines()) == 3
