"""A query with bad rows and a dead-letter table, without Spark.

Bad rows have NULL in a NOT NULL column of a table, or an id that an HTTP service refuses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import lance
import pyarrow as pa
import pytest
from servers.http_rows import HttpRows
from tests.support import sqlite_table
from tests.support.ducklakes import sqlite_lake
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable, rows
from tests.support.postgres import PostgresTable
from tests.support.request_streams import Service

from penstock.committers.dead_letters import dead_letter
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Messages, Query

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])
NOT_NULL = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
BAD = (3, 7, 12)
"""Ids of rows that every destination refuses."""

KINDS = pytest.mark.parametrize(
    "letters", [(kind, "delta") for kind in ("delta", "http", "iceberg")], indirect=True
)
"""Each kind of destination, with a Delta table for its dead letters."""
EVERY_KIND = pytest.mark.parametrize(
    "letters",
    [
        *(("delta", to) for to in ("delta", "iceberg", "postgres")),
        *(("http", to) for to in ("delta", "iceberg")),
        *(("iceberg", "delta"), ("postgres", "postgres")),
    ],
    indirect=True,
)

EVERY_TABLE = pytest.mark.parametrize(
    "letters",
    [*EVERY_KIND.args[1], *(("delta", to) for to in ("duckdb", "ducklake", "files", "lance", "sql"))],
    indirect=True,
)
"""Each kind of dead-letter table that commands read."""


_LONG = dead_letter(pa.record_batch({"name": ["x" * 4321]}), "write", 0, 0, "", "").content
_HEAD, _, _TAIL = _LONG.rpartition(struct.pack("<2i", 0, 4321))
CRAFTED = _HEAD + struct.pack("<2i", 0, 2**31 - 1) + _TAIL
"""A dead letter whose offsets are far behind its values: Arrow itself would read memory of the process."""


def rows_with(*ids: int) -> pa.Table:
    names = [None if row_id in BAD else f"name {row_id}" for row_id in ids]
    return pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array(names, pa.string())}, schema=ROWS)


@dataclass(frozen=True)
class PostgresLetters(PostgresTable):
    """A dead-letter table in Postgres."""

    @property
    def exists(self) -> bool:
        ((found,),) = self.sql("SELECT to_regclass('events')")
        return found is not None

    def read(self, columns: str, order: str) -> list[tuple[Any, ...]]:
        return self.sql(f"SELECT {columns} FROM events ORDER BY {order}")


@dataclass(frozen=True)
class OtherLetters:
    """A dead-letter table in another format."""

    options: dict[str, str]
    place: Path
    """It exists if this does."""
    read: Callable[[str, str], list[tuple[Any, ...]]]
    """Reads columns in an order."""

    @property
    def exists(self) -> bool:
        return self.place.exists()

    @classmethod
    def of(cls, kind: str, place: Path) -> OtherLetters:
        """
        Args:
            kind: `duckdb`, `ducklake`, `files`, `lance` or `sql`
        """

        lake = sqlite_lake(place.parent)

        def read(columns: str, order: str) -> list[tuple[Any, ...]]:
            query = "SELECT {} FROM {} ORDER BY {}"
            if kind == "ducklake":
                return lake.sql(query.format(columns, "events", order))
            if kind == "sql":
                return sqlite_table.read(place, query.format(columns, "file.refused", order))
            if kind == "duckdb":
                with duckdb.connect(str(place)) as connection:
                    return connection.execute(query.format(columns, "refused", order)).fetchall()
            with duckdb.connect() as connection:
                if kind == "lance":
                    connection.register("rows", lance.dataset(str(place)).to_table())
                source = "rows" if kind == "lance" else f"read_parquet('{place}/*.parquet')"
                return connection.execute(query.format(columns, source, order)).fetchall()

        if kind == "sql":
            return cls({"url": f"sqlite:///{place}", "dbtable": "refused"}, place, read)
        if kind == "duckdb":
            return cls({"path": str(place), "dbtable": "refused"}, place, read)
        if kind == "ducklake":
            return cls(lake.options, place.parent / "catalog.sqlite", read)
        return cls({"path": str(place)}, place, read)


@dataclass
class Letters:
    """A query with a dead-letter table."""

    query: Query
    store: SqlManifestStore
    table: LakeTable | PostgresLetters | OtherLetters
    """The dead-letter table."""
    ids: Callable[[], Sequence[int]]
    """Reads the ids in the destination."""
    runs: int = 0

    @property
    def is_http(self) -> bool:
        return isinstance(self.query.harness, Service)

    def decouple(self, **options: str) -> None:
        """Go on as a decoupled query, whose progress is recorded after each response."""
        every = {"progressEverySeconds": "0"} if self.is_http else {}
        self.query = self.query.with_options(**{"delivery": "decoupled", **every, **options})

    def run(self, batch_id: int, *parts: pa.Table) -> Messages:
        self.runs += 1
        run_id = f"r{self.runs}"
        return self.query.run(self.store, self.query.batch(batch_id), *parts, run_id=run_id)

    def replay(self, batch_id: int, *parts: pa.Table) -> None:
        """Run a batch as the next start does: its tasks write only if the plan says so."""
        self.runs += 1
        plan = self.query.plan(self.store, self.query.batch(batch_id), ROWS)
        self.query.commit(self.store, self.query.write(plan, parts, f"r{self.runs}"))

    def deliver(self) -> None:
        deliver(self.store)

    def read(self) -> list[dict[str, Any]]:
        """The rows of the dead-letter table in the order of batches."""
        columns = "query_id, table_uri, batch_id, letter_id, row_id, code, message, refused_at, row, content"
        order, table = "batch_id, letter_id", self.table
        if not table.exists:
            return []
        if isinstance(table, PostgresLetters | OtherLetters):
            found: Sequence[tuple[Any, ...]] = table.read(columns, order)
        else:
            found = rows(table, columns, order)
        return [dict(zip(columns.split(", "), row, strict=True)) for row in found]

    def bad_ids(self) -> list[int]:
        return [json.loads(letter["row"])["id"] for letter in self.read()]

    def waiting(self) -> list[int]:
        return [batch.batch_id for batch in self.store.dead_letters.waiting(self.query.stream)]

    def check(self, *ids: int) -> None:
        """Check that each of these rows is in its place once and counted there, and that nothing waits."""
        assert sorted(self.ids()) == sorted(row_id for row_id in ids if row_id not in BAD)
        assert sorted(self.bad_ids()) == sorted(row_id for row_id in ids if row_id in BAD)
        assert self.waiting() == []
        assert self.stored() == 0
        assert self.counted() == len(self.ids())
        assert [one for stream in self.store.streams() for one in self.store.pending(stream.key)] == []

    def counted(self) -> int:
        """The rows of the query's committed batches, as `penstock status` shows them."""
        (found,) = [one for one in self.store.streams() if one.key == self.query.stream]
        return found.committed_rows

    def stored(self) -> int:
        """The number of dead letters in the store, in any state."""
        with self.store.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM penstock_dead_letters").scalar_one()


def letters_of(
    request: pytest.FixtureRequest, folder: Path, store: SqlManifestStore, server: HttpRows
) -> Letters:
    """Return a query and its dead-letter table, of the two kinds in the parameter of the request. Without a
    parameter, both are Delta tables.
    """
    kind, to = getattr(request, "param", ("delta", "delta"))
    request.getfixturevalue("monkeypatch").setenv("PGUSER", "postgres")
    options = {"badRows": "deadLetter", "checkpointLocation": str(folder / "checkpoint")}
    table: LakeTable | PostgresLetters | OtherLetters
    if to == "delta":
        table = DeltaLake(folder / "refused")
        options["deadLetter"] = str(table.path)
    else:
        if to == "postgres":
            table = PostgresLetters(request.getfixturevalue("new_postgres_url")())
        elif to == "iceberg":
            table = IcebergLake(folder / "refused", "lake.refused")
        else:
            table = OtherLetters.of(to, folder / "refused")
        options["deadLetter.format"] = f"penstock.{to}"
        options |= {f"deadLetter.{key}": value for key, value in table.options.items()}
    if kind == "http":
        server.clear()
        server.set(deduplicate=True, refused=BAD)
        place = Service("http", {"url": server.url, "format": "row"})
        return Letters(Query(place, options=options, store=store), store, table, server.ids)
    if kind == "postgres":
        events = PostgresTable(request.getfixturevalue("new_postgres_url")())
        events.sql("CREATE TABLE events (id bigint, name text NOT NULL)")
        return Letters(Query(events, options=options), store, table, events.ids)
    lake: LakeTable = DeltaLake(folder / "table") if kind == "delta" else IcebergLake(folder / "lake")
    lake.create(NOT_NULL)
    return Letters(Query(lake, options=options), store, table, lake.ids)
