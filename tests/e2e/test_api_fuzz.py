"""Made-up requests for every documented route of the running service: never a 5xx, 503 excepted.

A 503 with Retry-After is the documented answer of a service that cannot decide now.
"""

import json
import urllib.request

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.schemas import OpenApiSchema

from services.seckill_service import SeckillService

EXAMPLES = 25


@pytest.fixture(scope="session")
def api(service: SeckillService) -> OpenApiSchema:
    with urllib.request.urlopen(f"{service.url}/openapi.json", timeout=10) as answer:  # noqa: S310  -- our own address
        document = json.loads(answer.read())
    # A stream of events has no end: it has tests of its own.
    paths = {path: item for path, item in document["paths"].items() if "/events" not in path}
    loaded = schemathesis.openapi.from_dict(document | {"paths": paths})
    loaded.config.update(base_url=service.url)
    return loaded


schema = schemathesis.pytest.from_fixture("api")


@pytest.mark.timeout(300)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_made_up_request_breaks_the_service(case: schemathesis.Case) -> None:
    answer = case.call(headers={"X-User-Id": "fuzz"} if case.headers is None else None)
    assert answer.status_code < 500 or (
        answer.status_code == 503 and "retry-after" in {name.lower() for name in answer.headers}
    ), (answer.status_code, answer.text)
