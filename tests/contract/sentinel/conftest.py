"""One suite, every place where rules can live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.sentinel.places import FilePlace, LayeredPlace, Place, RedisPlace
from services.names import own_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from seckill.sentinel.stores import VersionedStore
    from services.redis import RedisServer


@pytest.fixture(params=["file", "redis", "redis before file"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Iterator[Place]:
    """Where the rules of one test live."""
    folder = FilePlace(tmp_path / "rules")
    if request.param == "file":
        yield folder
        return
    with redis_server.client() as client:
        there = RedisPlace(client, own_name())
        yield there if request.param == "redis" else LayeredPlace(there, folder)


@pytest.fixture
def store(place: Place) -> VersionedStore:
    """One process's store."""
    return place.store()
