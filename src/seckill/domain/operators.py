"""Who may run the shop: users of the operators' side, and what their role allows.

Not to be mixed up with buyers, whose names come from outside.
"""

import re
from enum import StrEnum
from typing import Final

from seckill.domain.errors import InvalidValue

__all__ = ["ADMIN_NAME_CHARS_MAX", "Role", "check_admin_name", "check_role"]

ADMIN_NAME_CHARS_MAX: Final = 40
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{ADMIN_NAME_CHARS_MAX - 1}}}")


class Role(StrEnum):
    """What somebody may do; each role may do what those before it may."""

    VIEWER = "viewer"
    """Look at everything but users and tokens."""
    OPERATOR = "operator"
    """Change sales, orders, rules and dead letters, repair."""
    ADMIN = "admin"
    """Say who else may do what."""

    def allows(self, needed: "Role") -> bool:
        """Whether this role may do what ``needed`` may."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


def check_role(text: str) -> Role:
    """Read a role.

    Raises:
        InvalidValue: naming ``role``.
    """
    try:
        return Role(text)
    except ValueError:
        raise InvalidValue("role", "must be viewer, operator or admin") from None


def check_admin_name(text: str) -> str:
    """Return ``text`` when it may name a user of the operators' side.

    Raises:
        InvalidValue: naming ``name``.
    """
    if not _NAME.fullmatch(text):
        raise InvalidValue(
            "name",
            f"must have 1 to {ADMIN_NAME_CHARS_MAX} of the characters A-Z a-z 0-9 . _ @ - and begin"
            " with a letter or a digit",
        )
    return text
