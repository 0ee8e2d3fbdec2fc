"""A DuckLake table that others write through duckdb, with the methods of `tests.support.lakes`."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.ducklakes import DuckLake
from tests.support.lakes import IDS, ids_alone

_NAMES = itertools.count()
_TYPES = {pa.int64(): "BIGINT", pa.int32(): "INT", pa.string(): "VARCHAR"}


class DuckLakeTable:
    """
    Args:
        inlines: rows are in the catalog, and not in files
    """

    source = "penstock.ducklake"
    kind = "ducklake"

    def __init__(self, lake: DuckLake, *, inlines: bool) -> None:
        lake.folder.mkdir(exist_ok=True)
        self.lake = lake
        self.folder = lake.folder
        self.inlines = inlines

    @property
    def options(self) -> dict[str, str]:
        return {"catalog": self.lake.catalog, "table": "events", **self.lake.storage_options}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        return self.lake.sql(*statements)

    def create(self, schema: pa.Schema) -> None:
        columns = ", ".join(f"{one.name} {_TYPES[one.type]}" for one in schema)
        limit = 1000 if self.inlines else 0
        self.sql(
            f"CALL lake.set_option('data_inlining_row_limit', {limit})", f"CREATE TABLE events ({columns})"
        )

    def append(self, *ids: int) -> None:
        self.append_rows(ids_alone(IDS, ids))

    def append_rows(self, rows: pa.Table) -> None:
        path = self.folder / f"rows-{next(_NAMES)}"
        pq.write_table(rows, path)
        self.sql(f"INSERT INTO events BY NAME FROM read_parquet('{path}')")
        path.unlink()

    def compact(self) -> None:
        self.sql("CALL ducklake_flush_inlined_data('lake')", "CALL ducklake_merge_adjacent_files('lake')")

    def delete(self, number: int) -> None:
        self.sql(f"DELETE FROM events WHERE id = {number}")

    def update(self, change: str, condition: str) -> None:
        self.sql(f"UPDATE events SET {change} WHERE {condition}")

    def add_column(self) -> None:
        self.sql("ALTER TABLE events ADD COLUMN more VARCHAR")

    def version(self) -> int:
        ((newest,),) = self.sql("FROM ducklake_current_snapshot('lake')")
        return int(newest)

    def count(self) -> int:
        return len(self.sql("FROM events"))

    def expire(self) -> None:
        """All snapshots but the newest."""
        self.sql("CALL ducklake_expire_snapshots('lake', older_than => now())")

    def drop(self) -> None:
        self.sql("DROP TABLE events")

    def recreate(self) -> None:
        self.drop()
        self.create(IDS)
