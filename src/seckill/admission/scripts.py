"""Loads the Lua scripts and runs them: text, digest, one reload when a server has forgotten it.

``lua/bucket.lua`` is put in front of every script: it is the one place that reads a bucket.
Arguments and replies are single msgpack blobs, which costs a third of what lists of arguments do.
"""

import hashlib
import re
from collections.abc import Sequence
from enum import IntEnum
from importlib.resources import files
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError as RedisConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError as RedisTimeoutError,
    TryAgainError,
)

from seckill.admission.batch_lines import BatchLines, write_command
from seckill.admission.durability import Barrier
from seckill.admission.errors import ScriptRefused, StockUnavailable

__all__ = ["Script", "Scripts", "Status", "pack", "unavailable"]

_PACKAGE: Final = files("seckill.admission").joinpath("lua")
pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.Decoder(list[Any]).decode


class Status(IntEnum):
    """The first element of every reply: whether the bucket may be trusted (lua/bucket.lua)."""

    OK = 0
    MISSING = 1
    EPOCH = 2
    SERVER = 3
    BEHIND = 4
    TORN = 5
    FENCED_OFF = 6


class Script:
    """One script: its text, as it is sent, and its digest."""

    def __init__(self, name: str) -> None:
        head = _PACKAGE.joinpath("bucket.lua").read_text(encoding="utf-8")
        self.name = name
        self.text = head + _PACKAGE.joinpath(f"{name}.lua").read_text(encoding="utf-8")
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ADMIT: Final = Script("admit")
CARRY_ON: Final = Script("carry_on")
CHANGE_STOCK: Final = Script("change_stock")
DEFINE: Final = Script("define")
DOUBT: Final = Script("doubt")
FENCE_OFF: Final = Script("fence_off")
LOOK: Final = Script("look")
NOTE_WRITTEN: Final = Script("note_written")
OPEN_BUCKET: Final = Script("open_bucket")
RELEASE: Final = Script("release")

# The client library takes the first word off the error replies that it has a class for.
_KINDS_BY_CLASS: Final = (
    (BusyLoadingError, "loading"),
    (MasterDownError, "loading"),
    (ReadOnlyError, "readonly"),
    (OutOfMemoryError, "write_refused"),
    (ClusterDownError, "connection"),
    (TryAgainError, "connection"),
)
_KINDS_BY_WORD: Final = {
    "MISCONF": "write_refused",
    "NOREPLICAS": "write_refused",
    "OOM": "write_refused",
    "LOADING": "loading",
    "MASTERDOWN": "loading",
    "READONLY": "readonly",
    "BUSY": "busy",
    "CLUSTERDOWN": "connection",
    "TRYAGAIN": "connection",
    "UNBLOCKED": "connection",
}
_KIND_WORD: Final = re.compile(
    # In front, or behind the frame of a script: Redis 6.2 says "Error running script (call to
    # f_…): @user_script:31: @user_script: 31: -MISCONF Redis is configured to …".
    rf"(?:^-?|^Error running script .{{0,200}}?: -?)({'|'.join(_KINDS_BY_WORD)})\b"
)


def unavailable(error: RedisError) -> StockUnavailable:
    """What an error of the client library means to us. An error reply did nothing: known."""
    text = str(error)
    if isinstance(error, RedisTimeoutError):
        return StockUnavailable("timeout", text, outcome_known=False)
    for error_class, kind in _KINDS_BY_CLASS:
        if isinstance(error, error_class):
            return StockUnavailable(kind, text, outcome_known=True)
    if isinstance(error, RedisConnectionError):
        return StockUnavailable("connection", text, outcome_known=False)
    found = _KIND_WORD.match(text)
    kind = _KINDS_BY_WORD[found[1]] if found else "other"
    return StockUnavailable(kind, text, outcome_known=True)


class Scripts:
    """Runs scripts on one Redis.

    Args:
        redis: the client.
        barrier: sent behind a script that is run with ``durable=True``, on the same connection.
            Such scripts, the batches of purchases, have connections of their own.
    """

    def __init__(self, redis: Redis, barrier: Barrier | None = None) -> None:
        self._redis = redis
        self._barrier = barrier
        self._lines = BatchLines(redis)
        self._barrier_command = b"" if barrier is None else write_command(*barrier.command)

    @property
    def touch(self) -> int:
        """1 when a barrier needs a write to wait for, else 0 (see lua/admit.lua)."""
        return 0 if self._barrier is None else 1

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        request: Sequence[Any] = (),
        *more: str | bytes,
        durable: bool = False,
    ) -> list[Any]:
        """Run a script and return its reply as a list.

        A server that does not know the script is sent the whole text once: it was restarted,
        replaced or told to forget. All scripts may be run twice, so that is safe.

        Raises:
            StockUnavailable: Redis cannot answer now, or has too few copies of what was written.
            ScriptRefused: the arguments break the script's contract.
        """
        arguments: tuple[str | bytes | int, ...] = (len(keys), *keys, pack(request), *more)
        send = self._send_durably if durable else self._send
        try:
            try:
                reply = await send("EVALSHA", script.sha, *arguments)
            except NoScriptError:
                reply = await send("EVAL", script.text, *arguments)
        except ResponseError as error:
            if str(error).startswith(("BATCH ", "CHANGE ", "OPEN ")):
                raise ScriptRefused(f"{script.name}: {error}") from error
            raise unavailable(error) from error
        except RedisError as error:
            raise unavailable(error) from error
        except OSError as error:
            raise StockUnavailable("connection", str(error), outcome_known=False) from error
        return _unpack(reply)

    async def _send(self, *command: str | bytes | int) -> bytes:
        reply: bytes = await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        return reply

    async def _send_durably(self, *command: str | bytes | int) -> bytes:
        """Send a command and the barrier behind it, on one of the lines of the batches."""
        barrier = self._barrier
        data = write_command(*command) + self._barrier_command
        replies = await self._lines.call(data, 1 if barrier is None else 2)
        for part in replies:
            if isinstance(part, Exception):
                raise part
        if barrier is not None and not barrier.satisfied_by(replies[1]):
            raise StockUnavailable(
                "not_durable",
                f"{' '.join(map(str, barrier.command))} answered {replies[1]}",
                outcome_known=False,
            )
        reply: bytes = replies[0]
        return reply
