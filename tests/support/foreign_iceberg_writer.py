"""Another program that writes the same Iceberg table with pyiceberg: appends, overwrites, schema changes,
expiry.

Started as a process of its own. It stops once the file STOP is there and each of the four has succeeded, and
leaves in the file JOURNAL what it has done and which of its rows must be in the table.

    python foreign_iceberg_writer.py WAREHOUSE TABLE STOP JOURNAL SEED
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table
from pyiceberg.types import StringType

GROUPS = 5
ROWS = 7
SNAPSHOTS_KEPT = 15
WAYS = {"append": 6, "overwrite": 2, "schema": 1, "expire": 1}
"""What it does, and how often compared with the rest."""


class ForeignWriter:
    """Its rows have negative ids, in groups that it now and then replaces as a whole."""

    def __init__(self, warehouse: str, table: str, seed: int) -> None:
        self._catalog = load_catalog(
            "penstock",
            type="sql",
            uri=f"sqlite:///{warehouse}/catalog.sqlite?timeout=60",
            warehouse=f"file://{warehouse}",
        )
        assert isinstance(self._catalog, SqlCatalog)
        self._table = table
        self._random = random.Random(seed)
        self._next = 0
        self.groups: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One thing or another; what loses against others is tried again another time."""
        what = self._random.choices(list(WAYS), list(WAYS.values()))[0]
        try:
            getattr(self, f"_{what}")(self._load())
        except (CommitFailedException, ValidationException):
            self.done[f"{what} lost"] += 1
        else:
            self.done[what] += 1

    def _load(self) -> Table:
        """Again, if the stream has replaced and deleted the metadata that the catalog named meanwhile."""
        while True:
            with suppress(FileNotFoundError):
                return self._catalog.load_table(self._table)

    def _append(self, table: Table) -> None:
        group, ids = self._new_rows()
        table.append(self._rows(group, ids))
        self.groups[group] += ids

    def _overwrite(self, table: Table) -> None:
        group, ids = self._new_rows()
        table.overwrite(self._rows(group, ids), overwrite_filter=f"who = 'them' and part = {group}")
        self.groups[group] = ids

    def _schema(self, table: Table) -> None:
        """Adds a column, or renames the one that it added before."""
        ours = [column.name for column in table.schema().fields if column.name.startswith("foreign_")]
        with table.update_schema() as update:
            if len(ours) < 3:
                update.add_column(f"foreign_{len(ours)}", StringType())
            else:
                name = self._random.choice(ours)
                update.rename_column(name, f"foreign_{self._random.randrange(10**9)}")

    def _expire(self, table: Table) -> None:
        snapshots = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
        old = [snapshot.snapshot_id for snapshot in snapshots[:-SNAPSHOTS_KEPT]]
        if not old:
            return
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except ValueError as error:  # pyiceberg tries again by itself, and may have committed before
            raise CommitFailedException(str(error)[:200]) from error

    def _new_rows(self) -> tuple[int, list[int]]:
        ids = [-1 - self._next - n for n in range(ROWS)]
        self._next += ROWS
        return self._random.randrange(GROUPS), ids

    def _rows(self, group: int, ids: list[int]) -> pa.Table:
        parts = pa.array([group] * len(ids), pa.int32())
        return pa.table({"id": pa.array(ids, pa.int64()), "who": ["them"] * len(ids), "part": parts})


def main() -> None:
    warehouse, table, stop, journal, seed = sys.argv[1:]
    writer = ForeignWriter(warehouse, table, int(seed))
    while not (Path(stop).exists() and WAYS.keys() <= writer.done.keys()):
        writer.step()
        time.sleep(0.02)
    ids = sorted(identifier for group in writer.groups.values() for identifier in group)
    Path(journal).write_text(json.dumps({"ids": ids, "done": writer.done}))


if __name__ == "__main__":
    main()
