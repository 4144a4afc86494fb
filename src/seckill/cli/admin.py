"""Commands that say who may run the shop over HTTP, and tell who did what."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from seckill.cli.shared import DataDirOption, JSONOption, actor, print_json, with_stores
from seckill.domain.operators import check_role

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from seckill.runtime.bootstrap import Stores
    from seckill.runtime.user_desk import UserDesk

__all__ = ["admin_app"]

admin_app = typer.Typer(
    help="Say who may run the shop over HTTP (/admin/api), and see who did what. These commands"
    " themselves need no token: whoever may read the data directory may do everything.",
    no_args_is_help=True,
)
token_app = typer.Typer(help="Tokens that programs show.", no_args_is_help=True)
user_app = typer.Typer(help="Users: who may do what.", no_args_is_help=True)
admin_app.add_typer(token_app, name="token")
admin_app.add_typer(user_app, name="user")

NameOption = Annotated[str, typer.Option("--name", help="The user.")]
RoleOption = Annotated[str, typer.Option("--role", help="viewer, operator or admin.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", help="Why; kept in the action log. At most 500 characters.")
]


def _at_desk(data_dir: Any, work: "Callable[[UserDesk], Awaitable[Any]]") -> Any:
    from seckill.runtime.user_desk import UserDesk  # noqa: PLC0415

    async def at_desk(stores: "Stores") -> Any:
        return await work(UserDesk(stores.ledger))

    return with_stores(data_dir, at_desk)


def _tell(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(row)
        return
    for name, value in row.items():
        typer.echo(f"{name:<16} {'-' if value is None else value}")


@admin_app.command("setup-link")
def admin_setup_link(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """Make another link that makes the first admin, once, within an hour.

    Exit 1 when there is a user already: `seckill admin token create` helps who has lost a token.
    """
    from seckill.runtime.setup_link import setup_hint  # noqa: PLC0415

    async def work(stores: "Stores") -> tuple[str, str | None]:
        return stores.settings.bind, await stores.ledger.admins.make_setup_link()

    bind, secret = with_stores(data_dir, work)
    if secret is None:
        typer.echo("seckill: there is a user already, and no link for the first one", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json({"link": f"http://{bind}/admin/setup#{secret}", "secret": secret})
        return
    typer.echo(setup_hint(bind, secret).strip())


@token_app.command("create")
def token_create(
    name: NameOption,
    role: RoleOption,
    days: Annotated[int, typer.Option(help="How long it is good, 1 to 366 days.")] = 90,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Make a token, and its user where there is none; it is shown this once.

    Of a user who may do less, a token that may do more is refused: `seckill admin user set` first.
    """
    wanted = check_role(role)
    made = _at_desk(
        data_dir,
        lambda desk: desk.make_token(
            name, wanted, days=days, add_user=True, actor=actor(), reason=reason
        ),
    )
    _tell(made, as_json=as_json)


@token_app.command("list")
def token_list(
    name: Annotated[
        str | None, typer.Option("--name", help="Of this user only; default: all.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """The tokens, the newest first, without their secrets."""
    rows = _at_desk(data_dir, lambda desk: desk.tokens(name))
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("there are no tokens")
    for row in rows:
        until = f"revoked {row['revoked_at']}" if row["revoked_at"] else f"to {row['expires_at']}"
        typer.echo(f"{row['token_id']}  {row['name']:<24} {row['role']:<9} {until}")


@token_app.command("revoke")
def token_revoke(
    token_id: Annotated[
        str, typer.Argument(metavar="TOKEN_ID", help="As `seckill admin token list` says it.")
    ],
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Let a token open nothing any more, from the next request on."""
    row = _at_desk(data_dir, lambda desk: desk.revoke_token(token_id, actor=actor(), reason=reason))
    _tell(row, as_json=as_json)


@user_app.command("list")
def user_list(data_dir: DataDirOption = None, as_json: JSONOption = False) -> None:
    """All users and what they may do."""
    rows = _at_desk(data_dir, lambda desk: desk.users())
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("there are no users: `seckill admin token create` makes the first")
    for row in rows:
        typer.echo(f"{row['name']:<24} {row['role']:<9} {'disabled' if row['disabled'] else ''}")


@user_app.command("add")
def user_add(
    name: NameOption,
    role: RoleOption,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Add a user; `seckill admin token create` makes a token of theirs."""
    wanted = check_role(role)
    row = _at_desk(data_dir, lambda desk: desk.add_user(name, wanted, actor=actor(), reason=reason))
    _tell(row, as_json=as_json)


@user_app.command("set")
def user_set(
    name: NameOption,
    role: Annotated[
        str | None, typer.Option("--role", help="viewer, operator or admin; default: as it is.")
    ] = None,
    disabled: Annotated[
        bool | None,
        typer.Option("--disabled/--enabled", help="Take all their rights away, or give them back."),
    ] = None,
    reason: ReasonOption = "",
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """Change what a user may do, from the next request on. The last admin stays one."""
    wanted = None if role is None else check_role(role)
    row = _at_desk(
        data_dir,
        lambda desk: desk.change_user(
            name, role=wanted, disabled=disabled, actor=actor(), reason=reason
        ),
    )
    _tell(row, as_json=as_json)


@admin_app.command("log")
def admin_log(
    limit: Annotated[int, typer.Option(help="Actions at most, 1 to 200; the newest first.")] = 50,
    who: Annotated[
        str | None, typer.Option("--actor", help="Of this one only, such as api:ann or cli:root.")
    ] = None,
    data_dir: DataDirOption = None,
    as_json: JSONOption = False,
) -> None:
    """The action log: who changed what, when and why."""
    import json  # noqa: PLC0415

    rows = _at_desk(data_dir, lambda desk: desk.actions(limit, actor=who))
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("nobody has changed anything")
    for row in rows:
        detail = json.dumps(row["detail"], ensure_ascii=False)
        sale = f" sale {row['sale_id']}" if row["sale_id"] else ""
        typer.echo(f"{row['at']}  {row['actor']:<20} {row['action']}{sale}  {detail}")
