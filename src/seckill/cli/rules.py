"""Commands for the rules of flow control."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from seckill.cli.shared import DataDirOption, JSONOption, actor, load, print_json
from seckill.domain.errors import InvalidValue

if TYPE_CHECKING:
    from seckill.runtime.rule_stores import StoredRules
    from seckill.runtime.settings import LoadedSettings
    from seckill.sentinel import FlowRule, Sentinel

__all__ = ["rules_app"]

_HELP: Final = """Look at the rules of flow control, and change them while the service runs.

Rules are Sentinel's own JSON: what its dashboard shows, and what rule files of Java services hold.
KIND is flow, degrade, system, authority or param-flow. A list replaces all rules of its kind; every
web process of the host obeys it within a second, and after a restart from its first request.

    echo '[{"resource": "seckill-jk", "count": 1000}]' | seckill rules set flow -

lets 1,000 purchase requests a second through, over all web processes; the others read 429. Units
are calls a second (count with grade 1, the default), calls at a time (grade 0), seconds where a
name ends in Sec and ms where it ends in Ms.
"""

rules_app = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)

KindArgument = Annotated[
    str,
    typer.Argument(metavar="KIND", help="flow, degrade, system, authority or param-flow."),
]
WhoOption = Annotated[
    str | None, typer.Option("--who", help="Who changes it, for the history. Default: this user.")
]
WhyOption = Annotated[
    str, typer.Option("--why", help="Why, for the history. At most 1,000 characters.")
]


def _kind(text: str) -> str:
    from seckill.sentinel.rules import kind_named  # noqa: PLC0415

    try:
        return kind_named(text)
    except ValueError:
        raise InvalidValue(
            "kind", "must be flow, degrade, system, authority or param-flow"
        ) from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn what the rule store raises into one sentence."""
    from seckill.runtime.errors import RulesUnusable  # noqa: PLC0415
    from seckill.sentinel import SentinelError  # noqa: PLC0415

    try:
        yield
    except (SentinelError, OSError) as error:
        raise RulesUnusable(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of an installation: what is in force, and where it is kept."""

    loaded: "LoadedSettings"
    store: "StoredRules"
    sentinel: "Sentinel"


def _open(data_dir: Path | None) -> _Rules:
    from seckill.runtime.flow_control import make_sentinel  # noqa: PLC0415
    from seckill.runtime.logs import configure_logging  # noqa: PLC0415
    from seckill.runtime.rule_stores import open_rules  # noqa: PLC0415
    from seckill.runtime.settings_report import with_run_settings  # noqa: PLC0415
    from seckill.runtime.status import read_status  # noqa: PLC0415

    loaded = load(data_dir)
    configure_logging(level="error", log_format="console", role="command", slot=0)
    data = loaded.settings.data
    runs = read_status(data) is not None
    if runs:
        loaded = with_run_settings(loaded)
    elif not data.root.exists():
        # Rules may be set before the first start; looking at them leaves nothing behind.
        data.create()
    # Without a service the rules of this host are changed; the next start takes them over.
    store = open_rules(loaded.settings, alone=not (runs or loaded.settings.redis_url))
    return _Rules(loaded, store, make_sentinel(store))


@rules_app.command("list")
def rules_list(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="One kind only; default: all of them."),
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """The rules in force, in plain words; with --json as Sentinel writes them, by kind."""
    import json  # noqa: PLC0415

    from seckill.cli.rule_words import in_words  # noqa: PLC0415
    from seckill.sentinel.rules import KINDS, parse_rules  # noqa: PLC0415

    kinds = tuple(KINDS) if kind is None else (_kind(kind),)
    with _told():
        rules = _open(data_dir)
    documents = {name: rules.sentinel.dump_rules(name) for name in kinds}
    if as_json:
        print_json({name: json.loads(document) for name, document in documents.items()})
        return
    for name, document in documents.items():
        with _told():
            head = rules.store.head(name)
        origin = f"version {head.number}" if head else "default"
        found = parse_rules(name, document).rules
        typer.echo(f"{name} ({origin}): {len(found) or 'none'}")
        for rule in found:
            resource = f"{rule.resource}{' (a pattern)' if rule.regex else ''}"
            typer.echo(f"  {resource or 'all purchases':<20} {in_words(rule)}")


@rules_app.command("set")
def rules_set(
    kind: KindArgument,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A JSON file; - reads standard input.")
    ],
    who: WhoOption = None,
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Replace all rules of a kind; [] takes them all away.

    Good rules of a list are taken, bad ones named by their place from 0 and the reason (exit 1). A
    list without a good rule changes nothing.
    """
    name = _kind(kind)
    _load(_open_told(data_dir), [(name, file)], who, why or f"rules set {name}", as_json=as_json)


@rules_app.command("import")
def rules_import(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Rule files of Sentinel or Spring Cloud Alibaba; the name says the kind, as in"
            " flowrule.json or ParamFlowRule.json.",
        ),
    ],
    who: WhoOption = None,
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Take over rule files of other services as they are: each replaces all rules of its kind."""
    from seckill.sentinel.stores import kind_of_file  # noqa: PLC0415

    by_kind: dict[str, str] = {}
    for file in files:
        try:
            name = kind_of_file(file)
        except ValueError:
            raise InvalidValue(
                "FILE",
                f"{file}: the name must say the kind of rules, such as flowrule.json;"
                " `seckill rules set KIND FILE` takes any name",
            ) from None
        if name in by_kind:
            raise InvalidValue(
                "FILE", f"{file} and {by_kind[name]} both have {name} rules: join them"
            )
        by_kind[name] = file
    _load(_open_told(data_dir), list(by_kind.items()), who, why or "rules import", as_json=as_json)


def _open_told(data_dir: Path | None) -> _Rules:
    with _told():
        return _open(data_dir)


def _load(
    rules: _Rules,
    files: list[tuple[str, str]],
    who: str | None,
    why: str,
    *,
    as_json: bool,
) -> None:
    """Put files in force, tell what became of each rule, and exit 1 unless all is well."""
    from seckill.sentinel import Change  # noqa: PLC0415

    # Read all before the first is put in force: a file that is not there changes nothing.
    documents = [(kind, file, _read(file)) for kind, file in files]
    change = Change(who or actor(), why)
    told = [_load_one(rules, kind, file, document, change) for kind, file, document in documents]
    if as_json:
        print_json(told)
    if not all(one["ok"] for one in told):
        raise typer.Exit(1)


def _load_one(
    rules: _Rules, kind: str, file: str, document: bytes, change: Any
) -> dict[str, object]:
    from seckill.runtime.rule_desk import report_row  # noqa: PLC0415
    from seckill.sentinel import RuleDocumentError  # noqa: PLC0415

    try:
        report = rules.sentinel.load_rules(kind, document, change)
    except RuleDocumentError as error:
        typer.echo(f"{kind}: {file} was refused, the old rules stay: {error}", err=True)
        return {"kind": kind, "file": file, "ok": False, "applied": False, "error": str(error)}
    warnings = _cold_gates(rules) if kind == rules.sentinel.flow.kind and report.applied else []
    typer.echo(str(report), err=True)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    return report_row(report) | {"file": file, "cold_gates": warnings}


def _read(file: str) -> bytes:
    from seckill.sentinel.rules import DOCUMENT_BYTES_MAX  # noqa: PLC0415

    # One byte more than may be: what is too large is refused by whoever reads the rules.
    if file == "-":
        return sys.stdin.buffer.read(DOCUMENT_BYTES_MAX + 1)
    try:
        with Path(file).open("rb") as opened:
            return opened.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidValue("FILE", f"{file} cannot be read: {error.strerror}") from error


def _cold_gates(rules: _Rules) -> list[str]:
    """What to say of warm-up rules in front of a sale: it will meet a cold gate when it starts."""
    from seckill.runtime.pre_warming import warming_rules  # noqa: PLC0415

    warming = warming_rules(rules.sentinel.flow.rules)
    if not warming or rules.loaded.settings.pre_warm == "on":
        return []
    sales = _sales_to_start(rules.loaded)
    of = f"the sale of {', '.join(sales)}" if sales else "a sale"
    return [f"{_coldness(rule)} when {of} starts. Set pre_warm to on" for rule in warming]


def _coldness(rule: "FlowRule") -> str:
    return (
        f"this warm-up rule is cold, and lets about {rule.count / 3:,.0f} of {rule.count:,g}"
        " requests a second through,"
    )


def _sales_to_start(loaded: "LoadedSettings") -> list[str]:
    """Goods of sales that have not started, as far as the running service can be asked."""
    import asyncio  # noqa: PLC0415

    from seckill.domain.clock import SystemClock  # noqa: PLC0415
    from seckill.domain.errors import SeckillError  # noqa: PLC0415
    from seckill.runtime.bootstrap import open_stores  # noqa: PLC0415

    if not loaded.settings.redis_url:
        return []

    async def ask() -> list[str]:
        now_ms = SystemClock().now_ms()
        async with open_stores(loaded.settings) as stores:
            sales = await stores.ledger.sales.sales()
        return [str(sale.goods_id) for sale in sales if sale.starts_at_ms > now_ms]

    try:
        return asyncio.run(ask())
    except SeckillError:
        return []


@rules_app.command("export")
def rules_export(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="One kind, to standard output."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Write all kinds there, one file each, named as `rules import` and Sentinel read"
            " them.",
        ),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Write rules as Sentinel's JSON: one kind to standard output, or all kinds to a folder."""
    from seckill.sentinel.rules import KINDS  # noqa: PLC0415

    if (kind is None) == (to is None):
        raise InvalidValue("KIND", "give one kind, or --to a folder for all of them")
    sentinel = _open_told(data_dir).sentinel
    if kind is not None:
        typer.echo(_pretty(sentinel.dump_rules(_kind(kind))))
        return
    assert to is not None
    with _told():
        to.mkdir(parents=True, exist_ok=True)
        for name in KINDS:
            path = to / f"{name}-rules.json"
            path.write_text(_pretty(sentinel.dump_rules(name)) + "\n", encoding="utf-8")
            typer.echo(str(path))


def _pretty(document: str) -> str:
    import json  # noqa: PLC0415

    return json.dumps(json.loads(document), ensure_ascii=False, indent=2)


@rules_app.command("history")
def rules_history(
    kind: KindArgument, data_dir: DataDirOption = None, as_json: JSONOption = False
) -> None:
    """The last 50 versions of a kind: when, by whom, why, and how many rules."""
    from seckill.runtime.rule_desk import version_row  # noqa: PLC0415

    name = _kind(kind)
    rules = _open_told(data_dir)
    with _told():
        versions = rules.store.history(name)
    if as_json:
        print_json([version_row(version) for version in versions])
        return
    if not versions:
        typer.echo(f"no {name} rules have been saved; the default ones are in force")
    for version in versions:
        row = version_row(version)
        again = "" if row["restores"] is None else f" (as in version {row['restores']})"
        typer.echo(
            f"{row['version']:>6}  {row['at']}  {row['rules']:>5} rules  {row['who']}: {row['why']}"
            f"{again}"
        )


@rules_app.command("undo")
def rules_undo(
    kind: KindArgument,
    to: Annotated[
        int | None,
        typer.Option("--to", help="Go to this version instead of the one before."),
    ] = None,
    who: WhoOption = None,
    why: WhyOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Go back to the rules before the last change; again goes back further."""
    from seckill.runtime.rule_desk import version_row  # noqa: PLC0415
    from seckill.sentinel import Change  # noqa: PLC0415

    name = _kind(kind)
    rules = _open_told(data_dir)
    with _told():
        version = rules.store.undo(name, Change(who or actor(), why or "rules undo"), to=to)
    row = version_row(version)
    if as_json:
        print_json(row)
        return
    typer.echo(f"{name}: {row['rules']} rules again as in version {row['restores']}")
