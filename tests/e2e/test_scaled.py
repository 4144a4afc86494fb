"""The scaled-out set as `scripts/run --scaled` starts it: Redis, Kafka, PostgreSQL, all for real.

SECKILL_SCALED_BUYERS (10000) and SECKILL_SCALED_STOCK (100) set the size of the rush.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from seckill.runtime.embedded_postgres import find_programs
from seckill.runtime.errors import PostgresMissing
from seckill.stress.plan import StressPlan
from seckill.stress.report import render_text
from seckill.stress.run import run_stress_in_new_loop
from seckill.stress.target import Target
from services.kafka import jars_or_skip
from services.missing import skip_without
from services.seckill_service import PATIENT, SeckillService, wait_until

SCALED = PATIENT | {
    "SECKILL_CHANNEL": "kafka",
    "SECKILL_DATABASE_URL": "postgresql://",
    "SECKILL_ORDER_WORKERS": "2",
}
STOCK = int(os.environ.get("SECKILL_SCALED_STOCK", "100"))
BUYERS = int(os.environ.get("SECKILL_SCALED_BUYERS", "10000"))


def _missing_postgres() -> None:
    try:
        find_programs()
    except PostgresMissing as missing:
        skip_without(str(missing))


def _in_order(service: SeckillService) -> None:
    """Every process of the set is there."""
    roles = Counter(process["role"] for process in service.cli_json("status")["processes"])
    assert roles["supervisor"] == roles["redis"] == roles["kafka"] == roles["postgres"] == 1
    assert (roles["relay"], roles["worker"], roles["web"]) == (1, 2, 2)


def _rush(service: SeckillService) -> None:
    """Everybody at one instant, three clicks each; nobody is in a hurry here.

    The waits are long because a busy machine must not turn this red; the counts are exact.
    """
    service.cli("sale", "create", "rush", "--stock", str(STOCK))
    plan = StressPlan(
        stock=STOCK, buyers=BUYERS, clicks=3, timeout_s=60, connect_timeout_s=60, follow_s=120
    )
    report = run_stress_in_new_loop(plan, Target(url=service.url, goods_id="rush"))
    print(render_text(report))  # noqa: T201  -- the figures of a long run, with -s
    failed = [check for check in report.checks if not check.ok]
    assert report.ok, (failed, report.anomalies, service.log()[-3000:])
    assert report.winners == report.unique_reservations == report.units_won == STOCK
    assert report.orders == {"ordered": STOCK}


def _books(service: SeckillService) -> dict[str, Any]:
    found: dict[str, Any] = service.cli_json("audit")
    broken = {name: found[name] for name in ("oversold", "duplicates", "lost", "stranded")}
    assert found["ok"], found
    assert set(broken.values()) == {0}, found
    return found


@pytest.mark.timeout(900)  # five servers are started twice, and a Java takes its time
def test_a_rush_over_redis_kafka_and_postgresql_balances_and_the_next_run_carries_on(
    tmp_path: Path,
) -> None:
    _missing_postgres()
    environment = SCALED | {"SECKILL_KAFKA_JARS": str(jars_or_skip())}
    service = SeckillService(
        tmp_path / "data", "--demo", "--workers", "2", environment=environment, start_timeout_s=300
    )
    try:
        service.start()
        _in_order(service)
        _rush(service)
        wait_until("nothing is on its way any more", lambda: _books(service)["in_flight"] == 0, 60)
        sold = service.cli_json("sale", "show", "rush")["sold"]
        assert sold == STOCK
        processes = service.status()["processes"]
        assert service.stop() == 0, service.log()
        # Ctrl-C leaves nothing behind, and everything is there when it is started again.
        assert not any(Path(f"/proc/{process['pid']}").exists() for process in processes)
        service.start()
        _in_order(service)
        assert service.cli_json("sale", "show", "rush")["sold"] == STOCK
        assert _books(service)["in_flight"] == 0
    finally:
        assert service.stop() == 0, service.log()
