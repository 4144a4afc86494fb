"""`seckill bench admission`: the whole product beside nginx with one EVALSHA a request.

Four stacks take turns in each round, on the same machine and the same cores as the load:

=========  ======================================================================================
``hello``  the server's own hello: the product's HTTP server with a constant answer, its ceiling
``peer``   nginx with Lua, one EVALSHA a purchase, a Redis without append-only file
``memory`` the whole product (order worker and ledger too), durability memory
``fsync``  the whole product, durability fsync: every purchase is on the disk before its answer
=========  ======================================================================================

Every request is a purchase of a user of its own, and every one is admitted. The order worker
writes its orders meanwhile, and the turn is over when its outbox has run dry.

Each turn starts its stack anew and ends it, so that none runs beside another: two idle products
took a tenth of the machine, and the audit of one disturbed the turn of the next. Which stack comes
first in a round changes from round to round. A second of as many buyers goes before each turn and
does not count: nginx makes its connections to Redis in it, one for each request under way.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from seckill.runtime.free_ports import choose_port
from seckill.stress.bench.processes import ProcessorTime, RedisCounter, started, wait_for
from seckill.stress.bench.wrk import BenchUnavailable, Load, Measured, run_wrk

__all__ = ["AdmissionBench", "StackResult", "bench_admission"]

_STOCK: Final = 50_000_000
_STACKS: Final = ("hello", "peer", "memory", "fsync")
_WARM_UP_S: Final = 1


@dataclass(frozen=True, slots=True)
class StackResult:
    """One stack over all rounds: medians, and the spread of the rate.

    Attributes:
        cpu_us: µs of processor of all processes of the stack for each answered request; the load
            generator's are not among them. What else runs on the machine hardly moves it, unlike
            the rate.
        redis_us: µs of Redis' processor for each answered purchase; None without a Redis.
        refused: answers other than 2xx, over all rounds; 0 when every purchase was admitted.
        errors: requests without an answer, over all rounds.
    """

    name: str
    requests_per_s: float
    requests_per_s_min: float
    requests_per_s_max: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    redis_us: float | None
    refused: int
    errors: int


@dataclass(frozen=True, slots=True)
class AdmissionBench:
    """The whole run.

    Attributes:
        rounds: turns of each stack.
        stacks: by name.
    """

    rounds: int
    load: Load
    workers: int
    stacks: dict[str, StackResult]

    def ratios(self) -> dict[str, dict[str, float]]:
        """The product against the peer: requests per second, p99, Redis' processor."""
        peer = self.stacks["peer"]
        return {
            name: {
                "requests_per_s": stack.requests_per_s / peer.requests_per_s,
                "p99": stack.p99_ms / peer.p99_ms,
                "cpu_us": stack.cpu_us / peer.cpu_us,
                "redis_us": (stack.redis_us or 0.0) / (peer.redis_us or 1.0),
                "of_hello": stack.requests_per_s / self.stacks["hello"].requests_per_s,
            }
            for name in ("memory", "fsync")
            if (stack := self.stacks[name])
        }

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "rounds": self.rounds,
            "load": asdict(self.load),
            "workers": self.workers,
            "stacks": {name: asdict(stack) for name, stack in self.stacks.items()},
            "ratios_to_peer": self.ratios(),
        }

    def to_text(self) -> str:
        """For people: one line a stack, then the ratios."""
        load = f"{self.load.duration_s} s, {self.load.connections} connections"
        lines = [f"{self.rounds} rounds of {load}, {self.workers} web processes; medians"]
        heads = [
            "req/s",
            "(min",
            "max)",
            "p50 ms",
            "p99 ms",
            "CPU µs",
            "Redis µs",
            "refused",
            "errors",
        ]
        widths = (9, 9, 9, 8, 8, 8, 9, 8, 7)
        lines.append(
            f"{'stack':<8}" + "".join(f" {h:>{w}}" for h, w in zip(heads, widths, strict=True))
        )
        for stack in self.stacks.values():
            redis_us = "-" if stack.redis_us is None else f"{stack.redis_us:.1f}"
            lines.append(
                f"{stack.name:<8} {stack.requests_per_s:>9,.0f} {stack.requests_per_s_min:>9,.0f}"
                f" {stack.requests_per_s_max:>9,.0f} {stack.p50_ms:>8.1f} {stack.p99_ms:>8.1f}"
                f" {stack.cpu_us:>8.1f} {redis_us:>9} {stack.refused:>8} {stack.errors:>7}"
            )
        for name, ratio in self.ratios().items():
            lines.append(
                f"{name} against the peer: {ratio['requests_per_s']:.2f} × the requests,"
                f" {ratio['p99']:.2f} × the p99, {ratio['cpu_us']:.2f} × the processor,"
                f" {ratio['redis_us']:.2f} × Redis' processor;"
                f" {ratio['of_hello']:.2f} × the server's hello"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Stack:
    url: str
    purchases: bool
    processor: ProcessorTime
    redis: RedisCounter | None
    settled: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Turn:
    measured: Measured
    cpu_us: float
    redis_us: float | None


def bench_admission(
    *, rounds: int, load: Load, workers: int, tell: Callable[[str], None]
) -> AdmissionBench:
    """Run the benchmark.

    Args:
        rounds: turns of each stack; an odd number gives a median that was measured.
        load: of each turn.
        workers: web processes of the product and of nginx.
        tell: is told of each turn, for people who wait.

    Raises:
        BenchUnavailable: wrk, nginx with Lua or Redis is missing, or a part did not start.
    """
    found: dict[str, list[_Turn]] = {name: [] for name in _STACKS}
    for number in range(rounds):
        first = number % len(_STACKS)
        for name in (*_STACKS[first:], *_STACKS[:first]):
            with (
                tempfile.TemporaryDirectory(prefix="seckill-bench-") as folder,
                _running(name, Path(folder), workers) as stack,
            ):
                turn = _measure(stack, load)
            found[name].append(turn)
            tell(
                f"round {number + 1}/{rounds} {name}:"
                f" {turn.measured.requests_per_s:,.0f} req/s, p99 {turn.measured.p99_ms:.1f} ms,"
                f" {turn.cpu_us:.1f} µs of processor each"
            )
    return AdmissionBench(
        rounds, load, workers, {name: _result(name, turns) for name, turns in found.items()}
    )


def _measure(stack: _Stack, load: Load) -> _Turn:
    def run(load: Load, user_prefix: str) -> Measured:
        return run_wrk(stack.url, load, user_prefix=user_prefix if stack.purchases else None)

    run(replace(load, duration_s=_WARM_UP_S), "early-")
    stack.settled()
    redis_before = stack.redis.used_us() if stack.redis else 0.0
    cpu_before = stack.processor.used_us()
    measured = run(load, "user-")
    count = max(measured.requests, 1)
    cpu_us = (stack.processor.used_us() - cpu_before) / count
    redis_us = (stack.redis.used_us() - redis_before) / count if stack.redis else None
    stack.settled()
    return _Turn(measured, cpu_us, redis_us)


def _result(name: str, turns: Sequence[_Turn]) -> StackResult:
    rates = [turn.measured.requests_per_s for turn in turns]
    redis = [turn.redis_us for turn in turns if turn.redis_us is not None]
    return StackResult(
        name,
        statistics.median(rates),
        min(rates),
        max(rates),
        statistics.median(turn.measured.p50_ms for turn in turns),
        statistics.median(turn.measured.p99_ms for turn in turns),
        statistics.median(turn.cpu_us for turn in turns),
        statistics.median(redis) if redis else None,
        sum(turn.measured.not_2xx for turn in turns),
        sum(turn.measured.errors for turn in turns),
    )


def _running(name: str, folder: Path, workers: int) -> AbstractContextManager[_Stack]:
    """A stack that runs as long as the block, with its files in a folder that is empty."""
    if name == "hello":
        return _hello(workers)
    if name == "peer":
        return _peer(folder, workers)
    return _product(folder, workers, name)


@contextmanager
def _hello(workers: int) -> Iterator[_Stack]:
    port = choose_port()
    command = [
        sys.executable, "-m", "seckill.stress.bench.hello", str(port), str(workers),
    ]  # fmt: skip
    with started("hello", command) as pid:
        wait_for(port)
        processor = ProcessorTime(pid)
        yield _Stack(f"http://127.0.0.1:{port}/", False, processor, None, lambda: None)


@contextmanager
def _peer(folder: Path, workers: int) -> Iterator[_Stack]:
    nginx, server = shutil.which("nginx"), shutil.which("redis-server")
    modules = Path("/usr/lib/nginx/modules")
    if nginx is None or not (modules / "ngx_http_lua_module.so").exists():
        raise BenchUnavailable("nginx with Lua is missing: install nginx libnginx-mod-http-lua")
    if server is None:
        raise BenchUnavailable("redis-server is missing: install it")
    redis_port, port = choose_port(), choose_port()
    redis_command = [
        server, "--port", str(redis_port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--save", "", "--appendonly", "no", "--tcp-backlog", "16384",
    ]  # fmt: skip
    with started("the peer's Redis", redis_command) as redis_pid:
        wait_for(redis_port)
        redis = RedisCounter(f"redis://127.0.0.1:{redis_port}/0")
        script = files(__package__).joinpath("peer_admit.lua").read_text(encoding="utf-8")
        sha = redis.prepare_peer(script, _STOCK)
        values = {
            "modules": "".join(
                f"load_module {modules / name};\n"
                for name in ("ndk_http_module.so", "ngx_http_lua_module.so")
            ),
            "folder": str(folder),
            "workers": str(workers),
            "port": str(port),
            "redis_port": str(redis_port),
            "sha": sha,
        }
        text = files(__package__).joinpath("nginx.conf").read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"@{name}@", value)
        (folder / "nginx.conf").write_text(text)
        nginx_command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf")]
        with started("nginx", nginx_command) as nginx_pid:
            wait_for(port)
            processor = ProcessorTime(nginx_pid, redis_pid)
            yield _Stack(f"http://127.0.0.1:{port}", True, processor, redis, lambda: None)


@contextmanager
def _product(folder: Path, workers: int, durability: str) -> Iterator[_Stack]:
    port = choose_port()
    command = [
        sys.executable, "-m", "seckill", "serve", "--data-dir", str(folder),
        "--bind", f"127.0.0.1:{port}", "--workers", str(workers), "--durability", durability,
    ]  # fmt: skip
    with started(f"seckill ({durability})", command) as pid:
        wait_for(port, f"{folder}/run/status.json", timeout_s=60)
        _seckill("sale", "create", "bench", "--stock", str(_STOCK), "--data-dir", str(folder))
        settings = json.loads(_seckill("settings", "--json", "--data-dir", str(folder)))
        redis = RedisCounter(settings["redis_url"]["value"])

        def settled() -> None:
            deadline = time.monotonic() + 120
            while redis.outbox_entries():
                if time.monotonic() > deadline:
                    raise BenchUnavailable("the outbox did not run dry within 120 s")
                time.sleep(0.05)

        processor = ProcessorTime(pid)
        yield _Stack(f"http://127.0.0.1:{port}", True, processor, redis, settled)


def _seckill(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603  -- this program itself
        [sys.executable, "-m", "seckill", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchUnavailable(f"seckill {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout
