"""Programs that are forked off one that has loaded everything: real processes, really killed."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import psutil
import pytest

from seckill.runtime.fork_server import can_fork
from seckill.runtime.launching import Child, ForkLauncher
from seckill.runtime.output_tail import OutputTail

pytestmark = pytest.mark.skipif(not can_fork(), reason="a fork server needs Linux with pidfds")

PROGRAM = str(Path(__file__).with_name("forking_program.py"))
NOTHING: Mapping[str, int] = MappingProxyType({})


class Nursery:
    """A launcher with its fork server, and what was said."""

    def __init__(self, *words: str) -> None:
        self.said: list[bytes] = []
        self.launcher = ForkLauncher(
            [sys.executable, PROGRAM, *words], os.environ, self.said.append
        )
        self._outputs: list[OutputTail] = []

    async def launch(
        self, words: Sequence[str], files: Mapping[str, int] = NOTHING
    ) -> tuple[Child, OutputTail]:
        output = OutputTail(self.said.append)
        write = await output.begin_pipe()
        try:
            child = await self.launcher.launch(words, files, write)
        finally:
            os.close(write)
        self._outputs.append(output)
        return child, output

    async def outcome(self, *words: str, files: Mapping[str, int] = NOTHING) -> tuple[int, str]:
        """The exit code of a program, and what it wrote."""
        child, output = await self.launch(words, files)
        code = await child.wait()
        await output.end()
        return code, output.text()

    async def close(self) -> None:
        await self.launcher.close()
        for output in self._outputs:
            await output.end()


@contextlib.asynccontextmanager
async def nursery(*words: str) -> AsyncIterator[Nursery]:
    made = Nursery(*words)
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        await made.close()


def parent_of(child: Child) -> psutil.Process:
    parent = psutil.Process(child.pid).parent()
    assert parent is not None
    return parent


async def test_a_program_gets_its_words_its_files_and_its_variables() -> None:
    read, write = os.pipe()
    os.write(write, b"through a file")
    os.close(write)
    async with nursery() as it:
        it.launcher.set_variables({"GREETING": "good day"})
        code, said = await it.outcome("read", "LETTER", files={"LETTER": read})
    os.close(read)
    assert code == 0
    assert sorted(said.split(" / ")) == ["and an error", "good day", "through a file"]


async def test_it_shows_its_name_has_a_group_and_no_file_of_the_fork_server() -> None:
    async with nursery() as it:
        code, said = await it.outcome("show")
        assert code == 0
        name, own_group, files, stdin = said.split(" / ")
        assert name == "seckill: show"
        assert own_group == "True"
        # Standard input, output, error, and the folder of the list itself.
        assert len(files.split(",")) == 4, files
        assert stdin == "''"


@pytest.mark.parametrize("code", [0, 1, 75])
async def test_its_exit_code_is_told(code: int) -> None:
    async with nursery() as it:
        assert await it.outcome("exit", str(code)) == (code, "")
        assert await it.outcome("fail") == (1, "the ledger is of a newer version")


async def test_no_two_programs_draw_the_same_numbers() -> None:
    async with nursery() as it:
        drawn = {await it.outcome("draw") for _ in range(5)}
    assert len(drawn) == 5


async def test_a_signal_meets_it_however_early_it_comes() -> None:
    async with nursery() as it:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL) * 10:
            child, _ = await it.launch(("wait",))
            child.send_signal(number)
            assert await child.wait() == -number
            assert child.returncode == -number
            with pytest.raises(ProcessLookupError):
                child.kill()


async def test_many_at_once_each_have_their_own_end() -> None:
    async with nursery() as it:
        codes = await asyncio.gather(*(it.outcome("exit", str(code)) for code in range(40)))
    assert [code for code, _ in codes] == list(range(40))


async def test_the_fork_server_ends_for_no_signal_that_means_its_programs() -> None:
    async with nursery() as it:
        child, output = await it.launch(("refuse to end",))
        while output.text() != "deaf":
            await asyncio.sleep(0.01)
        server = parent_of(child)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            server.send_signal(number)
        assert await it.outcome("exit", "3") == (3, "")
        assert parent_of(child) == server
        child.send_signal(signal.SIGTERM)
        assert await it.outcome("exit", "4") == (4, "")
        assert child.returncode is None
        child.kill()
        assert await child.wait() == -signal.SIGKILL


async def test_a_killed_fork_server_takes_its_programs_with_it_and_another_one_is_started() -> None:
    async with nursery() as it:
        children = [(await it.launch(("wait",)))[0] for _ in range(3)]
        server = parent_of(children[0])
        server.kill()
        assert [await child.wait() for child in children] == [-signal.SIGKILL] * 3
        for child in children:
            assert not psutil.pid_exists(child.pid) or (
                psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
            )
        child, _ = await it.launch(("wait",))
        assert parent_of(child) != server
        child.kill()
        await child.wait()


async def test_the_end_of_a_program_is_seen_when_a_frozen_fork_server_does_not_tell_it() -> None:
    async with nursery() as it:
        child, _ = await it.launch(("wait",))
        server = parent_of(child)
        server.suspend()
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        server.resume()  # what it tells now is known
        assert await it.outcome("exit", "6") == (6, "")
        server.suspend()  # its end is not waited for


async def test_one_that_cannot_load_says_why_and_starts_nothing() -> None:
    async with nursery("cannot load") as it:
        for _ in range(2):
            with pytest.raises(OSError, match="the fork server has died"):
                await it.launch(("exit", "0"))
    assert b"no room for the library\n" in it.said


async def test_a_fork_that_the_system_refuses_is_an_error_and_the_next_one_is_made() -> None:
    async with nursery() as it:
        child, _ = await it.launch(("wait",))
        server = parent_of(child)
        soft, hard = server.rlimit(psutil.RLIMIT_NOFILE)
        # No pidfd can be made and no file taken: what was forked off must not stay unknown.
        server.rlimit(psutil.RLIMIT_NOFILE, (3, hard))
        with pytest.raises(OSError, match=r"."):
            await it.outcome("exit", "0")
        with contextlib.suppress(psutil.NoSuchProcess):
            server.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
        assert await it.outcome("exit", "5") == (5, "")
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_a_launch_that_is_cut_short_leaves_no_program_behind() -> None:
    async with nursery() as it:
        keep, _ = await it.launch(("wait",))
        server = parent_of(keep)
        for pause_s in (0.0, 0.001, 0.002, 0.004):
            asked = asyncio.create_task(it.launch(("wait",)))
            await asyncio.sleep(pause_s)
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                child, _ = await asked
                child.kill()
                await child.wait()
        while [process.pid for process in server.children()] != [keep.pid]:
            await asyncio.sleep(0.01)
        keep.kill()
        await keep.wait()
