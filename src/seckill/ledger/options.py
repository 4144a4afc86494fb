"""Where the ledger is, and how long anything there may take."""

from dataclasses import dataclass

__all__ = ["LedgerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """Where the ledger is and how long anything may take.

    Attributes:
        url: ``sqlite:////absolute/path.db`` or ``postgresql://user:password@host:port/name``.
        pool_size: connections at most; there is no overflow.
        pool_timeout_s: longest wait for a free connection.
        connect_timeout_s: longest wait for a new connection.
        statement_timeout_ms: longest time for one statement (PostgreSQL).
        lock_timeout_ms: longest wait for a lock that somebody else holds (both databases).
        dispose_timeout_s: how long `Database.dispose` lets transactions under way finish.
    """

    url: str
    pool_size: int = 5
    pool_timeout_s: float = 2.0
    connect_timeout_s: float = 5.0
    statement_timeout_ms: int = 10_000
    lock_timeout_ms: int = 5_000
    dispose_timeout_s: float = 10.0
