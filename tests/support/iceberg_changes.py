"""An Iceberg table that a query changes by key, and the rows that it should have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from tests.support.histories import Histories
from tests.support.lakes import IcebergLake
from tests.support.readers import duckdb_with_iceberg

from penstock.committers.cleaning.cleanup import Cleanup
from penstock.committers.contract import Manifest
from penstock.committers.file_tables.compaction import Compacted, Compaction, CompactionPolicy
from penstock.committers.iceberg.arrow import arrow_schema
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.iceberg.compaction import IcebergCompactableTable
from penstock.committers.iceberg.library.changed_files import MergingChangeFiles
from penstock.committers.iceberg.library.snapshots import UncopiedTransaction
from penstock.committers.iceberg.live_files import ManifestCache, live_files
from penstock.committers.iceberg.position_deletes import PATH_ID, POSITION_ID
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.destinations import paths_of
from penstock.datasource.iceberg.sink import DESTINATION
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance.query import Query
from penstock.writers.parquet.file_names import parse_file_name

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
    deleted: dict[object, int] = field(default_factory=dict)
    """The newest deletion of each key by a batch."""

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
        of_keys: dict[object, list[Row]] = {}
        for one in sorted(changes, key=lambda one: one["v"]):
            of_keys.setdefault(self.key(one), []).append(one)
        there: dict[object, list[Row]] = {}
        for known in self.rows:
            there.setdefault(self.key(known), []).append(known)
        is_late = self.options.get("lateRows") == "ignore"
        for key, of_key in of_keys.items():
            one = of_key[-1]
            newest = [known["v"] for known in there.get(key, ())]
            if key in self.deleted:
                newest.append(self.deleted[key])
            if one["op"] == "d":
                self.deleted[key] = max(one["v"], self.deleted.get(key, one["v"]))
            if not (is_late and any(v > one["v"] for v in newest)):
                for each in of_key:
                    there[key] = [] if each["op"] == "d" else [self.completed(each, there.get(key, ()))]
        self.rows = [known for some in there.values() for known in some]

    def key(self, one: Row) -> object:
        return tuple(one[name] for name in self.keys.split(","))

    def completed(self, one: Row, before: Sequence[Row]) -> Row:
        """Keep the values of columns that the row leaves as they are."""
        if not before or "updateColumns" not in self.options:
            return one
        return {name: before[-1][name] if value is None else value for name, value in one.items()}

    def append(self, *rows: Row) -> None:
        """Another query appends, also rows whose keys are there already."""
        self.others.run(self.store, self.others.batch(self.appended), table_of(rows, TABLE))
        self.appended += 1
        self.rows += rows

    def delete(self, *numbers: int) -> None:
        """Another writer deletes rows by one position delete file for several data files."""
        foreign_deletes(self.table(), numbers)
        self.rows = [one for one in self.rows if one["k"] not in numbers]

    def compactable(self) -> IcebergCompactableTable:
        sink: Any = self.query.sink()
        return IcebergCompactableTable(sink.catalog, sink.address, self.query.query_id)

    def compact(self, table: IcebergCompactableTable | None = None, files_min: int = 100) -> Compacted:
        target: Any = self.query.target()
        rewriter = TableFileRewriter(
            self.query.query_id,
            target.rewrite_config,
            GroupRewriter(InlineExecutor()),
        )
        policy = CompactionPolicy(128 * 1024**2, 96 * 1024**2, files_min)
        return Compaction(table or self.compactable(), rewriter, policy, sleep=lambda _: None).run()

    def clean_up(self) -> int:
        table = IcebergCleanableTable(self.table, self.query.stream.table_uri, "main", self.store.expiries)
        streams = [stream.key for stream in self.store.streams()]
        cleanup = Cleanup(self.store, table, streams, parse_file_name, paths_of)
        return sum(cleanup.delete(cleanup.find(datetime.now(timezone.utc), timedelta(0))))

    # What it has --------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        return TABLE.names

    @property
    def expected(self) -> list[tuple[Any, ...]]:
        return [tuple(one[name] for name in TABLE.names) for one in self.rows]

    def check(self) -> None:
        """All readers see the expected rows."""
        expected = sorted(self.expected, key=str)
        names, location = ", ".join(self.names), self.lake.metadata_location
        assert (
            sorted(engine().execute(f"SELECT {names} FROM iceberg_scan('{location}')").fetchall(), key=str)
            == expected
        )
        found = self.table().scan(selected_fields=tuple(self.names)).to_arrow().select(self.names).to_pylist()
        assert sorted((tuple(one.values()) for one in found), key=str) == expected

    def entries(self, content: ManifestContent) -> list[ManifestEntry]:
        live = live_files(self.table(), "main", ManifestCache())
        return list(live.data.values()) if content is ManifestContent.DATA else list(live.deletes)

    def deletes(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries(ManifestContent.DELETES)]

    def data(self) -> list[DataFile]:
        return [entry.data_file for entry in self.entries(ManifestContent.DATA)]

    def stored(self, word: str = "") -> set[str]:
        """Base names of the files in storage."""
        return {file.name for file in self.lake.data_folder.rglob("*.parquet") if word in file.name}

    def check_one_delete_file_each(self) -> None:
        paths = [lower_path(file) for file in self.deletes() if lower_path(file)]
        assert len(paths) == len(set(paths))
        assert set(paths) <= {file.file_path for file in self.data()}


def lower_path(file: DataFile) -> bytes | str:
    return (file.lower_bounds or {}).get(PATH_ID, b"").decode()


@dataclass
class Versioned(Changed):
    """The table has all versions of the rows."""

    versions: Histories = field(default_factory=Histories)

    def __post_init__(self) -> None:
        self.options["history"] = "true"

    @property
    def names(self) -> list[str]:
        return [*TABLE.names, "valid_from", "valid_to", "is_current"]

    @property
    def expected(self) -> list[tuple[Any, ...]]:
        return [
            (*(one[name] for name in TABLE.names), begin, end, end is None)
            for begin, end, one in self.versions.rows()
        ]

    def expect(self, changes: Sequence[Row]) -> None:
        self.batches += 1
        self.versions.apply((self.key(one), one["v"], None if one["op"] == "d" else one) for one in changes)

    def append(self, *rows: Row) -> None:
        """Another query appends versions, as if they were the only ones of their keys."""
        table = table_of(rows, TABLE).append_column("valid_from", pa.array([one["v"] for one in rows]))
        table = table.append_column("valid_to", pa.nulls(len(rows), pa.int64()))
        table = table.append_column("is_current", pa.array([True] * len(rows)))
        self.others.run(self.store, self.others.batch(self.appended), table)
        self.appended += 1
        self.versions.apply((self.key(one), one["v"], one) for one in rows)

    def delete(self, *numbers: int) -> None:
        foreign_deletes(self.table(), numbers)
        self.versions.versions = {
            key: [version for version in versions if version[2]["k"] not in numbers]
            for key, versions in self.versions.versions.items()
        }


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
        producer.append_deletes(deletes)
    producer.commit()
    table.catalog.commit_table(table, transaction.requirements, transaction.updates)


def positions(file: DataFile, numbers: Sequence[int]) -> list[int]:
    column = pq.read_table(file.file_path.removeprefix("file://"), columns=["k"], partitioning=None)["k"]
    return pc.indices_nonzero(pc.is_in(column, value_set=pa.array(numbers, pa.int64()))).to_pylist()


def without_column(table: Table, rows: Sequence[Row]) -> None:
    """Add a file of the partition `s = s1` that does not have the column `s`, as files from Hive."""
    path = f"{table.location()}/data/from-hive.parquet"
    schema = arrow_schema(table.schema())
    stored = pa.Table.from_arrays(table_of(rows, TABLE).columns, schema=schema).drop_columns("s")
    local = Path(path.removeprefix("file://"))
    pq.write_table(stored, local)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record("s1"),
        record_count=len(rows),
        file_size_in_bytes=local.stat().st_size,
    )
    file.spec_id = table.metadata.default_spec_id
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(file)


def remove(table: Table, file: DataFile) -> None:
    """Remove a data file, and leave its delete files."""
    live, transaction = live_files(table, "main", ManifestCache()), UncopiedTransaction(table)
    removed = {file.file_path}
    MergingChangeFiles(Operation.DELETE, transaction, table, "main", live.manifests, removed, {}).commit()
    table.catalog.commit_table(table, transaction.requirements, transaction.updates)
