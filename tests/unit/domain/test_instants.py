"""C52: an instant is the same whatever the server's zone, and never a guess."""

import os
import time
from collections.abc import Iterator

import pytest

from seckill.domain.errors import InvalidValue
from seckill.domain.instants import parse_instant_ms, rfc3339_ms


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def server_zone(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = request.param
    time.tzset()
    yield request.param
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2027-03-28T00:30:00[Europe/London]", "2027-03-28T00:30:00.000Z"),
        ("2027-03-28T02:30:00[Europe/London]", "2027-03-28T01:30:00.000Z"),
        ("2027-10-31T01:30:00+01:00[Europe/London]", "2027-10-31T00:30:00.000Z"),
        ("2027-10-31T01:30:00+00:00[Europe/London]", "2027-10-31T01:30:00.000Z"),
        ("2027-03-28T10:00:00[Asia/Shanghai]", "2027-03-28T02:00:00.000Z"),
        ("2027-03-28T10:00:00Z", "2027-03-28T10:00:00.000Z"),
        ("2027-03-28T10:00:00+08:00", "2027-03-28T02:00:00.000Z"),
        ("2027-03-28T10:00:00.123456+08:00", "2027-03-28T02:00:00.123Z"),
    ],
)
def test_an_instant_is_read_the_same_under_each_server_zone(
    server_zone: str, text: str, instant: str
) -> None:
    assert rfc3339_ms(parse_instant_ms("starts_at", text)) == instant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2027-03-28T01:30:00[Europe/London]", "does not exist in Europe/London"),
        (
            "2027-10-31T01:30:00[Europe/London]",
            "2027-10-31T01:30:00+01:00 or 2027-10-31T01:30:00+00:00",
        ),
        ("2027-03-28T10:00:00", "must say its offset"),
        ("2027-03-28", "must say its offset"),
        ("2027-03-28T10:00:00[Mars/Olympus]", "is not known"),
        ("2027-03-28T10:00:00[../etc/passwd]", "must be RFC 3339"),
        ("2027-03-28T10:00:00+02:00[Europe/London]", "an offset that Europe/London does not have"),
        ("tomorrow[Europe/London]", "must be like"),
        ("tomorrow", "must be RFC 3339"),
    ],
)
def test_what_names_no_instant_is_refused_with_what_to_write(
    server_zone: str, text: str, says: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_instant_ms("starts_at", text)
    assert caught.value.field == "starts_at"
    assert says in caught.value.rule
