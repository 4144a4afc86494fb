"""Inserts of many rows, carried in the way that each database takes them cheapest.

This is the one place where the two databases are spoken to in different shapes, and the reason is
the price of a row. A row a parameter set is right for SQLite, which binds and steps within the
process. PostgreSQL would parse, plan and answer thousands of parameters for every batch. It takes
new rows by COPY instead: measured, the rows of an order cost it 24 µs of processor so and 35 µs as
arrays, and this process 4 µs and 13 µs (the driver asks of every element of an array whether it is
an array too). What has to look before it writes is no COPY: it takes one array a column, in one
statement whose text, and so whose prepared form, never changes.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    Insert,
    Result,
    String,
    Table,
    Text,
    bindparam,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

__all__ = ["Columns", "ManyRows", "arrays"]

Columns = Mapping[str, Any]
"""Rows, column by column: every column a list of as many values, and a column that is the same in
all rows (`ManyRows`) just its value."""


class ManyRows:
    """One INSERT of many rows.

    Args:
        table: where to.
        columns: names of the columns that are given; the others take their default.
        same: names of further columns, which have one value for all rows.
        key: the first columns, by which `insert_or_add` finds the row that is there.
        added: the column that it adds to.
    """

    def __init__(
        self,
        table: Table,
        columns: Sequence[str],
        *,
        same: Sequence[str] = (),
        key: Sequence[str] = (),
        added: str | None = None,
    ) -> None:
        self._table = table
        self._columns = tuple(columns)
        self._same = tuple(same)
        # As SQLAlchemy writes them into an INSERT.
        self._in_table_order = [
            column.name for column in table.c if column.name in {*columns, *same}
        ]
        self._key = tuple(key)
        self._added = added

    async def insert(self, connection: AsyncConnection, rows: Columns) -> None:
        """Insert the rows, all of them.

        Raises:
            IntegrityError, UniqueViolationError: a key is taken; the transaction cannot go on.
        """
        if connection.dialect.name == "postgresql":
            driver = (await connection.get_raw_connection()).driver_connection
            assert driver is not None
            if not driver.is_in_transaction():
                # SQLAlchemy begins the transaction with its first statement, and a COPY is none of
                # its own: by itself it would be committed at once.
                await connection.exec_driver_sql("SELECT")
            await driver.copy_records_to_table(
                self._table.name, columns=self._in_table_order, records=self._tuples(rows)
            )
        else:
            await connection.exec_driver_sql(self._row_by_row, self._tuples(rows))

    async def insert_or_add(self, connection: AsyncConnection, rows: Columns) -> None:
        """Insert the rows; where the key is taken, add to the row that is there instead.

        On PostgreSQL it costs more than twice as much as `insert`.
        """
        if connection.dialect.name == "postgresql":
            await connection.execute(self._from_arrays_or_add, dict(rows))
        else:
            await connection.exec_driver_sql(self._row_by_row_or_add, self._tuples(rows))

    async def insert_unless_there(self, connection: AsyncConnection, rows: Columns) -> set[Any]:
        """Insert those whose keys are free; returns the first column of what was inserted.

        It costs half as much again as `insert`: each key is looked up before it is written.
        """
        result: Result[Any]
        if connection.dialect.name == "postgresql":
            result = await connection.execute(self._from_arrays_unless_there, dict(rows))
        else:
            result = await connection.execute(
                self._row_by_row_unless_there,
                [dict(zip(self._in_table_order, row, strict=True)) for row in self._tuples(rows)],
            )
        return set(result.scalars())

    def _tuples(self, rows: Columns) -> list[tuple[Any, ...]]:
        count = len(rows[self._columns[0]])
        return list(
            zip(
                *(
                    repeat(rows[name], count) if name in self._same else rows[name]
                    for name in self._in_table_order
                ),
                strict=True,
            )
        )

    @property
    def _first(self) -> Column[Any]:
        return self._table.c[self._columns[0]]

    # PostgreSQL

    @cached_property
    def _from_arrays_unless_there(self) -> Insert:
        return self._selecting_arrays().on_conflict_do_nothing().returning(self._first)

    @cached_property
    def _from_arrays_or_add(self) -> Insert:
        statement = self._selecting_arrays()
        return statement.on_conflict_do_update(
            index_elements=self._key, set_=self._sum(statement.excluded)
        )

    def _selecting_arrays(self) -> postgresql.Insert:
        given = arrays(*(self._table.c[name] for name in self._columns))
        same = (bindparam(name, type_=_type_of_value(self._table.c[name])) for name in self._same)
        return postgresql.insert(self._table).from_select(
            [*self._columns, *self._same], select(*given.c, *same)
        )

    # SQLite

    @cached_property
    def _row_by_row(self) -> str:
        return self._text(self._table.insert())

    @cached_property
    def _row_by_row_unless_there(self) -> Insert:
        return sqlite.insert(self._table).on_conflict_do_nothing().returning(self._first)

    @cached_property
    def _row_by_row_or_add(self) -> str:
        statement = sqlite.insert(self._table)
        return self._text(
            statement.on_conflict_do_update(
                index_elements=self._key, set_=self._sum(statement.excluded)
            )
        )

    def _text(self, statement: Insert) -> str:
        compiled = statement.compile(dialect=sqlite.dialect(), column_keys=self._in_table_order)
        assert compiled.positiontup == self._in_table_order
        return str(compiled)

    def _sum(self, excluded: Any) -> dict[str, Any]:
        assert self._added is not None
        return {self._added: self._table.c[self._added] + excluded[self._added]}


def arrays(*columns: Column[Any]) -> Any:
    """Rows for PostgreSQL to select from: one array a column, under the column's own name."""
    given = (bindparam(column.name, type_=ARRAY(_type_of_value(column))) for column in columns)
    return (
        func.unnest(*given)
        .table_valued(*(column.name for column in columns))
        .render_derived(name="given")
    )


def _type_of_value(column: Column[Any]) -> TypeEngine[Any]:
    """The type in which values of a column travel.

    Text travels as ``text``. A ``varchar(n)`` would be a cast, and a cast cuts off in silence what
    is too long; on its way into a column the same text is refused.
    """
    return Text() if isinstance(column.type, String) else column.type
