"""Order states as they change: server-sent events.

One poller for each process reads the states of all watched orders together. An idle stream holds
a small object and no connection to any store.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

import structlog
from starlette.responses import Response

from seckill.domain.errors import SeckillError
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.order import TERMINAL_STATES, Order, OrderState
from seckill.web.limits import WebLimits
from seckill.web.order_json import order_document
from seckill.web.ports import Receive, Scope, Send, WebMetrics
from seckill.web.problems import BASE_HEADERS, HTTPProblem, Unavailable

__all__ = ["EventStream", "OrderFeed", "Watch"]

_LOG: Final = structlog.get_logger(__name__)

_RETRY_MS: Final = (500, 3_000)
"""Clients that are sent away come back spread over this time, not all at once."""


class Watch:
    """One open stream's view of one order. Only the latest state is kept."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.closing = False
        self.gone = False
        self.news = asyncio.Event()
        self.news.set()

    def tell(self, order: Order) -> None:
        """There is a newer state."""
        self.order = order
        self.news.set()


class OrderFeed:
    """All open streams of this process, and the poller that they share.

    Args:
        read_states: what the ledger knows of some purchases.
        limits: bounds.
        draining: ends all streams when set.
        metrics: counts streams.
    """

    def __init__(
        self,
        *,
        read_states: Callable[[Sequence[ReservationId]], Awaitable[Mapping[ReservationId, Order]]],
        limits: WebLimits,
        draining: asyncio.Event,
        metrics: WebMetrics,
    ) -> None:
        self._read_states = read_states
        self._limits = limits
        self._draining = draining
        self._metrics = metrics
        self._watches: dict[ReservationId, set[Watch]] = {}
        self._per_user: Counter[UserId] = Counter()
        self._count = 0
        self._watched = asyncio.Event()

    def open(self, order: Order) -> Watch:
        """Begin to watch an order.

        Raises:
            Unavailable: too many streams are open, or this process is about to stop.
            HTTPProblem: 429, this user has too many open.
        """
        if self._draining.is_set() or self._count >= self._limits.sse_streams_max:
            self._metrics.bound_met("sse_streams")
            raise Unavailable("Too many streams are open. Please ask for the state instead.", 5)
        if self._per_user[order.user_id] >= self._limits.sse_streams_per_user_max:
            self._metrics.bound_met("sse_streams_per_user")
            raise HTTPProblem(
                429, "You have too many streams open.", headers=((b"retry-after", b"5"),)
            )
        watch = Watch(order)
        self._watches.setdefault(order.reservation_id, set()).add(watch)
        self._per_user[order.user_id] += 1
        self._count += 1
        self._metrics.streams_open(self._count)
        self._watched.set()
        return watch

    def close(self, watch: Watch) -> None:
        """Watch no longer."""
        order = watch.order
        watches = self._watches[order.reservation_id]
        watches.remove(watch)
        if not watches:
            del self._watches[order.reservation_id]
        self._per_user[order.user_id] -= 1
        if not self._per_user[order.user_id]:
            del self._per_user[order.user_id]
        self._count -= 1
        self._metrics.streams_open(self._count)
        if not self._watches:
            self._watched.clear()

    async def run(self) -> None:
        """Poll until cancelled; end all streams once draining."""
        async with asyncio.TaskGroup() as parts:
            parts.create_task(self._poll())
            parts.create_task(self._end_when_draining())

    async def _end_when_draining(self) -> None:
        await self._draining.wait()
        for watches in self._watches.values():
            for watch in watches:
                watch.closing = True
                watch.news.set()

    async def _poll(self) -> None:
        while True:
            await self._watched.wait()
            try:
                states = await self._read_states(list(self._watches))
            except SeckillError as away:
                # The streams stay open: their clients would only come back into the same trouble.
                _LOG.warning("open event streams cannot be told of changes", error=str(away))
                states = {}
            for reservation_id, order in states.items():
                for watch in self._watches.get(reservation_id, ()):
                    if watch.order.state is not order.state:
                        # Of a purchase that was lost only its buyer knows whose it was.
                        watch.tell(replace(order, user_id=watch.order.user_id))
            await asyncio.sleep(self._limits.sse_poll_ms / 1000)


class EventStream(Response):
    """The answer that stays open: one event now, one at each change, comments in between.

    It ends after a terminal state, when the process drains, when the client leaves, or when it
    has grown old. A client that comes back after a terminal state (its ``Last-Event-ID`` says so)
    reads 204, which tells an EventSource to stay away.
    """

    media_type = "text/event-stream"

    def __init__(
        self, feed: OrderFeed, order: Order, limits: WebLimits, last_event_id: str | None
    ) -> None:
        super().__init__(status_code=200)
        self._feed = feed
        self._order = order
        self._limits = limits
        self._last_event_id = last_event_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  -- ASGI
        """Serve the stream to its end."""
        state = self._order.state
        if state in TERMINAL_STATES and self._last_event_id == state.value:
            await send({"type": "http.response.start", "status": 204, "headers": [*BASE_HEADERS]})
            await send({"type": "http.response.body", "body": b""})
            return
        watch = self._feed.open(self._order)
        try:
            await self._stream(watch, receive, send)
        finally:
            self._feed.close(watch)

    async def _stream(self, watch: Watch, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    *BASE_HEADERS,
                    (b"content-type", b"text/event-stream"),
                    # nginx would hold events back to fill its buffer.
                    (b"x-accel-buffering", b"no"),
                ],
            }
        )
        ends_at = perf_counter() + self._limits.sse_age_max_ms / 1000
        told: OrderState | None = None
        async with asyncio.TaskGroup() as parts:
            leaving = parts.create_task(_notice_leaving(watch, receive))
            while True:
                patience_s = min(self._limits.sse_heartbeat_ms / 1000, ends_at - perf_counter())
                heard = await _heard(watch.news, patience_s)
                watch.news.clear()
                if watch.gone:
                    break
                if watch.order.state is not told:
                    told = watch.order.state
                    await self._push(watch, send, _event(watch.order))
                if told in TERMINAL_STATES:
                    break
                if watch.closing or perf_counter() >= ends_at:
                    retry_ms = random.randint(*_RETRY_MS)  # noqa: S311  -- spreads load, guards nothing
                    await self._push(watch, send, b"retry: %d\n\n" % retry_ms)
                    break
                if not heard:
                    await self._push(watch, send, b":\n\n")
            leaving.cancel()
        if not watch.gone:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _push(self, watch: Watch, send: Send, text: bytes) -> None:
        """Send; a client that takes nothing for a whole heartbeat counts as gone."""
        try:
            async with asyncio.timeout(self._limits.sse_heartbeat_ms / 1000):
                await send({"type": "http.response.body", "body": text, "more_body": True})
        except TimeoutError:
            watch.gone = True
            watch.news.set()


def _event(order: Order) -> bytes:
    # The JSON is one line: msgspec escapes line breaks inside strings.
    return b"event: state\nid: %s\ndata: %s\n\n" % (
        order.state.value.encode("ascii"),
        order_document(order),
    )


async def _heard(news: asyncio.Event, patience_s: float) -> bool:
    """Wait for news, at most so long; whether there is any."""
    try:
        async with asyncio.timeout(max(patience_s, 0.0)):
            await news.wait()
    except TimeoutError:
        return False
    return True


async def _notice_leaving(watch: Watch, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watch.gone = True
    watch.news.set()
