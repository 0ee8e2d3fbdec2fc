"""SQL for rows that leave columns of the table as they are.

Staging tables say in `KEPT` which columns a row keeps: their numbers, between commas. Such a row gets the
value of the row of its key before it: an earlier one of its batch, or the one of the table. A deletion in
between leaves nothing to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import Changes
from ..database.content import TableContent
from ..database.staging import DELETES, KEPT, NUMBER
from .address import quoted
from .types import compared


@dataclass(frozen=True, slots=True)
class _Column:
    number: int
    name: str

    def is_kept(self, row: str) -> str:
        """The condition that a row keeps the column; NULL if it keeps none."""
        return f"(position(',{self.number},' in {row}.{KEPT}) > 0)"


class KeptValues:
    """The columns that rows of a manifest may keep."""

    def __init__(self, content: TableContent) -> None:
        assert isinstance(content.mode, Changes)
        self._changes = content.mode
        self._types = dict(content.staged_columns)
        columns = [_Column(number, name) for number, (name, _) in enumerate(content.columns)]
        unkept = {*content.mode.keys, *content.mode.order_by}
        self._columns = [column for column in columns if column.name not in unkept]

    @classmethod
    def of(cls, content: TableContent) -> KeptValues | None:
        """Return them; None if no row keeps any."""
        return cls(content) if KEPT in dict(content.extra) else None

    def completed(self, names: Sequence[str], rows: str, others: Sequence[str]) -> str:
        """The query of the last row of each key, with the values of the rows before it.

        Args:
            names: columns of the staging tables
            rows: relation with all rows, each with its place among those of its key in `NUMBER`
            others: further columns
        """
        keys = [quoted(name) for name in self._changes.keys]
        is_older = " AND ".join(f"o.{key} = r.{key}" for key in keys)

        def given(column: _Column, selected: str) -> str:
            """The last row of the key that has the value, or that deletes."""
            is_given = f"(o.{DELETES} OR {column.is_kept('o')} IS NOT TRUE)"
            return (
                f"SELECT {selected} FROM {rows} AS o WHERE {is_older} AND {is_given} "
                f"ORDER BY o.{NUMBER} DESC LIMIT 1"
            )

        by_name = {column.name: column for column in self._columns}
        selected, kept = [], []
        for name in names:
            column, own = by_name.get(name), f"r.{quoted(name)}"
            if column is not None:
                is_open = f"r.{NUMBER} > 1 AND {column.is_kept('r')}"
                selected.append(
                    f"CASE WHEN {is_open} THEN ({given(column, f'o.{quoted(name)}')}) ELSE {own} END "
                    f"AS {quoted(name)}"
                )
                still = f"{column.is_kept('r')} AND NOT (r.{NUMBER} > 1 AND EXISTS ({given(column, '1')}))"
                kept.append(f"CASE WHEN {still} THEN '{column.number},' END")
            elif name != KEPT:
                selected.append(own)
        # concat() of more than 100 values is refused
        parts = [kept[first : first + 50] for first in range(0, len(kept), 50)]
        joined = " || ".join(f"concat({', '.join(part)})" for part in parts) or "''"
        selected.append(f"',' || {joined} AS {KEPT}")
        key = ", ".join(compared(f"l.{quoted(name)}", self._types[name]) for name in self._changes.keys)
        last = f"SELECT DISTINCT ON ({key}) l.* FROM {rows} AS l ORDER BY {key}, l.{NUMBER} DESC"
        columns = [*selected, *(f"r.{other}" for other in others)]
        return f"SELECT {', '.join(columns)} FROM ({last}) AS r"

    def assigned(self, columns: Sequence[str], rows: str) -> str:
        """The assignments of `ON CONFLICT DO UPDATE`.

        Args:
            columns: that are set, not quoted
            rows: the relation that is inserted
        """
        keys = [quoted(name) for name in self._changes.keys]
        is_row = " AND ".join(f"n.{key} = excluded.{key}" for key in keys)
        by_name = {column.name: column for column in self._columns}
        values = []
        for name in columns:
            column, new = by_name.get(name), f"excluded.{quoted(name)}"
            values.append(
                new
                if column is None
                else f"CASE WHEN {column.is_kept('n')} THEN t.{quoted(name)} ELSE {new} END"
            )
        # a trigger may have changed the key: then the row is as it was inserted
        found = f"FROM (SELECT) AS one LEFT JOIN {rows} AS n ON {is_row}"
        return f"({', '.join(map(quoted, columns))}) = (SELECT {', '.join(values)} {found})"
