"""What must be true when all is quiet, whatever has happened."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, select

from seckill.audit.audit import run_audit
from seckill.audit.collect import BucketReader
from seckill.audit.report import Kind
from seckill.domain.order import HOLDING_STATES, OrderState
from seckill.domain.payment import PaymentState
from seckill.ledger.looks import SQLAuditLedger
from seckill.ledger.tables import (
    collisions,
    losses,
    orders,
    payments,
    releases,
    sales,
    stock_changes,
)
from simulation.stores import KEYS
from simulation.wire import Process, WireDatabase
from simulation.world import World

__all__ = ["broken_promises"]

_LIVE = {state.value for state in HOLDING_STATES}


@dataclass(frozen=True)
class _Books:
    orders: dict[str, Any]
    spent: set[str]
    lost: set[str]
    stock_units: int
    sold_units: int
    collided: int
    changed_units: int
    money: dict[str, list[Any]]

    @classmethod
    def read(cls, engine: Engine) -> "_Books":
        with engine.connect() as connection:
            rows = connection.execute(
                select(orders.c.reservation_id, orders.c.user_id, orders.c.quantity, orders.c.state)
            )
            written = {row.reservation_id: row for row in rows}
            spent = set(
                connection.scalars(select(releases.c.reservation_id).where(releases.c.spent))
            )
            lost = set(connection.scalars(select(losses.c.reservation_id)))
            stock_units, sold_units = connection.execute(
                select(sales.c.stock_units, sales.c.sold_units)
            ).one()
            collided = len(connection.execute(select(collisions.c.seq)).all())
            changed_units = sum(
                connection.scalars(
                    select(stock_changes.c.delta_units).where(stock_changes.c.state == "applied")
                )
            )
            money: dict[str, list[Any]] = defaultdict(list)
            for row in connection.execute(
                select(payments.c.state, payments.c.pays).where(
                    payments.c.received_fen.is_not(None)
                )
            ):
                money[row.state].append(row.pays)
        return cls(written, spent, lost, stock_units, sold_units, collided, changed_units, money)


async def broken_promises(world: World, engine: Engine, *, stock_units: int) -> list[str]:
    """Every promise that is broken, in a few words each; empty when all are kept."""
    books = _Books.read(engine)
    live = [row for row in books.orders.values() if row.state in _LIVE]
    live_units = sum(row.quantity for row in live)
    spent = [books.orders[name] for name in books.spent]
    users: Counter[str] = Counter()
    for row in [*live, *spent]:
        users[row.user_id] += row.quantity
    paid = sorted(row.reservation_id for row in live if row.state == OrderState.PAID)
    put_on_sale = stock_units + sum(delta for _, delta in world.changes if delta > 0)
    lost = {world.ids.encode(place) for place in world.lost_places}
    stock_left, holders, spenders = await _bucket(world)
    broken = {
        "oversold": live_units > min(put_on_sale, books.stock_units),
        "a user has more than the limit": any(
            units > world.limit_per_user for units in users.values()
        ),
        "the books' own sum is wrong": books.sold_units != live_units,
        "stranded units": stock_left < books.stock_units - live_units,
        "phantom units": stock_left > books.stock_units - live_units,
        "buyers differ from orders": holders != {(row.user_id, row.reservation_id) for row in live},
        "who gave up may buy again": spenders
        != {(row.user_id, row.reservation_id) for row in spent},
        "told yes, silently lost": any(
            name not in books.orders and name not in books.lost for name in world.told
        ),
        "somebody else's order under my id": any(
            name in books.orders and books.orders[name].user_id != user
            for name, user in [*world.told.items(), *world.shown.items()]
        ),
        "two histories": books.collided > 0,
        "loss named though it was not lost": bool(books.lost - lost),
        "money is nowhere": bool(set(books.money) - {PaymentState.PAID, PaymentState.REFUNDED}),
        "paid without money, or twice": sorted(books.money[PaymentState.PAID]) != paid,
    }
    if not world.lost_places:
        broken |= {
            "compensated though nothing was lost": any(
                books.orders[name].state == OrderState.COMPENSATED
                for name in world.told
                if name in books.orders
            ),
            "units withheld though nothing was lost": books.stock_units
            != stock_units + books.changed_units,
        }
    found = [what for what, is_broken in broken.items() if is_broken]
    return found + [f"audit: {kind}" for kind in await _audit(world, engine)]


async def _bucket(world: World) -> tuple[int, set[tuple[str, str]], set[tuple[str, str]]]:
    """Units left in Redis, who holds what there, and who has spent what."""
    reader = Process("reader", world.calls)
    buckets = world.buckets_of(reader)

    async def read() -> tuple[int, set[tuple[str, str]], set[tuple[str, str]]]:
        view = await buckets.look(world.bucket_id)
        kept: dict[bool, set[tuple[str, str]]] = {False: set(), True: set()}
        async for some in buckets.holders(world.bucket_id):
            for user, holdings in some:
                for holding in holdings:
                    kept[holding.spent].add((user, world.ids.encode(holding.place)))
        return view.stock_units, kept[False], kept[True]

    reading = reader.spawn("read", read())
    await world.deliver_all()
    return reading.result()


async def _audit(world: World, engine: Engine) -> list[str]:
    """What the service's own audit has to say."""
    auditor = Process("auditor", world.calls)
    database = WireDatabase(auditor, engine)
    auditing = auditor.spawn(
        "audit",
        run_audit(
            reader=BucketReader(world.redis_of(auditor), world.buckets_of(auditor), KEYS),
            ledger=SQLAuditLedger(database, world.clock),  # type: ignore[arg-type]
            reservation_ids=world.ids,
            clock=world.clock,
            marks_folder=None,
        ),
    )
    while not auditing.done():
        await world.deliver_all()
        world.loop.advance(world.loop.next_timer_s or 0.0)
    # Redis may lose the event of a release that the ledger knows by word: the audit has to say so,
    # and nobody is harmed (docs/operate/audit.md). Of any event that Redis kept it would be a fault.
    return sorted(
        {
            finding.kind.value
            for finding in auditing.result().findings
            if finding.kind is not Kind.LOST_EVENT
            or not {subject.place for subject in finding.ids} <= world.lost_places
        }
    )
