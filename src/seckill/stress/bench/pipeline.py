"""`seckill bench pipeline`: from an admission to its row in PostgreSQL, beside its peers.

Four ways of writing orders take turns in each round, into one PostgreSQL that waits for its disk,
with channel kafka behind a real broker that does so too:

============  ====================================================================================
``relay``     with channel kafka: one relay, a process of its own, carries what was admitted from
              the outbox into the topic, each entry deleted when the broker has taken it
``pipeline``  the product: what was admitted waits in the outbox (with Kafka: in the topic), and
              one order worker, a process of its own, writes it, with every guard and every book
``insert``    the raw insert: the same rows into one table with the same keys, indexes and
              checks, a thousand a statement, from a program that does nothing else
``copy``      the same by COPY, which is the way that the product's rows take as well
``one each``  a transaction for every purchase, 64 connections at once: insert the order, take the
              unit off the stock where one is left; by pgbench, which is written in C
============  ====================================================================================

The rates of the product are taken from the stores themselves: from the first look that finds some
of it done to the one that finds all of it done, less what the first found. So the start of a
process does not count, and nothing that is still under way does.

The order worker gives way to everything else on its machine. So do the peers here: on a machine
that has other work, all are held up alike.
"""

import asyncio
import hashlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, Literal

import asyncpg
import psutil  # type: ignore[import-untyped,unused-ignore]

from seckill.admission.scripts import ADMIT
from seckill.domain.ids import GoodsId, SaleId
from seckill.domain.reservation import BucketId
from seckill.domain.sale import NewSale
from seckill.runtime.bootstrap import Stores, open_stores
from seckill.runtime.embedded_postgres import EmbeddedPostgres, as_account
from seckill.runtime.errors import RunError
from seckill.runtime.free_ports import choose_port
from seckill.runtime.program import program_command
from seckill.runtime.roles import WORKER_NICENESS
from seckill.runtime.settings import Settings, load_settings
from seckill.runtime.settings_report import settings_environment
from seckill.stress.bench.processes import started, wait_for
from seckill.stress.bench.wrk import BenchUnavailable

__all__ = ["PipelineBench", "WayResult", "bench_pipeline"]

_ADMITTED_AT_ONCE: Final = 128
_RAW_BATCH: Final = 1_000
_CONNECTIONS: Final = 64
_LOOK_EVERY_S: Final = 0.01
_DONE_TIMEOUT_S: Final = 300
_START_TIMEOUT_S: Final = 60
_TPS: Final = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)

_ONE_EACH: Final = """\
BEGIN;
INSERT INTO each_orders SELECT md5(seq::text), 1, 0, 1, seq, 'user-' || seq, 1, 4900,
  'awaiting_payment', 'attempt-' || seq, 1800000000000, 1800000000000, 1800000900000,
  1800000000000, NULL FROM nextval('each_seq') AS seq;
UPDATE each_stock SET left_units = left_units - 1 WHERE sale_id = 1 AND left_units > 0;
COMMIT;
"""


@dataclass(frozen=True, slots=True)
class WayResult:
    """One way over all rounds: orders a second.

    Attributes:
        own_us: µs of the process's own processor for each order; None for the peers.
    """

    name: str
    orders_per_s: float
    orders_per_s_min: float
    orders_per_s_max: float
    own_us: float | None


@dataclass(frozen=True, slots=True)
class PipelineBench:
    """The whole run.

    Attributes:
        orders: of each turn.
        channel: how the orders came to the worker.
        ways: by name.
        postgres: the server that was used.
    """

    rounds: int
    orders: int
    channel: str
    postgres: str
    ways: dict[str, WayResult]

    def ratios(self) -> dict[str, float]:
        """The pipeline against each peer."""
        ours = self.ways["pipeline"].orders_per_s
        return {
            "of_insert": ours / self.ways["insert"].orders_per_s,
            "of_copy": ours / self.ways["copy"].orders_per_s,
            "of_one_each": ours / self.ways["one each"].orders_per_s,
        }

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rounds": self.rounds,
            "orders": self.orders,
            "channel": self.channel,
            "postgres": self.postgres,
            "ways": {name: asdict(way) for name, way in self.ways.items()},
            "ratios": self.ratios(),
        }

    def to_text(self) -> str:
        """For people: one line a way, then the ratios."""
        lines = [
            (
                f"{self.rounds} rounds of {self.orders:,} orders, channel {self.channel}, into"
                f" {self.postgres}; medians"
            ),
            f"{'way':<10} {'orders/s':>9} {'(min':>9} {'max)':>9} {'own µs':>10}",
        ]
        for way in self.ways.values():
            own_us = "-" if way.own_us is None else f"{way.own_us:.1f}"
            lines.append(
                f"{way.name:<10} {way.orders_per_s:>9,.0f} {way.orders_per_s_min:>9,.0f}"
                f" {way.orders_per_s_max:>9,.0f} {own_us:>10}"
            )
        ratios = self.ratios()
        lines.append(
            f"the pipeline writes {ratios['of_insert']:.2f} × the raw insert of the same rows,"
            f" {ratios['of_copy']:.2f} × their COPY, and {ratios['of_one_each']:.1f} × one"
            " transaction a purchase"
        )
        return "\n".join(lines)


Channel = Literal["direct", "kafka"]

# A rate, and µs of the process's own processor for each order where one was watched.
_Turn = tuple[float, float | None]


def bench_pipeline(
    *,
    rounds: int,
    orders_each: int,
    seconds: int,
    channel: Channel,
    tell: Callable[[str], None],
) -> PipelineBench:
    """Run the benchmark.

    Args:
        rounds: turns of each way; an odd number gives a median that was measured.
        orders_each: orders that the pipeline and each raw way write in each turn.
        seconds: that one transaction for each purchase gets in each turn.
        channel: how the orders come to the worker.
        tell: is told of each turn, for people who wait.

    Raises:
        BenchUnavailable: Redis, PostgreSQL or Kafka is missing, or a part did not start.
    """
    found: dict[str, list[_Turn]] = {}
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="seckill-bench-")))
        postgres = running.enter_context(_postgres(folder / "postgres"))
        kafka = running.enter_context(_kafka(folder / "kafka")) if channel == "kafka" else ""
        settings = running.enter_context(_redis(folder, postgres.url, kafka))
        asyncio.run(_make_books(settings))
        asyncio.run(_make_peers(postgres.url))
        for number in range(rounds):
            sale_id = asyncio.run(_admit(settings, f"bench-{number}", orders_each))
            turns: dict[str, _Turn] = {}
            if kafka:
                turns["relay"] = asyncio.run(_time_relay(settings, sale_id, orders_each))
            turns["pipeline"] = asyncio.run(_time_worker(settings, sale_id, orders_each))
            for way, write in _RAW_WAYS.items():
                raw = partial(_run_raw, postgres.url, way, write, number, orders_each)
                turns[way] = (_as_low(raw), None)
            one_each = _as_low(partial(_time_one_each, postgres, folder, seconds))
            turns["one each"] = (one_each, None)
            for way, turn in turns.items():
                found.setdefault(way, []).append(turn)
                tell(f"round {number + 1}/{rounds} {way}: {turn[0]:,.0f} orders/s")
        server = str(postgres.programs)
    ways = {way: _result(way, turns) for way, turns in found.items()}
    return PipelineBench(rounds, orders_each, channel, server, ways)


def _result(way: str, turns: Sequence[_Turn]) -> WayResult:
    rates = [rate for rate, _ in turns]
    own = [us for _, us in turns if us is not None]
    return WayResult(
        way,
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(own) if own else None,
    )


# The servers


@contextmanager
def _postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    folder.mkdir(mode=0o700)
    try:
        postgres = EmbeddedPostgres(folder)
        asyncio.run(postgres.prepare())
        process = subprocess.Popen(  # noqa: S603  -- our own words
            postgres.command, cwd="/", pass_fds=postgres.open_files,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_account(postgres.account),
        )  # fmt: skip
        try:
            asyncio.run(postgres.wait_ready(process.pid))
            yield postgres
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
            postgres.close()
    except RunError as error:
        raise BenchUnavailable(str(error)) from error


@contextmanager
def _kafka(folder: Path) -> Iterator[str]:
    folder.mkdir(mode=0o700)
    try:
        # Only a run through Kafka pays for loading this.
        from seckill.runtime.embedded_kafka import EmbeddedKafka, find_jars  # noqa: PLC0415

        kafka = EmbeddedKafka(folder, jars=find_jars(os.environ.get("SECKILL_KAFKA_JARS", "")))
        kafka.prepare()
        with started("kafka", kafka.command):
            asyncio.run(kafka.wait_ready())
            yield kafka.bootstrap
    except RunError as error:
        raise BenchUnavailable(str(error)) from error


@contextmanager
def _redis(folder: Path, database_url: str, kafka: str) -> Iterator[Settings]:
    server = shutil.which("redis-server")
    if server is None:
        raise BenchUnavailable("redis-server is missing: install it")
    port = choose_port()
    command = [
        server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
        "--appendonly", "no",
    ]  # fmt: skip
    with started("redis-server", command):
        wait_for(port)
        yield load_settings(
            {
                "data_dir": folder / "data",
                "redis_url": f"redis://127.0.0.1:{port}/0",
                "database_url": database_url,
                "channel": "kafka" if kafka else "direct",
                "kafka_bootstrap": kafka,
                "durability": "memory",
                # A first audit over all that is under way would be most of so short a run; in a
                # long one audits take a twentieth of one worker's time at most.
                "audit_every_s": 0,
                "bind": "127.0.0.1:0",
                "log_level": "error",
            }
        ).settings


# The pipeline


async def _admit(settings: Settings, goods_id: str, count: int) -> SaleId:
    """Open a sale and admit ``count`` buyers of one unit each, by the script of the product."""
    async with open_stores(settings) as stores:
        sale = await stores.ledger.sales.create_sale(
            NewSale(
                goods_id=GoodsId(goods_id),
                stock_units=count,
                price_fen=4_900,
                starts_at_ms=stores.clock.now_ms() - 1_000,
            ),
            actor="bench",
        )
        await stores.fence.keep()
        for first in range(0, count, _ADMITTED_AT_ONCE):
            users = range(first, min(first + _ADMITTED_AT_ONCE, count))
            await _admit_some(stores, sale.sale_id, users)
        return sale.sale_id


async def _admit_some(stores: Stores, sale_id: SaleId, users: range) -> None:
    keys = stores.keys.bucket(BucketId(sale_id, 0))
    request: list[Any] = [1, 0, 0]
    for user in users:
        request += (f"user-{user}", f"attempt-{user:08}", 1)
    await stores.scripts.run(ADMIT, (keys.meta, keys.buyers, keys.outbox), request)


async def _time_relay(settings: Settings, sale_id: SaleId, count: int) -> tuple[float, float]:
    """Run one relay until the outbox is empty; orders a second, and its µs an order."""
    async with open_stores(settings) as stores:
        outbox = stores.keys.bucket(BucketId(sale_id, 0)).outbox
        entries = await stores.redis.xlen(outbox)

        async def carried() -> int:
            left = await stores.redis.xlen(outbox)
            return count * (entries - left) // entries

        return await _time_part(settings, "relay", carried, count)


async def _time_worker(settings: Settings, sale_id: SaleId, count: int) -> tuple[float, float]:
    """Run one order worker until all is written; orders a second, and its µs an order."""
    connection = await asyncpg.connect(settings.database_url)
    look = await connection.prepare("SELECT sold_units FROM sales WHERE sale_id = $1")

    async def written() -> int:
        return int(await look.fetchval(sale_id))

    try:
        return await _time_part(settings, "worker", written, count)
    finally:
        await connection.close()


async def _time_part(
    settings: Settings, role: str, done: Callable[[], Awaitable[int]], count: int
) -> tuple[float, float]:
    """Run one part of the product until ``count`` is done; its rate, and its µs for each."""
    with TemporaryFile() as said:
        part = await asyncio.create_subprocess_exec(
            *program_command(role, 0),
            env={**os.environ, **settings_environment(settings)},
            stdout=said,
            stderr=said,
        )
        try:
            begun = await _until(done, 1, _START_TIMEOUT_S, part)
            process = psutil.Process(part.pid)
            used_s = sum(process.cpu_times()[:2])
            ended = await _until(done, count, _DONE_TIMEOUT_S, part)
            used_s = sum(process.cpu_times()[:2]) - used_s
        except BenchUnavailable as error:
            said.seek(0)
            words = said.read().decode(errors="replace").strip().splitlines()[-2:]
            raise BenchUnavailable(f"{role}: {error}; {' / '.join(words)}") from error
        finally:
            if part.returncode is None:
                part.terminate()
            await part.wait()
    counted = ended.done - begun.done
    if not counted:
        raise BenchUnavailable("all was done at once: give it more orders")
    return counted / (ended.at_s - begun.at_s), 1e6 * used_s / counted


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    done: int


async def _until(
    look: Callable[[], Awaitable[int]], least: int, timeout_s: float, part: Process
) -> _Look:
    deadline = time.perf_counter() + timeout_s
    while True:
        done = await look()
        now = time.perf_counter()
        if done >= least:
            return _Look(now, done)
        if now > deadline or part.returncode is not None:
            raise BenchUnavailable(f"{done} of {least} orders after {timeout_s:.0f} s at most")
        await asyncio.sleep(_LOOK_EVERY_S)


# The peers


async def _make_books(settings: Settings) -> None:
    async with open_stores(settings):
        pass


async def _make_peers(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        for name in (*_RAW_WAYS, "each"):
            await connection.execute(f"CREATE TABLE {name}_orders (LIKE orders INCLUDING ALL)")
        await connection.execute("CREATE SEQUENCE each_seq")
        await connection.execute(
            "CREATE TABLE each_stock (sale_id bigint PRIMARY KEY,"
            " left_units bigint NOT NULL CHECK (left_units >= 0))"
        )
        await connection.execute("INSERT INTO each_stock VALUES (1, 1000000000)")
    finally:
        await connection.close()


def _as_low(work: Callable[[], float]) -> float:
    """Do a work, and all that it starts, at the priority of the order worker.

    On Linux the priority is each thread's own.
    """

    def low() -> float:
        os.nice(WORKER_NICENESS)
        return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(low).result()


_Columns = Mapping[str, list[Any]]
_Write = Callable[[asyncpg.Connection, str, _Columns], Awaitable[Any]]


async def _insert(connection: asyncpg.Connection, table: str, columns: _Columns) -> None:
    arrays = ", ".join(
        f"${at}::{'bigint[]' if isinstance(column[0], int) else 'text[]'}"
        for at, column in enumerate(columns.values(), 1)
    )
    await connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT * FROM unnest({arrays})",  # noqa: S608  -- our own words
        *columns.values(),
    )


async def _copy(connection: asyncpg.Connection, table: str, columns: _Columns) -> None:
    rows = zip(*columns.values(), strict=True)
    await connection.copy_records_to_table(table, columns=list(columns), records=rows)


_RAW_WAYS: Final[Mapping[str, _Write]] = {"insert": _insert, "copy": _copy}


def _run_raw(database_url: str, way: str, write: _Write, number: int, count: int) -> float:
    return asyncio.run(_time_raw(database_url, f"{way}_orders", write, number, count))


async def _time_raw(database_url: str, table: str, write: _Write, number: int, count: int) -> float:
    connection = await asyncpg.connect(database_url)
    try:
        batches = [
            _raw_columns(number, range(first, min(first + _RAW_BATCH, count)))
            for first in range(0, count, _RAW_BATCH)
        ]
        began = time.perf_counter()
        for columns in batches:
            await write(connection, table, columns)
        return count / (time.perf_counter() - began)
    finally:
        await connection.close()


def _raw_columns(number: int, seqs: range) -> dict[str, list[Any]]:
    count = len(seqs)
    now_ms = 1_800_000_000_000
    return {
        "reservation_id": [hashlib.md5(f"{number}.{seq}".encode()).hexdigest() for seq in seqs],  # noqa: S324  -- looks as random as a real one
        "sale_id": [number + 1] * count,
        "bucket": [0] * count,
        "epoch": [1] * count,
        "seq": [seq + 1 for seq in seqs],
        "user_id": [f"user-{seq}" for seq in seqs],
        "quantity": [1] * count,
        "price_fen": [4_900] * count,
        "state": ["awaiting_payment"] * count,
        "attempt_id": [f"attempt-{seq:08}" for seq in seqs],
        "admitted_at_ms": [now_ms] * count,
        "created_at_ms": [now_ms] * count,
        "pay_by_ms": [now_ms + 900_000] * count,
        "state_changed_at_ms": [now_ms] * count,
        "reason": [None] * count,
    }


def _time_one_each(postgres: EmbeddedPostgres, folder: Path, seconds: int) -> float:
    program = postgres.programs.folder / "pgbench"
    if not program.exists():
        raise BenchUnavailable(f"{program} is missing: install postgresql-contrib")
    script = folder / "one_each.sql"
    script.write_text(_ONE_EACH)
    done = subprocess.run(  # noqa: S603  -- our own words
        [program, "-n", "-M", "prepared", "-c", str(_CONNECTIONS), "-j", "2", "-T", str(seconds),
         "-f", script, postgres.url],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    match = _TPS.search(done.stdout)
    if not done.returncode and match is None:
        raise BenchUnavailable(f"pgbench finished no transaction in {seconds} s: give it longer")
    if done.returncode or match is None:
        said = " / ".join((done.stderr or done.stdout).strip().splitlines()[-2:])
        raise BenchUnavailable(f"pgbench: {said}")
    return float(match[1])
