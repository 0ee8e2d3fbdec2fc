"""A table of each format on the local disk: its options, its rows, and changes by other writers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from penstock import testing
from penstock.datasource.delta.sink import DESTINATION as DELTA
from penstock.datasource.destinations import DestinationType
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg.sink import DESTINATION as ICEBERG
from penstock.testing.conformance.query import source_of
from penstock.testing.duckdb_reader import connect
from penstock.testing.table import Table as TestedTable
from penstock.testing.table import TableVersion

IDS = pa.schema([("id", pa.int64())])


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())}, schema=IDS)


def ids_alone(schema: pa.Schema, ids: Sequence[int]) -> pa.Table:
    """Rows with these ids; all other columns are NULL."""
    columns = [
        pa.array(ids, f.type) if f.name.lower() == "id" else pa.nulls(len(ids), f.type) for f in schema
    ]
    return pa.table(columns, schema=schema)


def rows(table: TestedTable, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The table's rows as duckdb reads them."""
    with connect() as connection:
        query = f"SELECT {columns} FROM {table.relation(connection)} ORDER BY {order}"
        return connection.execute(query).fetchall()


class Lake(TestedTable, Protocol):
    """What a Delta table and an Iceberg table of `penstock.testing` have in common that one query writes, and
    other programs too.
    """

    destination: ClassVar[DestinationType]

    @property
    def options(self) -> dict[str, str]:
        """Of the data source: they name the table."""

    @property
    def folder(self) -> Path:
        """Where the table is."""

    @property
    def exists(self) -> bool: ...

    def create(
        self, schema: pa.Schema, properties: Mapping[str, str] | None = None, **partitioning: Any
    ) -> None:
        """Create the table with the library of the format, with NOT NULL as in the schema."""

    def append_rows(self, rows: pa.Table) -> None: ...

    def schema(self) -> pa.Schema: ...

    def drop(self) -> None: ...

    def forget(self) -> None:
        """Drop the table; its data files stay."""

    # The same for both formats

    @property
    def source(self) -> str:
        """The name of Penstock's data source."""
        return source_of(self).name()

    def sink(self, **options: str) -> FileTableSink:
        """As the data source makes it from these options and those that name the table."""
        given = {"checkpointLocation": "/none", **self.options, **options}
        query = source_of(self)({key.lower(): value for key, value in given.items()}).query()
        return cast("FileTableSink", query.targets[""])

    def append(self, *ids: int) -> None:
        """Rows with these ids; all other columns are NULL."""
        self.append_rows(ids_alone(self.schema(), ids))

    def replace(self) -> None:
        """Another table in the same place, with a row with id -1. The data files of the old one stay."""
        if self.exists:
            self.forget()
        self.create(IDS)
        self.append(-1)

    def recreate(self) -> None:
        """An empty table in the place of this one, without its files."""
        self.drop()
        self.create(IDS)

    def rows(self, columns: str = "*") -> list[tuple[object, ...]]:
        return rows(self, columns)

    def ids(self) -> list[int]:
        """Sorted, as duckdb reads them; none if there is no table."""
        return [int(str(row[0])) for row in rows(self, "id")] if self.exists else []

    def count(self) -> int:
        return len(self.ids())

    def added(self) -> Mapping[str, int]:
        """How often the table names each data file."""
        return self._newest().added

    def tokens(self) -> Sequence[tuple[str, int, int]]:
        """(query, batch id, version of the table), in the order of the table's history."""
        return self._newest().tokens

    def _newest(self) -> TableVersion:
        with connect() as connection:
            return self.read(connection)

    def data_files(self) -> set[str]:
        """The data files in the folder, by their paths below it."""
        paths = {path.relative_to(self.folder) for path in self.folder.rglob("*.parquet")}
        return {str(path) for path in paths if "_delta_log" not in path.parts}


class DeltaLake(testing.DeltaTable, Lake):
    """Others write it through the Delta library."""

    kind = "delta"
    destination: ClassVar[DestinationType] = DELTA
    place = "path"
    """The option that is a path on the local disk."""
    partitioning = "partitionBy"
    """The option for the partitioning of a new table."""
    versions_when_new = 1
    """Iceberg counts snapshots, and a new table has none."""

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.path)}

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def data_folder(self) -> Path:
        """What the paths of data files are relative to."""
        return self.folder

    @property
    def exists(self) -> bool:
        return (self.folder / "_delta_log").exists()

    def load(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def version(self) -> int:
        """Of the table; the snapshot in Iceberg."""
        return self.load().version()

    def roll_back(self) -> None:
        """To before the newest commit."""
        self.go_back(self.version() - 1)

    def versions(self) -> int:
        """The number of commits in the history of the table."""
        return len(list((self.folder / "_delta_log").glob("*[0-9].json")))

    def schema(self) -> pa.Schema:
        return pa.schema(self.load().schema().to_arrow())

    def create(
        self, schema: pa.Schema, properties: Mapping[str, str] | None = None, **partitioning: Any
    ) -> None:
        configuration = dict(properties or {})
        DeltaTable.create(str(self.path), schema, configuration=configuration, **partitioning)

    def scan(self) -> pl.LazyFrame:
        """As polars reads it."""
        return pl.scan_delta(str(self.path))

    def append_rows(self, rows: pa.Table) -> None:
        write_deltalake(str(self.path), rows, mode="append")

    def compact(self) -> None:
        """Put all rows into one file."""
        self.load().optimize.compact()

    def vacuum(self, *, orphans: bool = True) -> None:
        """Delete what the table's newest version does not need.

        Args:
            orphans: also files that no version of the table has named yet
        """
        self.load().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=orphans)

    def partition_by_day(self) -> None:
        """Partition the table and add a row with id -1: files that were written before no longer fit."""
        rows = pa.table({"id": [-1], "day": ["d"]})
        write_deltalake(str(self.path), rows, mode="overwrite", schema_mode="overwrite", partition_by=["day"])

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def forget(self) -> None:
        shutil.rmtree(self.folder / "_delta_log")

    def go_back(self, version: int) -> None:
        """RESTORE in Delta, a rollback in Iceberg."""
        self.load().restore(version)

    def orphan_manifests(self) -> set[str]:
        """Manifests and lists of them that no snapshot of an Iceberg table names."""
        return set()


class IcebergLake(testing.IcebergTable, Lake):
    """A table in an embedded catalog. Others write it through pyiceberg itself."""

    kind = "iceberg"
    destination: ClassVar[DestinationType] = ICEBERG
    place = "warehouse"
    partitioning = "partitionSpec"
    versions_when_new = 0

    def __init__(self, warehouse: Path, name: str = "lake.ids", branch: str = "main") -> None:
        super().__init__(name, warehouse, branch=branch)

    @property
    def options(self) -> dict[str, str]:
        branch = {} if self.branch == "main" else {"branch": self.branch}
        return {"warehouse": str(self.warehouse), "table": self.table, **branch}

    @property
    def folder(self) -> Path:
        return Path(str(self.warehouse)).joinpath(*self.table.split("."))

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    @property
    def exists(self) -> bool:
        return self._location() is not None

    @property
    def sql_catalog(self) -> SqlCatalog:
        """The embedded catalog, as other programs open it."""
        Path(str(self.warehouse)).mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{self.warehouse}/catalog.sqlite"
        return SqlCatalog("penstock", uri=uri, warehouse=f"file://{self.warehouse}")

    def load(self) -> Table:
        return self.sql_catalog.load_table(self.table)

    def metadata(self) -> dict[str, Any]:
        file = Path(self.metadata_location.removeprefix("file://"))
        return json.loads(file.read_text())

    @property
    def head(self) -> Snapshot:
        head = self.load().metadata.snapshot_by_name(self.branch)
        assert head is not None
        return head

    def version(self) -> int:
        head = self.load().metadata.snapshot_by_name(self.branch)
        return -1 if head is None else head.snapshot_id

    def roll_back(self) -> None:
        self.go_back(self.load().history()[-2].snapshot_id)

    def versions(self) -> int:
        return len(self.metadata()["snapshots"])

    def schema(self) -> pa.Schema:
        return self.load().schema().as_arrow()

    def create(self, schema: Any, properties: Mapping[str, str] | None = None, **partitioning: Any) -> None:
        catalog = self.sql_catalog
        catalog.create_namespace_if_not_exists(self.table.rpartition(".")[0])
        catalog.create_table(self.table, schema, properties=dict(properties or {}), **partitioning)

    def scan(self) -> pl.LazyFrame:
        return pl.scan_iceberg(self.metadata_location, reader_override="native")

    def append_rows(self, rows: pa.Table) -> None:
        self.load().append(rows, branch=self.branch)

    def compact(self) -> None:
        table = self.load()
        rows = table.scan().to_arrow()
        if rows.num_rows:
            table.overwrite(rows, branch=self.branch)

    def vacuum(self, *, orphans: bool = True) -> None:
        before = set(named_files(self.load()))
        self.expire()
        kept = set(named_files(self.load()))
        there = {f"file://{path}" for end in ("avro", "parquet") for path in self.folder.rglob(f"*.{end}")}
        for path in (before - kept) | (there - kept if orphans else set()):
            Path(path.removeprefix("file://")).unlink(missing_ok=True)

    def expire(self) -> None:
        """All snapshots but the heads of branches."""
        table = self.load()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in heads]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()

    def orphan_manifests(self) -> set[str]:
        there = {f"file://{path}" for path in self.folder.rglob("*.avro")}
        return there - set(named_files(self.load()))

    def set_properties(self, properties: Mapping[str, str]) -> None:
        with self.load().transaction() as transaction:
            transaction.set_properties(dict(properties))

    def partition_by_day(self) -> None:
        table = self.load()
        with table.update_spec() as update:
            update.add_identity("day")
        if table.current_snapshot() is not None:
            table.delete()
        table.append(pa.table({"id": [-1], "day": ["d"]}))

    def drop(self) -> None:
        self.forget()
        shutil.rmtree(self.folder)

    def forget(self) -> None:
        self.sql_catalog.drop_table(self.table)

    def go_back(self, version: int) -> None:
        self.load().manage_snapshots().rollback_to_snapshot(version).commit()


LakeTable: TypeAlias = DeltaLake | IcebergLake


def named_files(table: Table) -> Iterator[str]:
    """All files that any snapshot of the table needs."""
    for snapshot in table.metadata.snapshots:
        yield from files_of(table, snapshot)


def files_of(table: Table, snapshot: Snapshot) -> Iterator[str]:
    """Every file that a reader of the snapshot opens."""
    yield snapshot.manifest_list
    for manifest in snapshot.manifests(table.io):
        yield manifest.manifest_path
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file.file_path


def delta_lake(folder: Path) -> DeltaLake:
    return DeltaLake(folder / "table")


def iceberg_lake(folder: Path) -> IcebergLake:
    return IcebergLake(folder / "warehouse")


LAKES: Mapping[str, Callable[[Path], LakeTable]] = {"delta": delta_lake, "iceberg": iceberg_lake}
"""A table of each kind in a folder."""
