"""The SQL side: the order ledger as the final truth about sales, orders and stock.

One statement vocabulary for SQLite (embedded) and PostgreSQL (scaled out). See
``docs/reference/ledger.md``.
"""

from seckill.ledger.engine import Database
from seckill.ledger.installation import Installation, read_installation
from seckill.ledger.options import LedgerOptions
from seckill.ledger.schema import ensure_schema
from seckill.ledger.sql_ledger import SQLLedger

__all__ = [
    "Database",
    "Installation",
    "LedgerOptions",
    "SQLLedger",
    "ensure_schema",
    "read_installation",
]
