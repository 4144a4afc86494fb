"""The link that makes the first admin: made beside the stores, printed by whoever started the run.

Its secret goes through a file that only this account can read, and not through the log.
"""

import contextlib
from typing import TYPE_CHECKING

from seckill.runtime.data_dir import DataDir, write_atomically

if TYPE_CHECKING:
    from seckill.runtime.bootstrap import Stores

__all__ = ["leave_setup_link", "setup_hint", "take_setup_link"]


async def leave_setup_link(stores: "Stores") -> None:
    """Make a link, unless there is a user, and leave how it ends for `take_setup_link`.

    Raises:
        LedgerUnavailable: the ledger does not answer.
    """
    secret = await stores.ledger.admins.make_setup_link()
    if secret is None:
        return
    # A full disk is no reason not to start: `seckill admin setup-link` makes another.
    with contextlib.suppress(OSError):
        write_atomically(stores.settings.data.setup_link, secret.encode())


def take_setup_link(data: DataDir) -> str | None:
    """How the link of this start ends, once; None when there is none."""
    with contextlib.suppress(OSError):
        secret = data.setup_link.read_text()
        data.setup_link.unlink()
        return secret
    return None


def setup_hint(bind: str, secret: str) -> str:
    """The link, for the terminal."""
    return "\n".join(
        [
            "",
            "Nobody runs this shop yet. This link makes the first admin, once, within an hour:",
            f"  http://{bind}/admin/setup#{secret}",
        ]
    )
