"""The two stores of a simulation: a real redis-server with a past, and a real SQLite.

Both are used over and over: emptied for each schedule, never started anew, which would cost a
hundred times as much as the schedule itself.
"""

import gc
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from redis import Redis
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from seckill.admission import marks, scripts
from seckill.admission.keys import BucketKeys, Keys
from seckill.admission.scripts import Script
from seckill.domain.reservation import BucketId, Place
from seckill.ledger import Database, LedgerOptions, ensure_schema
from seckill.pipeline.outbox import read_entry
from services.redis import RedisServer

__all__ = ["Picture", "RedisWithAPast", "Stores"]

KEYS = Keys(prefix="simulated")
_SNAPSHOTS_MAX = 6
_MARKS_PER_FILE = 32
"""A file of marks is read in whole again and again; a full one has room for 4,096."""
_STAGES = range(1, 12)
_SCRIPTS = [one for one in vars(scripts).values() if isinstance(one, Script)]


class Stores:
    """What one process needs to run schedules, for as long as it runs them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sim", dir=_memory()))
        socket = self.folder / "redis.sock"
        self._server = RedisServer(self.folder / "redis", "--unixsocket", str(socket))
        self._template = b""
        self._raw = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.engine = _engine(self._raw)

    def __enter__(self) -> Self:
        self._logging = structlog.get_config()
        structlog.configure(processors=[], logger_factory=structlog.ReturnLoggerFactory())
        self._marks_bytes = marks._FILE_BYTES
        marks._FILE_BYTES = marks._HEADER_BYTES + _MARKS_PER_FILE * marks._ENTRY.size  # type: ignore[misc]
        self._server.start()
        # What is there now stays, and need not be looked through for garbage a thousand times.
        gc.collect()
        gc.freeze()
        self.redis = Redis(
            unix_socket_path=str(self.folder / "redis.sock"), protocol=2, socket_timeout=60
        )
        return self

    async def make_tables(self) -> None:
        """Migrate a real file once; every schedule begins with a copy of it."""
        path = self.folder / "template.db"
        database = Database(LedgerOptions(url=f"sqlite:///{path}"))
        await ensure_schema(database)
        await database.dispose()
        file = sqlite3.connect(path)
        file.execute("PRAGMA journal_mode=DELETE")  # a database in memory has no write-ahead log
        self._template = file.serialize()
        file.close()

    def clear(self) -> None:
        """Begin anew."""
        self.redis.flushdb()
        self._raw.deserialize(self._template)

    def ask(self, query: str) -> tuple[Any, ...]:
        """The only row that a query finds in the ledger."""
        return self._raw.execute(query).fetchone()  # type: ignore[no-any-return]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.redis.close()
        self._server.remove()
        self.engine.dispose()
        self._raw.close()
        shutil.rmtree(self.folder)
        marks._FILE_BYTES = self._marks_bytes  # type: ignore[misc]
        structlog.configure(**self._logging)
        gc.unfreeze()


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  -- a folder of our own in it


def _engine(raw: sqlite3.Connection) -> Engine:
    engine = create_engine("sqlite://", creator=lambda: raw, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # The audit looks again while it has its snapshot; there is one connection for both.
        if not raw.in_transaction:
            # Past SQLAlchemy: it is as often as all other statements together.
            raw.execute(connection.get_execution_options().get("seckill_begin", "BEGIN"))

    return engine


@dataclass(frozen=True)
class Picture:
    """All keys of a bucket as they were once.

    Attributes:
        place: epoch and seq; (0, 0) when there was no bucket.
    """

    place: tuple[int, int]
    server: bytes | None
    keys: Mapping[str, bytes]


class RedisWithAPast:
    """The redis-server with one bucket that can go back in time, and with scripts of choice.

    Args:
        edits: what is changed in the text of the scripts, to take a rule out: old, and new.
    """

    def __init__(self, redis: Redis, keys: BucketKeys, edits: Sequence[tuple[str, str]]) -> None:
        self._redis = redis
        self._names = [keys.meta, keys.buyers, keys.outbox, keys.released, keys.changes, keys.dead]
        self._names += [keys.staged_buyers(epoch) for epoch in _STAGES]
        self._keys = keys
        self._servers = 0
        self.pictures: list[Picture] = []
        texts = {script.sha: script.text for script in _SCRIPTS}
        for old, new in edits:
            assert any(old in text for text in texts.values()), f"no script says {old!r}"
            texts = {sha: text.replace(old, new) for sha, text in texts.items()}
        pipeline = redis.pipeline(transaction=False)
        for text in texts.values():
            pipeline.script_load(text)
        self._shas = dict(zip(texts, pipeline.execute(), strict=True))

    def execute(self, command: tuple[Any, ...]) -> Any:
        """Run a command, a script in the version of this simulation."""
        if command[0] in {"EVALSHA", "EVAL"}:
            assert command[0] == "EVALSHA", "every script was loaded"
            command = ("EVALSHA", self._shas[command[1]], *command[2:])
        return self._redis.execute_command(*command)

    def take_picture(self) -> Picture:
        """What is there now."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.hmget(self._keys.meta, ["epoch", "seq", "server"])
        for name in self._names:
            pipeline.dump(name)
        (epoch, seq, server), *dumps = pipeline.execute()
        return Picture(
            (int(epoch or 0), int(seq or 0)),
            server,
            {name: dump for name, dump in zip(self._names, dumps, strict=True) if dump},
        )

    def outbox_places(self, bucket_id: BucketId) -> set[Place]:
        """The places of all that stands in the outbox."""
        if self._redis.type(self._keys.outbox) != b"stream":
            return set()
        return {
            event.place
            for _, fields in self._redis.xrange(self._keys.outbox)
            for event in read_entry(bucket_id, fields)
        }

    def remember(self) -> None:
        """Keep a picture to which this Redis may go back."""
        self.pictures = [*self.pictures, self.take_picture()][-_SNAPSHOTS_MAX:]

    def go_back(self, picture: Picture) -> None:
        """Be what it was. What it knew since then is gone."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.unlink(*self._names)
        for name, dump in picture.keys.items():
            pipeline.restore(name, 0, dump)
        pipeline.execute()
        self.pictures = [picture]

    def be_another_server(self) -> None:
        """Start again, or fail over. The bucket says that it was opened under a server that is gone.

        That is what a changed run id or replication id comes to. A bucket that is fenced off
        stands under no server, and stays so.
        """
        self._servers += 1
        server = self._redis.hget(self._keys.meta, "server")
        if server not in {None, b"fenced"}:
            self._redis.hset(self._keys.meta, "server", f"gone-{self._servers}")

    def forget_all(self) -> None:
        """FLUSHALL."""
        self._redis.flushdb()

    def forget_key(self, choose: Callable[[list[str]], str]) -> str | None:
        """Lose one key of the bucket."""
        names = [
            self._keys.buyers,
            self._keys.outbox,
            self._keys.released,
            self._keys.meta,
        ]
        name = choose(names)
        return name if self._redis.unlink(name) else None
