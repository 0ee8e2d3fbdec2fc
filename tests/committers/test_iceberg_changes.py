"""Upserts and deletes by key into Iceberg tables. A dictionary of rows decides; DuckDB and pyiceberg read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tests.support.lakes import IcebergLake
from tests.support.readers import duckdb_with_iceberg

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict, Manifest
from penstock.committers.deliveries.contract import Mergeable
from penstock.committers.iceberg.library.changed_files import MergingChangeFiles
from penstock.committers.iceberg.library.snapshots import UncopiedTransaction
from penstock.committers.iceberg.live_files import ManifestCache, live_files
from penstock.committers.iceberg.position_deletes import PATH_ID, POSITION_ID
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.datasource.iceberg.sink import DESTINATION
from penstock.testing.conformance.query import Query
from penstock.testing.faults import at_point, crash_at, lossy

DAY = datetime(2026, 5, 1, tzinfo=timezone.utc)
ROWS = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("d", pa.decimal128(9, 2)),
        ("ts", pa.timestamp("us", "UTC")),
        ("v", pa.int64()),
        ("op", pa.string()),
    ]
)
TABLE = ROWS.remove(ROWS.get_field_index("op"))
Row = dict[str, Any]
UPSERT = {"writeMode": "upsert", "orderBy": "v", "deleteWhen": "op = 'd'", "dropColumns": "op"}


@cache
def engine() -> duckdb.DuckDBPyConnection:
    return duckdb_with_iceberg()


def row(number: int, v: int, *, op: str = "u", day: int = 0) -> Row:
    """A row whose key columns all tell the number."""
    ts = DAY + timedelta(days=day)
    return {"k": number, "s": f"s{number}", "d": Decimal(number) / 4, "ts": ts, "v": v, "op": op}


def table_of(rows: Sequence[Row], schema: pa.Schema = ROWS) -> pa.Table:
    columns = {column.name: pa.array([one[column.name] for one in rows], column.type) for column in schema}
    return pa.table(columns, schema=schema)


@dataclass
class Place:
    options: dict[str, str]
    destination: Any = DESTINATION


@dataclass
class Changed:
    """A table that a query changes, and what it should contain."""

    folder: Path
    store: SqlManifestStore
    keys: str = "k"
    options: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    batches: int = 0
    appended: int = 0

    @property
    def lake(self) -> IcebergLake:
        return IcebergLake(self.folder)

    @property
    def query(self) -> Query:
        return Query(Place({**self.lake.options, **UPSERT, "keys": self.keys, **self.options}))

    @property
    def others(self) -> Query:
        """A query that appends."""
        return Query(Place(self.lake.options), "others")

    def table(self) -> Table:
        return self.lake.load()

    # What is done to the table ------------------------------------------------------------------------

    def change(self, *parts: Sequence[Row]) -> None:
        """A batch of these rows, by as many tasks."""
        self.query.run(self.store, self.query.batch(self.batches), *map(table_of, parts))
        self.expect([one for part in parts for one in part])

    def prepare(self, *parts: Sequence[Row]) -> Manifest:
        """A batch up to its commit."""
        return self.query.prepare(self.store, self.query.batch(self.batches), *map(table_of, parts))

    def expect(self, changes: Sequence[Row]) -> None:
        """Apply a batch to the expected rows, one key after the other."""
        self.batches += 1
        last: dict[object, Row] = {}
        for one in sorted(changes, key=lambda one: one["v"]):
            last[self.key(one)] = one
        for key, one in last.items():
            there = [known for known in self.rows if self.key(known) == key]
            if self.options.get("lateRows") == "ignore" and any(known["v"] > one["v"] for known in there):
                continue
            self.rows = [known for known in self.rows if self.key(known) != key]
            if one["op"] != "d":
                self.rows.append(one)

    def key(self, one: Row) -> object:
        return tuple(one[name] for name in self.keys.split(","))

    def append(self, *rows: Row) -> None:
        """Another query appends, also rows whose keys are there already."""
        self.others.run(self.store, self.others.batch(self.appended), table_of(rows, TABLE))
        self.appended += 1
        self.rows += rows

    def delete(self, *numbers: int) -> None:
        """Another writer deletes rows by one position delete file for several data files."""
        foreign_deletes(self.table(), numbers)
        self.rows = [one for one in self.rows if one["k"] not in numbers]

    # What it has --------------------------------------------------------------------------------------

    def check(self) -> None:
        """All readers see the expected rows."""
        expected = sorted(tuple(one[name] for name in TABLE.names) for one in self.rows)
        names, location = ", ".join(TABLE.names), self.lake.metadata_location
        assert (
            sorted(engine().execute(f"SELECT {names} FROM iceberg_scan('{location}')").fetchall()) == expected
        )
        found = (
            self.table().scan(selected_fields=tuple(TABLE.names)).to_arrow().select(TABLE.names).to_pylist()
        )
        assert sorted(tuple(one.values()) for one in found) == expected

    def entries(self, content: ManifestContent) -> list[ManifestEntry]:
        live = live_files(self.table(), "main", ManifestCache())
        return list(live.data.values()) if content is ManifestContent.DATA else list(live.deletes)

    def deletes(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries(ManifestContent.DELETES)]

    def data(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries(ManifestContent.DATA)]

    def stored(self, word: str = "") -> set[str]:
        """Base names of the files in storage."""
        return {file.name for file in self.lake.data_folder.rglob(f"*{word}*.parquet")}

    def check_one_delete_file_each(self) -> None:
        paths = [lower_path(file) for file in self.deletes() if lower_path(file)]
        assert len(paths) == len(set(paths))
        assert set(paths) <= {file.file_path for file in self.data()}


def lower_path(file: DataFile) -> bytes | str:
    return (file.lower_bounds or {}).get(PATH_ID, b"").decode()


def foreign_deletes(table: Table, numbers: Sequence[int], *, content: int = 1) -> None:
    """Delete rows as engines do that write one delete file for a partition."""
    live = live_files(table, "main", ManifestCache())
    partitions: dict[object, list[DataFile]] = {}
    for entry in live.data.values():
        file = entry.data_file
        partitions.setdefault((file.spec_id, repr(file.partition)), []).append(file)
    producer = MergingChangeFiles(
        Operation.DELETE, transaction := UncopiedTransaction(table), table, "main", live.manifests, (), {}
    )
    for number, files in enumerate(partitions.values()):
        found = [(file.file_path, at) for file in files for at in positions(file, numbers)]
        if not found:
            continue
        path = f"{table.location()}/data/foreign-{len(table.metadata.snapshots)}-{number}.parquet"
        ids = ({"PARQUET:field_id": str(one)} for one in (PATH_ID, POSITION_ID))
        schema = pa.schema(
            [
                pa.field(name, kind, False, next(ids))
                for name, kind in (("file_path", pa.string()), ("pos", pa.int64()))
            ]
        )
        local = Path(path.removeprefix("file://"))
        pq.write_table(pa.table([*map(pa.array, zip(*found, strict=True))], schema=schema), local)
        deletes = DataFile.from_args(
            content=DataFileContent(content),
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=files[0].partition,
            record_count=len(found),
            file_size_in_bytes=local.stat().st_size,
            equality_ids=None if content == 1 else [1],
        )
        deletes.spec_id = files[0].spec_id
        producer.append_delete_file(deletes)
    producer.commit()
    table.catalog.commit_table(table, transaction.requirements, transaction.updates)


def positions(file: DataFile, numbers: Sequence[int]) -> list[int]:
    column = pq.read_table(file.file_path.removeprefix("file://"), columns=["k"], partitioning=None)["k"]
    return pc.indices_nonzero(pc.is_in(column, value_set=pa.array(numbers, pa.int64()))).to_pylist()


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture
def changed(tmp_path: Path, store: SqlManifestStore) -> Changed:
    """With rows 0 to 9."""
    changed = Changed(tmp_path, store)
    changed.change([row(number, 0) for number in range(10)])
    return changed


# The model ----------------------------------------------------------------------------------------------

KEYS = ("k", "s", "d", "s,k", "d,s")
SPECS = ("", "bucket(3, k)", "day(ts)", "s, day(ts)", "truncate(1, d)")


@pytest.mark.parametrize("seed", range(8))
def test_the_table_equals_the_model(tmp_path: Path, store: SqlManifestStore, seed: int) -> None:
    """Duplicates, late rows, deletes of unknown keys, keys that move between partitions, other writers,
    conflicts, lost responses, crashes and several batches in one delivery.
    """
    rng = random.Random(seed)
    options = {"lateRows": rng.choice(["apply", "ignore"]), "partitionSpec": SPECS[seed % len(SPECS)]}
    if merge := rng.choice(["", "on-read", "on-write"]):
        options["merge"] = merge
    changed = Changed(tmp_path, store, KEYS[rng.randrange(len(KEYS))], options)
    clock, crashed = 0, set[str]()
    changed.change([row(number, 0) for number in range(12)])
    for _ in range(8):
        parts: list[list[Row]] = [[], [], []]
        for _ in range(rng.randrange(1, 25)):
            clock += 1
            v = clock if rng.random() < 0.8 else -clock
            parts[rng.randrange(3)].append(
                row(rng.randrange(16), v, op=rng.choice("uuud"), day=rng.randrange(3))
            )
        event = rng.randrange(7)
        if event == 0:
            changed.append(row(rng.randrange(16), -1000 - clock), row(50 + clock, 0))
        elif event == 1:
            changed.delete(*rng.sample(range(16), 3))
        if event == 2:
            conflict = changed.prepare(*parts)
            appended = row(rng.randrange(16), 0)
            with at_point("commit.start", lambda: changed.append(appended)):  # noqa: B023  called here
                assert isinstance(changed.query.target().commit(conflict), Conflict)
            changed.query.recover(store)
            changed.expect(list(chain.from_iterable(parts)))
        elif event == 3:
            changed.prepare(*parts)
            with crash_at("commit.landed"):
                changed.query.recover(store)
            crashed |= changed.stored("keys")
            changed.query.recover(store)
            changed.expect(list(chain.from_iterable(parts)))
        elif event == 4:
            manifest = changed.prepare(*parts)
            with lossy(SqlCatalog, "commit_table", "response", ConnectionError("lost")):
                changed.query.target().commit(manifest)
            changed.query.recover(store)
            changed.expect(list(chain.from_iterable(parts)))
        else:
            changed.change(*parts)
        changed.check_one_delete_file_each()
    changed.check()
    assert changed.stored("keys") == crashed, "clean-up finds them"


def test_batches_of_a_delivery_are_merged_by_key(changed: Changed) -> None:
    batches = [
        [row(1, 1), row(20, 1)],
        [row(1, 2, op="d"), row(2, 2)],
        [row(20, 3), row(2, 3, op="d"), row(3, 3)],
    ]
    query, manifests = changed.query, []
    for number, rows in enumerate(batches, changed.batches):
        manifests.append(query.build(changed.store, query.batch(number), table_of(rows)))
    target = query.sink().open_table()
    assert isinstance(target, Mergeable)
    merged = target.merge(manifests, None).merging(manifests)
    assert isinstance(target.commit(merged), Committed)
    for rows in batches:
        changed.expect(rows)
    changed.check()
    assert isinstance(query.target().commit(manifests[-1]), AlreadyCommitted)
