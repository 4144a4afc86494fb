"""Flow control in front of the sale: who is let through to the gate, and who is refused.

The engine is `seckill.sentinel`; here is what it is asked about a purchase. What it refuses never
reaches Redis. Everything is one synchronous call, so that it fits any way of serving.
"""

import asyncio
from functools import partial
from typing import Final

from seckill.admission.decision import Decision
from seckill.domain.ids import AttemptId, GoodsId, UserId
from seckill.domain.outcomes import Outcome
from seckill.sentinel import (
    BlockException,
    Context,
    DegradeException,
    DegradeRule,
    Entry,
    EntryType,
    ParamFlowRule,
    ResourceType,
    Sentinel,
)
from seckill.sentinel.words import LIMIT_APP_DEFAULT
from seckill.web.addresses import Addresses
from seckill.web.ports import PurchaseGate, Scope

__all__ = [
    "ADDRESS_INDEX",
    "ENTRANCE",
    "GOODS_INDEX",
    "PURCHASE_RESOURCE",
    "USER_INDEX",
    "FlowControl",
]

PURCHASE_RESOURCE: Final = "seckill-jk"
"""The resource in front of ``POST /seckill/{goods_id}``: the article's name."""

ENTRANCE: Final = "web"
"""The context that a web process enters its resources from."""

GOODS_INDEX: Final = 0
USER_INDEX: Final = 1
ADDRESS_INDEX: Final = 2
"""Places of what hot-parameter rules may look at (``paramIdx``)."""

_IN: Final = EntryType.IN
_WEB: Final = ResourceType.WEB
_MS_PER_S: Final = 1_000


class _Undecided(Exception):  # noqa: N818  -- names what happened
    """A purchase that could not be decided: what a breaker on the resource counts as a failure."""


_UNDECIDED: Final = _Undecided()


class FlowControl:
    """Stands in front of the gate.

    An entry is open from here to the answer, so concurrency and response time are those of the
    purchase. One that could not be decided, or met an error, counts as failed.

    The origin of a call is its address, and it has one only as long as a rule asks for origins (an
    authority rule, or a flow rule with a ``limitApp``): each origin costs counters of its own.

    Args:
        gate: decides what is let through.
        sentinel: the engine of this process.
        addresses: tells where a request came from.
    """

    def __init__(self, gate: PurchaseGate, sentinel: Sentinel, addresses: Addresses) -> None:
        self._gate = gate
        self._sentinel = sentinel
        self._addresses = addresses
        with sentinel.context(ENTRANCE) as nobody:
            self._nobody = nobody
        self._authority_rules = sentinel.authority.rules
        self._flow_rules = sentinel.flow.rules
        self._asks_for_origins = self._find_out()

    def admit_now(
        self,
        goods_id: GoodsId,
        user_id: UserId,
        quantity: int,
        attempt_id: AttemptId,
        scope: Scope,
    ) -> Decision | asyncio.Future[Decision]:
        """Ask the rules, then the gate; see `PurchaseGate.admit_now`.

        Args:
            scope: the request, for its address.

        Returns:
            As the gate; a refusal is a decision with the outcome ``BLOCKED``. A call that has to
            wait for its turn is a future.
        """
        sentinel = self._sentinel
        address = self._addresses.of(scope)
        sentinel.current.set(self._caller(address))
        entry = Entry(
            sentinel,
            PURCHASE_RESOURCE,
            goods_id,
            user_id,
            address,
            entry_type=_IN,
            resource_type=_WEB,
        )
        outcome = entry.decide()
        if outcome is None:
            # Whoever serves requests without a task of their own has one context for all of them:
            # the next entry must not be taken for one inside this.
            sentinel.current.set(self._nobody)
            return self._ask(entry, goods_id, user_id, quantity, attempt_id)
        if isinstance(outcome, BlockException):
            return _refusal(outcome)
        return asyncio.ensure_future(
            self._wait(entry, outcome, goods_id, user_id, quantity, attempt_id)
        )

    def _caller(self, address: str) -> Context:
        """The context of a call: with its origin if any rule asks for origins."""
        sentinel = self._sentinel
        if (
            sentinel.authority.rules is not self._authority_rules
            or sentinel.flow.rules is not self._flow_rules
        ):
            self._asks_for_origins = self._find_out()
        if self._asks_for_origins:
            return Context(self._nobody.entrance, address)
        return self._nobody

    def _find_out(self) -> bool:
        """Whether any rule in force asks where a call comes from."""
        self._authority_rules = self._sentinel.authority.rules
        self._flow_rules = self._sentinel.flow.rules
        return bool(self._authority_rules) or any(
            rule.limit_app != LIMIT_APP_DEFAULT for rule in self._flow_rules
        )

    def _ask(
        self,
        entry: Entry,
        goods_id: GoodsId,
        user_id: UserId,
        quantity: int,
        attempt_id: AttemptId,
    ) -> Decision | asyncio.Future[Decision]:
        """Ask the gate, and end the entry when it has answered."""
        try:
            decision = self._gate.admit_now(goods_id, user_id, quantity, attempt_id)
        except BaseException as error:
            entry.set_error(error)
            entry.exit()
            raise
        if isinstance(decision, Decision):
            if decision.outcome is Outcome.UNDECIDED:
                entry.set_error(_UNDECIDED)
            entry.exit()
        else:
            # Cancelled by a client that leaves, or completed by the batch: it is always done.
            decision.add_done_callback(partial(_ended, entry))
        return decision

    async def _wait(
        self,
        entry: Entry,
        wait_ns: int,
        goods_id: GoodsId,
        user_id: UserId,
        quantity: int,
        attempt_id: AttemptId,
    ) -> Decision:
        """Wait for the turn of a paced call, and go on."""
        outcome: BlockException | int | None = wait_ns
        while isinstance(outcome, int):
            await self._sentinel.waiter.wait_async(outcome)
            outcome = entry.decide()
        if outcome is not None:
            return _refusal(outcome)
        decision = self._ask(entry, goods_id, user_id, quantity, attempt_id)
        return decision if isinstance(decision, Decision) else await decision


def _ended(entry: Entry, decision: asyncio.Future[Decision]) -> None:
    """End the entry of a purchase that waited for its batch."""
    if not decision.cancelled():
        error = decision.exception()
        if error is not None:
            entry.set_error(error)
        elif decision.result().outcome is Outcome.UNDECIDED:
            entry.set_error(_UNDECIDED)
    entry.exit()


def _refusal(block: BlockException) -> Decision:
    return Decision(Outcome.BLOCKED, retry_after_ms=_retry_after_s(block) * _MS_PER_S)


def _retry_after_s(block: BlockException) -> int:
    """When another try has a chance: after the span that the rule counts by, else a second."""
    rule = block.rule
    if isinstance(block, DegradeException) and isinstance(rule, DegradeRule):
        return rule.time_window
    return rule.duration_in_sec if isinstance(rule, ParamFlowRule) else 1
