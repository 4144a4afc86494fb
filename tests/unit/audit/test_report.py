"""The report: the fixed names for scripts, the numbers in units, and words for people."""

import json

import pytest

from seckill.audit import AuditReport, Kind, Promise, Subject
from seckill.audit.invariants import Ref
from seckill.audit.report import COUNTED_AS, IDS_MAX, PROMISES, SaleLine, Tally
from seckill.domain.ids import GoodsId, ReservationId, SaleId, UserId
from seckill.domain.reservation import BucketId, Place

LINE = SaleLine(
    sale_id=SaleId(1),
    goods_id=GoodsId("g"),
    closed=False,
    stock_units=100,
    live_units=38,
    put_units=100,
    left_units=57,
    held_units=43,
    in_flight_units=3,
    releasing_units=2,
    buyers=43,
)


def report(*kinds: Kind, units: int = 2) -> AuditReport:
    subject = Subject(ReservationId("rid"), UserId("u"), Place(SaleId(1), 2, 0, 7), units, "note")
    findings = [
        Ref(SaleId(1), GoodsId("g"), 0).finding(kind, Tally(units, 1, [subject]), "What.", "Do.")
        for kind in kinds
    ]
    return AuditReport(findings=findings, sales=[LINE], started_at_ms=5, duration_ms=7)


def test_a_clean_report_is_ok_and_has_the_fixed_names() -> None:
    found = json.loads(json.dumps(report().to_dict()))
    fixed = ["ok", "oversold", "duplicates", "lost", "stranded", "in_flight", "findings"]
    assert list(found)[:7] == fixed
    assert [found[name] for name in fixed] == [True, 0, 0, 0, 0, 5, []]


@pytest.mark.parametrize("kind", Kind)
def test_any_finding_makes_the_audit_fail_and_goes_into_one_number(kind: Kind) -> None:
    found = report(kind).to_dict()
    assert found["ok"] is False
    numbers = {name: found[name] for name in ("oversold", "duplicates", "lost", "stranded")}
    expected = dict.fromkeys(numbers, 0)
    if kind in COUNTED_AS:
        expected[COUNTED_AS[kind]] = 2
    assert numbers == expected


def test_every_kind_says_which_promise_it_breaks() -> None:
    assert set(PROMISES) == set(Kind)
    assert {PROMISES[kind] for kind in Kind} == set(Promise)


def test_a_finding_names_what_is_known() -> None:
    (finding,) = report(Kind.LOST).to_dict()["findings"]
    assert finding["ids"] == [
        {"reservation_id": "rid", "user_id": "u", "place": "1.0.2.7", "units": 2, "note": "note"}
    ]
    assert (finding["promise"], finding["what"], finding["advice"]) == ("no loss", "What.", "Do.")
    assert Subject(user_id=UserId("u")).to_dict() == {"user_id": "u"}


def test_ids_are_bounded_and_counts_are_not() -> None:
    tally = Tally()
    for _ in range(IDS_MAX + 5):
        tally.add(Subject(units=3))
    assert (len(tally.ids), tally.count, tally.units) == (IDS_MAX, IDS_MAX + 5, 3 * (IDS_MAX + 5))
    finding = Ref(SaleId(1), GoodsId("g")).finding(Kind.LOST, tally, "w", "a")
    text = AuditReport(findings=[finding], sales=[], started_at_ms=0, duration_ms=0).to_text()
    assert "… and 5 more" in text


def test_the_text_shows_the_sum_and_what_to_do() -> None:
    clean = report().to_text()
    assert "100 put on sale = 57 left + 43 held; 38 in live orders" in clean
    assert "Every promise is kept: oversold 0 · duplicates 0 · lost 0 · stranded 0" in clean
    broken = report(Kind.STRANDED).to_text()
    assert "✗ stranded · no loss · g (sale 1, bucket 0)" in broken
    assert "What to do: Do." in broken
    assert "reservation_id=rid" in broken
    nothing = AuditReport(findings=[], sales=[], started_at_ms=0, duration_ms=0)
    assert "There is no sale." in nothing.to_text()


def test_unproven_buckets_are_counted() -> None:
    found = AuditReport(
        findings=[], sales=[], started_at_ms=0, duration_ms=0, unproven=[BucketId(SaleId(1), 0)]
    )
    assert found.to_dict()["unproven"] == 1
