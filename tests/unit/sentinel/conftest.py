"""Engines on a virtual clock that starts on a whole minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from seckill.sentinel import AS_ORIGINAL
from unit.sentinel.engines import Bench, make_bench

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def bench() -> Bench:
    """Our engine as it is."""
    return make_bench()


@pytest.fixture
def original() -> Bench:
    """Our engine with every difference undone."""
    return make_bench(undone=AS_ORIGINAL)


@pytest.fixture(scope="session")
def benches() -> Callable[..., Bench]:
    """A maker of engines."""
    return make_bench
