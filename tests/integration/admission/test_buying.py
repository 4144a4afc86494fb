"""What a buyer sees, at the gate, on a real Redis."""

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from seckill.admission.batcher import Request
from seckill.admission.bounds import Bounds
from seckill.admission.catalogue import Catalogue, publish
from seckill.admission.errors import ScriptRefused
from seckill.admission.keys import Keys
from seckill.admission.reservation_ids import ReservationIds
from seckill.admission.scripts import ADMIT, Scripts, pack
from seckill.domain.errors import InvalidValue
from seckill.domain.events import Admitted
from seckill.domain.ids import AttemptId, GoodsId, UserId
from seckill.domain.outcomes import Outcome
from seckill.domain.reservation import Place
from seckill.domain.sale import Sale
from seckill.pipeline.outbox import read_entry, read_traces
from services.patient_loop import PatientClock
from services.redis import RedisServer
from services.stage import (
    BUCKET,
    GOODS,
    ID_KEY,
    MemoryFenceLedger,
    buy,
    events_of,
    make_sale,
    open_gate,
    open_sale,
    until,
)

STALENESS_MS = 50
QUICK_FLAG = Bounds(sold_out_staleness_ms=STALENESS_MS, queue_wait_ms_max=60_000)


async def redis_now_ms(redis: Redis) -> int:
    seconds, microseconds = await redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


async def test_first_wave_sells_each_unit_once_and_what_comes_back_is_sold_again(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C1: 10 units, 100 buyers at once, 3 orders cancelled, 10 new buyers."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10))
    samples: list[int] = []
    over = asyncio.Event()

    async def sample() -> None:
        while not over.is_set():
            samples.append((await buckets.look(BUCKET)).stock_units)

    async with (
        open_gate(redis_server.url, keys, marks_folder, slot="a", bounds=QUICK_FLAG) as a,
        open_gate(redis_server.url, keys, marks_folder, slot="b", bounds=QUICK_FLAG) as b,
        open_gate(redis_server.url, keys, marks_folder, slot="c", bounds=QUICK_FLAG) as c,
    ):
        sampling = asyncio.create_task(sample())
        first = await buy([a, b, c], [f"user-{n}" for n in range(100)])
        assert Counter(d.outcome for d in first) == {Outcome.SUCCESS: 10, Outcome.SOLD_OUT: 90}
        winners = [(f"user-{n}", d) for n, d in enumerate(first) if d.outcome is Outcome.SUCCESS]
        ids = ReservationIds(ID_KEY)
        back = [(UserId(user), ids.decode(d.reservation_id or "")) for user, d in winners[:3]]
        seqs = await buckets.release(BUCKET, 1, [(u, p) for u, p in back if p is not None])
        assert seqs == [11, 12, 13]
        assert (await buckets.look(BUCKET)).stock_units == 3
        await asyncio.sleep(STALENESS_MS / 1000)  # the bound, not a guess: the flag is down by then
        second = await buy([a, b, c], [f"new-{n}" for n in range(10)])
        assert Counter(d.outcome for d in second) == {Outcome.SUCCESS: 3, Outcome.SOLD_OUT: 7}
        over.set()
        await sampling
    assert min(samples) >= 0
    view = await buckets.look(BUCKET)
    assert (view.stock_units, view.held_units, view.put_units, view.seq) == (0, 10, 10, 16)


async def test_a_buyer_who_clicks_fifty_times_takes_one_unit_and_leaves_no_other_trace(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C2."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10))
    async with (
        open_gate(redis_server.url, keys, marks_folder, slot="a") as a,
        open_gate(redis_server.url, keys, marks_folder, slot="b") as b,
    ):
        mine = [await (a, b)[n % 2].buy("A") for n in range(25)]
        mine += await buy([a, b], ["A"] * 25)
        assert Counter(d.outcome for d in mine) == {Outcome.SUCCESS: 1, Outcome.DUPLICATE: 49}
        assert len({d.reservation_id for d in mine}) == 1
        assert None not in {d.reservation_id for d in mine}
        assert (await buckets.look(BUCKET)).stock_units == 9
        others = await buy([a, b], [f"user-{n}" for n in range(1, 10)])
        assert {d.outcome for d in others} == {Outcome.SUCCESS}
    assert (await buckets.look(BUCKET)).stock_units == 0
    assert len(await events_of(redis, keys)) == 10


async def test_a_buyer_is_known_before_any_worker_has_seen_the_order(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C4: nobody reads the outbox while one buyer posts twenty times."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=5))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        answers = []
        for _ in range(20):
            answers.append(await gate.buy("A"))
            await asyncio.sleep(0.02)
    assert [d.outcome for d in answers] == [Outcome.SUCCESS] + [Outcome.DUPLICATE] * 19
    assert len({d.reservation_id for d in answers}) == 1
    assert len(await redis.xrange(keys.bucket(BUCKET).outbox)) == 1
    assert (await buckets.look(BUCKET)).stock_units == 4


async def test_a_trace_goes_into_the_outbox_with_who_was_admitted_and_nobody_else_pays_for_it(
    redis: Redis, keys: Keys
) -> None:
    await open_sale(redis, keys, make_sale(stock_units=4))
    names, scripts = keys.bucket(BUCKET), Scripts(redis)
    where = (names.meta, names.buyers, names.outbox)
    requests = [1, 0, 0, "ann", "a", 1, "bob", "b", 1, "ann", "c", 1, "eve", "d", 1]
    traces = {2: "trace of bob", 3: "trace of a second click", 4: "trace of eve"}
    await scripts.run(ADMIT, where, requests, pack(traces))
    await scripts.run(ADMIT, where, [1, 0, 0, "tim", "e", 1, "bob", "b", 1], pack({2: "again"}))
    (_, first), (_, second) = await redis.xrange(names.outbox)
    assert [event.user_id for event in read_entry(BUCKET, first)] == ["ann", "bob", "eve"]
    assert first[b"t"] == pack([2, "trace of bob", 3, "trace of eve"])
    # Tim has none, and bob has his order: what is not admitted leaves no trace.
    assert second.keys() == {b"e"}
    assert b"trace" not in b"".join(await redis.hvals(names.buyers))


async def test_the_batcher_sends_the_traces_of_its_buyers(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await open_sale(redis, keys, make_sale(stock_units=10))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        asked = [Request(UserId(user), AttemptId(user), 1) for user in ("ann", "bob", "eve")]
        asked[1].traceparent = trace
        for request in asked:
            assert gate.gate.admit_now(GOODS, request) is None
        await asyncio.gather(*(request.decision for request in asked))
    ((_, fields),) = await redis.xrange(keys.bucket(BUCKET).outbox)
    assert read_traces(fields) == {2: trace}


async def test_the_same_idempotency_key_gets_the_same_answer_and_another_quantity_is_named(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C64 at the gate, also in one batch and from two processes at once."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10, limit_per_user=3))
    async with (
        open_gate(redis_server.url, keys, marks_folder, slot="a") as a,
        open_gate(redis_server.url, keys, marks_folder, slot="b") as b,
    ):
        answers = await asyncio.gather(*(g.buy("A", 2, "key") for g in (a, b) for _ in range(10)))
        assert {d.outcome for d in answers} == {Outcome.SUCCESS}
        assert sum(not d.replayed for d in answers) == 1
        assert len({d.reservation_id for d in answers}) == 1
        other = await a.buy("A", 1, "key")
        assert other.outcome is Outcome.KEY_REUSED
        assert other.reservation_id == answers[0].reservation_id
        assert (await b.buy("B", 2, "key")).outcome is Outcome.SUCCESS  # keys are per user
    assert (await buckets.look(BUCKET)).held_units == 4


async def test_posts_before_the_start_leave_the_buyer_free_to_buy_after_it(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C55. An operator brings the start forward; that it comes by itself is the next test's."""
    starts = await redis_now_ms(redis) + 3_600_000
    sale = make_sale(stock_units=10, starts_at_ms=starts)
    buckets = await open_sale(redis, keys, sale)
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        early = await buy([gate], [f"user-{n}" for n in range(500)])
        assert {d.outcome for d in early} == {Outcome.NOT_STARTED}
        assert {d.starts_at_ms for d in early} == {starts}
        assert all(0 < d.retry_after_ms <= 3_600_000 for d in early)
        assert await redis.exists(keys.bucket(BUCKET).buyers) == 0
        view = await buckets.look(BUCKET)
        assert (view.stock_units, view.seq, view.outbox_entries) == (10, 0, 0)

        now = dataclasses.replace(sale, starts_at_ms=await redis_now_ms(redis), version=2)
        await buckets.define(now, BUCKET)

        async def started() -> bool:
            return (await gate.buy("user-0")).outcome is Outcome.SUCCESS

        await until(started)
        late = await buy([gate], [f"user-{n}" for n in range(1, 10)])
        assert {d.outcome for d in late} == {Outcome.SUCCESS}


async def test_the_first_and_the_last_millisecond_are_those_of_the_sale(
    redis: Redis, keys: Keys
) -> None:
    """C53: start and end are laid on the very millisecond of the request, until each has been hit.

    The only clock is Redis' own: each reply carries the instant at which it was decided.
    """
    buckets = await open_sale(redis, keys, make_sale(stock_units=1_000_000))
    scripts, names = Scripts(redis), keys.bucket(BUCKET)
    seen: set[str] = set()
    sale = make_sale(stock_units=1_000_000)
    took_ms = 1
    for number in range(20_000):
        now = (await buckets.look(BUCKET)).now_ms
        # About where the decision will be, as far as the last one can tell.
        edge = now + took_ms + number % 3 - 1
        at_start = number % 2 == 0
        sale = dataclasses.replace(
            sale,
            version=sale.version + 1,
            starts_at_ms=edge if at_start else 1,
            ends_at_ms=None if at_start else edge,
        )
        await buckets.define(sale, BUCKET)
        reply = await scripts.run(
            ADMIT, (names.meta, names.buyers, names.outbox), [1, 0, 0, f"u{number}", "t", 1]
        )
        decided_at, code = reply[1], reply[5]
        took_ms = decided_at - now
        if at_start:
            assert code == (Outcome.NOT_STARTED if decided_at < edge else Outcome.SUCCESS)
            name = "start"
        else:
            assert code == (Outcome.SUCCESS if decided_at < edge else Outcome.ENDED)
            name = "end"
        if decided_at - edge in {-1, 0}:
            seen.add(f"{name}{decided_at - edge:+d}")
        if len(seen) == 4:
            break
    assert seen == {"start-1", "start+0", "end-1", "end+0"}


BAD_QUANTITIES: list[Any] = [
    -1, 0, 101, 1.5, "1", "1e3", True, None, [], 2147483648, 9007199254740993,
    float("inf"), float("nan"),
]  # fmt: skip


async def test_a_quantity_that_is_none_is_refused_and_its_neighbours_are_not(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C56, admission side. One bad request must not fail the batch that it would have been in."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10, limit_per_user=2))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        good = asyncio.gather(*(gate.buy(f"good-{n}") for n in range(5)))
        await asyncio.sleep(0)
        bad = await asyncio.gather(
            *(gate.buy("bad", quantity) for quantity in BAD_QUANTITIES), return_exceptions=True
        )
        assert [type(b) for b in bad] == [InvalidValue] * len(BAD_QUANTITIES)
        assert {d.outcome for d in await good} == {Outcome.SUCCESS}
        assert (await buckets.look(BUCKET)).stock_units == 5
        assert [(await gate.buy("A")).outcome for _ in range(3)] == [
            Outcome.SUCCESS,
            Outcome.SUCCESS,
            Outcome.OVER_LIMIT,
        ]
        assert (await gate.buy("B")).outcome is Outcome.SUCCESS
        assert (await gate.buy("B", 2)).outcome is Outcome.OVER_LIMIT
        assert (await gate.buy("C", 3)).outcome is Outcome.OVER_LIMIT
        assert (await gate.buy("C", 2)).outcome is Outcome.SUCCESS  # takes the last two but one
        assert (await buckets.look(BUCKET)).stock_units == 0


async def test_a_script_refuses_by_itself_what_no_gate_would_send(redis: Redis, keys: Keys) -> None:
    """C56, second lock: the script checks before its first write."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10, limit_per_user=3))
    scripts, names = Scripts(redis), keys.bucket(BUCKET)
    before = await redis.hgetall(names.meta)
    for quantity in BAD_QUANTITIES:
        request = [1, 0, 0, "good", "t", 1, "bad", "t", quantity]
        with pytest.raises(ScriptRefused):
            await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)
    for request in (
        [1, 0, 0],
        [1, 0, 0, "u"],
        [0, 0, 0, "u", "t", 1],
        [1, 0, 0, *["u", "t", 1] * 1025],
    ):
        with pytest.raises(ScriptRefused):
            await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), request)
    for delta in (0, 1.5, 10**9, "5", None):
        with pytest.raises(ScriptRefused):
            await buckets.change_stock(BUCKET, 1, "c", delta)  # type: ignore[arg-type]
    assert await redis.hgetall(names.meta) == before
    assert await redis.xlen(names.outbox) == 0
    assert await redis.exists(names.buyers) == 0


async def test_a_release_with_a_bad_row_gives_nothing_back_at_all(redis: Redis, keys: Keys) -> None:
    """A script does not roll back: the second row must not be found bad after the first is written."""
    buckets = await open_sale(redis, keys, make_sale(stock_units=10))
    scripts, names = Scripts(redis), keys.bucket(BUCKET)
    await scripts.run(ADMIT, (names.meta, names.buyers, names.outbox), [1, 0, 0, "A", "t", 1])
    rows = [
        (UserId("A"), Place(BUCKET.sale_id, 1, 0, 1)),
        (UserId("B"), Place(BUCKET.sale_id, 1, 0, "x")),
    ]  # type: ignore[arg-type]
    with pytest.raises(ScriptRefused):
        await buckets.release(BUCKET, 1, rows)
    view = await buckets.look(BUCKET)
    assert (view.held_units, view.buyers, view.outbox_entries) == (1, 1, 1)


async def test_a_buyer_with_a_name_of_any_letters_gets_it_back_byte_for_byte(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C35 in Redis: the two forms of é are two users, and no name can pass for a part of a record."""
    names = [
        "张三",
        "é",
        "e\u0301",
        "😀",
        "a:b",
        "{a}",
        "a,b",
        "1.1.1.t",
        "../../x",
        "%00",
        "٣",
        "x" * 64,
    ]
    await open_sale(redis, keys, make_sale(stock_units=100))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        answers = await buy([gate], names)
        assert {d.outcome for d in answers} == {Outcome.SUCCESS}
        for name, answer in zip(names, answers, strict=True):
            place = ReservationIds(ID_KEY).decode(answer.reservation_id or "")
            (holding,) = await gate.gate.buckets.holdings(BUCKET, UserId(name))
            assert holding.place == place
    admitted = [e for e in await events_of(redis, keys) if isinstance(e, Admitted)]
    assert [e.user_id for e in admitted] == names


async def test_a_name_that_cannot_be_sent_is_its_callers_error_and_stops_nobody(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C35: a lone surrogate at the head of the queue must not stand in the way of the whole sale."""
    await open_sale(redis, keys, make_sale())
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        await gate.buy("warm-up")
        with pytest.raises(UnicodeEncodeError):
            await asyncio.wait_for(gate.buy("\ud800"), 60)
        answer = await asyncio.wait_for(gate.buy("next"), 60)
        assert answer.outcome is Outcome.SUCCESS


async def test_goods_that_are_not_on_sale_are_said_to_be_unknown_only_by_one_who_knows(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        nobody_knows = await gate.buy("A")
        assert (nobody_knows.outcome, nobody_knows.cause) == (Outcome.UNDECIDED, "unknown_sales")
        await open_sale(redis, keys, make_sale())
        assert (await gate.buy("A", goods=GoodsId("2"))).outcome is Outcome.NO_SUCH_GOODS
        assert (await gate.buy("A")).outcome is Outcome.SUCCESS
        answers = await asyncio.gather(*(gate.buy("A", goods=GoodsId("2")) for _ in range(200)))
        assert {d.outcome for d in answers} == {Outcome.NO_SUCH_GOODS}


async def test_a_new_sale_can_be_bought_at_once_by_a_process_that_has_just_looked(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        await publish(redis, keys, [])
        assert (await gate.buy("A")).outcome is Outcome.NO_SUCH_GOODS
        await open_sale(redis, keys, make_sale())

        async def sold() -> bool:
            return (await gate.buy("A")).outcome is Outcome.SUCCESS

        await until(sold)


async def test_one_unreadable_sale_in_the_catalogue_does_not_take_the_process_down(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(redis, keys, make_sale())
    await redis.hset(keys.sales, "by-hand", b"\xff\x00")
    await redis.hset(keys.sales, "", b"another stamp")
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        assert (await gate.buy("A")).outcome is Outcome.SUCCESS
        await asyncio.sleep(0.3)  # one poll, which is what must not have died
        assert (await gate.buy("B")).outcome is Outcome.SUCCESS


async def test_older_and_newer_programs_read_each_others_catalogue(
    redis: Redis, keys: Keys
) -> None:
    """One that knows fewer things of a sale, and one that knows more."""
    sale = make_sale(title="tea", may_buy_again=False)
    await publish(redis, keys, [sale])
    known = msgspec.msgpack.decode(await redis.hget(keys.sales, GOODS))
    catalogue = Catalogue(redis, keys, PatientClock())
    for written, expected in (
        (known, sale),
        ([*known, "what comes later"], sale),
        (known[:-1], make_sale(title="tea", may_buy_again=True)),
    ):
        await redis.hset(
            keys.sales,
            mapping={GOODS: msgspec.msgpack.encode(written), "": f"stamp {len(written)}"},
        )
        await catalogue.refresh()
        assert catalogue.sales == {GOODS: expected}


async def test_a_sale_that_was_taken_out_of_the_catalogue_by_hand_is_put_back(
    redis: Redis, keys: Keys
) -> None:
    sales = [make_sale(), make_sale(sale_id=2, goods_id="2")]
    assert await publish(redis, keys, sales)
    assert not await publish(redis, keys, sales)
    await redis.hdel(keys.sales, GOODS)
    assert await publish(redis, keys, sales)
    assert await redis.hlen(keys.sales) == 3


async def test_a_buyer_is_known_for_as_long_as_the_sale_lasts(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C65: a sale of three hours. Its window is moved past the clock instead of the clock past it,

    and no key of it may have a time to live: Redis itself is the only one who could forget.
    """
    hour = 3_600_000
    now = await redis_now_ms(redis)
    sale = make_sale(starts_at_ms=now - 1, ends_at_ms=now - 1 + 3 * hour)
    buckets = await open_sale(redis, keys, sale)

    async def let_pass(ms: int, version: int) -> None:
        moved = dataclasses.replace(
            sale,
            starts_at_ms=sale.starts_at_ms - ms,
            ends_at_ms=(sale.ends_at_ms or 0) - ms,
            version=version,
        )
        await buckets.define(moved, BUCKET)

    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        first = await gate.buy("A", 1, "mine")
        assert first.outcome is Outcome.SUCCESS
        for version, minutes in enumerate((61, 179), start=2):
            await let_pass(minutes * 60_000, version)
            again = await gate.buy("A")
            assert (again.outcome, again.reservation_id) == (
                Outcome.DUPLICATE,
                first.reservation_id,
            )
        await let_pass(3 * hour, 9)
        assert (await gate.buy("A")).outcome is Outcome.ENDED
        assert (await gate.buy("B")).outcome is Outcome.ENDED
        replayed = await gate.buy("A", 1, "mine")
        assert replayed.outcome is Outcome.SUCCESS
        assert replayed.reservation_id == first.reservation_id
    for key in dataclasses.astuple(keys.bucket(BUCKET)):
        assert await redis.pttl(key) in {-1, -2}, f"{key} would be forgotten"


async def test_a_paused_sale_says_so_and_takes_nothing(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    buckets = await open_sale(redis, keys, make_sale())
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        first = await gate.buy("A", 1, "mine")
        await buckets.define(make_sale(paused=True, version=2), BUCKET)
        paused = await gate.buy("B")
        assert paused.outcome is Outcome.PAUSED
        assert paused.retry_after_ms > 0
        assert (await gate.buy("A", 1, "mine")).reservation_id == first.reservation_id
        await buckets.define(make_sale(paused=False, version=3), BUCKET)
        await buckets.define(make_sale(paused=True, version=2), BUCKET)  # late: must not win
        assert (await gate.buy("B")).outcome is Outcome.SUCCESS


async def test_not_enough_left_says_how_many(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    await open_sale(redis, keys, make_sale(stock_units=3, limit_per_user=5))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        answer = await gate.buy("A", 5)
        assert (answer.outcome, answer.left_units) == (Outcome.NOT_ENOUGH_LEFT, 3)
        assert (await gate.buy("A", 3)).outcome is Outcome.SUCCESS
        assert (await gate.buy("B", 1)).outcome is Outcome.SOLD_OUT


async def test_a_full_hundred_units_to_one_buyer_in_one_batch_stay_within_the_limit(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    buckets = await open_sale(redis, keys, make_sale(stock_units=1000, limit_per_user=100))
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        answers = await buy([gate], ["A"] * 500)
        assert Counter(d.outcome for d in answers) == {
            Outcome.SUCCESS: 100,
            Outcome.OVER_LIMIT: 400,
        }
        holdings = await gate.gate.buckets.holdings(BUCKET, UserId("A"))
        assert len(holdings) == len({h.attempt_id for h in holdings}) == 100
    assert (await buckets.look(BUCKET)).held_units == 100


async def test_a_sale_stays_that_was_published_while_another_read_the_books(
    redis: Redis, keys: Keys
) -> None:
    old, new = make_sale(), make_sale(sale_id=2, goods_id="g2")
    await publish(redis, keys, [old])
    reads = 0

    async def newest() -> list[Sale]:
        nonlocal reads
        reads += 1
        if reads > 1:
            return [changed, new]
        await publish(redis, keys, [old, new])
        return [changed]  # as it was read a moment before

    changed = make_sale(version=9)
    assert await publish(redis, keys, [changed], newest)
    assert {name.decode() for name in await redis.hkeys(keys.sales)} == {"", GOODS, "g2"}
    assert reads == 2


async def test_a_keeper_leaves_a_sale_in_the_catalogue_that_came_while_it_looked(
    redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    old, new = make_sale(), make_sale(sale_id=2, goods_id="g2")
    await open_sale(redis, keys, old)

    class Books(MemoryFenceLedger):
        async def sales(self) -> list[Sale]:
            read = list(self.held_sales)
            if new not in read:
                self.held_sales.append(new)
                await publish(redis, keys, [old, new])
            return read

    keeper = Books([old]).keeper(redis, keys, marks_folder)
    await keeper.keep()
    assert await redis.hexists(keys.sales, "g2")


async def test_memory_of_sales_that_are_over_is_given_back(
    redis_server: RedisServer, redis: Redis, keys: Keys, marks_folder: Path
) -> None:
    """C70 in the web process: a lane for each sale that ever was would grow for ever."""
    async with open_gate(redis_server.url, keys, marks_folder) as gate:
        for number in range(1, 21):
            sale = make_sale(sale_id=number, goods_id=f"g{number}", stock_units=2)
            await open_sale(redis, keys, sale)
            await publish(redis, keys, [sale])
            await gate.gate.catalogue.refresh()
            answer = await gate.buy("A", goods=GoodsId(f"g{number}"))
            assert answer.outcome is Outcome.SUCCESS
            assert len(gate.gate._lanes) <= 2
