"""`seckill stress`: a rush of buyers on a running service, or on one of its own, then the audit."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, load, print_json, with_stores
from seckill.domain.errors import InvalidValue
from seckill.domain.ids import check_goods_id
from seckill.runtime.errors import PartFailed

if TYPE_CHECKING:
    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.settings import Settings
    from seckill.stress.target import HeadersFor

__all__ = ["stress_app"]

stress_app = typer.Typer()

_OWN_START_S = 60.0
_TOKEN_LIFE_S = 24 * 3600


@stress_app.command()
def stress(
    buyers: Annotated[int, typer.Option(help="Buyers, each a user of their own.")] = 10_000,
    stock: Annotated[int, typer.Option(help="Units that the sale of this run has.")] = 100,
    clicks: Annotated[int, typer.Option(help="Purchase requests of each buyer.")] = 3,
    limit: Annotated[int, typer.Option(help="Units that one buyer may hold.")] = 1,
    quantity: Annotated[
        str, typer.Option(help="Units of a click: 2, or a mix like 1:3,2:1 (units:weight).")
    ] = "1",
    goods: Annotated[
        str | None,
        typer.Option(help="Use this running sale, with what it has left. Default: a new one."),
    ] = None,
    over_s: Annotated[
        float, typer.Option(help="Seconds over which the buyers come; 0: all at once.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="All randomness of the run comes from it.")] = 1,
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="Each click carries an Idempotency-Key.")
    ] = False,
    faults_expected: Annotated[
        bool,
        typer.Option(
            "--faults-expected",
            help="Parts are being killed meanwhile: broken connections do not fail the verdict.",
        ),
    ] = False,
    deadline_s: Annotated[float, typer.Option(help="Longest time for the rush.")] = 120.0,
    timeout_s: Annotated[
        float, typer.Option(help="Longest wait for a connection, and for the answer to a click.")
    ] = 10.0,
    follow_s: Annotated[
        float, typer.Option(help="Longest time in which the orders are followed to their end.")
    ] = 30.0,
    own: Annotated[
        bool,
        typer.Option("--own", help="Start a service of its own in a temporary folder, and end it."),
    ] = False,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """A rush of buyers, each fate accounted for, then the audit. Exit 1 when a promise is broken.

    Open loop: every click has its instant before the start, and a slow service does not slow the
    buyers. Latency counts from that instant. Works on the service that runs on this data directory;
    where none runs, it starts one of its own. Only this machine is ever put under load.
    """
    from seckill.stress.plan import Arrival, StressPlan, parse_quantity_weights  # noqa: PLC0415
    from seckill.stress.progress import RichProgress  # noqa: PLC0415
    from seckill.stress.report import render_text  # noqa: PLC0415
    from seckill.stress.run import run_stress_in_new_loop  # noqa: PLC0415
    from seckill.stress.target import Target  # noqa: PLC0415

    run_name = f"{os.getpid():x}{time.time_ns() // 1_000_000:x}"
    plan = StressPlan(
        stock=stock,
        buyers=buyers,
        clicks=clicks,
        limit_per_user=limit,
        quantity_weights=parse_quantity_weights(quantity),
        arrival=Arrival.AT_ONCE if over_s == 0 else Arrival.UNIFORM,
        over_s=over_s,
        seed=seed,
        idempotent=idempotent,
        faults_expected=faults_expected,
        deadline_s=deadline_s,
        timeout_s=timeout_s,
        connect_timeout_s=timeout_s,
        follow_s=follow_s,
        user_prefix=f"{run_name}-",
    )
    with _service(data_dir, own=own, quiet=as_json) as service:
        # Before a sale is opened that nobody could then be let in to.
        headers_for = _headers_for(service.settings)
        goods_id = goods or f"stress-{run_name}"
        if goods is None:
            _open_sale(service, goods_id, stock=stock, limit=limit)
        else:
            from dataclasses import replace  # noqa: PLC0415

            left, limit_per_user = _left(service, goods)
            plan = replace(plan, stock=left, stock_found=True, limit_per_user=limit_per_user)
        target = Target(url=service.url, goods_id=goods_id, headers_for=headers_for)

        async def audit() -> Mapping[str, Any]:
            from seckill.runtime.auditing import audit as audit_stores  # noqa: PLC0415
            from seckill.runtime.bootstrap import open_stores  # noqa: PLC0415

            async with open_stores(service.settings) as stores:
                return (await audit_stores(stores)).to_dict()

        if as_json:
            report = run_stress_in_new_loop(plan, target, audit=audit)
            print_json(report.to_dict())
        else:
            with RichProgress() as progress:
                report = run_stress_in_new_loop(plan, target, progress, audit=audit)
            typer.echo(render_text(report))
    raise typer.Exit(report.exit_code)


@dataclass(frozen=True)
class _Service:
    data_dir: Path
    url: str
    settings: "Settings"


@contextmanager
def _service(data_dir: Path | None, *, own: bool, quiet: bool) -> Iterator[_Service]:
    """The service that runs on the data directory; one of our own where none does."""
    from seckill.runtime.status import read_status  # noqa: PLC0415

    settings = load(data_dir).settings
    status = None if own else read_status(settings.data)
    if status is not None:
        yield _Service(settings.data_dir, f"http://{status.bind}", _running(settings.data_dir))
        return
    if not quiet:
        typer.echo("no service runs here: starting one in a temporary folder", err=True)
    with tempfile.TemporaryDirectory(prefix="seckill-stress-") as folder:
        own_dir = Path(folder)
        command = [sys.executable, "-m", "seckill", "serve", "--data-dir", folder]
        with (own_dir / "serve.log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603  -- this program itself
                [*command, "--bind", "127.0.0.1:0"], stdout=log, stderr=subprocess.STDOUT
            )
            try:
                bind = _await_own(own_dir, process)
                yield _Service(own_dir, f"http://{bind}", _running(own_dir))
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)


def _running(data_dir: Path) -> "Settings":
    from seckill.cli.shared import of_running_service  # noqa: PLC0415

    return of_running_service(data_dir).settings


def _await_own(data_dir: Path, process: "subprocess.Popen[bytes]") -> str:
    """Wait until all parts of our own service are ready; returns its address."""
    from seckill.runtime.data_dir import DataDir  # noqa: PLC0415
    from seckill.runtime.status import read_status  # noqa: PLC0415

    deadline = time.monotonic() + _OWN_START_S
    while time.monotonic() < deadline and process.poll() is None:
        status = read_status(DataDir(data_dir))
        web = status.of_role("web") if status else ()
        if status and web and all(process.healthy for process in status.processes):
            return status.bind
        time.sleep(0.05)
    words = (data_dir / "serve.log").read_text(errors="replace").strip().splitlines()[-1:]
    raise PartFailed("service", 0, "did not start", " ".join(words))


def _open_sale(service: _Service, goods_id: str, *, stock: int, limit: int) -> None:
    from seckill.domain.sale import NewSale  # noqa: PLC0415
    from seckill.runtime.opening import put_on_sale  # noqa: PLC0415

    async def work(stores: "Stores") -> None:
        new = NewSale(
            goods_id=check_goods_id(goods_id),
            stock_units=stock,
            limit_per_user=limit,
            title="Stress run",
            starts_at_ms=stores.clock.now_ms(),
        )
        await put_on_sale(stores, new, actor="stress")

    with_stores(service.data_dir, work)


def _left(service: _Service, goods_id: str) -> tuple[int, int]:
    """Units left of a sale that is there already, and its limit per user."""
    from seckill.runtime.sale_desk import SaleDesk  # noqa: PLC0415

    async def work(stores: "Stores") -> dict[str, Any]:
        return await SaleDesk(stores).show(goods_id)

    row = with_stores(service.data_dir, work)
    if not isinstance(row["remaining"], int):
        raise InvalidValue("goods", f"the stock of {goods_id} cannot be read: it is fenced")
    return row["remaining"], row["limit_per_user"]


def _headers_for(settings: "Settings") -> "HeadersFor":
    """How the buyers of the run say who they are."""
    from seckill.stress.target import bearer_headers, dev_headers  # noqa: PLC0415

    if settings.auth == "dev":
        return dev_headers
    secret = settings.jwt_secret.get_secret_value()
    if settings.jwt_algorithm != "HS256" or not secret:
        lacks = "SECKILL_JWT_SECRET" if settings.jwt_algorithm == "HS256" else "auth dev, or HS256"
        raise InvalidValue(
            "auth",
            f"the service lets in whom a token names ({settings.jwt_algorithm}), and a run has to"
            f" sign one for each of its buyers: that needs {lacks}",
        )
    import jwt  # noqa: PLC0415

    common: dict[str, object] = {"exp": int(time.time()) + _TOKEN_LIFE_S}
    if settings.jwt_audience:
        common["aud"] = settings.jwt_audience
    if settings.jwt_issuer:
        common["iss"] = settings.jwt_issuer
    return bearer_headers(
        lambda user_id: jwt.encode({**common, "sub": user_id}, secret, settings.jwt_algorithm)
    )
