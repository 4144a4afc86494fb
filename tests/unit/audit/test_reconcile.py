"""The plan of the repairs: what a rebuild sets right, and what is left to people."""

import pytest

from seckill.audit.reconcile import Action, plan_repairs
from seckill.audit.report import AuditReport, Finding, Kind
from seckill.domain.ids import GoodsId, SaleId


def finding(kind: Kind, sale: int = 1, bucket: int | None = 0) -> Finding:
    return Finding(
        kind=kind, sale_id=SaleId(sale), goods_id=GoodsId(f"g{sale}"), bucket=bucket, units=1,
        count=1, ids=(), what="w", advice="a",
    )  # fmt: skip


def report(*findings: Finding) -> AuditReport:
    return AuditReport(findings=findings, sales=(), started_at_ms=1, duration_ms=1)


def test_a_calm_report_asks_for_nothing() -> None:
    assert plan_repairs(report()) == []


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_finding_has_its_step_but_the_harmless_one(kind: Kind) -> None:
    steps = plan_repairs(report(finding(kind, bucket=None)))
    assert len(steps) == (0 if kind is Kind.LOST_EVENT else 1)


def test_a_bucket_is_rebuilt_once_for_all_that_is_wrong_with_it() -> None:
    steps = plan_repairs(
        report(finding(Kind.STRANDED), finding(Kind.LOST), finding(Kind.TORN, sale=2))
    )
    assert [(step.sale_id, step.action, list(step.findings)) for step in steps] == [
        (1, Action.REBUILD, [Kind.LOST, Kind.STRANDED]),
        (2, Action.REBUILD, [Kind.TORN]),
    ]


def test_nothing_is_rebuilt_from_books_that_disagree_with_themselves() -> None:
    steps = plan_repairs(
        report(finding(Kind.COUNTER, bucket=None), finding(Kind.STRANDED), finding(Kind.LOST, 2))
    )
    assert [(step.sale_id, step.action) for step in steps] == [
        (2, Action.REBUILD),
        (1, Action.BY_HAND),
        (1, Action.BY_HAND),
    ]


def test_an_oversell_is_a_wrong_counter_in_redis_and_for_people_in_the_ledger() -> None:
    assert [step.action for step in plan_repairs(report(finding(Kind.OVERSOLD)))] == ["rebuild"]
    in_ledger = finding(Kind.OVERSOLD, bucket=None)
    assert [step.action for step in plan_repairs(report(in_ledger))] == ["by_hand"]
