"""The edges between the states of an order, as the database itself guards them.

`domain.order.EDGES` is the table; here it becomes a trigger on each database, so that no program,
no hand-typed UPDATE and no fault of ours can move an order any other way. ``queued`` is no state of
a row: an order comes into the books as awaiting payment, or compensated when it is refused, and
one that was inserted as awaiting payment may still be refused until its birth is recorded in
``order_events``, which is the end of the transaction that wrote it.
"""

from typing import Final

from sqlalchemy import DDL, Table, event

from seckill.domain.order import EDGES, OrderState

__all__ = ["guard_edges", "postgresql_statements", "sqlite_statements"]

_FIRST: Final = sorted(state.value for state in EDGES[OrderState.QUEUED])
_ALLOWED: Final = sorted(
    f"{start}>{end}"
    for start, ends in EDGES.items()
    if start is not OrderState.QUEUED
    for end in ends
)


def _listed(values: list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_UNRECORDED: Final = (
    "(OLD.state = 'awaiting_payment' AND NEW.state = 'compensated' AND NOT EXISTS"
    " (SELECT 1 FROM order_events WHERE reservation_id = OLD.reservation_id))"
)


def sqlite_statements() -> list[str]:
    """What makes the guard on SQLite."""
    first = f"NEW.state NOT IN ({_listed(_FIRST)})"
    edge = (
        f"NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN ({_listed(_ALLOWED)})"
    )
    return [
        _sqlite_trigger(
            "orders_first_state BEFORE INSERT", first, "an order cannot begin in this state"
        ),
        _sqlite_trigger(
            "orders_edges BEFORE UPDATE OF state",
            f"{edge} AND NOT {_UNRECORDED}",
            "an order cannot go from this state to that one",
        ),
    ]


def _sqlite_trigger(head: str, condition: str, message: str) -> str:
    return (
        f"CREATE TRIGGER {head} ON orders FOR EACH ROW WHEN {condition}"
        f" BEGIN SELECT RAISE(ABORT, '{message}'); END"
    )


def postgresql_statements() -> list[str]:
    """What makes the guard on PostgreSQL. The function runs only for what looks wrong."""
    return [
        (
            "CREATE FUNCTION orders_refuse_state() RETURNS trigger LANGUAGE plpgsql AS $guard$\n"
            "BEGIN\n"
            "  IF TG_OP = 'INSERT' THEN\n"
            "    RAISE EXCEPTION 'order % cannot begin as %', NEW.reservation_id, NEW.state\n"
            "      USING ERRCODE = 'check_violation';\n"
            f"  ELSIF NOT {_UNRECORDED} THEN\n"
            "    RAISE EXCEPTION 'order % cannot go from % to %', OLD.reservation_id, OLD.state,\n"
            "      NEW.state USING ERRCODE = 'check_violation';\n"
            "  END IF;\n"
            "  RETURN NEW;\n"
            "END\n"
            "$guard$"
        ),
        (
            "CREATE TRIGGER orders_first_state BEFORE INSERT ON orders FOR EACH ROW"
            f" WHEN (NEW.state NOT IN ({_listed(_FIRST)}))"
            " EXECUTE FUNCTION orders_refuse_state()"
        ),
        (
            "CREATE TRIGGER orders_edges BEFORE UPDATE OF state ON orders FOR EACH ROW"
            " WHEN (NEW.state <> OLD.state"
            f" AND (OLD.state || '>' || NEW.state) NOT IN ({_listed(_ALLOWED)}))"
            " EXECUTE FUNCTION orders_refuse_state()"
        ),
    ]


def guard_edges(orders: Table) -> None:
    """Let the guard be made whenever the table is made from its description."""
    for dialect, statements in (
        ("sqlite", sqlite_statements()),
        ("postgresql", postgresql_statements()),
    ):
        for statement in statements:
            # DDL() fills in what follows a percent sign.
            ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]  # declares no types
            ddl = ddl.execute_if(dialect=dialect)
            event.listen(orders, "after_create", ddl)
