"""Which errors of drivers are worth a retry."""

import sqlite3

import pytest
from sqlalchemy import exc

from seckill.ledger.errors import KeyTaken, LedgerBroken, LedgerUnavailable, translate


def sqlite_error(code: int) -> Exception:
    error = sqlite3.OperationalError("it said so")
    error.sqlite_errorcode = code
    return exc.OperationalError("SELECT 1", {}, error)


class PostgresError(Exception):
    def __init__(self, sqlstate: str | None, text: str = "it said so") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def postgres_error(sqlstate: str | None, text: str = "it said so") -> Exception:
    return exc.DBAPIError("SELECT 1", {}, PostgresError(sqlstate, text))


RETRYABLE = [
    *(
        sqlite_error(code)
        for code in (
            sqlite3.SQLITE_BUSY,
            sqlite3.SQLITE_BUSY_SNAPSHOT,
            sqlite3.SQLITE_LOCKED,
            sqlite3.SQLITE_FULL,
            sqlite3.SQLITE_IOERR_FSYNC,
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
        )
    ),
    *(
        postgres_error(state)
        for state in ("08006", "08P01", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P03", "25006")
    ),
    postgres_error(None, "connection is closed"),
    PostgresError("57P03", "the database system is starting up"),
    exc.DBAPIError("SELECT 1", {}, PostgresError(None), connection_invalidated=True),
    exc.TimeoutError("QueuePool limit"),
    ConnectionRefusedError(111, "refused"),
    TimeoutError(),
]  # fmt: skip

FINAL = [
    sqlite_error(sqlite3.SQLITE_CONSTRAINT_CHECK),
    sqlite_error(sqlite3.SQLITE_CORRUPT),
    sqlite_error(sqlite3.SQLITE_ERROR),
    postgres_error("23505"),
    postgres_error("23514"),
    postgres_error("22021"),
    postgres_error("42P01"),
    postgres_error("28P01"),
    postgres_error(None, "cannot use it"),
    exc.ArgumentError("wrong"),
]


@pytest.mark.parametrize("error", RETRYABLE, ids=repr)
def test_what_time_or_an_operator_cures_is_retryable(error: Exception) -> None:
    found = translate(error, "write 3 events")
    assert isinstance(found, LedgerUnavailable)
    assert "write 3 events" in str(found)


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_what_stays_wrong_is_final(error: Exception) -> None:
    found = translate(error, "write 3 events")
    assert isinstance(found, LedgerBroken)
    assert "write 3 events" in str(found)


def taken_in_sqlite(code: int) -> Exception:
    error = sqlite3.IntegrityError("UNIQUE constraint failed")
    error.sqlite_errorcode = code
    return exc.IntegrityError("INSERT", {}, error)


def taken_in_postgresql(sqlstate: str) -> Exception:
    return exc.IntegrityError("INSERT", {}, PostgresError(sqlstate))


@pytest.mark.parametrize(
    ("error", "is_key"),
    [
        (taken_in_sqlite(sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY), True),
        (taken_in_sqlite(sqlite3.SQLITE_CONSTRAINT_UNIQUE), True),
        (taken_in_sqlite(sqlite3.SQLITE_CONSTRAINT_CHECK), False),
        (taken_in_postgresql("23505"), True),
        (taken_in_postgresql("23514"), False),
    ],
)
def test_a_key_that_is_taken_is_told_from_a_check_that_is_broken(
    error: Exception, is_key: bool
) -> None:
    """The first is written again with care; the second would be an oversell and must be loud."""
    assert (type(translate(error, "write")) is KeyTaken) == is_key


def test_our_own_errors_pass_as_they_are() -> None:
    error = LedgerUnavailable("away")
    assert translate(error, "ask") is error
