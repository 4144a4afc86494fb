"""What can go wrong in the ledger.

The tree::

    SeckillError
    └── LedgerError
        ├── LedgerUnavailable    retryable: nothing was written; call again with the same arguments
        │                        (also a pipeline LedgerAway)
        └── LedgerRefused        final: calling again gives the same answer
            ├── UnwritableEvents     events that can never be written; the rest of the batch can
            │   │                    (also a pipeline EventRefused)
            │   └── UnknownSale      they name a sale that these books never had
            ├── NoSuchGoods          there never was a sale of these goods
            ├── NoSuchSale           a sale asked for by id does not exist
            ├── NoSuchOrder          an order asked for by its reservation id is not in the ledger
            ├── SaleExists           a sale of these goods is open already
            ├── SaleClosed           the sale has been closed; it cannot be changed any more
            ├── NoSuchUser           there is no user of the operators' side of this name
            ├── NoSuchToken          there is no token with this id
            ├── UserExists           there is a user of this name already
            ├── LastAdmin            nobody would be left who says who may do what
            ├── SetupLinkDead        a set-up link is wrong, too old or used
            ├── SaleStarted          what is to be changed is fixed once a sale is about to start
            ├── ChangeIdReused       a stock change id was used for another change
            ├── WrongState           an order cannot go where it is asked to go
            │   └── DeadlinePassed       it can be paid no more, and is about to expire
            ├── TooManyPayments      an order was tried to be paid too often
            ├── EventIdReused        a provider's event came under the name of another one
            ├── ExpiryRefused        the database refuses to expire one of some orders
            │                        (also a pipeline ExpiryFailed)
            ├── EpochMoved           the epoch is not the one that the caller took it for
            ├── SchemaUnknown        the tables were made by another, probably newer, version
            └── LedgerBroken         the database refused a statement that must never fail
                └── KeyTaken             a row with the same key is there already

`InvalidValue` (domain) names a field and its rule when a value from outside is not allowed.
Drivers' errors never leave this room; a cancelled task passes as what it is.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

from sqlalchemy import exc

from seckill.domain.errors import SeckillError
from seckill.domain.events import BucketEvent
from seckill.domain.ids import GoodsId, ReservationId, SaleId
from seckill.domain.order import Order, OrderState
from seckill.domain.reservation import BucketId
from seckill.pipeline.errors import EventRefused, ExpiryFailed, LedgerAway

__all__ = [
    "ChangeIdReused",
    "DeadlinePassed",
    "EpochMoved",
    "EventIdReused",
    "ExpiryRefused",
    "KeyTaken",
    "LastAdmin",
    "LedgerBroken",
    "LedgerError",
    "LedgerRefused",
    "LedgerUnavailable",
    "NoSuchGoods",
    "NoSuchOrder",
    "NoSuchSale",
    "NoSuchToken",
    "NoSuchUser",
    "SaleClosed",
    "SaleExists",
    "SaleStarted",
    "SchemaUnknown",
    "SetupLinkDead",
    "TooManyPayments",
    "UnknownSale",
    "UnwritableEvents",
    "UserExists",
    "WrongState",
    "translate",
]


class LedgerError(SeckillError):
    """Anything the ledger raises on purpose."""


class LedgerUnavailable(LedgerError, LedgerAway):  # noqa: N818  -- the field's word for it
    """The database cannot be reached, is busy or full. Nothing was written; call again later.

    One exception: when the connection broke during COMMIT nobody knows whether it was written.
    Every write of this room may therefore be repeated: it changes nothing the second time.
    """


class LedgerRefused(LedgerError):  # noqa: N818  -- the ledger says no, nothing broke
    """The ledger will not do this; calling again gives the same answer."""


class UnwritableEvents(LedgerRefused, EventRefused):
    """Some events of a batch can never be written. Nothing of the batch was written.

    Attributes:
        events: every such event of the batch; without them the others can be written.
    """

    def __init__(self, events: Sequence[BucketEvent], why: str) -> None:
        super().__init__(
            f"{len(events)} events {why}, the first at {events[0].place};"
            " set them aside and write the rest"
        )
        self.events = tuple(events)


class UnknownSale(UnwritableEvents):
    """Events name a sale that these books never had: they belong to other books."""

    def __init__(self, events: Sequence[BucketEvent]) -> None:
        super().__init__(events, "name sales that are not in the ledger")


class NoSuchGoods(LedgerRefused):
    """There never was a sale of these goods."""

    def __init__(self, goods_id: GoodsId) -> None:
        super().__init__(f"there is no sale of goods {goods_id}")
        self.goods_id = goods_id


class NoSuchSale(LedgerRefused):
    """There is no sale with this id."""

    def __init__(self, sale_id: SaleId) -> None:
        super().__init__(f"there is no sale {sale_id}")
        self.sale_id = sale_id


class NoSuchOrder(LedgerRefused):
    """There is no order with this reservation id in the ledger."""

    def __init__(self, reservation_id: ReservationId) -> None:
        super().__init__(f"there is no order {reservation_id} in the ledger")
        self.reservation_id = reservation_id


class SaleExists(LedgerRefused):
    """A sale of these goods is open already; end it first.

    Attributes:
        sale_id: the open sale; 0 when another process has only just made it.
    """

    def __init__(self, goods_id: GoodsId, sale_id: SaleId) -> None:
        super().__init__(f"goods {goods_id} are on sale already (sale {sale_id}); end it first")
        self.goods_id = goods_id
        self.sale_id = sale_id


class SaleClosed(LedgerRefused):
    """The sale has been closed; it cannot be changed any more."""

    def __init__(self, sale_id: SaleId) -> None:
        super().__init__(f"sale {sale_id} is closed and cannot be changed")
        self.sale_id = sale_id


class SaleStarted(LedgerRefused):
    """What is to be changed is fixed once a sale is about to start."""

    def __init__(self, sale_id: SaleId, fields: Sequence[str], margin_s: int) -> None:
        super().__init__(
            f"{', '.join(fields)} of sale {sale_id} can be changed until {margin_s} s before it"
            " starts"
        )
        self.sale_id = sale_id


class NoSuchUser(LedgerRefused):
    """There is no user of the operators' side of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no user {name}")


class NoSuchToken(LedgerRefused):
    """There is no token with this id."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"there is no token {token_id}")


class UserExists(LedgerRefused):
    """There is a user of this name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a user {name} already")


class LastAdmin(LedgerRefused):
    """Nobody would be left who can say who may do what."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last admin: make another one first")


class SetupLinkDead(LedgerRefused):
    """A set-up link is wrong, too old or used. `seckill admin setup-link` makes another."""

    def __init__(self) -> None:
        super().__init__(
            "the set-up link is wrong, too old, or was used: `seckill admin setup-link` makes"
            " another as long as there is no user"
        )


class ChangeIdReused(LedgerRefused):
    """A stock change id was used before, for another change."""

    def __init__(self, change_id: str) -> None:
        super().__init__(
            f"stock change {change_id!r} was used before for another sale or another difference;"
            " take a new id"
        )
        self.change_id = change_id


class WrongState(LedgerRefused):
    """An order cannot go where it is asked to go.

    Attributes:
        order: the order as it stands.
        wanted: the state it was to go to.
    """

    def __init__(self, order: Order, wanted: OrderState) -> None:
        super().__init__(
            f"order {order.reservation_id} is {order.state} and cannot become {wanted}"
        )
        self.order = order
        self.wanted = wanted


class DeadlinePassed(WrongState):
    """The order's deadline has passed; it is about to expire."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, OrderState.PAID)


class TooManyPayments(LedgerRefused):
    """An order was tried to be paid too often.

    Attributes:
        order: the order as it stands.
    """

    def __init__(self, order: Order, payments_max: int) -> None:
        super().__init__(
            f"order {order.reservation_id} was tried to be paid {payments_max} times, which is"
            " all that is allowed"
        )
        self.order = order


class EventIdReused(LedgerRefused):
    """A provider's event came under the name of another one, with another content."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"payment event {event_id!r} came before, and said something else")
        self.event_id = event_id


class ExpiryRefused(LedgerRefused, ExpiryFailed):
    """The database refuses to expire one of some orders: its books do not add up."""


class EpochMoved(LedgerRefused):
    """The epoch is not the one that the caller took it for: look again, then decide again."""

    def __init__(self, bucket_id: BucketId, epoch: int, found: str) -> None:
        super().__init__(
            f"bucket {bucket_id.sale_id}.{bucket_id.bucket} is not at epoch {epoch} as expected:"
            f" {found}"
        )
        self.bucket_id = bucket_id
        self.epoch = epoch


class SchemaUnknown(LedgerRefused):
    """The tables were made by another, probably newer, version of this software."""


class LedgerBroken(LedgerRefused, LedgerAway):
    """The database refused a statement that must never fail: a fault of ours, or damaged files."""


class KeyTaken(LedgerBroken):
    """A row with the same key is there already. Nothing was written."""


# Source: PostgreSQL documentation, appendix A, error codes. Classes: 08 connection, 53 resources
# (disk full, too many connections). Codes: 40001 serialization, 40P01 deadlock, 55P03 lock not
# available, 57014 statement timeout, 57P01..57P05 shutdown and start-up, 58030 I/O error,
# 25006 the server has become a read-only standby, 25P03 idle too long.
_PG_CLASSES: Final = frozenset({"08", "53"})
_PG_CODES: Final = frozenset(
    {"40001", "40P01", "55P03", "57014", "58030", "25006", "25P03"}
    | {"57P01", "57P02", "57P03", "57P05"}
)

_CLOSED_CONNECTION: Final = ("connection is closed", "connection was closed")

# Source: sqlite.org/rescode.html. All are conditions of the machine that an operator or time ends.
_SQLITE_CODES: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)


_PG_KEY_CODE: Final = "23505"
_SQLITE_KEY_CODES: Final = frozenset(
    {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}
)


def _is_retryable(error: BaseException) -> bool:
    match error:
        case exc.TimeoutError():  # no connection became free in time
            return True
        case exc.DBAPIError(connection_invalidated=True):
            return True
        case exc.DBAPIError(orig=BaseException() as orig):
            return _is_retryable(orig)
        case sqlite3.Error():
            # The low byte of an extended code is its primary code.
            return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_CODES
        case OSError():  # refused, reset, unreachable, too slow
            return True
        case _:
            return _is_retryable_in_postgresql(error)


def _is_retryable_in_postgresql(error: BaseException) -> bool:
    state = getattr(error, "sqlstate", None)
    if state is None:
        # The driver's own errors have no code; that of a closed connection is one of them.
        return any(words in str(error) for words in _CLOSED_CONNECTION)
    return state in _PG_CODES or state[:2] in _PG_CLASSES


def _is_taken_key(error: BaseException) -> bool:
    match error:
        case exc.IntegrityError(orig=BaseException() as orig):
            return _is_taken_key(orig)
        case sqlite3.IntegrityError():
            return error.sqlite_errorcode in _SQLITE_KEY_CODES
        case _:
            return getattr(error, "sqlstate", None) == _PG_KEY_CODE


def translate(error: Exception, doing: str) -> LedgerError:
    """The room's error for a driver's error.

    Args:
        error: what SQLAlchemy, a driver or the socket raised.
        doing: what was tried, for the message: "write 12 events".
    """
    if isinstance(error, LedgerError):
        return error
    detail = str(getattr(error, "orig", None) or error).splitlines()[0:1]
    what = f"{type(error).__name__}: {detail[0] if detail else ''}"
    if _is_retryable(error):
        return LedgerUnavailable(f"the ledger cannot {doing} now ({what}); call again later")
    kind = KeyTaken if _is_taken_key(error) else LedgerBroken
    return kind(f"the ledger could not {doing}: {what}")
