"""Who may come in: the token of an operator, its role, and what failed attempts cost.

Decided before anything of the body is read, and anew for each request: a token that was revoked
opens nothing from the next request on, in every process.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import structlog
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from seckill.domain.clock import Clock
from seckill.domain.errors import SeckillError
from seckill.domain.operators import Role
from seckill.ledger.admins import HeldToken, read_token
from seckill.web.addresses import Addresses
from seckill.web.admin.ports import TokenBook
from seckill.web.batches import MicroBatches, TooManyWaiting
from seckill.web.limits import WebLimits
from seckill.web.openapi import LEAST_ROLE
from seckill.web.ports import WebMetrics
from seckill.web.problems import Forbidden, HTTPProblem, Unauthenticated, Unavailable
from seckill.web.requests import body_announced, pick_headers, read_segment

__all__ = ["BODY_BYTES_MAX", "Guard", "Operator", "guarded_route", "needs"]

_LOG: Final = structlog.get_logger(__name__)

BODY_BYTES_MAX: Final = 1_048_576
_CHALLENGE: Final = 'Bearer realm="seckill-admin"'
_ADDRESSES_MAX: Final = 10_000
_GOOD_MAX: Final = 1_000
_LOOK_UPS_MAX: Final = 64
_HEADER_BYTES_MAX: Final = 256
_BUSY: Final = "Operators cannot be let in right now. Please ask again."


@dataclass(frozen=True, slots=True)
class Operator:
    """Who is asking."""

    name: str
    role: Role

    @property
    def actor(self) -> str:
        """Their name in the action log."""
        return f"api:{self.name}"


def needs(role: Role, **more: Any) -> dict[str, Any]:
    """What a route says of the least role that it takes, for its ``openapi_extra``."""
    return {LEAST_ROLE: role.value, **more}


class _Failures:
    """Failed attempts by address: some at once, then one in a while."""

    def __init__(self, limits: WebLimits, clock: Clock) -> None:
        self._failures_max = limits.admin_failures_max
        self._pause_ms = limits.admin_failure_pause_ms
        self._clock = clock
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_ms(self, address: str) -> float:
        """How long this address has to wait before it may try again; 0: it may now."""
        return max(0.0, (self._count(address) - self._failures_max + 1) * self._pause_ms)

    def note(self, address: str) -> None:
        """One more attempt has failed."""
        self._spent[address] = (self._count(address) + 1, self._clock.monotonic_ms())
        self._spent.move_to_end(address)
        if len(self._spent) > _ADDRESSES_MAX:
            self._spent.popitem(last=False)

    def _count(self, address: str) -> float:
        count, at_ms = self._spent.get(address, (0.0, 0.0))
        return max(0.0, count - (self._clock.monotonic_ms() - at_ms) / self._pause_ms)


class Guard:
    """Lets operators in.

    Args:
        tokens: knows the tokens.
        addresses: tells where a request came from.
        limits: bounds of waiting and of failing.
        metrics: counts.
        clock: for the pauses between failures.
    """

    def __init__(
        self,
        tokens: TokenBook,
        addresses: Addresses,
        limits: WebLimits,
        metrics: WebMetrics,
        clock: Clock,
    ) -> None:
        self._addresses = addresses
        self._limits = limits
        self._metrics = metrics
        self._failures = _Failures(limits, clock)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._look_ups: MicroBatches[str, HeldToken] = MicroBatches(
            tokens.held, batch_max=_LOOK_UPS_MAX, waiting_max=limits.admin_calls_max
        )

    async def run(self) -> None:
        """Look tokens up until cancelled."""
        await self._look_ups.run()

    async def admit(self, request: Request, needed: Role) -> Operator:
        """The operator behind a request.

        Raises:
            Unauthenticated: there is no token, or it opens nothing (any more).
            Forbidden: it is not for this.
            HTTPProblem: 400 or 415 for what cannot be read, 429 after too many failures.
            Unavailable: the ledger cannot be asked now.
        """
        headers = pick_headers(request.scope["headers"])
        held = await self._held(request, headers)
        if not held.role.allows(needed):
            raise Forbidden(f"This takes the role {needed}; the token has {held.role}.")
        body_announced(headers, BODY_BYTES_MAX)
        # The framework would read what is no UTF-8 as something that nobody has sent.
        read_segment(request.scope["raw_path"], "path")
        return Operator(held.name, held.role)

    async def try_out(self, request: Request, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Make an attempt that a stranger may make; one that is refused (403) counts as failed.

        Raises:
            HTTPProblem: of the attempt; 429 after too many failures.
        """
        body_announced(pick_headers(request.scope["headers"]), BODY_BYTES_MAX)
        address = self._address(request)
        self._refuse_too_many(address)
        try:
            return await attempt()
        except HTTPProblem as problem:
            if problem.status == 403:  # noqa: PLR2004  -- HTTP's own number
                self._failures.note(address)
            raise

    async def _held(self, request: Request, headers: Mapping[bytes, bytes]) -> HeldToken:
        raw = headers.get(b"authorization", b"")
        scheme, _, value = raw.partition(b" ")
        if scheme.lower() != b"bearer" or not value:
            raise Unauthenticated("Send the token of an operator.", _CHALLENGE)
        address = self._address(request)
        text = value.strip()
        digest = hashlib.sha256(text).digest()
        if digest not in self._good:
            self._refuse_too_many(address)
        read = read_token(text.decode("latin-1")) if len(text) < _HEADER_BYTES_MAX else None
        if read is None:
            self._fail(address, "The token is not one of an operator.")
        token_id, secret = read
        held = await self._look_up(token_id)
        if held is None or not held.fits(secret):
            self._good.pop(digest, None)
            self._fail(address, "The token is not known.")
        if held.dead:
            self._good.pop(digest, None)
            self._fail(address, held.dead)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > _GOOD_MAX:
            self._good.popitem(last=False)
        return held

    async def _look_up(self, token_id: str) -> HeldToken | None:
        try:
            async with asyncio.timeout(self._limits.admin_begin_ms / 1000):
                return await self._look_ups.get(token_id)
        except (TimeoutError, TooManyWaiting):
            self._metrics.bound_met("admin_calls")
            raise Unavailable(_BUSY) from None
        except SeckillError as away:
            raise Unavailable(_BUSY) from away

    def _fail(self, address: str, why: str) -> NoReturn:
        self._failures.note(address)
        _LOG.warning("somebody was not let in as an operator", address=address, why=why)
        raise Unauthenticated(why, f'{_CHALLENGE}, error="invalid_token"')

    def _refuse_too_many(self, address: str) -> None:
        wait_ms = self._failures.wait_ms(address)
        if wait_ms:
            self._metrics.bound_met("admin_failures")
            raise HTTPProblem(
                429,
                "Too many attempts from this address have failed.",
                headers=((b"retry-after", b"%d" % (wait_ms // 1000 + 1)),),
            )

    def _address(self, request: Request) -> str:
        client: Sequence[Any] | None = request.scope.get("client")
        return self._addresses.of(client[0] if client else None, request.scope["headers"])


def guarded_route(guard: Guard) -> type[APIRoute]:
    """The class of routes that this guard stands in front of.

    Building a route that does not say its least role fails, so none can be open by mistake.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]  # declared as a coroutine, which is what it gives
            serve = super().get_route_handler()
            role = Role((self.openapi_extra or {})[LEAST_ROLE])

            async def admitted(request: Request) -> Response:
                request.state.operator = await guard.admit(request, role)
                return await serve(request)

            return admitted

    return GuardedRoute
