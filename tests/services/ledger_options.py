"""How the ledger is opened where its limits in time are not what is tested."""

from typing import Any

from seckill.ledger import LedgerOptions

__all__ = ["patient_options"]


def patient_options(url: str, **changes: Any) -> LedgerOptions:
    """A minute for everything: neither a busy machine nor a stall of it looks like a database away."""
    minute: dict[str, Any] = {
        "pool_timeout_s": 60,
        "connect_timeout_s": 60,
        "statement_timeout_ms": 60_000,
        "lock_timeout_ms": 60_000,
        "dispose_timeout_s": 60,
    }
    return LedgerOptions(url=url, **(minute | changes))
