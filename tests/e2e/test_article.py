"""The article's own test, through the commands of the README: a rush, then the books."""

import itertools
import json
import os
from typing import Any

import pytest

from services.seckill_service import SeckillService

_numbers = itertools.count(1)
_BUYERS_OF_FEW = int(os.environ.get("SECKILL_TEST_BUYERS_OF_FEW", "2000"))
"""Who come for one unit, or for none. scripts/full-size has ten thousand for these as well."""


def _stress(service: SeckillService, *flags: str) -> dict[str, Any]:
    # Nobody is in a hurry here: a busy machine must not turn this red.
    waits = ("--timeout-s", "60", "--follow-s", "120")
    done = service.cli("stress", *flags, *waits, "--json", check=False)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    failed = [check for check in report["checks"] if not check["ok"]]
    assert done.returncode == 0, (failed, report["anomalies"], done.stderr)
    return report


def _goods_of(report: dict[str, Any]) -> str:
    return str(report["target"]).rsplit(" ", 1)[-1]


@pytest.mark.parametrize(
    ("stock", "buyers"),
    [(0, _BUYERS_OF_FEW), (1, _BUYERS_OF_FEW), (100, 10_000), (10_000, 10_000)],
)
def test_thousands_of_buyers_three_clicks_each(
    service: SeckillService, stock: int, buyers: int
) -> None:
    """Exactly as many 202 as there are units, by different buyers, one order each, none left."""
    report = _stress(service, "--buyers", str(buyers), "--clicks", "3", "--stock", str(stock))
    assert report["winners"] == report["unique_reservations"] == report["units_won"] == stock
    assert report["answers_by_status"].get("202", 0) == stock
    assert report["orders"] == ({"ordered": stock} if stock else report["orders"])
    assert report["connect_failures"] == {}
    assert report["connection_errors"] == {}
    assert report["timeouts"] == 0
    assert report["audit"]["ok"]


def test_limit_two_with_quantities_one_and_two(service: SeckillService) -> None:
    report = _stress(
        service, "--buyers", "600", "--clicks", "4", "--stock", "500", "--limit", "2",
        "--quantity", "1:2,2:1",
    )  # fmt: skip
    assert report["units_won"] == 500
    assert report["winners"] >= 250


def test_the_sample_sale_is_open_and_its_numbers_agree(service: SeckillService) -> None:
    number = next(_numbers)
    before = service.cli_json("sale", "show", "1")
    report = _stress(service, "--goods", "1", "--buyers", "5", "--clicks", "2")
    after = service.cli_json("sale", "show", "1")
    assert report["units_won"] == 5, number
    assert after["remaining"] == before["remaining"] - 5
    assert after["sold"] == before["sold"] + 5
    assert after["held"] == after["sold"]


def test_status_and_settings_tell_programs_what_runs(service: SeckillService) -> None:
    status = service.cli_json("status")
    roles = [process["role"] for process in status["processes"]]
    assert {"supervisor", "redis", "worker", "reaper", "web"} == set(roles)
    assert all(process["healthy"] and process["pid"] for process in status["processes"])
    settings = service.cli_json("settings")
    assert settings["redis_url"]["value"].startswith("redis://127.0.0.1:")
    assert settings["redis_url"]["source"] == "started for you"


def test_an_operator_pauses_resumes_adds_stock_and_ends_a_sale(service: SeckillService) -> None:
    service.cli("sale", "create", "ops", "--stock", "5")
    assert service.cli_json("sale", "pause", "ops", "--reason", "look")["state"] == "paused"
    assert service.cli_json("sale", "resume", "ops")["state"] == "running"
    assert service.cli_json("sale", "stock", "ops", "--by", "3")["remaining"] == 8
    assert service.cli_json("sale", "stock", "ops", "--by", "-8")["remaining"] == 0
    refused = service.cli("sale", "stock", "ops", "--by", "-1", check=False)
    assert refused.returncode == 2
    assert "by:" in refused.stderr
    assert service.cli_json("sale", "end", "ops")["state"] == "ended"
    again = service.cli_json("sale", "create", "ops", "--stock", "2")
    assert (again["remaining"], again["sold"]) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["sale", "create", "x", "--stock", "-1"], "stock"),
        (["sale", "create", "x", "--stock", "1", "--limit", "0"], "limit"),
        (["sale", "create", "x y", "--stock", "1"], "goods_id"),
        (["sale", "create", "x", "--stock", "1", "--starts-at", "tomorrow"], "starts_at"),
        (["sale", "create", "x", "--stock", "1", "--starts-at", "2026-12-24T20:00:00"], "offset"),
        (["sale", "show", "no-such-goods"], "no-such-goods"),
        (["sale", "stock", "1", "--by", "0"], "by"),
        (["stress", "--buyers", "0"], "buyers"),
    ],
)
def test_wrong_use_is_one_sentence_that_names_the_field(
    service: SeckillService, arguments: list[str], names: str
) -> None:
    done = service.cli(*arguments, check=False)
    assert done.returncode in {1, 2}
    assert names in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 4
