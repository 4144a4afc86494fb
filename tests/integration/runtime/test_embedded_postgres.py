"""The PostgreSQL that is started for you: private, kept from run to run, never left behind."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from seckill.runtime.embedded_postgres import EmbeddedPostgres, as_account, find_programs
from seckill.runtime.errors import PostgresMissing, PostgresUnusable
from seckill.runtime.parts import PostgresPart
from seckill.runtime.processes import created_at
from services.missing import skip_without


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster that has never run; the tests copy it, which is quicker."""
    try:
        find_programs()
    except PostgresMissing as missing:
        skip_without(str(missing))
    # pytest's own folders are closed to everybody else, as a data directory is.
    folder = tmp_path_factory.mktemp("postgres")
    postgres = EmbeddedPostgres(folder)
    asyncio.run(postgres.prepare())
    postgres.close()
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "postgres"
    subprocess.run(["cp", "-a", made, copied], check=True)
    return copied


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    postgres = EmbeddedPostgres(folder)
    await postgres.prepare()
    part = PostgresPart(postgres)
    process = await part.start()
    try:
        async with asyncio.timeout(90):
            await part.wait_ready(process)
        yield postgres
    finally:
        await part.ask_to_stop(process)
        assert await process.wait() == 0
        await part.clear_up()
        postgres.close()


async def test_what_was_written_is_there_in_the_next_run_and_at_the_same_address(
    folder: Path,
) -> None:
    async with running(folder) as postgres:
        url = postgres.url
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE kept (a int)")
        assert await connection.fetchval("SHOW fsync") == "on"
        assert await connection.fetchval("SHOW listen_addresses") == "127.0.0.1"
        # A connection that is open does not keep it from ending.
    async with running(folder) as postgres:
        assert postgres.url == url
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM kept") == 0
        await connection.close()


async def test_another_program_of_this_machine_is_not_let_in_without_the_password(
    folder: Path,
) -> None:
    async with running(folder) as postgres:
        port = postgres.url.rpartition(":")[2].partition("/")[0]
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(f"postgresql://seckill:guess@127.0.0.1:{port}/postgres")
    assert "password authentication failed" in postgres.last_words()
    assert (folder / "password").stat().st_mode & 0o077 == 0


async def test_a_server_that_a_killed_run_left_behind_is_ended_first(folder: Path) -> None:
    left = EmbeddedPostgres(folder)
    await left.prepare()
    orphan = await asyncio.create_subprocess_exec(
        *left.command, cwd="/", pass_fds=left.open_files, **as_account(left.account),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(90):
        await left.wait_ready(orphan.pid)
    async with running(folder) as postgres:
        assert await orphan.wait() == 0
        connection = await asyncpg.connect(postgres.url)
        await connection.close()
    left.close()


async def test_a_first_start_that_was_killed_halfway_is_begun_anew(folder: Path) -> None:
    (folder / "data").rename(folder / "data.new")
    (folder / "data.new" / "PG_VERSION").unlink()
    async with running(folder) as postgres:
        connection = await asyncpg.connect(postgres.url)
        await connection.close()
    assert not (folder / "data.new").exists()


async def test_data_of_a_version_that_is_not_installed_is_left_alone(folder: Path) -> None:
    (folder / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(PostgresUnusable, match="made by PostgreSQL 9"):
        await EmbeddedPostgres(folder).prepare()


async def test_a_machine_without_postgresql_is_told_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seckill.runtime.embedded_postgres._DEBIAN_FOLDERS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PostgresMissing, match=r"apt install postgresql.*SECKILL_DATABASE_URL"):
        await EmbeddedPostgres(tmp_path).prepare()


async def test_it_ends_when_the_supervisor_is_killed(folder: Path) -> None:
    """The kernel tells it: no server of a killed run goes on writing."""
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from seckill.runtime.embedded_postgres import EmbeddedPostgres\n"
        "from seckill.runtime.parts import PostgresPart\n"
        "async def main():\n"
        "    postgres = EmbeddedPostgres(Path(sys.argv[1])); await postgres.prepare()\n"
        "    part = PostgresPart(postgres); process = await part.start()\n"
        "    await part.wait_ready(process); print(process.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(folder),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert supervisor.stdout
    assert supervisor.stderr
    async with asyncio.timeout(90):
        said = await supervisor.stdout.readline()
        assert said, (await supervisor.stderr.read()).decode()
        pid = int(said)
        assert (folder / "data" / "postmaster.pid").exists()
        supervisor.send_signal(signal.SIGKILL)
        # To the end of its pipes, which the server has too.
        await supervisor.communicate()
        while (folder / "data" / "postmaster.pid").exists() or created_at(pid):
            await asyncio.sleep(0.02)
