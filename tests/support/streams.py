"""A query whose batches are committed straight to the table: for tests of table committers."""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable, ids_alone

from penstock.committers.contract import (
    AttemptId,
    Batch,
    Conflict,
    DataFile,
    Manifest,
    Mode,
    Outcome,
    StreamKey,
)
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.schema import DeltaTableLayout
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.file_tables.evolution import Evolution, SchemaEvolution
from penstock.committers.file_tables.manifest import LakeManifest, PlannedFiles, build_manifest
from penstock.committers.iceberg.address import IcebergAddress
from penstock.committers.iceberg.catalog import EMBEDDED_NAME, CatalogConfig
from penstock.committers.iceberg.committer import IcebergTableCommitter
from penstock.committers.target import Committer
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

_runs = itertools.count()


class _TableStream(Protocol):
    """Makes batches of ids, as the planner and the tasks would, and commits them."""

    query_id: str

    @property
    def lake(self) -> LakeTable:
        """The table for other readers and writers."""

    @property
    def table_uri(self) -> str: ...

    def committer(self) -> Committer:
        """The committer of a new process."""

    def content(self, batch_id: int, ids: Sequence[int], mode: Mode, **plan: Any) -> LakeManifest:
        """Plan the batch, and write these ids."""

    def prepare(
        self, batch_id: int, ids: Sequence[int], *, mode: Mode = "append", offsets: str = "", **plan: Any
    ) -> Manifest:
        return build_manifest(self.batch(batch_id, offsets), self.content(batch_id, ids, mode, **plan))

    def batch(self, batch_id: int, offsets: str = "") -> Batch:
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(StreamKey(self.query_id, self.table_uri), batch_id, digest)

    def commit(self, batch_id: int, ids: Sequence[int], **prepare: Any) -> Outcome:
        return self.committer().commit(self.prepare(batch_id, ids, **prepare))

    def commit_until_it_ends(self, manifest: Manifest) -> Outcome:
        """What the two-phase committer does, without waiting."""
        for _ in range(1000):
            outcome = self.committer().commit(manifest)
            if not isinstance(outcome, Conflict):
                return outcome
        raise AssertionError("1000 conflicts")

    def last_batch(self) -> int | None:
        """The batch id of the token."""
        token = self.committer().token(self.query_id)
        return None if token is None else token.batch_id

    def ids(self) -> list[int]:
        return self.lake.ids()


# Delta ----------------------------------------------------------------------------------------------


@dataclass
class DeltaStream(_TableStream):
    """Writes files through the Delta library. The location may be on an object store."""

    uri: str
    query_id: str = "query-1"
    schema: pa.Schema = SCHEMA
    storage_options: Mapping[str, str] = field(default_factory=dict)
    snapshot_cache: Callable[[], SnapshotCache] = SnapshotCache

    @property
    def lake(self) -> DeltaLake:
        return DeltaLake(self.uri)

    @property
    def table_uri(self) -> str:
        return self.uri

    def committer(self, **options: str) -> DeltaTableCommitter:
        """The committer of a new process, unless `snapshot_cache` is shared."""
        return DeltaTableCommitter(
            self.uri, {**self.storage_options, **options}, snapshot_cache=self.snapshot_cache()
        )

    def committer_arguments(self) -> tuple[type[DeltaTableCommitter], tuple[Any, ...]]:
        """The class and the arguments, with which another process makes one."""
        return DeltaTableCommitter, (self.uri,)

    def content(
        self,
        batch_id: int,
        ids: Sequence[int],
        mode: Mode,
        *,
        schema: pa.Schema | None = None,
        evolve: bool = False,
        **plan: Any,
    ) -> LakeManifest:
        evolution = Evolution(adds=evolve)
        target = self.committer().plan(schema or self.schema, mode=mode, evolution=evolution, **plan)
        return target.content([self.write(target, ids)], mode)

    def write(self, target: DeltaTableLayout, ids: Sequence[int]) -> DataFile:
        """One file below the location: `id` as given, all other columns NULL."""
        columns = [column for column in target.schema if column.name not in target.partition_by]
        path = f"{uuid.uuid4()}.parquet"
        filesystem = PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage_options)))
        with filesystem.open_output_stream(path) as sink:
            pq.write_table(ids_alone(pa.schema(columns), ids), sink)
            size_bytes = sink.tell()
        values = tuple((name, None) for name in target.partition_by)
        return DataFile(path, size_bytes, len(ids), values, f'{{"numRecords":{len(ids)}}}')


def stream_in(folder: Path, query_id: str = "query-1", **options: Any) -> DeltaStream:
    return DeltaStream(str(folder / "table"), query_id, **options)


def clean_up_log(stream: DeltaStream) -> None:
    """Delete all entries before the newest version, oldest first. On the local disk."""
    table = DeltaTable(stream.uri)
    table.create_checkpoint()
    for entry in sorted(Path(stream.uri, "_delta_log").glob("*.json")):
        if int(entry.stem) < table.version():
            entry.unlink()


def edit_log_entry(stream: DeltaStream, version: int, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change each action of this log entry, as if another writer had written it. On the local disk."""
    entry = Path(stream.uri, "_delta_log", f"{version:020}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        change(action)
    entry.write_text("\n".join(map(json.dumps, actions)))
    return entry


def _kept() -> Callable[[], SnapshotCache]:
    snapshot_cache = SnapshotCache()
    return lambda: snapshot_cache


VIEWS: Mapping[str, Callable[[], Callable[[], SnapshotCache]]] = {
    "a process that goes on": _kept,
    "a new process each time": lambda: SnapshotCache,
    "the library alone": lambda: lambda: SnapshotCache(open_files=lambda _uri, _options: None),
}
"""What the committer has cached of its table, and what writes its commits."""


# Iceberg --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IcebergStream(_TableStream):
    """Writes into a table of an embedded catalog as the tasks do."""

    warehouse: Path
    query_id: str = "query-1"
    name: str = "lake.ids"
    branch: str = "main"
    schema: pa.Schema = SCHEMA
    is_named: bool = False
    """The catalog is opened by name and address. Its requests may be executed late."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the sink."""

    @property
    def lake(self) -> IcebergLake:
        return IcebergLake(self.warehouse, self.name, self.branch)

    @property
    def sink(self) -> IcebergSink:
        options = IcebergOptions(
            warehouse=str(self.warehouse), table=self.name, branch=self.branch, **self.options
        )
        return IcebergSink(options)

    @property
    def table_uri(self) -> str:
        return self.sink.table_uri

    def committer(self) -> IcebergTableCommitter:
        kind, arguments = self.committer_arguments()
        return kind(*arguments)

    def committer_arguments(self) -> tuple[type[IcebergTableCommitter], tuple[Any, ...]]:
        catalog = CatalogConfig.of(None, {}, str(self.warehouse))
        if self.is_named:
            catalog = CatalogConfig.of(EMBEDDED_NAME, {"type": "sql", **catalog.embedded_properties})
        address = IcebergAddress(catalog.address_name, tuple(self.name.split(".")), self.branch)
        return IcebergTableCommitter, (catalog, address)

    def plan(self, mode: Mode = "append", schema: pa.Schema | None = None) -> PlannedFiles:
        return self.sink.open_table().plan_batch(schema or self.schema, mode, 0)

    def content(
        self,
        batch_id: int,
        ids: Sequence[int],
        mode: Mode,
        *,
        schema: pa.Schema | None = None,
        evolve: bool = False,
        **values: Any,
    ) -> LakeManifest:
        """
        Args:
            values: of other columns, in all rows; NULL if not given
        """
        planned = (self.evolving if evolve else self).plan(mode, schema)
        return planned.content.with_files(self.write(planned, batch_id, ids, schema, values))

    def write(
        self,
        planned: PlannedFiles,
        batch_id: int,
        ids: Sequence[int],
        schema: pa.Schema | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> Sequence[DataFile]:
        writer = planned.writers.open(AttemptId(self.query_id, f"run-{next(_runs)}", batch_id, 0, 0))
        given = values or {}
        columns = [
            pa.array(ids if f.name == "id" else [given.get(f.name)] * len(ids), f.type)
            for f in schema or self.schema
        ]
        writer.write(pa.record_batch(columns, names=(schema or self.schema).names))
        return writer.finish()

    def with_options(self, **options: Any) -> IcebergStream:
        return replace(self, options={**self.options, **options})

    @property
    def evolving(self) -> IcebergStream:
        return self.with_options(schema_evolution=SchemaEvolution.ADD_COLUMNS)

    def load(self) -> Table:
        return self.lake.load()

    @property
    def head(self) -> Snapshot:
        return self.lake.head


TableStream: TypeAlias = DeltaStream | IcebergStream


def stream_of(kind: str, folder: Path, snapshot_cache: str = "a new process each time") -> TableStream:
    if kind == "iceberg":
        return IcebergStream(folder / "warehouse")
    return stream_in(folder, snapshot_cache=VIEWS[snapshot_cache]())
