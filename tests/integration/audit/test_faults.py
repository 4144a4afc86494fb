"""Each fault that can be made by hand is found, named with its ids, and nothing else is said."""

from collections.abc import Awaitable, Callable

import pytest

from integration.audit.kit import FAST, Service
from seckill.admission.bucket import BucketView
from seckill.audit import BucketReader, Kind, run_audit
from seckill.domain.events import Admitted
from seckill.domain.ids import AttemptId, UserId
from seckill.domain.reservation import BucketId
from services.patient_loop import PatientClock


async def sold(service: Service, users: int = 5) -> list[str]:
    """A few orders of two units each, all at rest; returns their reservation ids."""
    got = await service.buy([f"u{n}" for n in range(1, users + 1)], 2)
    await service.settle()
    assert await service.findings() == {}
    return [reservation_id for _, reservation_id in got]


async def test_books_at_rest_balance_to_the_unit(service: Service) -> None:
    ids = await sold(service)
    await service.cancel(ids[0], "u1")
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.in_flight == 2  # the cancelled units are on their way back
    await service.settle()
    report = await service.audit()
    assert report.ok, report.to_text()
    (line,) = report.sales
    assert (line.put_units, line.left_units, line.held_units, line.live_units) == (100, 92, 8, 8)
    assert (report.in_flight, line.buyers, report.unsettled) == (0, 4, 0)


async def test_what_is_not_written_yet_is_in_flight_and_no_fault(service: Service) -> None:
    await service.buy(["a", "b"], 2)
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.in_flight == 4


async def test_what_happens_after_the_look_belongs_to_the_next_audit(service: Service) -> None:
    ids = await sold(service)

    class Busy(BucketReader):
        looked = 0

        async def look(self, bucket_id: BucketId) -> BucketView:
            view = await super().look(bucket_id)
            self.looked += 1
            if self.looked == 1:
                await service.buy(["later"], 3)
                await service.cancel(ids[0], "u1")
                await service.sweep.sweep()
            return view

    report = await run_audit(
        reader=Busy(service.redis, service.buckets, service.keys),
        ledger=service.audit_ledger,
        reservation_ids=service.reservation_ids,
        clock=PatientClock(),
        options=FAST,
    )
    assert report.ok, report.to_text()
    assert (report.in_flight, report.sales[0].held_units) == (0, 10)


async def test_an_order_row_that_was_deleted_is_a_lost_unit_with_its_buyer(
    service: Service,
) -> None:
    ids = await sold(service)
    service.sql("DELETE FROM orders WHERE reservation_id = ?", ids[2])
    found = await service.findings()
    assert found.keys() == {Kind.LOST, Kind.COUNTER}
    finding = found[Kind.LOST]
    assert (finding.units, finding.count) == (2, 1)
    (subject,) = finding.ids
    assert (subject.reservation_id, subject.user_id) == (ids[2], "u3")
    assert subject.place == service.place(3)
    report = await service.audit()
    assert (report.lost, report.stranded, report.oversold, report.duplicates) == (2, 0, 0, 0)


async def test_an_outbox_entry_that_was_deleted_is_named_for_each_buyer_in_it(
    service: Service,
) -> None:
    await sold(service)
    got = await service.buy(["x", "y"], 1)
    ((entry, _),) = await service.redis.xrange(service.names.outbox)
    await service.redis.xdel(service.names.outbox, entry)
    found = await service.findings()
    assert found.keys() == {Kind.LOST}
    named = {(s.user_id, s.reservation_id, s.units) for s in found[Kind.LOST].ids}
    assert named == {(user, reservation_id, 1) for user, reservation_id in got}


async def test_a_lost_entry_is_found_behind_later_ones_that_were_written(service: Service) -> None:
    await service.buy(["x"])
    ((entry, _),) = await service.redis.xrange(service.names.outbox)
    await service.buy(["y"])
    await service.redis.xdel(service.names.outbox, entry)
    await service.settle()
    found = await service.findings()
    assert found.keys() == {Kind.LOST}
    assert [s.user_id for s in found[Kind.LOST].ids] == ["x"]


@pytest.mark.parametrize("by", [-3, 3])
async def test_a_stock_counter_that_was_changed_by_hand(service: Service, by: int) -> None:
    await sold(service)
    await service.redis.hincrby(service.names.meta, "stock", by)
    found = await service.findings()
    assert found.keys() == {Kind.UNBALANCED}
    assert found[Kind.UNBALANCED].units == 3
    assert (await service.audit()).stranded == 3


async def test_stock_below_zero_is_an_oversell(service: Service) -> None:
    await sold(service)
    await service.redis.hset(service.names.meta, "stock", -4)
    assert (await service.audit()).oversold == 4


async def test_stock_and_held_changed_together_still_differ_from_the_log(service: Service) -> None:
    await sold(service)
    await service.redis.hincrby(service.names.meta, "stock", 3)
    await service.redis.hincrby(service.names.meta, "held", -3)
    found = await service.findings()
    assert found.keys() == {Kind.MISCOUNTED}
    assert found[Kind.MISCOUNTED].units == 3


async def test_units_put_on_sale_by_hand(service: Service) -> None:
    await sold(service)
    await service.redis.hincrby(service.names.meta, "stock", 7)
    await service.redis.hincrby(service.names.meta, "put", 7)
    found = await service.findings()
    assert found.keys() == {Kind.MISCOUNTED, Kind.STOCK_DIFFERS}
    assert found[Kind.STOCK_DIFFERS].units == 7


async def test_stock_units_of_the_ledger_changed_by_hand(service: Service) -> None:
    await sold(service)
    service.sql("UPDATE sales SET stock_units = stock_units + 5")
    found = await service.findings()
    assert found.keys() == {Kind.STOCK_DIFFERS}
    assert found[Kind.STOCK_DIFFERS].units == 5


async def test_a_buyer_that_was_removed_is_an_order_that_could_be_sold_twice(
    service: Service,
) -> None:
    ids = await sold(service)
    await service.redis.hdel(service.names.buyers, "u2")
    found = await service.findings()
    assert found.keys() == {Kind.PHANTOM, Kind.TORN}
    (subject,) = found[Kind.PHANTOM].ids
    assert (subject.reservation_id, subject.user_id, subject.units) == (ids[1], "u2", 2)
    assert (await service.audit()).stranded == 2


async def test_a_buyer_that_was_replaced_is_found_though_the_count_is_right(
    service: Service,
) -> None:
    ids = await sold(service)
    record = await service.redis.hget(service.names.buyers, "u2")
    assert record is not None
    await service.redis.hdel(service.names.buyers, "u2")
    await service.redis.hset(service.names.buyers, "thief", record)
    found = await service.findings()
    assert found.keys() == {Kind.PHANTOM, Kind.STRANDED}
    assert [s.user_id for s in found[Kind.PHANTOM].ids] == ["u2"]
    (subject,) = found[Kind.STRANDED].ids
    assert (subject.user_id, subject.reservation_id) == ("thief", ids[1])
    assert "another user" in str(subject)


@pytest.mark.parametrize(
    ("record", "note"),
    [
        ("1.999.2.a", "never given"),
        ("7.1.2.a", "never given"),
        ("1.1.2.a", "another user"),
        ("nonsense", "cannot be read"),
    ],
)
async def test_an_extra_buyer_holds_units_that_nobody_can_buy(
    service: Service, record: str, note: str
) -> None:
    await sold(service)
    await service.redis.hset(service.names.buyers, "ghost", record)
    found = await service.findings()
    assert found.keys() == {Kind.STRANDED, Kind.TORN}
    (subject,) = found[Kind.STRANDED].ids
    assert subject.user_id == "ghost"
    assert note in str(subject)


async def test_a_record_with_other_units_than_the_order(service: Service) -> None:
    await sold(service)
    await service.redis.hset(service.names.buyers, "u4", "1.4.1.a4")
    found = await service.findings()
    assert found.keys() == {Kind.STRANDED}
    assert "of 2 units" in str(found[Kind.STRANDED].ids[0])


async def test_an_order_inserted_twice_for_a_user_breaks_the_limit(service: Service) -> None:
    await sold(service)
    service.sql(
        "INSERT INTO orders (reservation_id, sale_id, bucket, epoch, seq, user_id, quantity,"
        " price_fen, state, attempt_id, admitted_at_ms, created_at_ms, pay_by_ms,"
        " state_changed_at_ms, reason) SELECT 'second', sale_id, bucket, epoch, 50, user_id, quantity,"
        " price_fen, state, attempt_id, admitted_at_ms, created_at_ms, pay_by_ms,"
        " state_changed_at_ms, reason FROM orders WHERE seq = 1"
    )
    report = await service.audit()
    found = {finding.kind: finding for finding in report.findings}
    assert (report.duplicates, found[Kind.DUPLICATE].ids[0].user_id) == (1, "u1")
    # That row is also a place that Redis has never given out: nothing of the bucket is proven.
    assert found.keys() == {Kind.DUPLICATE, Kind.COUNTER, Kind.FENCED}


async def test_more_live_orders_than_stock_is_an_oversell(service: Service) -> None:
    await sold(service)
    service.sql("UPDATE sales SET stock_units = 7")
    report = await service.audit()
    assert report.oversold == 3
    assert Kind.OVERSOLD in {finding.kind for finding in report.findings}


async def test_a_sold_counter_that_was_changed(service: Service) -> None:
    await sold(service)
    service.sql("UPDATE sales SET sold_units = sold_units - 1")
    found = await service.findings()
    assert found.keys() == {Kind.COUNTER}
    assert "counts 9 units as sold" in found[Kind.COUNTER].what
    assert "hold 10" in found[Kind.COUNTER].what


async def test_a_holding_counter_that_was_changed(service: Service) -> None:
    await sold(service)
    service.sql("UPDATE holdings SET units = 0 WHERE user_id = 'u5'")
    found = await service.findings()
    assert found.keys() == {Kind.COUNTER}
    assert [s.user_id for s in found[Kind.COUNTER].ids] == ["u5"]


async def test_an_order_that_ended_without_a_release_strands_its_units(service: Service) -> None:
    ids = await sold(service)
    await service.cancel(ids[3], "u4")
    service.sql("DELETE FROM releases")
    found = await service.findings()
    assert found.keys() == {Kind.STRANDED}
    (subject,) = found[Kind.STRANDED].ids
    assert (subject.reservation_id, subject.user_id, subject.units) == (ids[3], "u4", 2)
    assert "cancelled" in str(subject)


async def test_a_release_of_an_epoch_that_is_over_strands_its_units(service: Service) -> None:
    ids = await sold(service)
    await service.cancel(ids[3], "u4")
    service.sql("UPDATE releases SET epoch = 0")
    found = await service.findings()
    assert found.keys() == {Kind.STRANDED}


async def test_an_order_that_lives_again_after_its_release_is_a_phantom(service: Service) -> None:
    ids = await sold(service)
    await service.cancel(ids[0], "u1")
    await service.settle()
    service.sql("DROP TRIGGER orders_edges")  # the books refuse it otherwise
    service.sql("UPDATE orders SET state = 'awaiting_payment' WHERE reservation_id = ?", ids[0])
    found = await service.findings()
    assert found.keys() == {Kind.PHANTOM, Kind.COUNTER}
    assert found[Kind.PHANTOM].ids[0].reservation_id == ids[0]


async def test_the_event_of_a_release_that_was_lost_harms_nobody_and_is_told(
    service: Service,
) -> None:
    ids = await sold(service)
    await service.cancel(ids[0], "u1")
    await service.sweep.sweep()
    ((entry, _),) = await service.redis.xrange(service.names.outbox)
    await service.redis.xdel(service.names.outbox, entry)
    found = await service.findings()
    assert found.keys() == {Kind.LOST_EVENT}
    assert ids[0] in str(found[Kind.LOST_EVENT].ids[0])
    assert (await service.audit()).lost == 0


async def test_a_dead_letter_is_shown_with_its_reason(service: Service) -> None:
    await service.buy(["x"], 2)
    (delivery,) = await service.channel.receive(10, 100)
    await service.channel.set_aside(delivery, "the ledger knows no such sale")
    found = await service.findings()
    assert found.keys() == {Kind.DEAD_LETTER}
    (subject,) = found[Kind.DEAD_LETTER].ids
    assert subject.units == 2
    assert "no such sale" in str(subject)
    assert "buyers x" in str(subject)
    assert (await service.audit()).lost == 2


async def test_an_entry_that_nobody_can_read_is_shown_before_and_after_it_is_put_aside(
    service: Service,
) -> None:
    await service.buy(["x"], 2)
    await service.redis.xadd(service.names.outbox, {"e": b"\xff\x00garbage"})
    found = await service.findings()
    assert found.keys() == {Kind.DEAD_LETTER}
    assert "still in the outbox" in str(found[Kind.DEAD_LETTER].ids[0])
    await service.settle()
    found = await service.findings()
    assert found.keys() == {Kind.DEAD_LETTER}
    assert found[Kind.DEAD_LETTER].units == 0


async def test_a_lost_hash_of_releases_is_a_torn_bucket(service: Service) -> None:
    ids = await sold(service)
    await service.cancel(ids[0], "u1")
    await service.settle()
    await service.redis.delete(service.names.released)
    found = await service.findings()
    assert found.keys() == {Kind.TORN}
    assert "released reservations: 0 there, 1 counted" in str(found[Kind.TORN].ids[0])


async def test_a_lost_hash_of_applied_changes_is_a_torn_bucket(service: Service) -> None:
    await service.ledger.sales.request_stock_change("c1", service.sale.sale_id, 5, actor="t")
    await service.settle()
    assert await service.findings() == {}
    await service.redis.delete(service.names.changes)
    found = await service.findings()
    assert found.keys() == {Kind.TORN}
    assert "applied stock changes: 0 there, 1 counted" in str(found[Kind.TORN].ids[0])


async def test_a_lost_outbox_is_a_torn_bucket_and_names_what_was_in_it(service: Service) -> None:
    await sold(service)
    await service.buy(["x", "y"])
    await service.redis.delete(service.names.outbox)
    found = await service.findings()
    assert found.keys() == {Kind.TORN, Kind.LOST}
    assert "outbox: 0 there, 1 counted" in str(found[Kind.TORN].ids[0])
    assert {s.user_id for s in found[Kind.LOST].ids} == {"x", "y"}


async def test_a_lost_hash_of_buyers_names_every_order_that_could_be_sold_twice(
    service: Service,
) -> None:
    await sold(service)
    await service.redis.delete(service.names.buyers)
    found = await service.findings()
    assert found.keys() == {Kind.TORN, Kind.PHANTOM}
    assert found[Kind.PHANTOM].units == 10


async def test_a_collision_in_the_ledger_is_an_alarm_that_names_the_buyer(service: Service) -> None:
    await sold(service)
    await service.ledger.write([Admitted(service.place(2), UserId("fork"), 1, AttemptId("f"), 1)])
    found = await service.findings()
    assert found.keys() == {Kind.COLLISION}
    (subject,) = found[Kind.COLLISION].ids
    assert (subject.user_id, subject.place, subject.units) == ("fork", service.place(2), 1)


async def test_what_the_ledger_refused_is_on_its_way_back_and_no_fault(service: Service) -> None:
    ids = await sold(service)
    service.sql("UPDATE holdings SET units = 3 WHERE user_id = 'u1'")
    await service.buy(["u1"])  # Redis still has room for one unit, the ledger has none
    await service.write()
    service.sql("UPDATE holdings SET units = 2 WHERE user_id = 'u1'")
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.in_flight == 1
    await service.settle()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert (report.in_flight, report.sales[0].held_units) == (0, 2 * len(ids))


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Kind.UNBALANCED, lambda s: s.redis.hincrby(s.names.meta, "stock", -3)),
        (Kind.STOCK_DIFFERS, lambda s: s.redis.hincrby(s.names.meta, "put", 3)),
        (Kind.PHANTOM, lambda s: s.redis.hdel(s.names.buyers, "u1")),
        (Kind.PHANTOM, lambda s: s.redis.delete(s.names.buyers)),
        (Kind.STRANDED, lambda s: s.redis.hset(s.names.buyers, "ghost", "1.999.2.a")),
        (Kind.TORN, lambda s: s.redis.delete(s.names.outbox)),
        (Kind.TORN, lambda s: s.redis.hset(s.names.changes, "c", "1")),
        (Kind.FENCED, lambda s: s.redis.delete(s.names.meta)),
    ],
)
async def test_the_rebuild_that_is_advised_sets_it_right(
    service: Service, kind: Kind, fault: Callable[[Service], Awaitable[object]]
) -> None:
    await sold(service)
    await fault(service)
    found = await service.findings()
    assert "`seckill rebuild g1 --force`" in found[kind].advice
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.sales[0].left_units == 90
