"""Two holes that the obvious rules leave, each with two web processes on a real Redis.

Each has its control: the same story with the rule taken away must lose a sale in silence, or the
test would show nothing.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from integration.audit.kit import Service, open_service
from seckill.admission.bucket import Buckets
from seckill.admission.fence import Verdict
from seckill.admission.keys import Keys
from seckill.admission.redis_client import connect
from seckill.admission.scripts import Scripts
from seckill.domain.ids import ReservationId, UserId
from seckill.domain.outcomes import Outcome
from services.redis import RedisServer
from services.stage import BUCKET, Gate, MemoryFenceLedger, make_sale, open_gate


async def buy_up_to(gate: Gate, seqs: range) -> list[ReservationId]:
    """One buyer after the other, so that each takes the next seq."""
    answers = [await gate.buy(f"u{seq}") for seq in seqs]
    assert {answer.outcome for answer in answers} == {Outcome.SUCCESS}
    return [answer.reservation_id for answer in answers if answer.reservation_id]


async def believe_in_this_server(redis: Redis, keys: Keys) -> None:
    """Take rule 3 away: the bucket takes the server that it is on for the one it was opened on."""
    info: Any = await redis.info()
    identity = f"{info['run_id']}.{info['master_replid']}"
    await redis.hset(keys.bucket(BUCKET).meta, "server", identity)


@pytest.mark.parametrize("rule_3", [True, False])
async def test_the_hole_that_seq_alone_leaves(
    own_redis: RedisServer, keys: Keys, marks_folder: Path, tmp_path: Path, *, rule_3: bool
) -> None:
    """One process acknowledged 100, Redis came back at 90, and another one, that had seen 85,
    admits 20. The first finds 110, which is more than it knows: seq alone sees nothing."""
    redis = connect(own_redis.url, timeout_ms=60_000)
    ledger = MemoryFenceLedger([make_sale(stock_units=500)])
    keeper = ledger.keeper(redis, keys, marks_folder)
    assert (await keeper.keep())[BUCKET] is Verdict.REOPENED
    try:
        async with (
            open_gate(own_redis.url, keys, marks_folder, slot="web-0") as first,
            open_gate(own_redis.url, keys, marks_folder, slot="web-1") as second,
        ):
            await buy_up_to(second, range(1, 86))
            await buy_up_to(first, range(86, 91))
            await asyncio.to_thread(own_redis.copy_data, tmp_path / "old")
            told = await buy_up_to(first, range(91, 101))
            own_redis.kill()
            own_redis.put_data_back(tmp_path / "old")
            await asyncio.to_thread(own_redis.start)
            assert (await Buckets(redis, Scripts(redis), keys).look(BUCKET)).seq == 90
            if rule_3:
                for gate in (second, first):
                    answer = await gate.buy("new")
                    assert (answer.outcome, answer.cause) == (Outcome.UNDECIDED, "fenced")
                assert (await Buckets(redis, Scripts(redis), keys).look(BUCKET)).seq == 90
                assert (await keeper.keep())[BUCKET] is Verdict.NEEDS_REBUILD
                await ledger.take_outbox(redis, keys)
                statement = await keeper.rebuild(BUCKET, deadline_ms=60_000)
                assert list(statement.lost) == told, "named one by one"
            else:
                await believe_in_this_server(redis, keys)
                others = await buy_up_to(second, range(1_091, 1_111))
                assert set(told) < set(others), "somebody else's order under the first one's ids"
                assert (await first.buy("calm")).outcome is Outcome.SUCCESS
                assert (await keeper.keep())[BUCKET] is Verdict.FINE, "and nobody notices"
    finally:
        await redis.aclose()


async def test_a_late_retry_of_an_order_that_expired_is_an_order_of_its_own(
    redis_server: RedisServer, redis: Redis, keys: Keys, tmp_path: Path, marks_folder: Path
) -> None:
    """The reservation id names the deduction: the retry's unit belongs to an order that exists."""
    async with (
        open_service(redis, keys, tmp_path, marks_folder, stock_units=1, slot="web-9") as service,
        open_gate(redis_server.url, keys, marks_folder, slot="web-0") as first,
        open_gate(redis_server.url, keys, marks_folder, slot="web-1") as second,
    ):
        before = await first.buy("ann", attempt="t1", goods=service.sale.goods_id)
        assert before.reservation_id is not None
        await service.write()
        await service.cancel(before.reservation_id, "ann")
        await service.settle()
        late = await second.buy("ann", attempt="t1", goods=service.sale.goods_id)
        assert late.outcome is Outcome.SUCCESS
        assert late.reservation_id is not None
        assert late.reservation_id != before.reservation_id
        await service.settle()
        order = await service.ledger.reading.order_of(late.reservation_id, UserId("ann"))
        assert order is not None
        assert order.state == "awaiting_payment"
        report = await service.audit()
        assert report.ok, report.to_text()
        assert report.sales[0].held_units == report.sales[0].live_units == 1


CHANGES = ["release", "more", "fewer"]


async def decide(service: Service, what: str, order: ReservationId) -> None:
    match what:
        case "release":
            await service.cancel(order, "ann")
        case "more" | "fewer":
            delta_units = 5 if what == "more" else -5
            await service.ledger.sales.request_stock_change(
                "c1", service.sale.sale_id, delta_units, actor="eve"
            )


async def assert_made_once(service: Service, what: str) -> None:
    await service.settle()
    report = await service.audit()
    assert report.ok, report.to_text()
    view = await service.buckets.look(service.bucket_id)
    expected = {"release": (10, 0), "more": (15, 1), "fewer": (5, 1)}[what]
    assert (view.put_units, view.held_units) == expected
    (line,) = report.sales
    assert (line.put_units, line.live_units) == expected


async def go_back(server: RedisServer, folder: Path) -> None:
    await asyncio.to_thread(server.kill)
    server.put_data_back(folder)
    await asyncio.to_thread(server.start)


@pytest.mark.parametrize("what", CHANGES)
async def test_what_redis_confirmed_and_forgot_is_noticed(
    own_redis: RedisServer, keys: Keys, tmp_path: Path, marks_folder: Path, what: str
) -> None:
    """Nobody has read its event: that Redis had it is known by the word of who asked alone."""
    redis = connect(own_redis.url, timeout_ms=60_000)
    async with open_service(redis, keys, tmp_path, marks_folder, stock_units=10) as service:
        ((_, order),) = await service.buy(["ann"])
        await service.write()
        await decide(service, what, order)
        await asyncio.to_thread(own_redis.copy_data, tmp_path / "old")
        assert await service.sweep.sweep() == 1
        assert await service.sweep.sweep() == 0
        await go_back(own_redis, tmp_path / "old")
        assert (await service.keeper.keep())[service.bucket_id] is Verdict.NEEDS_REBUILD
        await service.rebuild()
        await assert_made_once(service, what)
    await redis.aclose()


@pytest.mark.parametrize("forgets", [True, False])
@pytest.mark.parametrize("what", CHANGES)
async def test_a_word_that_comes_when_the_bucket_has_gone_on_counts_for_nothing(
    own_redis: RedisServer,
    keys: Keys,
    tmp_path: Path,
    marks_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    forgets: bool,
) -> None:
    """The bucket was judged without it, and rightly: only who asked knew. So it is asked again.

    And where Redis forgot nothing, asking again makes nothing twice.
    """
    redis = connect(own_redis.url, timeout_ms=60_000)
    async with open_service(redis, keys, tmp_path, marks_folder, stock_units=10) as service:
        ((_, order),) = await service.buy(["ann"])
        await service.write()
        await decide(service, what, order)
        await asyncio.to_thread(own_redis.copy_data, tmp_path / "old")
        name = "confirm_releases" if what == "release" else "confirm_stock_change"
        confirm = getattr(service.ledger, name)

        async def slowly(*said: object, **more: object) -> None:
            if forgets:
                await go_back(own_redis, tmp_path / "old")
            else:
                await asyncio.to_thread(own_redis.restart)
            assert (await service.keeper.keep())[service.bucket_id] is Verdict.REOPENED
            await confirm(*said, **more)

        with monkeypatch.context() as patch:
            patch.setattr(service.ledger, name, slowly)
            await service.sweep.sweep()
        await assert_made_once(service, what)
        # The next restart finds nothing behind: no seq of one epoch is taken for another's.
        await asyncio.to_thread(own_redis.restart)
        assert (await service.keeper.keep())[service.bucket_id] is Verdict.REOPENED
        await assert_made_once(service, what)
    await redis.aclose()


NAIVE = """
-- The obvious way: the reservation is named by the request.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then return 'duplicate' end
if tonumber(redis.call('GET', KEYS[1])) < 1 then return 'sold out' end
redis.call('DECR', KEYS[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('RPUSH', KEYS[3], ARGV[2])
return 'success'
"""


async def test_control_an_id_made_by_the_caller_strands_the_unit_of_a_late_retry(
    redis: Redis, keys: Keys
) -> None:
    stock, buyers, outbox = (f"{keys.prefix}:naive:{name}" for name in ("stock", "buyers", "out"))
    await redis.set(stock, 1)
    ledger: dict[str, str] = {}

    async def admit(user: str, attempt: str) -> str:
        reply: Any = await redis.eval(NAIVE, 3, stock, buyers, outbox, user, attempt)  # type: ignore[misc]
        return str(reply.decode())

    async def write() -> None:
        waiting: Any = await redis.lrange(outbox, 0, -1)  # type: ignore[misc]
        for reservation in waiting:
            ledger.setdefault(reservation.decode(), "live")  # unique: an id is written once
        await redis.delete(outbox)

    assert await admit("ann", "t1") == "success"
    await write()
    ledger["t1"] = "expired"
    await redis.incr(stock)
    await redis.hdel(buyers, "ann")  # type: ignore[misc]
    assert await admit("ann", "t1") == "success", "the late retry, by another process"
    await write()
    live = sum(state == "live" for state in ledger.values())
    left = int(await redis.get(stock) or 0)
    assert left + live == 0, "the only unit is neither left nor in any order: stranded for ever"
