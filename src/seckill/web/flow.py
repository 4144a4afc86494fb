"""Flow control in front of the sale: who is let through to the gate, and who is refused.

The engine is `seckill.sentinel`; here is what it is asked about a purchase. What it refuses never
reaches Redis. Everything is one synchronous call, so that it fits any way of serving.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

import structlog

from seckill.admission.batcher import Waiting
from seckill.admission.decision import Decision
from seckill.domain.ids import GoodsId
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
from seckill.sentinel.together import end_together
from seckill.sentinel.words import LIMIT_APP_DEFAULT
from seckill.web.addresses import Addresses
from seckill.web.ports import PurchaseGate

__all__ = [
    "ADDRESS_INDEX",
    "ENTRANCE",
    "GOODS_INDEX",
    "PURCHASE_RESOURCE",
    "USER_INDEX",
    "Caller",
    "Decided",
    "FlowControl",
]

_LOG: Final = structlog.get_logger(__name__)

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


class Caller(Waiting, Protocol):
    """A purchase request, as flow control sees it.

    Attributes:
        entry: what `FlowControl.end` ends; set by flow control.
    """

    entry: Entry | None


class Decided(Protocol):
    """A purchase request that has its decision.

    Attributes:
        entry: see Caller.
    """

    entry: Entry | None

    @property
    def decision(self) -> Decision:
        """What was decided."""
        ...


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
        start: starts a coroutine as a task with an owner: a call that has to wait for its turn.
    """

    def __init__(
        self,
        gate: PurchaseGate,
        sentinel: Sentinel,
        addresses: Addresses,
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._gate = gate
        self._sentinel = sentinel
        self._addresses = addresses
        self._start = start
        with sentinel.context(ENTRANCE) as nobody:
            self._nobody = nobody
        self._authority_rules = sentinel.authority.rules
        self._flow_rules = sentinel.flow.rules
        self._asks_for_origins = self._find_out()

    def admit_now(
        self,
        goods_id: GoodsId,
        caller: Caller,
        peer: str | None,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> Decision | None:
        """Ask the rules, then the gate; see `PurchaseGate.admit_now`.

        Args:
            caller: the request. When it has its decision, `end` must be called.
            peer: address of the other end of the connection.
            headers: of the request, for the address that trusted proxies wrote there.

        Returns:
            As the gate; a refusal is a decision with the outcome ``BLOCKED``. None too for a call
            that has to wait for its turn.
        """
        caller.entry = None
        sentinel = self._sentinel
        address = self._addresses.of(peer, headers)
        sentinel.current.set(self._caller(address))
        entry = sentinel.entry(
            PURCHASE_RESOURCE,
            goods_id,
            caller.user_id,
            address,
            entry_type=_IN,
            resource_type=_WEB,
        )
        outcome = entry.decide()
        if outcome is None:
            # Requests that are served by calls have one context for all of them: the next entry
            # must not be taken for one inside this.
            sentinel.current.set(self._nobody)
            return self._ask(entry, goods_id, caller)
        if isinstance(outcome, BlockException):
            return _refusal(outcome)
        self._start(self._wait(entry, outcome, goods_id, caller))
        return None

    def end(self, callers: Sequence[Decided]) -> None:
        """Callers have their decisions: their calls are over."""
        entries = []
        for caller in callers:
            entry = caller.entry
            if entry is not None:
                caller.entry = None
                if caller.decision.outcome is Outcome.UNDECIDED:
                    entry.set_error(_UNDECIDED)
                entries.append(entry)
        if entries:
            end_together(self._sentinel, entries)

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

    def _ask(self, entry: Entry, goods_id: GoodsId, caller: Caller) -> Decision | None:
        """Ask the gate. The entry ends with the call of `end`."""
        caller.entry = entry
        try:
            return self._gate.admit_now(goods_id, caller)
        except BaseException as error:
            caller.entry = None
            entry.set_error(error)
            entry.exit()
            raise

    async def _wait(self, entry: Entry, wait_ns: int, goods_id: GoodsId, caller: Caller) -> None:
        """Wait for the turn of a paced call, and go on."""
        outcome: BlockException | int | None = wait_ns
        try:
            while isinstance(outcome, int):
                await self._sentinel.waiter.wait_async(outcome)
                outcome = entry.decide()
            if outcome is not None:
                decision: Decision | None = _refusal(outcome)
            else:
                # It leaves its place in the context of this task, which ends here.
                decision = self._ask(entry, goods_id, caller)
        except Exception:  # noqa: BLE001  -- nobody waits for this task but the caller's record
            _LOG.exception("a paced purchase met an error of this program")
            decision = Decision(Outcome.UNDECIDED, cause="fault")
        if decision is not None:
            caller.decided(decision)


def _refusal(block: BlockException) -> Decision:
    return Decision(Outcome.BLOCKED, retry_after_ms=_retry_after_s(block) * _MS_PER_S)


def _retry_after_s(block: BlockException) -> int:
    """When another try has a chance: after the span that the rule counts by, else a second."""
    rule = block.rule
    if isinstance(block, DegradeException) and isinstance(rule, DegradeRule):
        return rule.time_window
    return rule.duration_in_sec if isinstance(rule, ParamFlowRule) else 1
