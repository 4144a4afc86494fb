"""Rules in Redis: one hash per kind, one field per version.

Every process of a service, on every host, sees the same rules; they are as durable as that Redis
is. Two that save at once do not overwrite each other: one of them is first, and the other's version
follows, or is refused if it says what it was made from (``Change.made_from``).

Redis may lose what it was told. ``stores.LayeredRuleStore`` with a ``FileRuleStore`` behind this
one brings rules and history back.
"""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from seckill.sentinel.redis.keys import SentinelKeys
from seckill.sentinel.redis.scripts import Script
from seckill.sentinel.rule_store import NOBODY, Change
from seckill.sentinel.rules import kind_named
from seckill.sentinel.stores.errors import RuleStoreAway, RuleStoreBusy, RuleStoreDamaged
from seckill.sentinel.stores.history import (
    HISTORY_COUNT_MAX,
    check_history_count,
    refuse_conflict,
    undone,
)
from seckill.sentinel.stores.rule_files import Seeds
from seckill.sentinel.stores.version import (
    FILE_BYTES_MAX,
    RuleVersion,
    Unreadable,
    read_version,
    write_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from redis import Redis

SAVE_RULES: Final = Script("save_rules")
SAVE_TRIES_MAX: Final = 20
HEAD: Final = "head"
LIFE: Final = "life"

_LOG: Final = logging.getLogger(__name__)


class RedisRuleStore:
    """A ``RuleStore`` in Redis, with a history.

    Args:
        client: of ``redis``; its ``socket_timeout`` is how long a start waits for a Redis that
            hangs. Never closed here.
        namespace: of the service, see ``SentinelKeys``.
        seeds: rule files of other programs. Each counts for its kind for as long as nothing has
            been saved; its name says which kind it has (``kind_of_file``).
        history_count_max: versions of a kind that are kept, 2 to 1,000.
        now_ms: what stands in a version as its time.

    Raises:
        ValueError: the namespace, the number of versions or a seed's name is not one.
    """

    def __init__(
        self,
        client: Redis,
        *,
        namespace: str,
        seeds: Iterable[Path | str] = (),
        history_count_max: int = HISTORY_COUNT_MAX,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._keys = SentinelKeys(namespace)
        self._seeds = Seeds(seeds)
        self._history_count_max = check_history_count(history_count_max)
        self._now_ms = now_ms
        # Of each kind: the life of its hash, the last number said, and what is added to say it.
        self._said: dict[str, tuple[object, int, int]] = {}
        self._complained: set[tuple[str, int]] = set()

    # Reading.

    def load(self, kind: str) -> str | None:
        """The rules of a kind as they were saved last, else those of its seed; None without either.

        Raises:
            RuleStoreAway: Redis does not answer.
            RuleStoreDamaged: rules were kept and none can be read any more.
            OSError: a seed is not there.
            ValueError: no kind of rules is called so, or a seed is too large or not UTF-8.
        """
        name = kind_named(kind)
        head = self.head(name)
        return self._seeds.load(name) if head is None else head.document

    def head(self, kind: str) -> RuleVersion | None:
        """The version in force; None if nothing has been saved yet.

        If it cannot be read, the log says so and the version before counts.

        Raises:
            RuleStoreAway: Redis does not answer.
            RuleStoreDamaged: rules were kept and none can be read any more.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        number = _number(self._ask("HGET", self._keys.rules(name), HEAD))
        raw = self._ask("HGET", self._keys.rules(name), str(number)) if number else None
        found = self._read(name, number, raw) if raw is not None else None
        if found is not None:
            return found
        versions, fields = self._all(name)
        if not versions and fields:
            raise RuleStoreDamaged(
                f"{name} rules were kept in Redis at {self._keys.rules(name)}, and none can be "
                "read. To start without them, delete that key; to start with rules that you "
                "have elsewhere, save them (import) first"
            )
        return versions[max(versions)] if versions else None

    def head_number(self, kind: str) -> int:
        """A number that rises when there is something new; 0 if nothing was ever seen.

        It is the number of the version in force, until Redis loses its data and versions are
        counted from 1 again: then it goes on from where it was.

        Raises:
            RuleStoreAway: Redis does not answer.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        life: object
        life, head = self._ask("HMGET", self._keys.rules(name), LIFE, HEAD)
        number = _number(head)
        known, said, added = self._said.get(name) or (life, 0, 0)
        if not number:
            # Lost, or never there. Whoever has rules in force keeps them.
            return said
        if life != known:
            added = said
        said = number + added
        self._said[name] = (life, said, added)
        return said

    def history(self, kind: str) -> tuple[RuleVersion, ...]:
        """The versions that are kept and can be read, oldest first.

        Raises:
            RuleStoreAway: Redis does not answer.
            ValueError: no kind of rules is called so.
        """
        versions, _ = self._all(kind_named(kind))
        return tuple(versions[number] for number in sorted(versions))

    # Writing.

    def save(self, kind: str, document: str, change: Change = NOBODY) -> None:
        """Keep rules as a new version.

        Raises:
            RuleConflict: they were made from a version that is no longer in force.
            RuleStoreAway: Redis does not answer, or refuses to write.
            RuleStoreBusy: others save all the time.
            ValueError: the document is not a JSON list, or no kind of rules is called so.
        """
        self._append(kind_named(kind), change, lambda _kept: (document, None))

    def undo(self, kind: str, change: Change = NOBODY, *, to: int | None = None) -> RuleVersion:
        """Go back to the version before, by saving its rules again as a new version.

        Undoing again goes back further; ``to`` goes back, or forward, to any version that is kept.
        Before the first version there were no rules. The engine takes the result up by
        ``restore_rules``.

        Returns:
            The new version.

        Raises:
            NothingToUndo: there is nothing before, or ``to`` is not kept (any more).
            RuleConflict: the undo was meant for a version that is no longer in force.
            RuleStoreAway: Redis does not answer, or refuses to write.
            RuleStoreBusy: others save all the time.
            ValueError: no kind of rules is called so.
        """
        name = kind_named(kind)
        return self._append(name, change, lambda kept: undone(name, kept, to), reads=True)

    def adopt(self, kind: str, versions: Iterable[RuleVersion]) -> int:
        """Keep versions of another store under their own numbers, if they are newer than all here.

        Returns:
            How many were.

        Raises:
            RuleStoreAway: Redis does not answer, or refuses to write.
            ValueError: no kind of rules is called so.
        """
        kind_named(kind)
        in_order = sorted(versions, key=lambda one: one.number)
        return sum(self._keep(version) for version in in_order)

    def _append(
        self,
        kind: str,
        change: Change,
        make: Callable[[dict[int, RuleVersion]], tuple[str, int | None]],
        *,
        reads: bool = False,
    ) -> RuleVersion:
        """Make a version from those there are, and keep it unless another was first: then again."""
        for _ in range(SAVE_TRIES_MAX):
            head = _number(self._ask("HGET", self._keys.rules(kind), HEAD))
            if change.made_from is not None:
                refuse_conflict(kind, change, self.head(kind))
            document, restores = make(self._all(kind)[0] if reads else {})
            version = RuleVersion(
                kind=kind,
                number=head + 1,
                at_ms=self._now_ms(),
                change=Change(change.who, change.why),
                document=document,
                restores=restores,
            )
            if self._keep(version):
                return version
        raise RuleStoreBusy(f"others have saved {kind} rules {SAVE_TRIES_MAX} times in between")

    def _keep(self, version: RuleVersion) -> bool:
        """Run ``lua/save_rules.lua``: keep a version unless another was first."""
        text = write_version(version).decode()
        try:
            kept = SAVE_RULES.run(
                self._client,
                [self._keys.rules(version.kind)],
                version.number,
                text,
                self._history_count_max,
                uuid.uuid4().hex,
            )
        except (RedisError, OSError) as error:
            raise RuleStoreAway(
                f"{version.kind} rules cannot be saved in Redis: {error}"
            ) from error
        return bool(kept)

    # Redis.

    def _all(self, kind: str) -> tuple[dict[int, RuleVersion], int]:
        """The versions that can be read, and how many there are."""
        fields = self._ask("HGETALL", self._keys.rules(kind))
        found: dict[int, RuleVersion] = {}
        texts = {_number(name): raw for name, raw in fields.items() if name.isdigit()}
        for number, raw in texts.items():
            version = self._read(kind, number, raw)
            if version is not None:
                found[number] = version
        return found, len(fields)

    def _read(self, kind: str, number: int, raw: bytes) -> RuleVersion | None:
        try:
            # What is too large is cut, so it cannot be read either.
            return read_version(raw[:FILE_BYTES_MAX], kind, number)
        except Unreadable as error:
            if (kind, number) not in self._complained:
                self._complained.add((kind, number))
                _LOG.error(
                    "version %d of the %s rules in Redis cannot be read: %s. A version before it "
                    "counts; if it is the newest, the rules that were saved last are NOT in force",
                    number,
                    kind,
                    error,
                )
            return None

    def _ask(self, *command: Any) -> Any:
        try:
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            raise RuleStoreAway(f"the rules in Redis cannot be read: {error}") from error


def _number(raw: bytes | str | None) -> int:
    return int(raw) if raw is not None and raw.isdigit() else 0
