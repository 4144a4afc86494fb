"""Made-up requests for every documented route of the running service: never a 5xx, 503 excepted.

Those of the operators' API come with the token of an admin, and reach what is behind it. A 503 with
Retry-After is the documented answer of a service that cannot decide now.
"""

import json
import os
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from services.seckill_service import PATIENT, SeckillService

EXAMPLES = int(os.environ.get("SECKILL_FUZZ_EXAMPLES", "20"))
"""Requests of each kind for a route of buyers. scripts/full-size makes up a hundred."""
OF_OPERATORS = max(1, EXAMPLES * 2 // 5)
"""There are thirty routes of them, behind one way in."""
SETUP = "/admin/api/setup"
SLOW = {"/admin/api/audit", "/admin/api/reconcile", "/admin/api/orders/{reservation_id}/trace"}
"""Each starts a process: they have tests of their own."""


def _operations(service: SeckillService) -> list[Any]:
    with urllib.request.urlopen(f"{service.url}/openapi.json", timeout=60) as answer:  # noqa: S310  -- our own address
        document = json.loads(answer.read())
    # A stream of events has no end: it has tests of its own.
    paths = {
        path: item
        for path, item in document["paths"].items()
        if "/events" not in path and path not in SLOW
    }
    schema = schemathesis.openapi.from_dict(document | {"paths": paths})
    schema.config.update(base_url=service.url)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[SeckillService]:
    """One of its own: made-up requests of an admin leave made-up rules and users behind."""
    running = SeckillService(
        tmp_path / "data", "--demo", "--workers", "1", environment=PATIENT
    ).start()
    yield running
    assert running.stop() == 0, running.log()


def _attempts(operation: Any, mode: Any, examples: int, headers: dict[str, str]) -> Counter[str]:
    """Send made-up requests of one route; how many, and how many of them came in."""
    counts: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: schemathesis.Case) -> None:
        # What is made up against the description may be a token of its own.
        answer = case.call(timeout=60, headers=headers)
        counts["tried"] += 1
        counts["came in"] += answer.status_code not in {401, 403}
        polite = answer.status_code == 503 and "retry-after" in answer.headers
        assert answer.status_code < 500 or polite, (case, answer.status_code, answer.text)

    try:
        attempt()
    except Exception as error:
        # Nothing of a route without input can be negated.
        impossible = "Impossible to generate" in str(error)
        if not impossible and "Unsatisfiable" not in type(error).__name__:
            raise
    return counts


def test_no_made_up_request_breaks_the_service(own_service: SeckillService) -> None:
    operations = _operations(own_service)
    assert {operation.method.upper() for operation in operations} >= {"GET", "POST"}
    admin = own_service.cli_json("admin", "token", "create", "--name", "fuzz", "--role", "admin")
    token = {"Authorization": f"Bearer {admin['token']}"}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    least = 0
    for operation in operations:
        of_operators = operation.path.startswith("/admin/")
        headers = token if of_operators and operation.path != SETUP else {}
        examples = OF_OPERATORS if of_operators else EXAMPLES
        least += examples
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            counts[operation.label] += _attempts(operation, mode, examples, headers)
    assert any(operation.path.startswith("/admin/") for operation in operations)
    assert sum(of["tried"] for of in counts.values()) >= least
    # News of a payment comes in with the provider's signature alone.
    outside = {label for label, of in counts.items() if not of["came in"]}
    assert outside == {"POST /payments/webhook"}
