"""The places where rules can live, each with a way to do it harm."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Protocol

from seckill.sentinel.redis import RedisRuleStore
from seckill.sentinel.stores import FileRuleStore, LayeredRuleStore, VersionedStore

if TYPE_CHECKING:
    from pathlib import Path

    from redis import Redis


class Place(Protocol):
    """Where stores are made that share their rules, as those of several processes do."""

    def store(self, **options: Any) -> VersionedStore: ...

    def harm(self, kind: str, number: int, raw: bytes) -> None:
        """Write over a version, as a broken disk or a careless hand would."""
        ...


def ticking() -> Any:
    """A clock that shows a second more each time."""
    return itertools.count(1_764_579_240_000, 1_000).__next__


class FilePlace:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._now_ms = ticking()

    def store(self, **options: Any) -> VersionedStore:
        return FileRuleStore(self._folder, now_ms=self._now_ms, **options)

    def harm(self, kind: str, number: int, raw: bytes) -> None:
        (self._folder / kind / f"{number:08d}.json").write_bytes(raw)


class RedisPlace:
    def __init__(self, client: Redis, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._now_ms = ticking()

    def store(self, **options: Any) -> VersionedStore:
        return RedisRuleStore(
            self._client, namespace=self._namespace, now_ms=self._now_ms, **options
        )

    def harm(self, kind: str, number: int, raw: bytes) -> None:
        self._client.hset(f"sentinel:{{{self._namespace}}}:rules:{kind}", str(number), raw)


class LayeredPlace:
    """Redis before files. Seeds belong to the last."""

    def __init__(self, first: RedisPlace, second: FilePlace) -> None:
        self._first = first
        self._second = second

    def store(self, seeds: Any = (), **options: Any) -> VersionedStore:
        return LayeredRuleStore(
            self._first.store(**options), self._second.store(seeds=seeds, **options)
        )

    def harm(self, kind: str, number: int, raw: bytes) -> None:
        self._first.harm(kind, number, raw)
        self._second.harm(kind, number, raw)
