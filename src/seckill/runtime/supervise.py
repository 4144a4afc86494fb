"""``seckill serve``: starts the parts of a run in order, keeps them alive, ends them.

Start: Redis (and Kafka) → order workers (the reaper in the first, or beside them), relays and web
processes, and beside them what ``prepare`` does (the ledger's schema, the buckets).
Stop: web processes (they finish what is under way) → relays → reaper → order workers → Kafka and
Redis. A second signal hurries.

The programs among them are forked off one that loads what they need while the servers start
(fork_server.py), where the system can do that.

The supervisor itself serves nothing and decides nothing about a sale, so it has little to die of.
When it is killed all the same, the kernel takes the children with it, and the next start goes on.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from seckill import __version__
from seckill.runtime.data_dir import DataDir
from seckill.runtime.embedded_postgres import EmbeddedPostgres, find_programs
from seckill.runtime.embedded_redis import EmbeddedRedis, RedisServer, find_server
from seckill.runtime.errors import DataDirUnusable
from seckill.runtime.fork_server import can_fork
from seckill.runtime.keeper import Keeper, RestartPolicy
from seckill.runtime.launching import ForkLauncher, Launcher, StartLauncher
from seckill.runtime.listener import (
    address_of,
    backlog_note,
    open_listeners,
    raise_open_files_limit,
)
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.parts import KafkaPart, Part, PostgresPart, ProgramPart, RedisPart
from seckill.runtime.processes import ended_within, send_signal
from seckill.runtime.program import fork_server_command, program_command
from seckill.runtime.settings import LoadedSettings, Settings, Source, mask_url, wants_own_postgres
from seckill.runtime.settings_report import (
    settings_environment,
    with_started_kafka,
    with_started_postgres,
    with_started_redis,
    write_run_settings,
)
from seckill.runtime.status import (
    ProcessStatus,
    RunStatus,
    StatusBoard,
    is_alive,
    read_recorded,
    rfc3339,
)
from seckill.runtime.telemetry import Metrics, reset_gauges

__all__ = ["RunReport", "Supervisor", "describe_run"]

_WORKER_GRACE_MS: Final = 8_000
_REDIS_GRACE_MS: Final = 10_000
_KAFKA_GRACE_MS: Final = 20_000
_REDIS_HURRY_MS: Final = 2_000
_POSTGRES_GRACE_MS: Final = 20_000
_PROGRAMS: Final = frozenset({"web", "worker", "relay", "reaper", "sentinel"})
_LEFTOVER_TIMEOUT_MS: Final = 2_000
_WRITE_AGAIN_S: Final = 1.0


def pass_on_to_stderr(lines: bytes) -> None:
    """Write what a child said to our own standard error; gone is gone."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.buffer.write(lines)
        sys.stderr.buffer.flush()


async def _nothing_to_prepare(_settings: Settings, _launcher: Launcher) -> None:
    """The prepare step of a run that needs none."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run whose parts are all ready.

    Attributes:
        loaded: the settings in force, with the address of the Redis that was started.
        redis_server: the program that was started; None with a Redis of the operator's own.
        notes: sentences that the operator should read.
    """

    loaded: LoadedSettings
    status: RunStatus
    redis_server: RedisServer | None
    notes: tuple[str, ...]


class Supervisor:
    """One run of the embedded set.

    Args:
        loaded: the settings.
        prepare: runs once Redis answers, beside the start of worker and web; gets the settings
            with the address of Redis, and what starts programs. A SeckillError of it ends the run.
        on_ready: is called once, when all parts are ready for the first time.
        command: how a program is started by itself. None, where the system can: it is forked off a
            fork server.
        policy: when a part is started again.
        pass_on: takes what the children write.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        prepare: Callable[[Settings, Launcher], Coroutine[Any, Any, None]] = _nothing_to_prepare,
        on_ready: Callable[[RunReport], None] = lambda _report: None,
        command: Callable[[str, int], Sequence[str]] | None = None,
        policy: RestartPolicy | None = None,
        pass_on: Callable[[bytes], None] = pass_on_to_stderr,
    ) -> None:
        self._loaded = loaded
        self._prepare = prepare
        self._on_ready = on_ready
        self._command = command
        self._fork: ForkLauncher | None = None
        self._policy = policy or RestartPolicy()
        self._pass_on = pass_on
        self._data: DataDir = loaded.settings.data
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._redis: EmbeddedRedis | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._keepers: dict[Keeper, asyncio.Task[None]] = {}
        self._log = structlog.get_logger(__name__)

    def stop(self) -> None:
        """Begin the orderly end; a second call hurries it. What SIGTERM and SIGINT do."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Start everything, keep it alive until :meth:`stop`, end everything.

        Raises:
            SeckillError: it could not start, or a part cannot stay up; one sentence says why.
                Everything that had been started is ended by then.
        """
        raise_open_files_limit()
        if not self._data.root.exists():
            self._find_out_beforehand()
        self._data.create()
        with self._data.locked(), self._signals():
            await _end_leftovers(self._data, self._log)
            settings = self._loaded.settings
            listeners = open_listeners(settings.bind_address, settings.workers)
            lifeline_read, lifeline_write = os.pipe()
            try:
                await self._run_parts(listeners, lifeline_read)
            finally:
                for listener in listeners:
                    listener.close()
                os.close(lifeline_read)
                os.close(lifeline_write)

    def _find_out_beforehand(self) -> None:
        """Refuse what is bound to fail before a data directory is made for it.

        Only where there is none: in one that is there, something of an earlier run may hold the
        address until it is ended.

        Raises:
            AddressUnusable, RedisMissing, RedisUnusable, PostgresMissing: as the start itself
                would.
        """
        settings = self._loaded.settings
        for listener in open_listeners(settings.bind_address, 1):
            listener.close()
        if not settings.redis_url:
            find_server()
        if wants_own_postgres(settings):
            find_programs()

    async def _run_parts(self, listeners: Sequence[socket.socket], lifeline_fd: int) -> None:
        bind = address_of(listeners[0], self._loaded.settings.bind_address)
        settings = self._loaded.settings
        board = StatusBoard(
            self._data,
            RunStatus(
                __version__, rfc3339(time.time()), str(bind), mask_url(settings.redis_url), ()
            ),
        )
        with _writing(self._data):
            metrics = Metrics(self._data.metrics, "supervisor-0", LAYOUT)
        # The reaper is a task of the worker's process unless it has one of its own: whoever looks
        # for it must find that process.
        guests = {"worker": "reaper"} if settings.reaper == "worker" else {}
        observer = _Observer(board, metrics, self._data, self._log, guests)
        observer.supervisor_started()
        keeping_written = asyncio.create_task(observer.keep_written(), name="keep the status")
        counts = _programs_of(settings)
        if self._command is None and can_fork():
            self._fork = ForkLauncher(fork_server_command(counts), os.environ, self._pass_on)
        try:
            if self._fork is not None:
                # Loads while the servers start. What keeps it from that is told by whoever is to be
                # started by it.
                with contextlib.suppress(OSError):
                    await self._fork.prepare()
            loaded = self._loaded
            if settings.channel == "kafka" and not settings.kafka_bootstrap:
                loaded = await self._start_kafka(loaded, observer)
            if wants_own_postgres(settings):
                loaded = await self._start_postgres(loaded, observer)
            if not settings.redis_url:
                loaded = await self._start_redis(loaded, observer)
            await self._servers_ready()
            on_bind = loaded.settings.model_copy(update={"bind": str(bind)})
            with _writing(self._data):
                write_run_settings(replace(loaded, settings=on_bind))
            # Side by side: loading the programs takes longer than what there is to prepare, and
            # each of them waits for the schema by itself.
            launcher = self._launcher(loaded.settings)
            self._start_programs(counts, launcher, listeners, lifeline_fd, observer)
            await self._or_stop(self._prepare(loaded.settings, launcher))
            for keeper in tuple(self._keepers):
                await self._or_stop(keeper.is_ready.wait())
            self._on_ready(self._report(loaded, board.status))
            await self._or_stop(self._stop.wait())
        except _StopAsked:
            pass
        finally:
            await self._end_all()
            if self._postgres is not None:
                self._postgres.close()
            keeping_written.cancel()
            await asyncio.wait({keeping_written})
            # What cannot be removed is taken for nothing: it names a supervisor that is gone.
            with contextlib.suppress(OSError):
                board.remove()
            with contextlib.suppress(OSError):
                self._data.run_settings.unlink(missing_ok=True)
            metrics.close()

    async def _servers_ready(self) -> None:
        """Wait for the servers that were started: the programs are to find them."""
        for keeper in tuple(self._keepers):
            await self._or_stop(keeper.is_ready.wait())

    async def _start_kafka(self, loaded: LoadedSettings, observer: "_Observer") -> LoadedSettings:
        # Only a run that has one pays for loading this.
        from seckill.runtime.embedded_kafka import EmbeddedKafka, find_jars  # noqa: PLC0415

        with _writing(self._data):
            self._data.kafka.mkdir(mode=0o700, exist_ok=True)
        kafka = EmbeddedKafka(
            self._data.kafka, jars=await asyncio.to_thread(find_jars, loaded.settings.kafka_jars)
        )
        await kafka.stop_orphan()
        with _writing(self._data):
            await asyncio.to_thread(kafka.prepare)
        # Its own limit counts, which knows what it waited for; the keeper's is only behind it.
        self._keep(
            KafkaPart(kafka, pass_on=self._pass_on),
            observer,
            replace(self._policy, start_timeout_ms=kafka.start_timeout_ms + _REDIS_HURRY_MS),
        )
        return with_started_kafka(loaded, kafka.bootstrap)

    async def _start_postgres(
        self, loaded: LoadedSettings, observer: "_Observer"
    ) -> LoadedSettings:
        with _writing(self._data):
            self._data.postgres.mkdir(mode=0o700, exist_ok=True)
        self._postgres = EmbeddedPostgres(self._data.postgres)
        with _writing(self._data):
            # A first start makes a cluster, which takes seconds: a stop must be heard meanwhile.
            await self._or_stop(self._postgres.prepare())
        limit_ms = self._postgres.start_timeout_ms + _REDIS_HURRY_MS
        self._keep(
            PostgresPart(self._postgres),
            observer,
            replace(self._policy, start_timeout_ms=limit_ms),
        )
        return with_started_postgres(loaded, self._postgres.url)

    async def _start_redis(self, loaded: LoadedSettings, observer: "_Observer") -> LoadedSettings:
        settings = loaded.settings
        assert settings.durability != "replicated"  # refused when the settings were read
        self._redis = EmbeddedRedis(
            self._data,
            durability=settings.durability,
            start_timeout_ms=settings.redis_start_timeout_ms,
        )
        with _writing(self._data):
            await self._redis.prepare()
        # Its own limit counts, which knows what it waited for; the keeper's is only behind it.
        limit_ms = settings.redis_start_timeout_ms + _REDIS_HURRY_MS
        keeper = self._keep(
            RedisPart(self._redis, pass_on=self._pass_on),
            observer,
            replace(self._policy, start_timeout_ms=limit_ms),
        )
        await self._or_stop(keeper.is_ready.wait())
        observer.redis_started(self._redis.url)
        return with_started_redis(loaded, self._redis.url)

    def _launcher(self, settings: Settings) -> Launcher:
        """What starts the programs, on these settings."""
        variables = settings_environment(settings)
        if self._fork is not None:
            self._fork.set_variables(variables)
            return self._fork
        return StartLauncher(self._command or program_command, {**os.environ, **variables})

    def _start_programs(
        self,
        counts: Mapping[str, int],
        launcher: Launcher,
        listeners: Sequence[socket.socket],
        lifeline_fd: int,
        observer: "_Observer",
    ) -> None:
        slots = [(role, slot) for role, count in counts.items() for slot in range(count)]
        for role, slot in slots:
            part = ProgramPart(
                role,
                slot,
                launcher=launcher,
                lifeline_fd=lifeline_fd,
                listen_fd=listeners[slot].fileno() if role == "web" else None,
                pass_on=self._pass_on,
            )
            self._keep(part, observer, self._policy)

    def _keep(self, part: Part, observer: "_Observer", policy: RestartPolicy) -> Keeper:
        keeper = Keeper(part, policy=policy, observer=observer)
        self._keepers[keeper] = keeper.begin()
        return keeper

    async def _or_stop(self, wanted: Coroutine[Any, Any, object]) -> None:
        """Wait for something, unless a stop is asked for or a part fails before.

        Raises:
            _StopAsked: a stop was asked for.
            SeckillError: a part cannot stay up, or what was waited for went wrong.
        """
        task = asyncio.create_task(wanted)
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                {task, stop, *self._keepers.values()}, return_when=asyncio.FIRST_COMPLETED
            )
            for keeping in self._keepers.values():
                if keeping.done():
                    keeping.result()
            if stop.done():
                raise _StopAsked
            await task
        finally:
            for ended in (task, stop):
                ended.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)

    async def _end_all(self) -> None:
        """End the parts, last started first; a part that does not end in time is killed."""
        grace_ms = {
            "web": self._loaded.settings.shutdown_grace_ms,
            "sentinel": _WORKER_GRACE_MS,
            "relay": _WORKER_GRACE_MS,
            "reaper": _WORKER_GRACE_MS,
            "worker": _WORKER_GRACE_MS,
            "postgres": _POSTGRES_GRACE_MS,
            "kafka": _KAFKA_GRACE_MS,
            "redis": _REDIS_GRACE_MS,
        }
        for role, role_grace_ms in grace_ms.items():
            of_role = [keeper for keeper in self._keepers if keeper.part.role == role]
            await asyncio.gather(
                *(
                    keeper.stop(
                        grace_ms=role_grace_ms,
                        hurry=self._hurry,
                        hurry_ms=_REDIS_HURRY_MS if role in {"redis", "postgres"} else 0,
                    )
                    for keeper in of_role
                )
            )
        # One failure is told; others of the same moment are looked at, so that nobody warns.
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        if self._fork is not None:
            await self._fork.close()

    def _report(self, loaded: LoadedSettings, status: RunStatus) -> RunReport:
        server = self._redis.server if self._redis else None
        notes = (server.warning if server else "", backlog_note())
        return RunReport(loaded, status, server, tuple(note for note in notes if note))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # not under nohup
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


def _programs_of(settings: Settings) -> dict[str, int]:
    """The roles of a run's own programs, each with how many there are of it."""
    counts = {"worker": settings.order_workers, "web": settings.workers}
    if settings.channel == "kafka":
        counts["relay"] = settings.relays
    if settings.reaper == "process":
        counts["reaper"] = 1
    if settings.sentinel_bind:
        counts["sentinel"] = 1
    return counts


class _StopAsked(Exception):  # noqa: N818  -- not an error: the way out of what is being waited for
    """The run is to end."""


@contextlib.contextmanager
def _writing(data: DataDir) -> Iterator[None]:
    """Around what cannot start without a file. Raises DataDirUnusable when it cannot be written."""
    try:
        yield
    except OSError as error:
        raise DataDirUnusable(
            f"the data directory {data.root} cannot be written: {error.strerror or error}"
            f" ({error.filename or data.run})"
        ) from error


class _Observer:
    """Writes down what happens to the parts: status file, metrics, log.

    A full disk must not end a run that still sells, so a status file that cannot be written is
    only told. It is written as soon as it can be, or the other commands would go on reading what
    was true before.

    Args:
        guests: by role of a process: another role that the same process has.
    """

    def __init__(
        self,
        board: StatusBoard,
        metrics: Metrics,
        data: DataDir,
        log: "structlog.typing.FilteringBoundLogger",
        guests: Mapping[str, str] | None = None,
    ) -> None:
        self._board = board
        self._guests = guests or {}
        self._data = data
        self._log = log
        self._unwritten = asyncio.Event()
        roles = LAYOUT.values_of("seckill_processes_healthy")
        self._healthy = {r: metrics.gauge("seckill_processes_healthy", r) for r in roles}
        self._restarts = {r: metrics.counter("seckill_process_restarts_total", r) for r in roles}

    def supervisor_started(self) -> None:
        """The run has begun."""
        for path in self._data.metrics.iterdir():
            if not path.name.startswith("supervisor-"):
                self._reset_gauges(path.name)
        self._note("supervisor", 0, os.getpid(), healthy=True)

    def redis_started(self, url: str) -> None:
        """The Redis of this run has an address now."""
        self._write_down(lambda: self._board.set_redis_url(url))

    def started(self, part: Part, pid: int) -> None:
        """A part runs, and does not do its work yet."""
        self._note(part.role, part.slot, pid, healthy=False)
        known = self._find(part)
        if known is not None and known.restarts:
            self._restarts[part.role].inc()

    def ready(self, part: Part, pid: int) -> None:
        """A part does its work."""
        self._note(part.role, part.slot, pid, healthy=True)

    def ended(self, part: Part) -> None:
        """A part runs no more."""
        self._note(part.role, part.slot, None, healthy=False)
        self._reset_gauges(f"{part.role}-{part.slot}")

    def _find(self, part: Part) -> ProcessStatus | None:
        return next((p for p in self._board.status.of_role(part.role) if p.slot == part.slot), None)

    def _note(self, role: str, slot: int, pid: int | None, *, healthy: bool) -> None:
        self._write_down(lambda: self._board.note(role, slot, pid=pid, healthy=healthy))
        if (guest := self._guests.get(role)) is not None:
            self._note(guest, slot, pid, healthy=healthy)
        if role in self._healthy:
            healthy_now = sum(p.healthy for p in self._board.status.of_role(role))
            self._healthy[role].set(healthy_now)

    def _write_down(self, write: Callable[[], None]) -> None:
        """Write the status file: with this change, and with all that could not be written before.

        Only the first failure and the end of it are told, not each of what may be thousands.
        """
        try:
            write()
        except OSError as error:
            if not self._unwritten.is_set():
                self._log.warning("the status file cannot be written", error=str(error))
                self._unwritten.set()
        else:
            if self._unwritten.is_set():
                self._log.info("the status file is written again")
                self._unwritten.clear()

    async def keep_written(self, *, pause_s: float = _WRITE_AGAIN_S) -> None:
        """Try again what could not be written, until it can be; for ever.

        Args:
            pause_s: between two tries.
        """
        while True:
            await self._unwritten.wait()
            await asyncio.sleep(pause_s)
            self._write_down(self._board.write)

    def _reset_gauges(self, slot: str) -> None:
        try:
            reset_gauges(self._data.metrics, slot, LAYOUT)
        except OSError as error:
            self._log.warning(
                "the gauges of a part that ended cannot be reset", part=slot, error=str(error)
            )


async def _end_leftovers(data: DataDir, log: "structlog.typing.FilteringBoundLogger") -> None:
    """Kill what a killed supervisor left behind; Redis is left to its own, gentler way.

    On Linux there is nothing left. Elsewhere a child may not have noticed yet, and would serve on
    beside its successor. Known by number and birth, so it is ours.
    """
    recorded = read_recorded(data)
    for process in recorded.processes if recorded else ():
        if process.role in _PROGRAMS and process.pid and is_alive(process):
            log.warning(
                "killed a process that an earlier run left behind",
                part=process.role,
                pid=process.pid,
            )
            send_signal(process.pid, process.created_s, signal.SIGKILL)
            await ended_within(process.pid, process.created_s, _LEFTOVER_TIMEOUT_MS)


def describe_run(report: RunReport) -> str:
    """What runs where, in plain words, for the terminal."""
    settings, status = report.loaded.settings, report.status
    survives = {
        "memory": "the death of our processes, not of Redis",
        "fsync": "the death of Redis and of the machine",
        "replicated": "the loss of the Redis master",
    }[settings.durability]
    buyers = (
        "whoever the request says (dev): only programs on this machine can ask"
        if settings.auth == "dev"
        else f"whoever a token signed with {settings.jwt_algorithm} names"
    )
    redis = (
        f"{status.redis_url}, started for you: {report.redis_server}"
        if report.redis_server
        else status.redis_url
    )
    processes = ", ".join(
        f"{p.role}{f' {p.slot}' if len(status.of_role(p.role)) > 1 else ''} {p.pid}"
        for p in status.processes
    )
    lines = [
        f"Seckill {status.version} serves on http://{status.bind}",
        f"  redis       {redis}",
        *([] if settings.channel == "direct" else [f"  kafka       {_kafka_line(report)}"]),
        f"  ledger      {_ledger_line(report)}",
        f"  data        {settings.data_dir}",
        f"  durability  {settings.durability}: a purchase survives {survives}",
        f"  buyers      {buyers}",
        f"  processes   {processes}",
        *([f"  commands    {_commands_line(settings)}"] if settings.sentinel_bind else []),
        *(f"  note        {note}" for note in report.notes),
        "Ctrl-C stops all of it; the next start carries on with the same data.",
    ]
    return "\n".join(lines)


def _kafka_line(report: RunReport) -> str:
    settings = report.loaded.settings
    started = report.loaded.sources["kafka_bootstrap"] is Source.STARTED_FOR_YOU
    whose = ", started for you" if started else ""
    return f"{settings.kafka_bootstrap}{whose}: topic {settings.kafka_topic}"


def _commands_line(settings: Settings) -> str:
    # The port that was asked for may have been taken: by a dashboard on this machine, above all,
    # which has such a port itself.
    with contextlib.suppress(OSError):
        address = settings.data.command_port.read_text(encoding="ascii")
        return f"of a Sentinel dashboard on {address}"
    return f"of a Sentinel dashboard: {settings.sentinel_bind} cannot be opened yet, see the log"


def _ledger_line(report: RunReport) -> str:
    url = mask_url(report.loaded.settings.database_url)
    started = report.loaded.sources["database_url"] is Source.STARTED_FOR_YOU
    return f"{url}, started for you" if started else url
