"""Moves rows into a DuckDB table, and finds those that its constraints refuse.

DuckDB has no savepoints: after an error, the transaction can only be rolled back. So refused rows are not
found by trying, but by queries, one for each constraint of the table. DuckDB has no triggers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..contract import DeadLetter, DeadLetters
from ..database.moving import ALL, RowAppender, RowMover, RowSource
from ..database.staged_rows import read_rows
from ..database.staging import ROW, parsed_name
from ..dead_letters import COMMITTING, BadRows, dead_letter
from .address import DATABASE, quoted

if TYPE_CHECKING:
    import pyarrow as pa

_CONSTRAINTS = f"""
SELECT constraint_type, coalesce(expression, ''), constraint_column_names, constraint_text,
    coalesce(referenced_table, ''), referenced_column_names
FROM duckdb_constraints()
WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND lower(table_name) = %s
ORDER BY constraint_index
"""
_PARSED = ("UUID", "JSON")
_NOW = "temp.penstock_now"
"""A temporary table: the rows of one file that are not refused yet, with the columns of the table and
`penstock_row`.
"""


@dataclass(frozen=True, slots=True)
class _Constraint:
    kind: str
    expression: str
    columns: tuple[str, ...]
    text: str
    """As DuckDB shows it. It has no values of rows."""
    other_table: str
    other_columns: tuple[str, ...]

    def refused(self, address: Any, stays: str) -> str | None:
        """A query of the numbers of rows that this constraint refuses, beside rows that are there already.

        Args:
            stays: condition on rows `t` of the table that the commit does not replace or delete
        """
        names = [quoted(name) for name in self.columns]
        if self.kind == "NOT NULL":
            return f"SELECT {ROW} FROM {_NOW} WHERE {names[0]} IS NULL"
        if self.kind == "CHECK":
            return f"SELECT {ROW} FROM {_NOW} WHERE NOT ({self.expression})"
        if self.kind in ("PRIMARY KEY", "UNIQUE"):
            same = " AND ".join(f"t.{name} = n.{name}" for name in names)
            given = " AND ".join(f"{name} IS NOT NULL" for name in names)
            order = f"row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY {ROW})"
            return (
                f"SELECT {ROW} FROM (SELECT *, {order} AS place FROM {_NOW} WHERE {given}) n "
                f"WHERE place > 1 OR EXISTS (SELECT 1 FROM {address.sql} t WHERE {same} AND {stays})"
            )
        if self.kind == "FOREIGN KEY":
            others = [quoted(name) for name in self.other_columns]
            same = " AND ".join(f"t.{one} = n.{name}" for one, name in zip(others, names, strict=True))
            given = " AND ".join(f"n.{name} IS NOT NULL" for name in names)
            other = f"{quoted(address.schema)}.{quoted(self.other_table)}"
            itself = self.other_table.lower() == address.table
            in_batch = f" AND NOT EXISTS (SELECT 1 FROM {_NOW} t WHERE {same})" if itself else ""
            return (
                f"SELECT {ROW} FROM {_NOW} n WHERE {given} "
                f"AND NOT EXISTS (SELECT 1 FROM {other} t WHERE {same}){in_batch}"
            )
        return None


class RowsByQueries(RowMover):
    """Moves the rows that the table accepts."""

    _stays = "1 = 1"
    """Condition on rows `t` of the table that the commit does not replace or delete."""

    def move(self) -> tuple[int, DeadLetters]:
        """See `RowMover`."""
        if self._on_bad_rows is BadRows.FAIL or not self._may_refuse():
            self._move_all()
            return 0, {}
        letters: dict[int, list[DeadLetter]] = {}
        refused = 0
        for source in chain.from_iterable(self._groups()):
            rows = self._refused_rows(source)
            refused += len(rows)
            if self._on_bad_rows is not BadRows.DROP:
                for row_id, text in rows.items():
                    self._add_letter(source, row_id, text, letters)
            where = f"NOT ({self._ids.among(list(rows))})" if rows else ALL
            self._check_moved(source, self._apply(source, where), len(rows))
        for batch_id, some in letters.items():
            self._check_limit(batch_id, some)
        return refused, letters

    def _move_all(self) -> None:
        try:
            for source in self._sources():
                self._check_moved(source, self._apply(source, ALL))
        except self._server.errors as error:
            if not self._server.is_about_values(error):
                raise
            failed = error
        else:
            return
        self._cursor.connection.rollback()  # the error has ended the transaction
        for source in self._sources():
            for row_id in self._refused_rows(source):
                name, number = self._origin(source, row_id)
                self._fail(name.batch_id, number, self._row(source, row_id), failed)
        raise failed  # two files have rows with the same key

    def _add_letter(
        self, source: RowSource, row_id: int, text: str, letters: dict[int, list[DeadLetter]]
    ) -> None:
        name, number = self._origin(source, row_id)
        row = self._row(source, row_id)
        letter = dead_letter(row, COMMITTING, name.partition, number, "ConstraintException", text)
        self._box.add(letter)
        letters.setdefault(name.batch_id, []).append(letter)

    def _row(self, source: RowSource, row_id: int) -> pa.RecordBatch:
        where = self._ids.among([row_id])
        return read_rows(self._cursor, self._dialect, self._content, source.relation, where=where, limit=1)

    # Refused rows -----------------------------------------------------------------------------------

    def _may_refuse(self) -> bool:
        return bool(self._constraints() or any(self._is_parsed()))

    def _constraints(self) -> list[_Constraint]:
        names = (self._address.schema, self._address.table)
        return [
            _Constraint(kind, expression, tuple(columns), text, other, tuple(others or ()))
            for kind, expression, columns, text, other, others in self._cursor.execute(
                _CONSTRAINTS, names
            ).fetchall()
        ]

    def _is_parsed(self) -> Iterator[bool]:
        return (kind in _PARSED for _, kind in self._content.columns)

    def _refused_rows(self, source: RowSource) -> dict[int, str]:
        """Return the numbers of the rows that the table refuses, and the reason of each."""
        refused: dict[int, str] = {}
        for name, kind in self._content.columns:
            if kind in _PARSED:
                column = quoted(name)
                query = (
                    f"SELECT {self._ids.selected()} FROM {source.relation} n "
                    f"WHERE {column} IS NOT NULL AND TRY_CAST({column} AS {kind}) IS NULL"
                )
                self._add(refused, query, f"a value of {name} is no {kind}")
        self._stage_now(source, refused)
        constraints = self._constraints()
        for constraint in sorted(constraints, key=lambda one: one.kind in ("PRIMARY KEY", "UNIQUE")):
            refusing = constraint.refused(self._address, self._stays)
            if refusing is not None:
                before = set(refused)
                on = f"on {', '.join(constraint.columns)}"
                text = constraint.text if constraint.kind == "CHECK" else f"{constraint.kind} {on}"
                self._add(refused, refusing, f"violates {text}")
                if new := sorted(set(refused) - before):
                    self._cursor.execute(f"DELETE FROM {_NOW} WHERE {ROW} IN ({', '.join(map(str, new))})")
        self._cursor.execute(f"DROP TABLE {_NOW}")
        return dict(sorted(refused.items()))

    def _add(self, refused: dict[int, str], query: str, text: str) -> None:
        for (row_id,) in self._cursor.execute(query).fetchall():
            refused.setdefault(int(row_id), text)

    def _stage_now(self, source: RowSource, refused: dict[int, str]) -> None:
        """Make the temporary table: the rows that are not refused yet, as the table would have them."""
        table = self._dialect.load(self._cursor, self._address)
        assert table is not None
        staged = {name for name, _ in self._content.columns}
        others = self._others()
        columns = [f"{self._ids.selected()} AS {ROW}"]
        for column in table.columns:
            value = f"n.{quoted(column.name)}" if column.name in staged else others.get(column.name) or "NULL"
            columns.append(f"CAST({value} AS {column.sql_type}) AS {quoted(column.name)}")
        where = f" WHERE NOT ({self._ids.among(sorted(refused))})" if refused else ""
        self._cursor.execute(
            f"CREATE OR REPLACE TEMP TABLE penstock_now AS SELECT {', '.join(columns)} "
            f"FROM {self._written(source)}{where}"
        )

    def _written(self, source: RowSource) -> str:
        """The relation `n` of the rows that are inserted."""
        return f"{source.relation} n"

    def _others(self) -> dict[str, str | None]:
        """Return the values of columns that the rows do not have, in SQL."""
        return self._defaults()

    def _defaults(self) -> dict[str, str | None]:
        names = (self._address.schema, self._address.table)
        rows = self._cursor.execute(
            "SELECT column_name, column_default FROM duckdb_columns() "
            f"WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND lower(table_name) = %s",
            names,
        ).fetchall()
        return dict(rows)


class DuckDbRows(RowsByQueries, RowAppender):
    """Adds rows."""

    def _origin(self, source: RowSource, row_id: Any) -> tuple[Any, int]:
        (staged,) = (one for one in self._content.staged if self._dialect.staged_sql(one) == source.relation)
        return parsed_name(staged), int(row_id)
