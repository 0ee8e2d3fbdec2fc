"""Applies the changes of a batch to a MySQL table, with UPDATE and INSERT.

`ON DUPLICATE KEY UPDATE` would also replace the row of another key that has the same value in any other
unique index, and REPLACE would delete rows.
"""

from __future__ import annotations

from ..database.changing import LAST_ROWS
from ..database.moving import RowSource
from ..database.staging import BATCH, PLACE, SOURCE, StagingTables
from ..database.updating import UpdatingChanger
from .address import quoted


class MySqlChanger(UpdatingChanger):
    """See `UpdatingChanger`. A trigger cannot drop a row, so it does not matter how many are counted."""

    counts_equal_rows = False

    def _last_rows(self, staged: StagingTables) -> RowSource:
        self._check_counts(staged)
        self._cursor.execute(f"DROP TEMPORARY TABLE IF EXISTS {self._relation}")
        names = [*(quoted(name) for name, _ in self._content.staged_columns), BATCH, SOURCE, PLACE]
        number = f"{self._ids.column} bigint NOT NULL AUTO_INCREMENT PRIMARY KEY"
        self._cursor.execute(
            f"CREATE TEMPORARY TABLE {self._relation} ({number}) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 AS "
            f"SELECT {', '.join(f'l.{name}' for name in names)} FROM {self._rows.last(staged)} "
            f"ORDER BY {self._rows.key_of('l')}"
        )
        count = self._cursor.rowcount
        return RowSource(self._relation, ", ".join(one.path for one in staged[:3]), count)

    @property
    def _relation(self) -> str:
        return self._dialect.qualified(self._address.schema, LAST_ROWS)
