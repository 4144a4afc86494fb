"""The audit all the time: beside the order worker, in bounded shares of its time.

An audit may run at any moment without a false alarm (seckill/audit/audit.py says why). What it
finds is counted in the metrics, told to the log once, and stays in the metrics until an audit finds
it no more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

import structlog

from seckill.admission.errors import StockUnavailable
from seckill.audit.report import AuditReport, Finding, Kind
from seckill.domain.clock import Clock
from seckill.pipeline.errors import ChannelUnavailable, LedgerAway

__all__ = ["AuditObserver", "BackgroundAudit"]

_log = structlog.get_logger(__name__)

_SHARE_MAX: Final = 0.05
"""Share of the time that audits may take: after a long one the pause is longer."""

_NOT_PROVABLE: Final = frozenset({Kind.FENCED})
"""What is under the fence is told by the fence itself."""


class AuditObserver(Protocol):
    """Is told of each audit."""

    def audited(self, findings: int, unproven: int, seconds: float, at_ms: int) -> None:
        """One audit came to its end."""
        ...


class BackgroundAudit:
    """Audits again and again.

    Args:
        audit: runs one audit.
        every_ms: pause between two of them, at least.
        calm: is awaited before each: an audit reads much, and buyers come first. Must return after
            a bounded time.
    """

    def __init__(
        self,
        audit: Callable[[], Coroutine[Any, Any, AuditReport]],
        *,
        every_ms: int,
        calm: Callable[[], Coroutine[Any, Any, None]],
        observer: AuditObserver,
        clock: Clock,
    ) -> None:
        self._audit = audit
        self._every_ms = every_ms
        self._calm = calm
        self._observer = observer
        self._clock = clock
        self._told: set[tuple[Kind, int, int | None]] = set()

    async def run(self) -> None:
        """Audit, for ever. A store that is away proves nothing and alarms nobody."""
        while True:
            took_ms = 0.0
            await self._calm()
            try:
                took_ms = (await self.once()).duration_ms
            except (StockUnavailable, LedgerAway, ChannelUnavailable) as error:
                _log.debug("the audit waits for a store", error=str(error))
            await asyncio.sleep(max(self._every_ms, took_ms / _SHARE_MAX) / 1000)

    async def once(self) -> AuditReport:
        """One audit."""
        report = await self._audit()
        findings = [one for one in report.findings if one.kind not in _NOT_PROVABLE]
        self._observer.audited(
            len(findings), len(report.unproven), report.duration_ms / 1000, self._clock.now_ms()
        )
        self._tell(findings)
        return report

    def _tell(self, findings: list[Finding]) -> None:
        """Log what was not found before, and that all is well again."""
        found = {(one.kind, one.sale_id, one.bucket): one for one in findings}
        for key, one in found.items():
            if key not in self._told:
                _log.error(
                    "the audit has found a promise broken: run `seckill audit`",
                    finding=one.kind.value,
                    goods=one.goods_id,
                    units=one.units,
                    count=one.count,
                    what=one.what,
                )
        if self._told and not found:
            _log.info("the audit finds nothing any more")
        self._told = set(found)
