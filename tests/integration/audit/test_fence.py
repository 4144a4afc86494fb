"""What the audit says while a bucket cannot be trusted, after it went on, and after a rebuild."""

import asyncio
from pathlib import Path

import pytest

from integration.audit.kit import FAST, Service, open_service
from seckill.admission.bucket import BucketView
from seckill.admission.errors import BucketFenced
from seckill.admission.fence import Verdict
from seckill.admission.scripts import Status
from seckill.audit import AuditOptions, BucketReader, Kind, run_audit
from seckill.domain.ids import GoodsId, UserId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from services.patient_loop import PatientClock
from services.stage import until


async def test_a_fenced_bucket_is_not_provable_and_nothing_else(service: Service) -> None:
    await service.buy(["a", "b"])
    await service.settle()
    await service.buy(["c"])
    await service.restart_seen()
    report = await service.audit()
    (finding,) = report.findings
    assert finding.kind is Kind.FENCED
    assert not report.ok
    assert list(report.unproven) == [service.bucket_id]
    assert (report.lost, report.stranded, report.oversold, report.duplicates) == (0, 0, 0, 0)
    assert finding.count == 0  # all that was acknowledged is in the outbox or in the ledger
    assert "started again" in finding.what


async def test_a_bucket_that_the_keeper_reopens_meanwhile_is_waited_for(service: Service) -> None:
    await service.buy(["a", "b"])
    await service.restart_seen()
    looks: list[BucketView] = []

    class Watched(BucketReader):
        async def look(self, bucket_id: BucketId) -> BucketView:
            view = await super().look(bucket_id)
            looks.append(view)
            return view

    audit = asyncio.create_task(
        run_audit(
            reader=Watched(service.redis, service.buckets, service.keys),
            ledger=service.audit_ledger,
            reservation_ids=service.reservation_ids,
            clock=PatientClock(),
            marks_folder=service.marks_folder,
            options=AuditOptions(patience_ms=60_000),
        )
    )
    await until(lambda: bool(looks))
    assert looks[0].status is Status.SERVER
    await service.keeper.keep()
    report = await audit
    assert report.ok, report.to_text()
    assert report.in_flight == 2


async def test_a_bucket_that_was_carried_on_counts_through_all_its_epochs(
    service: Service,
) -> None:
    got = await service.buy(["a", "b", "c"])
    await service.write()
    await service.buy(["d"])
    await service.cancel(got[0][1], "a")
    for user in ("e", "f", "g"):
        await service.restart_seen()
        await service.keeper.keep()
        await service.buy([user])
        report = await service.audit()
        assert report.ok, report.to_text()
    await service.settle()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.sales[0].held_units == 6
    await service.redis.hincrby(service.names.meta, "held", 1)
    await service.redis.hincrby(service.names.meta, "stock", -1)
    assert (await service.findings()).keys() == {Kind.MISCOUNTED}


async def test_an_entry_of_an_earlier_epoch_that_is_gone_is_lost(service: Service) -> None:
    await service.buy(["a"])
    ((entry, _),) = await service.redis.xrange(service.names.outbox)
    await service.restart_seen()
    await service.keeper.keep()
    await service.buy(["b"])
    await service.redis.xdel(service.names.outbox, entry)
    await service.settle()
    found = await service.findings()
    assert found.keys() == {Kind.LOST}
    (subject,) = found[Kind.LOST].ids
    assert (subject.user_id, subject.reservation_id) == ("a", service.id_of(1))


async def test_a_rebuilt_bucket_counts_from_its_rebuild(service: Service) -> None:
    got = await service.buy(["a", "b", "c", "d"], 2)
    await service.settle()
    await service.cancel(got[0][1], "a")  # counted by the rebuild
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    await service.cancel(got[1][1], "b")  # live at the rebuild, given back after it
    assert (await service.audit()).ok
    await service.buy(["e", "a"], 3)
    await service.ledger.sales.request_stock_change("c1", service.sale.sale_id, 9, actor="t")
    await service.settle()
    report = await service.audit()
    assert report.ok, report.to_text()
    (line,) = report.sales
    assert (line.put_units, line.held_units, line.left_units) == (109, 10, 99)
    await service.redis.hincrby(service.names.meta, "held", 1)
    await service.redis.hincrby(service.names.meta, "stock", -1)
    assert (await service.findings()).keys() == {Kind.MISCOUNTED}


async def test_after_a_rebuild_what_was_acknowledged_and_forgotten_is_named(
    service: Service,
) -> None:
    await service.buy(["a", "b"])
    await service.settle()
    lost = await service.buy(["x", "y"])
    await service.redis.delete(*keys_of(service))
    report = await service.audit()
    (finding,) = report.findings
    assert finding.kind is Kind.FENCED
    assert [s.reservation_id for s in finding.ids] == [reservation_id for _, reservation_id in lost]
    assert report.lost == 0  # not yet: they may come back with Redis
    await service.rebuild()
    report = await service.audit()
    assert report.ok, "what is named, and told to its buyers, is no alarm for ever"
    (settled,) = report.accounted
    assert [s.reservation_id for s in settled.ids] == [reservation_id for _, reservation_id in lost]
    assert (settled.kind, settled.count, report.lost) == (Kind.LOST, 2, 0)
    (statement,) = report.statements
    assert (statement.lost_count, statement.withheld_units, statement.oversold_units) == (2, 2, 0)
    assert "lost 2" in report.to_text()
    # The units are promised to those two: they are not sold to others.
    assert (report.sales[0].put_units, report.sales[0].left_units) == (98, 96)
    # What a process says afterwards, that it acknowledged too, is named by nobody yet: red.
    service.marks.acknowledge(service.bucket_id, 1, 6)
    report = await service.audit()
    assert [(f.kind, f.count) for f in report.findings] == [(Kind.LOST, 2)]


async def test_what_redis_still_holds_is_written_by_the_rebuild_and_not_lost(
    service: Service,
) -> None:
    """The outbox was trimmed by hand: the buyers' hash is a log as well."""
    await service.buy(["a"])
    await service.settle()
    got = await service.buy(["b", "c"], 2)
    await service.redis.xtrim(service.names.outbox, maxlen=0)
    assert (await service.findings()).keys() == {Kind.LOST}
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert (list(report.accounted), report.statements[0].recovered_orders) == ([], 2)
    for user, reservation_id in got:
        order = await service.ledger.reading.order_of(reservation_id, UserId(user))
        assert order is not None
        assert (order.state, order.quantity) == ("awaiting_payment", 2)
    assert report.sales[0].held_units == report.sales[0].live_units == 5


async def test_a_ledger_from_a_backup_is_noticed_and_the_sale_is_closed_and_not_rebuilt(
    service: Service,
) -> None:
    """C-backup: the books go back, Redis stays. A rebuild unasked would forget its buyers."""
    await service.buy(["a", "b"])
    await service.settle()
    await service.keeper.keep()
    assert (await service.buckets.look(service.bucket_id)).written_seq == 2
    for table in ("orders", "holdings", "order_events"):
        service.sql(f"DELETE FROM {table}")  # noqa: S608  -- names of the test's own
    service.sql("UPDATE sales SET sold_units = 0")
    assert Kind.LEDGER_OLDER in await service.findings()
    await service.buy(["c"])
    verdicts = [(await service.keeper.keep())[service.bucket_id]]
    await until(lambda: _kept(service, verdicts), within_s=60)
    assert (await service.buckets.look(service.bucket_id)).status is Status.FENCED_OFF
    assert await service.buy(["d"]) == [], "nobody is admitted any more"
    assert (await service.keeper.keep())[service.bucket_id] is Verdict.NEEDS_OPERATOR
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert (report.sales[0].live_units, report.sales[0].held_units) == (3, 3)
    assert report.statements[0].recovered_orders == 2


async def _kept(service: Service, verdicts: list[Verdict]) -> bool:
    verdicts.append((await service.keeper.keep())[service.bucket_id])
    return verdicts[-1] is Verdict.NEEDS_OPERATOR


@pytest.mark.parametrize("torn", [False, True])
async def test_a_ledger_from_a_backup_is_noticed_also_when_redis_was_started_again(
    service: Service, *, torn: bool
) -> None:
    """As the page on backups says to do it: all is stopped, the books put back, all started."""
    await service.buy(["a", "b"])
    await service.settle()
    await service.keeper.keep()
    for table in ("orders", "holdings", "order_events"):
        service.sql(f"DELETE FROM {table}")  # noqa: S608  -- names of the test's own
    service.sql("UPDATE sales SET sold_units = 0")
    await service.restart_seen()
    if torn:
        await service.redis.delete(service.names.outbox)
    assert (await service.keeper.keep())[service.bucket_id] is Verdict.NEEDS_OPERATOR
    assert (await service.keeper.keep())[service.bucket_id] is Verdict.NEEDS_OPERATOR
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert (report.sales[0].live_units, report.statements[0].recovered_orders) == (2, 2)


async def test_books_that_do_not_know_the_epoch_of_redis_take_it_in(service: Service) -> None:
    await service.buy(["a"])
    await service.settle()
    await service.restart_seen()
    await service.keeper.keep()
    await service.buy(["b"])
    await service.settle()
    for statement in (
        "DELETE FROM orders WHERE epoch = 2",
        "DELETE FROM holdings WHERE user_id = 'b'",
        "DELETE FROM epochs WHERE epoch = 2",
        "DELETE FROM fences",
        "UPDATE epochs SET state = 'open', valid_to_seq = NULL",
        "UPDATE sales SET sold_units = 1",
    ):
        service.sql(statement)
    assert (await service.keeper.keep())[service.bucket_id] is Verdict.NEEDS_OPERATOR
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert report.sales[0].live_units == 2


async def test_a_collision_is_settled_by_a_rebuild(service: Service) -> None:
    await service.buy(["a"])
    await service.settle()
    service.sql(
        "INSERT INTO collisions (sale_id, bucket, epoch, seq, content_hash, kind, reservation_id,"
        " user_id, units, content, at_ms, recorded_at_ms, reason) VALUES (?, 0, 1, 1, 'h',"
        " 'admission', 'r', 'z', 1, '{}', 1, 1, 'its place is taken')",
        service.sale.sale_id,
    )
    assert (await service.findings()).keys() == {Kind.COLLISION}
    await service.rebuild()
    report = await service.audit()
    assert report.ok, report.to_text()
    assert [finding.kind for finding in report.accounted] == [Kind.COLLISION]


def keys_of(service: Service) -> list[str]:
    names = service.names
    return [names.meta, names.buyers, names.outbox, names.released, names.changes]


async def test_a_redis_that_went_back_in_time_is_not_provable(service: Service) -> None:
    await service.buy(["a", "b"])
    await service.settle()
    service.marks.acknowledge(service.bucket_id, 1, 5)
    (finding,) = (await service.audit()).findings
    assert finding.kind is Kind.FENCED
    assert "gone back in time" in finding.what
    assert finding.count == 3  # 3, 4 and 5


async def test_a_ledger_that_went_back_in_time_is_not_provable(service: Service) -> None:
    await service.buy(["a"])
    await service.restart_seen()
    await service.keeper.keep()
    await service.settle()
    service.sql("DELETE FROM epochs WHERE epoch = 2")
    found = await service.findings()
    assert found.keys() == {Kind.FENCED}
    assert "the ledger is behind" in found[Kind.FENCED].what


async def test_a_sale_that_was_never_opened_has_nothing_wrong(service: Service) -> None:
    await service.ledger.sales.create_sale(
        NewSale(goods_id=GoodsId("later"), stock_units=5, starts_at_ms=1), actor="test"
    )
    report = await service.audit()
    assert report.ok, report.to_text()
    assert [line.goods_id for line in report.sales] == ["g1", "later"]
    assert report.sales[1].put_units is None


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_a_closed_sale_whose_keys_are_gone_is_proven_by_the_ledger(
    service: Service, *, acknowledged: bool
) -> None:
    await service.buy(["a", "b"])
    await service.settle()
    service.sql("UPDATE sales SET closed_at_ms = 5, ends_at_ms = 4")
    if acknowledged:
        await service.buy(["x"])
    await service.redis.delete(*keys_of(service))
    found = await service.findings()
    if not acknowledged:
        assert found == {}
        return
    assert found.keys() == {Kind.LOST}
    assert found[Kind.LOST].ids[0].reservation_id == service.id_of(3)


async def test_a_mark_out_of_all_proportion_is_counted_without_being_counted_up_to(
    service: Service,
) -> None:
    await service.buy(["a"])
    await service.settle()
    service.sql("UPDATE sales SET closed_at_ms = 5, ends_at_ms = 4")
    service.marks.acknowledge(service.bucket_id, 1, 1 << 39)
    await service.redis.delete(*keys_of(service))
    found = await service.findings()
    assert found.keys() == {Kind.LOST}
    finding = found[Kind.LOST]
    assert finding.count == finding.units == (1 << 39) - 1
    assert len(finding.ids) == 20


async def test_a_rebuild_in_the_middle_of_an_audit_raises_no_alarm(service: Service) -> None:
    await service.buy([f"u{n}" for n in range(30)])
    await service.settle()
    rebuilt = False

    class Rebuilding(BucketReader):
        async def records(self, bucket_id: BucketId, user_ids: list[UserId]) -> list[bytes | None]:  # type: ignore[override]
            nonlocal rebuilt
            if not rebuilt:
                rebuilt = True
                await service.redis.delete(service.names.buyers)
                await service.rebuild()
                await service.buy(["later"])
            return await super().records(bucket_id, user_ids)

    report = await run_audit(
        reader=Rebuilding(service.redis, service.buckets, service.keys),
        ledger=service.audit_ledger,
        reservation_ids=service.reservation_ids,
        clock=PatientClock(),
        marks_folder=service.marks_folder,
        options=FAST,
    )
    assert rebuilt
    assert report.ok, report.to_text()
    assert report.sales[0].held_units == 31


async def test_only_the_sales_that_were_asked_for_are_audited(service: Service) -> None:
    other = await service.ledger.sales.create_sale(
        NewSale(goods_id=GoodsId("other"), stock_units=5, starts_at_ms=1), actor="test"
    )
    await service.redis.hincrby(service.names.meta, "stock", 1)
    assert (await service.audit(sale_ids={other.sale_id})).ok
    assert not (await service.audit(sale_ids={service.sale.sale_id})).ok


async def test_a_sale_that_got_the_id_of_a_forgotten_one_is_not_sold_out_of_its_bucket(
    service: Service, tmp_path: Path
) -> None:
    """The books were restored from before a sale that Redis still has."""
    assert len(await service.buy(["a", "b"])) == 2
    restored = tmp_path / "restored"
    restored.mkdir()
    async with open_service(
        service.redis, service.keys, restored, service.marks_folder, slot="web-1"
    ) as after:
        assert after.sale.sale_id == service.sale.sale_id
        verdicts = await after.keeper.keep()
        assert verdicts[after.bucket_id] is Verdict.NEEDS_OPERATOR
        (fence,) = await after.ledger.fences.open_fences()
        assert "have given its id again" in fence.cause
        assert await after.buy(["c"]) == []
        # Not even when an operator insists: what the old outbox holds are other people's orders.
        with pytest.raises(BucketFenced, match="put the goods on sale anew"):
            await after.keeper.rebuild(after.bucket_id, deadline_ms=1_000)
        assert await after.buy(["c"]) == []
        await after.ledger.sales.change_sale(
            after.sale.sale_id, ends_at_ms=2, actor="test", reason="its id is another one's"
        )
        anew = await after.ledger.sales.create_sale(
            NewSale(goods_id=after.sale.goods_id, stock_units=5, starts_at_ms=1), actor="test"
        )
        verdicts = await after.keeper.keep()
        assert verdicts[BucketId(anew.sale_id, 0)] is Verdict.REOPENED
