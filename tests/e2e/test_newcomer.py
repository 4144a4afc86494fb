"""What somebody meets who types the commands for the first time, and not always the right ones."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from seckill import __version__
from services.seckill_service import PATIENT, SeckillService, wait_until


def seckill(
    *arguments: str, cwd: Path, code: int, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command in a folder of its own, where no service runs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SECKILL_")}
    done = subprocess.run(
        [sys.executable, "-m", "seckill", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=environment | variables,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_program_says_its_version(tmp_path: Path) -> None:
    assert seckill("--version", cwd=tmp_path, code=0).stdout == f"seckill {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["serve", "--bind", "0.0.0.0:99999"], {}, "--bind: "),
        (["serve"], {"SECKILL_WORKERS": "many"}, "SECKILL_WORKERS: must be a whole number"),
        (["settings"], {"SECKILL_DURABILITY": "some"}, "SECKILL_DURABILITY: must be one of"),
        (
            ["serve"],
            {"SECKILL_KAFKA_BOOTSTRAP": "h:9092"},
            "SECKILL_KAFKA_BOOTSTRAP: names a Kafka, and channel is direct",
        ),
        (["audit"], {"SECKILL_CONFIG": "none.toml"}, "the settings file none.toml: cannot be read"),
        (["serve", "--nonsense"], {}, "No such option"),
        (["rebuild", "--force"], {}, "--force: needs a GOODS_ID"),
        (["worker", "--slot", "256"], {}, "slot: must be from 0 to 255"),
    ],
)
def test_wrong_use_is_two_and_leaves_nothing_behind(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str
) -> None:
    done = seckill(*arguments, cwd=tmp_path, code=2, **variables)
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "code"), [("settings", 0), ("status", 1), ("audit", 1)])
def test_every_command_tells_of_a_mistyped_variable(
    tmp_path: Path, command: str, code: int
) -> None:
    told = seckill(command, cwd=tmp_path, code=code, SECKILL_DURABLITY="memory").stderr
    assert told.count("SECKILL_DURABLITY is no setting and was ignored") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_run_writes_is_nobody_elses_business(service: SeckillService) -> None:
    """Whatever the umask of the shell: the ledger holds the names of buyers."""
    seen = 0
    for path in (service.data_dir, *service.data_dir.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a running service renames and removes files
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path
            seen += 1
    assert seen > 5


def test_the_start_says_what_it_does_and_then_what_to_type(service: SeckillService) -> None:
    # It takes traffic a moment before it says so.
    wait_until("the start says how it ends", lambda: "Ctrl-C" in service.log())
    log = service.log()
    lines = log.splitlines()
    assert lines[0].startswith(f"starting Seckill {__version__} on the data directory ")
    assert log.count("Ctrl-C") == 1
    assert "alembic" not in log
    (stress,) = [line.strip() for line in lines if " stress --buyers" in line]
    status = stress.partition(" stress")[0] + f" status --data-dir {service.data_dir}"
    done = subprocess.run(status, shell=True, capture_output=True, text=True, check=False)  # noqa: S602  -- typed as it is shown
    assert done.returncode == 0, done.stderr
    assert f"--data-dir {service.data_dir}" in stress


def test_a_user_without_orders_is_told_so(service: SeckillService) -> None:
    assert (
        "nobody-yet has no orders" in service.cli("orders", "list", "--user", "nobody-yet").stdout
    )
    assert service.cli_json("orders", "list", "--user", "nobody-yet") == []


def test_the_number_of_the_services_own_worker_is_taken(service: SeckillService) -> None:
    done = service.cli("worker", "--slot", "0", check=False)
    (pid,) = service.pids("worker")
    assert done.returncode == 1
    assert f"process {pid} already is worker 0" in done.stderr


def test_one_more_worker_says_what_it_is_and_two_of_one_number_are_refused(
    service: SeckillService,
) -> None:
    command = [sys.executable, "-m", "seckill", "worker", "--slot", "7"]
    with subprocess.Popen(
        [*command, "--data-dir", str(service.data_dir)], stderr=subprocess.PIPE, text=True
    ) as first:
        assert first.stderr
        told = first.stderr.readline()
        assert told.startswith(f"order worker 7, process {first.pid}: carries orders from redis://")
        second = service.cli("worker", "--slot", "7", check=False)
        assert second.returncode == 1
        assert f"process {first.pid} already is worker 7" in second.stderr
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 0


def test_a_sale_found_sold_out_is_no_proof(service: SeckillService) -> None:
    service.cli("sale", "create", "gone", "--stock", "0")
    done = service.cli("stress", "--goods", "gone", "--buyers", "3", check=False)
    assert done.returncode == 1
    assert "nothing was tested" in done.stdout
    assert "NOT OK: stock_to_sell" in done.stdout


def test_a_run_that_cannot_sign_tokens_is_refused_before_it_opens_a_sale(tmp_path: Path) -> None:
    with_tokens = {"SECKILL_AUTH": "jwt", "SECKILL_JWT_SECRET": "s" * 32}
    running = SeckillService(
        tmp_path / "jwt", "--workers", "1", environment=PATIENT | with_tokens
    ).start()
    try:
        running._environment = dict(os.environ)
        before = running.cli_json("sale", "list")
        done = running.cli("stress", "--buyers", "2", check=False)
        assert done.returncode == 2
        assert done.stderr.strip().count("\n") == 0
        assert "that needs SECKILL_JWT_SECRET" in done.stderr
        assert running.cli_json("sale", "list") == before
        running._environment |= {"SECKILL_JWT_SECRET": "s" * 32}
        assert running.cli("stress", "--buyers", "2", "--stock", "1").returncode == 0
    finally:
        assert running.stop() == 0
    wait_until("the status is gone", lambda: not running.status())
