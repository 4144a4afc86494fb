"""Made-up requests for every documented route of the running service: never a 5xx, 503 excepted.

A 503 with Retry-After is the documented answer of a service that cannot decide now.
"""

import json
import urllib.request
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from services.seckill_service import SeckillService

EXAMPLES = 40


def _operations(service: SeckillService) -> list[Any]:
    with urllib.request.urlopen(f"{service.url}/openapi.json", timeout=10) as answer:  # noqa: S310  -- our own address
        document = json.loads(answer.read())
    # A stream of events has no end: it has tests of its own.
    paths = {path: item for path, item in document["paths"].items() if "/events" not in path}
    schema = schemathesis.openapi.from_dict(document | {"paths": paths})
    schema.config.update(base_url=service.url)
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.timeout(300)
def test_no_made_up_request_breaks_the_service(service: SeckillService) -> None:
    operations = _operations(service)
    assert {operation.method.upper() for operation in operations} >= {"GET", "POST"}
    modes = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
    tried = 0
    for operation in operations:
        for mode in modes:

            @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def attempt(case: schemathesis.Case) -> None:
                nonlocal tried
                tried += 1
                answer = case.call(timeout=20)
                polite = answer.status_code == 503 and "retry-after" in answer.headers
                assert answer.status_code < 500 or polite, (case, answer.status_code, answer.text)

            try:
                attempt()
            except Exception as error:
                if (
                    "Impossible to generate" in str(error)
                    or "Unsatisfiable" in type(error).__name__
                ):
                    continue  # nothing of a route without input can be negated
                raise
    assert tried >= EXAMPLES * len(operations)
