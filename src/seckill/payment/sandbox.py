"""A payment provider for trying things out: it takes no money, and says whatever it is told to.

Its own books are a small SQLite file, so that every web process serves the same page and a payment
survives them. Its news goes the way of a real provider's: signed, over HTTP, again until it is
taken. For one's own machine only: whoever can open its page can say that an order is paid.
"""

import asyncio
import base64
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from seckill.domain.clock import Clock
from seckill.domain.instants import rfc3339_ms
from seckill.domain.payment import Money, NewsKind
from seckill.payment.errors import ProviderAway
from seckill.payment.provider import PaymentRequest, RefundRequest

__all__ = ["Charge", "Message", "Play", "Sandbox"]

T = TypeVar("T")

_BUSY_MS: Final = 5_000
_LATE_MS: Final = 3_000
_RETRY_MS_MIN: Final = 500
_RETRY_MS_MAX: Final = 60_000
_CLAIM_MS: Final = 10_000
_MESSAGES_MAX: Final = 32

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    payment_id TEXT PRIMARY KEY, reservation_id TEXT NOT NULL, goods_id TEXT NOT NULL,
    quantity INTEGER NOT NULL, amount_fen INTEGER NOT NULL, currency TEXT NOT NULL,
    deadline_ms INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refunds (refund_id TEXT PRIMARY KEY, payment_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL, body TEXT NOT NULL,
    next_at_ms INTEGER, tries INTEGER NOT NULL, answer TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS messages_due ON messages (next_at_ms) WHERE next_at_ms IS NOT NULL;
"""


class Play(StrEnum):
    """What the page can be told to do."""

    PAY = "pay"
    FAIL = "fail"
    PAY_LATE = "pay_late"
    PAY_TWICE = "pay_twice"
    PAY_WRONG = "pay_wrong"


@dataclass(frozen=True, slots=True)
class Charge:
    """A payment as the sandbox knows it. ``state`` is ``open``, ``paid`` or ``failed``."""

    payment_id: str
    reservation_id: str
    goods_id: str
    quantity: int
    money: Money
    deadline_ms: int
    state: str


@dataclass(frozen=True, slots=True)
class Message:
    """News that is to be delivered."""

    number: int
    event_id: str
    body: bytes
    tries: int


class Sandbox:
    """Implements `payment.provider.PaymentProvider`, and keeps the books of its page.

    Args:
        path: its file; made when missing.
        base_url: where its page is served, without a slash at the end.
    """

    def __init__(self, path: Path, base_url: str, clock: Clock) -> None:
        self._path = path
        self._base_url = base_url
        self._clock = clock
        with self._books() as books:
            books.executescript(_SCHEMA)
            drawn = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
            books.execute("INSERT OR IGNORE INTO secrets VALUES ('webhook', ?)", (drawn,))
            (self._secret,) = books.execute(
                "SELECT value FROM secrets WHERE name = 'webhook'"
            ).fetchone()

    @property
    def webhook_secrets(self) -> Sequence[str]:
        """See `PaymentProvider`."""
        return (self._secret,)

    @property
    def secret(self) -> str:
        """What its news is signed with."""
        return str(self._secret)

    async def start(self, request: PaymentRequest) -> str:
        """See `PaymentProvider`."""

        def write(books: sqlite3.Connection) -> None:
            books.execute(
                "INSERT OR IGNORE INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, 'open')",
                (
                    request.payment_id,
                    request.reservation_id,
                    request.goods_id,
                    request.quantity,
                    request.money.amount_fen,
                    request.money.currency,
                    request.deadline_ms,
                ),
            )

        await self._in_thread(write)
        return f"{self._base_url}/sandbox/pay/{request.payment_id}"

    async def refund(self, request: RefundRequest) -> bool:
        """See `PaymentProvider`. News of it follows."""
        body = self._body(NewsKind.REFUNDED, request.payment_id, request.money)

        def write(books: sqlite3.Connection) -> None:
            fresh = books.execute(
                "INSERT OR IGNORE INTO refunds VALUES (?, ?)",
                (request.refund_id, request.payment_id),
            )
            if fresh.rowcount:
                self._queue(books, body, self._clock.now_ms())

        await self._in_thread(write)
        return False

    async def charge(self, payment_id: str) -> Charge | None:
        """A payment, for its page."""

        def read(books: sqlite3.Connection) -> Any:
            return books.execute(
                "SELECT payment_id, reservation_id, goods_id, quantity, amount_fen, currency,"
                " deadline_ms, state FROM charges WHERE payment_id = ?",
                (payment_id,),
            ).fetchone()

        row = await self._in_thread(read)
        if row is None:
            return None
        names = ("payment_id", "reservation_id", "goods_id", "quantity")
        return Charge(
            **dict(zip(names, row[:4], strict=True)),
            money=Money(row[4], row[5]),
            deadline_ms=row[6],
            state=row[7],
        )

    async def play(self, payment_id: str, play: Play) -> Charge | None:
        """Do what the page was told; None when there is no such payment.

        A payment is made once; one that failed may still come through, as with real providers.
        """
        charge = await self.charge(payment_id)
        if charge is None:
            return None
        now_ms = self._clock.now_ms()
        money, at_ms, times = charge.money, now_ms, 1
        if play is Play.PAY_LATE:
            at_ms = max(now_ms, charge.deadline_ms + _LATE_MS)
        elif play is Play.PAY_TWICE:
            times = 2
        elif play is Play.PAY_WRONG:
            money = Money(max(money.amount_fen - 1, 0), money.currency)
        state = "failed" if play is Play.FAIL else "paid"
        body = (
            self._body(NewsKind.FAILED, payment_id, None)
            if play is Play.FAIL
            else self._body(NewsKind.PAID, payment_id, money)
        )

        def write(books: sqlite3.Connection) -> None:
            changed = books.execute(
                "UPDATE charges SET state = ? WHERE payment_id = ? AND state <> 'paid'"
                " AND state <> ?",
                (state, payment_id, state),
            )
            if changed.rowcount:
                for _ in range(times):
                    self._queue(books, body, at_ms)

        await self._in_thread(write)
        return await self.charge(payment_id)

    async def due(self) -> list[Message]:
        """News to be delivered now; the other processes leave it alone for a while."""
        now_ms = self._clock.now_ms()

        def claim(books: sqlite3.Connection) -> list[Message]:
            rows = books.execute(
                "UPDATE messages SET next_at_ms = ?, tries = tries + 1 WHERE number IN"
                " (SELECT number FROM messages WHERE next_at_ms <= ? ORDER BY next_at_ms LIMIT ?)"
                " RETURNING number, event_id, body, tries",
                (now_ms + _CLAIM_MS, now_ms, _MESSAGES_MAX),
            ).fetchall()
            return [Message(n, event_id, body.encode(), tries) for n, event_id, body, tries in rows]

        return await self._in_thread(claim)

    async def delivered(self, message: Message, answer: str, *, taken: bool) -> None:
        """Note how a delivery ended; what was not taken comes again after a growing pause."""
        pause_ms = min(_RETRY_MS_MIN * 2 ** min(message.tries, 10), _RETRY_MS_MAX)
        next_at_ms = None if taken else self._clock.now_ms() + pause_ms

        def write(books: sqlite3.Connection) -> None:
            books.execute(
                "UPDATE messages SET next_at_ms = ?, answer = ? WHERE number = ?",
                (next_at_ms, answer, message.number),
            )

        await self._in_thread(write)

    def _queue(self, books: sqlite3.Connection, body: str, at_ms: int) -> None:
        books.execute(
            "INSERT INTO messages (event_id, body, next_at_ms, tries, answer)"
            " VALUES (?, ?, ?, 0, '')",
            (f"msg_{secrets.token_hex(12)}", body, at_ms),
        )

    def _body(self, kind: NewsKind, payment_id: str, money: Money | None) -> str:
        data: dict[str, object] = {"payment_id": payment_id}
        if money is not None:
            data |= {"amount_fen": money.amount_fen, "currency": money.currency}
        if kind is NewsKind.FAILED:
            data["reason"] = "the buyer's bank said no"
        return json.dumps(
            {"type": kind.value, "timestamp": rfc3339_ms(self._clock.now_ms()), "data": data}
        )

    async def _in_thread(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(partial(self._run, work))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._books() as books:
                return work(books)
        except sqlite3.Error as error:
            raise ProviderAway(f"the sandbox cannot write its books: {error}") from error

    @contextmanager
    def _books(self) -> Iterator[sqlite3.Connection]:
        with closing(
            sqlite3.connect(self._path, timeout=_BUSY_MS / 1000, isolation_level=None)
        ) as books:
            books.execute("PRAGMA journal_mode=WAL")
            books.execute("BEGIN IMMEDIATE")
            try:
                yield books
                if books.in_transaction:
                    books.execute("COMMIT")
            except BaseException:
                if books.in_transaction:
                    books.execute("ROLLBACK")
                raise
