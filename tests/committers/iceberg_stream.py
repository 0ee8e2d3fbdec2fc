"""What the tests of the Iceberg committer share: one query writing one table of an embedded catalog, with
real data files, and ways for the request that commits to go wrong.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import Snapshot
from tests.committers.lakes import named_files
from tests.tables import IcebergOnDisk, rows

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
from penstock.committers.file_tables.manifest import PlannedFiles, build_manifest
from penstock.committers.iceberg.address import IcebergAddress
from penstock.committers.iceberg.catalog import EMBEDDED_NAME, CatalogConfig
from penstock.committers.iceberg.committer import IcebergTableCommitter
from penstock.committers.iceberg.terms import parse_partition_spec
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])

_runs = itertools.count()


@dataclass(frozen=True)
class IcebergStream:
    """Makes batches of ids, as the planner and the tasks would, and commits them."""

    warehouse: Path
    query_id: str = "query-1"
    name: str = "lake.ids"
    branch: str = "main"
    schema: pa.Schema = SCHEMA
    is_named: bool = False
    """The catalog is opened by name and address, as one whose requests may be on their way for long."""
    options: dict[str, Any] = field(default_factory=dict)
    """More options of the sink."""

    # The stream -------------------------------------------------------------------------------------

    @property
    def sink(self) -> IcebergSink:
        options = IcebergOptions(
            warehouse=str(self.warehouse), table=self.name, branch=self.branch, **self.options
        )
        return IcebergSink(options)

    def committer(self) -> IcebergTableCommitter:
        """As a new process has it."""
        embedded = CatalogConfig.of(None, {}, str(self.warehouse))
        if not self.is_named:
            return IcebergTableCommitter(embedded, self._address(embedded))
        properties = {"type": "sql", **embedded.embedded_properties}
        named = CatalogConfig.of(EMBEDDED_NAME, properties)
        return IcebergTableCommitter(named, self._address(named))

    def _address(self, catalog: CatalogConfig) -> IcebergAddress:
        return IcebergAddress(catalog.address_name, tuple(self.name.split(".")), self.branch)

    def batch(self, batch_id: int, offsets: str = "") -> Batch:
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(StreamKey(self.query_id, self.sink.table_uri), batch_id, digest)

    def plan(self, mode: Mode = "append", schema: pa.Schema | None = None) -> PlannedFiles:
        return self.sink.open_table().plan_batch(schema or self.schema, mode, 0)

    def prepare(
        self,
        batch_id: int,
        ids: Sequence[int],
        *,
        mode: Mode = "append",
        offsets: str = "",
        schema: pa.Schema | None = None,
        **values: Any,
    ) -> Manifest:
        """Plan the batch, write these ids, and name their files in a manifest.

        Args:
            values: of other columns, in all rows; NULL if not given
        """
        planned = self.plan(mode, schema)
        files = write(planned, schema or self.schema, self.query_id, batch_id, ids, values)
        return build_manifest(self.batch(batch_id, offsets), planned.content.with_files(files))

    def commit(self, batch_id: int, ids: Sequence[int], **prepare: Any) -> Outcome:
        return self.committer().commit(self.prepare(batch_id, ids, **prepare))

    def commit_until_it_ends(self, manifest: Manifest) -> Outcome:
        """What the two-phase committer does, without waiting."""
        for _ in range(1000):
            outcome = self.committer().commit(manifest)
            if not isinstance(outcome, Conflict):
                return outcome
        raise AssertionError("1000 conflicts")

    def partitioned(self, spec: str) -> IcebergStream:
        return self.with_options(partition_spec=parse_partition_spec(spec))

    def with_options(self, **options: Any) -> IcebergStream:
        return replace(self, options={**self.options, **options})

    @property
    def evolving(self) -> IcebergStream:
        return self.with_options(add_columns=True)

    # What others see and do ---------------------------------------------------------------------------

    @property
    def catalog(self) -> SqlCatalog:
        """As another process has it."""
        uri = f"sqlite:///{self.warehouse}/catalog.sqlite"
        return SqlCatalog(EMBEDDED_NAME, uri=uri, warehouse=f"file://{self.warehouse}")

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    @property
    def head(self) -> Snapshot:
        head = self.load().metadata.snapshot_by_name(self.branch)
        assert head is not None
        return head

    @property
    def on_disk(self) -> IcebergOnDisk:
        return IcebergOnDisk(self.warehouse, self.name, self.branch)

    def ids(self) -> list[object]:
        """Through duckdb."""
        return [row[0] for row in rows(self.on_disk, "id")]

    def polars_ids(self) -> list[int]:
        """Through polars, its files planned by pyiceberg."""
        with mock.patch.dict(os.environ, {"POLARS_ICEBERG_PLANNER": "pyiceberg"}):
            ids = pl.scan_iceberg(self.on_disk.metadata_location).select("id").collect()["id"]
        return sorted(ids.to_list())

    def append_as_another(self, *ids: int) -> None:
        table = self.load()
        schema = table.schema().as_arrow()
        columns = [pa.array(ids, f.type) if f.name == "id" else pa.nulls(len(ids), f.type) for f in schema]
        table.append(pa.table(columns, schema=schema), branch=self.branch)

    def expire_all_but_heads(self) -> None:
        table = self.load()
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in heads]
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()

    def orphan_manifests(self) -> set[str]:
        """Manifests and lists of them that no snapshot of the table names."""
        there = {f"file://{path}" for path in self.on_disk.folder.rglob("*.avro")}
        return there - set(named_files(self.load()))


def write(
    planned: PlannedFiles,
    schema: pa.Schema,
    query_id: str,
    batch_id: int,
    ids: Sequence[int],
    values: dict[str, Any],
) -> Sequence[DataFile]:
    writer = planned.writers.open(AttemptId(query_id, f"run-{next(_runs)}", batch_id, 0, 0))
    constants = [f for f in schema if f.name != "id"]
    columns = [pa.array([values.get(f.name)] * len(ids), f.type) for f in constants]
    writer.write(
        pa.record_batch([pa.array(ids, pa.int64()), *columns], names=["id", *(f.name for f in constants)])
    )
    return writer.finish()


# What breaks ----------------------------------------------------------------------------------------

Send = Callable[[], CommitTableResponse]
Fault = Callable[[Send], CommitTableResponse]


def response_lost(error: Exception) -> Fault:
    """The request lands, and the caller gets an error all the same."""

    def fault(send: Send) -> CommitTableResponse:
        send()
        raise error

    return fault


def not_sent(error: Exception) -> Fault:
    """The request never arrives."""

    def fault(_send: Send) -> CommitTableResponse:
        raise error

    return fault


def late(error: Exception, on_their_way: list[Send]) -> Fault:
    """The request arrives when the test lets it."""

    def fault(send: Send) -> CommitTableResponse:
        on_their_way.append(send)
        raise error

    return fault


@contextmanager
def catalog_with(*faults: Fault) -> Iterator[None]:
    """The next requests that commit to any table of a catalog in SQL go wrong, one after the other."""
    left, real = list(faults), SqlCatalog.commit_table

    def commit_table(catalog: SqlCatalog, *arguments: Any) -> CommitTableResponse:
        def send() -> CommitTableResponse:
            return real(catalog, *arguments)

        return left.pop(0)(send) if left else send()

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield
    assert not left, "a request was not sent"


@contextmanager
def unreachable_catalog(error: Exception) -> Iterator[None]:
    """No table can be loaded."""

    def load_table(_catalog: SqlCatalog, _identifier: object) -> Table:
        raise error

    with mock.patch.object(SqlCatalog, "load_table", load_table):
        yield
