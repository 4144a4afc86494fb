"""Errors of the load generator.

What a plan or a target breaks is a `seckill.domain.errors.InvalidValue` with field and rule::

    SeckillError
    ├── InvalidValue            a plan, a target or the limits of this machine: field and rule
    └── StressError
        └── TargetUnreachable   nothing answers at the target: no click was sent

What goes wrong with a click while the rush runs is never an exception: it is that click's end.
"""

from seckill.domain.errors import SeckillError

__all__ = ["StressError", "TargetUnreachable"]


class StressError(SeckillError):
    """A load run could not be made."""


class TargetUnreachable(StressError):  # noqa: N818  -- reads as what it is
    """Nothing accepts connections at the target. No click was sent; start the service first."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"cannot connect to {url}: {reason}. Is the service running there?")
        self.url = url
        self.reason = reason
