"""The supervisor with small real children: order, restarts, giving up, stopping, sudden death."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from seckill.domain.errors import SeckillError
from seckill.runtime.data_dir import DataDir
from seckill.runtime.errors import (
    AddressUnusable,
    DataDirInUse,
    DataDirUnusable,
    PartFailed,
    RedisMissing,
)
from seckill.runtime.exposition import render
from seckill.runtime.keeper import RestartPolicy
from seckill.runtime.launching import Launcher
from seckill.runtime.metric_table import LAYOUT
from seckill.runtime.redis_talk import ask
from seckill.runtime.settings import LoadedSettings, Settings, load_settings
from seckill.runtime.settings_report import settings_report, with_run_settings
from seckill.runtime.status import ProcessStatus, read_status
from seckill.runtime.supervise import RunReport, Supervisor, describe_run
from services.stopwatch import stopwatch

SettingsMaker = Callable[..., LoadedSettings]

QUICK = RestartPolicy(
    delay_ms_min=10, delay_ms_max=40, stable_after_ms=300, deaths_max=6, start_timeout_ms=30_000
)

# Answers with its number, ends at SIGTERM. Looks before it accepts, as every server of today does.
WEB = """
import os, select, signal, socket, sys
from seckill.runtime.lifeline import listen_fd, report_ready, watch_lifeline
watch_lifeline(lambda: None, exit_after_ms=100)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listener = socket.socket(fileno=listen_fd())
report_ready()
while True:
    select.select([listener], [], [])
    try:
        connection, _ = listener.accept()
    except BlockingIOError:
        continue
    connection.sendall(str(os.getpid()).encode())
    connection.close()
"""
WORKER = """
import signal, sys
from seckill.runtime.lifeline import report_ready
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
report_ready()
while True: signal.pause()
"""
DIES_AT_ONCE = "import sys; print('the ledger is of a newer version'); sys.exit(3)"
DIES_WHEN_READY = (
    "from seckill.runtime.lifeline import report_ready; report_ready(); raise SystemExit('no room')"
)
NEVER_READY = "import time; time.sleep(600)"
IGNORES_SIGTERM = """
import signal
from seckill.runtime.lifeline import report_ready
signal.signal(signal.SIGTERM, signal.SIG_IGN)
report_ready()
while True: signal.pause()
"""


def programs(web: str = WEB, worker: str = WORKER) -> Callable[[str, int], list[str]]:
    def command(role: str, slot: int) -> list[str]:
        return [sys.executable, "-c", web if role == "web" else worker, role, str(slot)]

    return command


async def until(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Wait for a condition, by looking."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s"
        await asyncio.sleep(0.01)


class Run:
    """A supervisor that runs in this process."""

    def __init__(self, loaded: LoadedSettings, **parts: object) -> None:
        self.data = loaded.settings.data
        self.reports: list[RunReport] = []
        self.said: list[bytes] = []
        options = {"command": programs(), "policy": QUICK, **parts}
        self.supervisor = Supervisor(
            loaded,
            on_ready=self.reports.append,
            pass_on=self.said.append,
            **options,  # type: ignore[arg-type]
        )
        self.task = asyncio.create_task(self.supervisor.run())

    async def until_ready(self) -> RunReport:
        await until(lambda: self.reports or self.task.done())
        if self.task.done():
            self.task.result()
        return self.reports[0]

    def of_role(self, role: str) -> tuple[ProcessStatus, ...]:
        status = read_status(self.data)
        return status.of_role(role) if status else ()

    def pid(self, role: str, slot: int = 0) -> int:
        return self.of_role(role)[slot].pid or 0

    async def until_back(self, role: str, slot: int, before: int) -> ProcessStatus:
        def back() -> bool:
            found = self.of_role(role)
            return bool(found) and found[slot].healthy and found[slot].pid != before

        await until(lambda: back() or self.task.done())
        if self.task.done():
            self.task.result()
        return self.of_role(role)[slot]


@contextlib.asynccontextmanager
async def running(loaded: LoadedSettings, **parts: object) -> AsyncIterator[Run]:
    run = Run(loaded, **parts)
    try:
        await run.until_ready()
        yield run
    finally:
        run.supervisor.stop()
        async with asyncio.timeout(60):
            await run.task


async def failure(loaded: LoadedSettings, **parts: object) -> SeckillError:
    run = Run(loaded, **parts)
    async with asyncio.timeout(90):
        with pytest.raises(SeckillError) as caught:
            await run.task
    assert "\n" not in str(caught.value)
    assert read_status(run.data) is None
    return caught.value


def answering_pid(run: Run) -> int:
    host, _, port = run.reports[0].status.bind.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=60) as connection:
        return int(connection.recv(20))


async def test_a_run_starts_everything_says_what_runs_where_and_ends_cleanly(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    loaded = make_settings()
    async with running(loaded) as run:
        report = run.reports[0]
        status = read_status(data)
        assert status is not None
        assert status.bind == report.status.bind != "127.0.0.1:0"
        roles = [p.role for p in status.processes]
        assert roles == ["supervisor", "redis", "worker", "reaper", "web", "web"]
        # The reaper is a task of the order worker, unless it is to have a process of its own.
        assert run.pid("reaper") == run.pid("worker")
        assert all(
            p.healthy and p.since.endswith("Z") and p.restarts == 0 for p in status.processes
        )
        assert status.of_role("supervisor")[0].pid == os.getpid()
        assert await asyncio.to_thread(answering_pid, run) in {p.pid for p in run.of_role("web")}
        text = describe_run(report)
        for word in (
            status.bind,
            status.redis_url,
            "fsync",
            str(data.root),
            str(run.pid("web", 1)),
        ):
            assert word in text
        found = settings_report(with_run_settings(load_settings({"data_dir": data.root})))
        assert found["redis_url"] == {"value": status.redis_url, "source": "started for you"}
        assert found["bind"]["value"] == status.bind
        pids = [p.pid for p in status.processes[1:]]
        assert 'seckill_processes_healthy{role="web"} 2.0' in render(data.metrics, LAYOUT).decode()
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    assert read_status(data) is None
    assert not data.status.exists()
    assert not data.run_settings.exists()
    log = (data.redis / "redis.log").read_text()
    assert "User requested shutdown" in log
    assert "ready to exit" in log


async def test_the_ledger_is_prepared_after_redis_and_before_the_programs(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    seen: list[tuple[list[str], bytes]] = []

    async def prepare(settings: Settings, _launcher: Launcher) -> None:
        status = read_status(data)
        assert status is not None
        port = int(settings.redis_url.rpartition(":")[2].partition("/")[0])
        seen.append(([p.role for p in status.processes], await ask(port, "PING")))

    async with running(make_settings(), prepare=prepare):
        assert seen == [(["supervisor", "redis"], b"PONG")]


async def test_a_step_of_preparation_that_fails_ends_the_run_with_its_sentence(
    make_settings: SettingsMaker,
) -> None:
    async def prepare(_settings: Settings, _launcher: Launcher) -> None:
        raise SeckillError("the ledger is of a newer version")

    assert (
        str(await failure(make_settings(), prepare=prepare)) == "the ledger is of a newer version"
    )


async def test_a_stop_that_comes_in_the_middle_of_the_start_is_obeyed(
    make_settings: SettingsMaker,
) -> None:
    preparing = asyncio.Event()

    async def prepare(_settings: Settings, _launcher: Launcher) -> None:
        preparing.set()
        await asyncio.Event().wait()

    run = Run(make_settings(), prepare=prepare)
    async with asyncio.timeout(60):
        await preparing.wait()
        run.supervisor.stop()
        await run.task
    assert run.reports == []


async def test_a_killed_web_process_comes_back_and_nobody_is_refused_meanwhile(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    async with running(make_settings()) as run:
        first, second = run.pid("web", 0), run.pid("web", 1)
        os.kill(first, signal.SIGKILL)
        # Some wait in the queue of the dead one's socket until it is started again.
        asking = [asyncio.to_thread(answering_pid, run) for _ in range(20)]
        answered = set(await asyncio.gather(*asking))
        back = await run.until_back("web", 0, first)
        assert answered == {second, back.pid}
        assert back.restarts == 1
        assert run.pid("web", 1) == second
        text = render(data.metrics, LAYOUT).decode()
        assert 'seckill_process_restarts_total{role="web"} 1.0' in text


async def test_a_connection_that_nobody_has_accepted_survives_all_web_processes(
    make_settings: SettingsMaker,
) -> None:
    async with running(make_settings(workers=1)) as run:
        pid = run.pid("web")
        os.kill(pid, signal.SIGSTOP)
        host, _, port = run.reports[0].status.bind.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            os.kill(pid, signal.SIGKILL)
            await run.until_back("web", 0, pid)
            assert int(await asyncio.to_thread(connection.recv, 20)) == run.pid("web")


async def test_a_killed_redis_comes_back_at_its_address_with_its_data(
    make_settings: SettingsMaker,
) -> None:
    async with running(make_settings()) as run:
        port = int(run.reports[0].status.redis_url.rpartition(":")[2].partition("/")[0])
        await ask(port, "SET", "kept", "yes")
        web, killed = run.pid("web"), run.pid("redis")
        with stopwatch() as watch:
            os.kill(killed, signal.SIGKILL)
            await run.until_back("redis", 0, killed)
        assert watch.seconds < 2
        assert await ask(port, "GET", "kept") == b"yes"
        assert run.pid("web") == web


async def test_a_part_that_is_killed_now_and_then_is_started_again_for_ever(
    make_settings: SettingsMaker,
) -> None:
    async with running(make_settings(workers=1)) as run:
        for round_number in range(QUICK.deaths_max + 2):
            pid = run.pid("worker")
            begun = time.monotonic()
            # It has done its work for long enough to count as well again.
            await until(lambda at=begun: time.monotonic() - at > QUICK.stable_after_ms / 1000)
            os.kill(pid, signal.SIGKILL)
            assert (await run.until_back("worker", 0, pid)).restarts == round_number + 1


async def test_a_part_that_cannot_start_ends_the_run_and_says_why(
    make_settings: SettingsMaker,
) -> None:
    error = await failure(make_settings(), command=programs(worker=DIES_AT_ONCE))
    assert isinstance(error, PartFailed)
    assert (error.role, error.slot) == ("worker", 0)
    assert str(error) == (
        "worker 0 cannot start: it died 3 times in a row, the last time it ended with exit code 3; "
        "its last words: the ledger is of a newer version"
    )


async def test_a_part_that_dies_again_and_again_ends_the_run_and_says_why(
    make_settings: SettingsMaker,
) -> None:
    # However slowly it dies, it has not done its work for long.
    policy = replace(QUICK, stable_after_ms=600_000)
    error = await failure(make_settings(), command=programs(web=DIES_WHEN_READY), policy=policy)
    assert isinstance(error, PartFailed)
    assert error.role == "web"
    assert "cannot stay up: it died 6 times in a row" in str(error)
    assert error.last_words == "no room"


async def test_a_part_that_does_not_become_ready_ends_the_run(make_settings: SettingsMaker) -> None:
    error = await failure(
        make_settings(),
        command=programs(worker=NEVER_READY),
        # Long enough for the others on a busy machine: whichever is late first is named.
        policy=RestartPolicy(start_timeout_ms=10_000),
    )
    assert str(error) == "worker 0 was not ready 10000 ms after its start"


async def test_a_program_that_does_not_exist_ends_the_run(make_settings: SettingsMaker) -> None:
    error = await failure(make_settings(), command=lambda _role, _slot: ["/no/such/program"])
    assert "could not be started (No such file or directory)" in str(error)


async def test_a_redis_that_cannot_read_its_data_ends_the_run_with_its_words(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    async with running(make_settings()) as run:
        port = int(run.reports[0].status.redis_url.rpartition(":")[2].partition("/")[0])
        for number in range(20):
            await ask(port, "SET", f"key{number}", "x" * 50)
    (file,) = data.redis.rglob("*.incr.aof")
    content = bytearray(file.read_bytes())
    content[200:260] = b"?" * 60
    file.write_bytes(content)
    error = await failure(make_settings())
    assert str(error).startswith("redis 0 cannot start: it died 3 times in a row")
    assert "Bad file format" in str(error)


async def test_without_a_redis_server_nothing_is_started(
    make_settings: SettingsMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seckill.runtime.embedded_redis._in_wheel", lambda: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert isinstance(await failure(make_settings()), RedisMissing)


@pytest.mark.parametrize("why", ["address", "redis"])
async def test_a_start_that_is_refused_leaves_no_folder_behind(
    make_settings: SettingsMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    new = tmp_path / "shop" / ".seckill"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1] if why == 'address' else 0}"
        if why == "redis":
            monkeypatch.setattr("seckill.runtime.embedded_redis._in_wheel", lambda: None)
            monkeypatch.setenv("PATH", "/nonexistent")
        await failure(make_settings(data_dir=new, bind=bind))
    assert not new.parent.exists()


async def test_a_full_disk_at_the_start_is_told_in_one_sentence(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    data.run_settings.mkdir()  # stands for it: the file cannot be put in its place
    error = await failure(make_settings())
    assert isinstance(error, DataDirUnusable)
    assert str(error).startswith(f"the data directory {data.root} cannot be written: ")
    data.run_settings.rmdir()


async def test_an_address_in_use_is_told_in_one_sentence(make_settings: SettingsMaker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        error = await failure(make_settings(bind=bind))
    assert isinstance(error, AddressUnusable)
    assert str(error) == (
        f"cannot serve on {bind}: address already in use; choose another address with --bind"
    )
    assert isinstance(await failure(make_settings(bind="192.0.2.1:80", auth="jwt", jwt_secret="x" * 32)), AddressUnusable)  # fmt: skip


async def test_ipv6_is_served_as_well(make_settings: SettingsMaker) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    async with running(make_settings(bind="[::1]:0")) as run:
        assert run.reports[0].status.bind.startswith("[::1]:")
        assert await asyncio.to_thread(answering_pid, run) in {p.pid for p in run.of_role("web")}


async def test_a_redis_of_the_operators_own_is_not_started_and_not_stopped(
    make_settings: SettingsMaker, tmp_path: Path
) -> None:
    own = DataDir(tmp_path / "own")
    async with running(make_settings(data_dir=own.root)) as with_redis:
        url = with_redis.reports[0].status.redis_url
        async with running(make_settings(redis_url=url)) as run:
            assert run.of_role("redis") == ()
            assert run.reports[0].redis_server is None
            assert f"  redis       {url}\n" in describe_run(run.reports[0])
        assert await ask(int(url.rpartition(":")[2].partition("/")[0]), "PING") == b"PONG"


async def test_a_second_start_on_the_same_data_is_refused_with_the_pid_of_the_first(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    async with running(make_settings()) as run:
        before = data.status.read_bytes()
        with pytest.raises(DataDirInUse, match=f"process {os.getpid()} already runs"):
            await Run(make_settings()).task
        assert data.status.read_bytes() == before
        assert await asyncio.to_thread(answering_pid, run)


async def test_a_web_process_that_ignores_the_stop_is_killed_after_the_grace(
    make_settings: SettingsMaker,
) -> None:
    loaded = make_settings(shutdown_grace_ms=300, workers=1)
    async with running(loaded, command=programs(web=IGNORES_SIGTERM)) as run:
        pid = run.pid("web")
        at = time.monotonic()
        run.supervisor.stop()
        await run.task
        assert 0.3 <= time.monotonic() - at < 60
    assert not psutil.pid_exists(pid)


async def test_a_second_stop_does_not_wait_for_the_grace(make_settings: SettingsMaker) -> None:
    loaded = make_settings(shutdown_grace_ms=60_000, workers=1)
    async with running(loaded, command=programs(IGNORES_SIGTERM, IGNORES_SIGTERM)) as run:
        run.supervisor.stop()
        run.supervisor.stop()
        async with asyncio.timeout(59):
            await run.task


async def test_a_reaper_of_its_own_is_a_process_like_any_other(
    make_settings: SettingsMaker,
) -> None:
    async with running(make_settings(workers=1, reaper="process")) as run:
        pid = run.pid("reaper")
        assert pid != run.pid("worker")
        os.kill(pid, signal.SIGKILL)
        assert (await run.until_back("reaper", 0, pid)).restarts == 1
    async with running(make_settings(workers=1, reaper="none")) as run:
        assert run.of_role("reaper") == ()


async def test_web_ends_before_worker_before_redis(
    make_settings: SettingsMaker, tmp_path: Path
) -> None:
    notes = tmp_path / "order"
    program = f"""
import os, signal, socket, sys
from seckill.runtime.lifeline import report_ready
def end(*_):
    port = int(os.environ["SECKILL_REDIS_URL"].rpartition(":")[2].partition("/")[0])
    socket.create_connection(("127.0.0.1", port)).close()
    with open({str(notes)!r}, "a") as file:
        file.write(sys.argv[1] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
report_ready()
while True: signal.pause()
"""
    async with running(make_settings(), command=programs(program, program)):
        pass
    assert notes.read_text().split() == ["web", "web", "worker"]


async def test_what_children_write_is_passed_on_whole_and_without_end_of_line(
    make_settings: SettingsMaker,
) -> None:
    chatty = "print('one\\ntwo', flush=True); print('x' * 20000, end='', flush=True)\n" + WORKER
    async with running(make_settings(), command=programs(worker=chatty)) as run:
        await until(lambda: sum(map(len, run.said)) >= 20_000)
    text = b"".join(run.said)
    assert text.startswith(b"one\ntwo\n")
    assert text.count(b"x") == 20_000


async def test_a_status_that_cannot_be_written_does_not_end_a_run_that_sells(
    make_settings: SettingsMaker, data: DataDir
) -> None:
    async with running(make_settings()) as run:
        pid = run.pid("worker")
        data.status.unlink()
        data.status.mkdir()  # stands for a full disk: the file cannot be put in its place
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(pid))
        await until(lambda: _children_of_this_process() >= 4)
        assert not run.task.done()
        assert "worker" not in {process.role for process in read_recorded_processes(data)}
        data.status.rmdir()
        # Nothing happens to any part meanwhile: the supervisor tries again by itself.
        await run.until_back("worker", 0, pid)


def read_recorded_processes(data: DataDir) -> tuple[ProcessStatus, ...]:
    """What the other commands would read."""
    status = read_status(data)
    return status.processes if status else ()


def _children_of_this_process() -> int:
    return len(psutil.Process().children())


# A supervisor as a process of its own, to be killed and signalled.

_READY_WITHIN_S = 120

SERVE = """
import asyncio, faulthandler, json, signal, sys
from seckill.runtime.logs import configure_logging
from seckill.runtime.settings import load_settings
from seckill.runtime.supervise import Supervisor
configure_logging(level="warning", log_format="console", role="supervisor", slot=0)
loaded = load_settings({{"data_dir": sys.argv[1], "bind": "127.0.0.1:0", "workers": 2}})
def command(role, slot):
    return [sys.executable, "-c", {web!r} if role == "web" else {worker!r}, role]
def ready(report):
    print(json.dumps(report.status.as_json()), flush=True)
signal.signal(signal.SIGHUP, {hang_up})
faulthandler.register(signal.SIGUSR1)
asyncio.run(Supervisor(loaded, command=command, on_ready=ready).run())
"""


class Served:
    """A supervisor in a process of its own, in a session of its own like one in a terminal."""

    def __init__(
        self, data: DataDir, *, web: str = WEB, worker: str = WORKER, under_nohup: bool = False
    ) -> None:
        hang_up = "signal.SIG_IGN" if under_nohup else "signal.SIG_DFL"
        program = SERVE.format(web=web, worker=worker, hang_up=hang_up)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(data.root)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], _READY_WITHIN_S)[0]:
            self.process.send_signal(signal.SIGUSR1)  # it shows where it stands
            self.process.send_signal(signal.SIGTERM)
            raise AssertionError(f"not ready within {_READY_WITHIN_S} s, and then {self.end()}")
        line = self.process.stdout.readline()
        if not line.startswith(b"{"):
            self.process.terminate()
            raise AssertionError(f"not ready, but {self.end()}: {line!r}")
        self.status = json.loads(line)

    @property
    def children(self) -> list[int]:
        return [p["pid"] for p in self.status["processes"] if p["role"] != "supervisor"]

    @property
    def redis_port(self) -> int:
        return int(self.status["redis_url"].rpartition(":")[2].partition("/")[0])

    def end(self) -> int:
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def test_a_killed_supervisor_leaves_no_child_and_the_next_run_carries_on(
    data: DataDir,
) -> None:
    for round_number in range(3):
        served = await asyncio.to_thread(Served, data)
        if round_number:
            assert await ask(served.redis_port, "GET", "round") == str(round_number - 1).encode()
        await ask(served.redis_port, "SET", "round", round_number)
        served.process.kill()
        served.end()
        if round_number == 1:
            continue  # the next start comes while Redis may still be ending
        with stopwatch() as watch:
            await until(lambda s=served: all(gone(pid) for pid in s.children))
        assert watch.seconds < 2
        assert read_status(data) is None


async def test_children_notice_the_end_of_the_supervisor_without_the_kernels_help(
    data: DataDir,
) -> None:
    # The child takes back what the supervisor has asked of the kernel, as on a system without it.
    undo = "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"
    served = await asyncio.to_thread(Served, data, web=undo + WEB)
    served.process.kill()
    served.end()
    await until(lambda: all(gone(pid) for pid in served.children))


async def test_a_child_that_notices_nothing_is_ended_by_the_next_start(data: DataDir) -> None:
    deaf = "import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n" + IGNORES_SIGTERM
    served = await asyncio.to_thread(Served, data, web=deaf)
    web = [p["pid"] for p in served.status["processes"] if p["role"] == "web"]
    served.process.kill()
    served.end()
    assert not any(gone(pid) for pid in web)
    again = await asyncio.to_thread(Served, data)
    await until(lambda: all(gone(pid) for pid in web))
    again.process.terminate()
    assert again.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_all_of_it_with_exit_code_0(
    data: DataDir, number: signal.Signals
) -> None:
    served = await asyncio.to_thread(Served, data)
    # As Ctrl-C does it: to the whole group of the terminal. The children are in groups of their own.
    os.killpg(served.process.pid, number)
    assert await asyncio.to_thread(served.end) == 0
    assert all(gone(pid) for pid in served.children)
    assert not data.status.exists()


async def test_under_nohup_the_end_of_the_terminal_ends_nothing(data: DataDir) -> None:
    served = await asyncio.to_thread(Served, data, under_nohup=True)
    os.killpg(served.process.pid, signal.SIGHUP)
    await asyncio.sleep(0.5)  # longer than the end takes
    assert served.process.poll() is None
    os.killpg(served.process.pid, signal.SIGTERM)
    assert await asyncio.to_thread(served.end) == 0


async def test_ctrl_c_reaches_the_supervisor_alone_so_that_parts_end_in_order(
    data: DataDir, tmp_path: Path
) -> None:
    note = tmp_path / "interrupted"
    telling = (
        f"import pathlib, signal\nsignal.signal(signal.SIGINT, lambda *_: "
        f"pathlib.Path({str(note)!r}).touch())\n"
    )
    served = await asyncio.to_thread(Served, data, web=telling + WEB, worker=telling + WORKER)
    os.killpg(served.process.pid, signal.SIGINT)
    assert await asyncio.to_thread(served.end) == 0
    assert not note.exists()


async def test_a_process_whose_number_is_used_again_is_not_taken_for_ours(data: DataDir) -> None:
    served = await asyncio.to_thread(Served, data)
    try:
        status = json.loads(data.status.read_text())
        for process in status["processes"]:
            if process["role"] == "web":
                process["pid"] = os.getpid()
        data.status.write_text(json.dumps(status))
        found = read_status(data)
        assert found is not None
        assert [p.healthy for p in found.of_role("web")] == [False, False]
        assert found.of_role("worker")[0].healthy
        status["processes"][0]["created_s"] -= 3_600
        data.status.write_text(json.dumps(status))
        assert read_status(data) is None
        for nonsense in ("", "{}", "[]", '{"processes": [{}]}'):
            data.status.write_text(nonsense)
            assert read_status(data) is None
    finally:
        served.process.terminate()
        assert await asyncio.to_thread(served.end) == 0


def test_waits_grow_and_are_never_none() -> None:
    policy = RestartPolicy()
    bounds = [policy.delay_ms(deaths, 1.0) for deaths in range(1, 12)]
    assert bounds == [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000, 5_000]
    assert policy.delay_ms(1, 0.0) == 25
    assert policy.delay_ms(10_000, 0.0) == 2_500
