"""What an operator does with the rules of flow control: for commands and HTTP."""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from seckill.domain.instants import rfc3339_ms
from seckill.ledger.actions import ActionLog
from seckill.runtime.errors import RulesUnusable
from seckill.runtime.flow_control import make_sentinel
from seckill.runtime.rule_stores import StoredRules, open_rules
from seckill.runtime.settings import Settings
from seckill.sentinel import (
    Change,
    LoadReport,
    RuleConflict,
    RuleDocumentError,
    Sentinel,
    SentinelError,
)
from seckill.sentinel.rules import KINDS
from seckill.sentinel.stores import NothingToUndo, RuleVersion
from seckill.web.problems import HTTPProblem, Unavailable

__all__ = ["RuleDesk", "report_row", "rules_row", "version_row"]

Row = dict[str, Any]
T = TypeVar("T")

_NAMED_MAX: Final = 100
"""Bad rules that one answer names."""


def rules_row(sentinel: Sentinel, store: StoredRules, kind: str) -> Row:
    """The rules of a kind that are in force, in Sentinel's own shape, and their version."""
    head = store.head(kind)
    return {
        "kind": kind,
        "version": None if head is None else head.number,
        "rules": json.loads(sentinel.dump_rules(kind)),
    }


def report_row(report: LoadReport) -> Row:
    """What became of a list of rules."""

    def named(problems: tuple[Any, ...]) -> list[Row]:
        return [
            {
                "index": problem.index,
                "resource": problem.resource,
                "reasons": [str(one) for one in problem.problems],
            }
            for problem in problems
        ]

    return {
        "kind": report.kind,
        "ok": report.applied and report.saved is True and not report.refused,
        "applied": report.applied,
        "saved": report.saved is True,
        "given": report.given,
        "in_force": report.in_force,
        "refused": named(report.refused),
        "warnings": named(report.warnings),
    }


def version_row(version: RuleVersion) -> Row:
    """A version of rules without the rules themselves."""
    return {
        "version": version.number,
        "at": rfc3339_ms(version.at_ms),
        "who": version.change.who,
        "why": version.change.why,
        "restores": version.restores,
        "rules": len(json.loads(version.document)),
    }


class RuleDesk:
    """Rules by HTTP. Implements `web.admin.ports.Rules`.

    Every call works in a thread, with an engine of its own, as the commands do: the engine in front
    of the sale hears of a change as those of other processes do, within a second.

    Args:
        settings: of the service.
        actions: the action log; the rules have a history of their own as well.
    """

    def __init__(self, settings: Settings, actions: ActionLog) -> None:
        self._settings = settings
        self._actions = actions
        self._store: StoredRules | None = None

    async def all(self) -> list[Row]:
        """The rules of every kind."""

        def work(store: StoredRules) -> list[Row]:
            sentinel = make_sentinel(store)
            return [rules_row(sentinel, store, kind) for kind in KINDS]

        return await self._in_thread(work)

    async def show(self, kind: str) -> Row:
        """The rules of one kind."""
        return await self._in_thread(lambda store: rules_row(make_sentinel(store), store, kind))

    async def history(self, kind: str) -> list[Row]:
        """The versions that are kept, oldest first."""
        return await self._in_thread(
            lambda store: [version_row(version) for version in store.history(kind)]
        )

    async def put(
        self,
        kind: str,
        document: bytes,
        *,
        partial: bool,
        made_from: int | None,
        actor: str,
        reason: str,
    ) -> Row:
        """Put a list of rules in force in place of all of their kind.

        Args:
            document: JSON in Sentinel's own shape.
            partial: take the good ones of a list with bad ones; otherwise such a list is refused.
            made_from: the version that was looked at; None replaces whatever is there.

        Raises:
            HTTPProblem: 422 naming what is wrong, 412 when another version is in force.
        """

        def work(store: StoredRules) -> tuple[Row, bool]:
            wanted = Sentinel(settings=make_sentinel(store).settings)
            tried = wanted.load_rules(kind, document)
            if not tried.applied or (tried.refused and not partial):
                raise _refused(tried)
            sentinel = make_sentinel(store)
            head = store.head(kind)
            if made_from is not None and made_from != (head.number if head else 0):
                raise RuleConflict(kind, made_from, head.number if head else 0, "")
            if wanted.dump_rules(kind) == sentinel.dump_rules(kind) and head is not None:
                # They are in force already: no new version of the same.
                return report_row(tried) | {"saved": True, "ok": not tried.refused,
                                            "version": head.number}, False  # fmt: skip
            report = sentinel.load_rules(kind, document, Change(actor, reason, made_from))
            if not report.saved:
                raise RulesUnusable("they could not be kept; the old ones are in force")
            head = store.head(kind)
            return report_row(report) | {"version": head.number if head else None}, True

        row, changed = await self._in_thread(work)
        if changed:
            await self._note("set_rules", kind, row["version"], actor, reason)
        return row

    async def go_back(self, kind: str, to: int, *, actor: str, reason: str) -> Row:
        """Put the rules of an earlier version in force again. Twice is as good as once.

        Raises:
            HTTPProblem: 409 when that version is not kept (any more).
        """

        def work(store: StoredRules) -> tuple[Row, bool]:
            head = store.head(kind)
            if head is not None and to in {head.number, head.stands_for}:
                return version_row(head), False
            return version_row(store.undo(kind, Change(actor, reason), to=to)), True

        row, changed = await self._in_thread(work)
        if changed:
            await self._note("undo_rules", kind, row["version"], actor, reason)
        return row

    async def _note(
        self, action: str, kind: str, version: int | None, actor: str, reason: str
    ) -> None:
        await self._actions.note(action, actor=actor, reason=reason, kind=kind, version=version)

    async def _in_thread(self, work: Callable[[StoredRules], T]) -> T:
        try:
            return await asyncio.to_thread(lambda: work(self._opened()))
        except RuleDocumentError as error:
            raise _unreadable(error) from error
        except RuleConflict as error:
            raise HTTPProblem(
                412, f"Version {error.head} of these rules is in force.", field="If-Match",
                rule="must be the version in force",
            ) from error  # fmt: skip
        except NothingToUndo as error:
            raise HTTPProblem(409, str(error), field="to", rule="must be a kept version") from error
        except (SentinelError, OSError, RulesUnusable) as error:
            raise Unavailable("The rules cannot be read or kept right now.", 2) from error

    def _opened(self) -> StoredRules:
        if self._store is None:
            self._store = open_rules(self._settings)
        return self._store


def _unreadable(error: RuleDocumentError) -> HTTPProblem:
    return HTTPProblem(
        422, f"The rules were refused, the old ones stay: {error}"[:1_000],
        field=error.field, rule=error.reason[:1_000],
    )  # fmt: skip


def _refused(report: LoadReport) -> HTTPProblem:
    errors = list(_errors(report))
    first = errors[0] if errors else {"field": "$", "rule": "must hold a rule that can be taken"}
    return HTTPProblem(
        422,
        f"{len(report.refused)} of {report.given} rules were refused, the old ones stay.",
        field=str(first["field"]),
        rule=str(first["rule"]),
        errors=errors[:_NAMED_MAX],
    )


def _errors(report: LoadReport) -> Iterable[Row]:
    for refused in report.refused[:_NAMED_MAX]:
        for problem in refused.problems:
            yield {
                "index": refused.index,
                "resource": refused.resource[:_NAMED_MAX],
                "field": f"{refused.index}.{problem.field}",
                "rule": problem.reason[:500],
            }
