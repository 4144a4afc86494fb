"""Drives `wrk` and reads what it found."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Final

from seckill.domain.errors import SeckillError

__all__ = ["BenchUnavailable", "Load", "Measured", "run_wrk"]

_UNITS_MS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}


class BenchUnavailable(SeckillError):  # noqa: N818  -- the field's word for it
    """A benchmark cannot run here: a program is missing, or a part did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One run of wrk.

    Attributes:
        connections: open at once, from one thread. A flash sale is a crowd: with few of them a
            server that answers each request by itself looks better than it will.
        duration_s: seconds.
    """

    connections: int = 512
    duration_s: int = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """What wrk found in one run.

    Attributes:
        errors: requests without an answer; answers of 4xx and 5xx are counted apart.
    """

    requests: int
    requests_per_s: float
    p50_ms: float
    p99_ms: float
    not_2xx: int
    errors: int


def _ms(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS_MS[unit]


def run_wrk(url: str, load: Load, *, user_prefix: str | None) -> Measured:
    """Load one address of this machine.

    Args:
        url: where; with ``user_prefix`` the path is replaced by purchases.
        user_prefix: every request is the purchase of a user of its own, whose id begins so;
            None sends plain GET requests.

    Raises:
        BenchUnavailable: there is no wrk, or it failed.
    """
    program = shutil.which("wrk")
    if program is None:
        raise BenchUnavailable("wrk is not on the PATH: install the package wrk")
    command = [
        program, "-t1", f"-c{load.connections}", f"-d{load.duration_s}s", "--latency",
    ]  # fmt: skip
    with as_file(files(__package__).joinpath("post.lua")) as script:
        if user_prefix is not None:
            command += ["-s", str(script), url, "--", user_prefix]
        else:
            command.append(url)
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  -- our own words
    text = done.stdout
    found = re.search(r"(\d+) requests in", text)
    if done.returncode != 0 or found is None:
        raise BenchUnavailable(f"wrk failed: {done.stderr.strip() or text.strip()}")
    latency = dict(re.findall(r"^\s+(50|99)%\s+([\d.]+(?:us|ms|s|m))", text, re.MULTILINE))
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    not_2xx = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    errors = re.search(
        r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text
    )
    assert rate is not None, "wrk says its rate whenever it says its requests"
    return Measured(
        requests=int(found[1]),
        requests_per_s=float(rate[1]),
        p50_ms=_ms(latency["50"]),
        p99_ms=_ms(latency["99"]),
        not_2xx=int(not_2xx[1]) if not_2xx else 0,
        errors=sum(map(int, errors.groups())) if errors else 0,
    )
