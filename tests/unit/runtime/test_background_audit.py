"""Audits in the background: what is told, how often, and what is no alarm."""

import asyncio
import contextlib
from typing import Any

import structlog

from seckill.audit.report import AuditReport, Finding, Kind
from seckill.domain.ids import GoodsId, SaleId
from seckill.pipeline.errors import LedgerAway
from seckill.runtime.background_audit import BackgroundAudit
from services.patient_loop import PatientClock


def finding(kind: Kind) -> Finding:
    return Finding(
        kind=kind, sale_id=SaleId(1), goods_id=GoodsId("g"), bucket=0, units=1, count=1, ids=(),
        what="w", advice="a",
    )  # fmt: skip


def report(*kinds: Kind, duration_ms: int = 1) -> AuditReport:
    return AuditReport(
        findings=[finding(kind) for kind in kinds], sales=(), started_at_ms=1,
        duration_ms=duration_ms,
    )  # fmt: skip


class Told:
    def __init__(self) -> None:
        self.findings: list[int] = []

    def audited(self, findings: int, unproven: int, seconds: float, at_ms: int) -> None:  # noqa: ARG002
        self.findings.append(findings)


async def calm() -> None:
    """Nobody is in a hurry."""


async def test_a_finding_is_told_once_and_counted_until_it_is_gone() -> None:
    reports = iter([report(), report(Kind.LOST), report(Kind.LOST, Kind.FENCED), report()])

    async def audit() -> AuditReport:
        return next(reports)

    told = Told()
    background = BackgroundAudit(audit, every_ms=1, calm=calm, observer=told, clock=PatientClock())
    with structlog.testing.capture_logs() as lines:
        for _ in range(4):
            await background.once()
    # What is fenced is told by the fence, and is not a broken promise.
    assert told.findings == [0, 1, 1, 0]
    assert [(line["log_level"], line.get("finding")) for line in lines] == [
        ("error", "lost"),
        ("info", None),
    ]


async def test_audits_take_a_bounded_share_of_the_time_and_bear_a_store_that_is_away(
    monkeypatch: Any,
) -> None:
    pauses: list[float] = []
    answers: list[Any] = [report(duration_ms=3_000), LedgerAway("away"), report(duration_ms=1)]

    async def audit() -> AuditReport:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise asyncio.CancelledError

    audits_left_when_calm: list[int] = []

    async def calmed() -> None:
        audits_left_when_calm.append(len(answers))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    background = BackgroundAudit(
        audit, every_ms=2_000, calm=calmed, observer=Told(), clock=PatientClock()
    )
    with contextlib.suppress(asyncio.CancelledError):
        await background.run()
    assert pauses == [60.0, 2.0, 2.0]
    assert audits_left_when_calm == [3, 2, 1], "each waited for a calm moment"
