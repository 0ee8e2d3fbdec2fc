"""One Iceberg table of a simulation: the product over pyiceberg in memory, and foreign writers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from tests.simulation.delta_lake import DeltaSimLake
from tests.simulation.fake_iceberg_catalog import (
    BATCH_ID,
    DIGEST,
    QUERY_ID,
    CatalogState,
    EmbeddedCatalog,
    RemoteCatalog,
)
from tests.simulation.fake_pyiceberg import Clock, pyiceberg_in_memory
from tests.simulation.iceberg_engine import METRICS, IcebergEngine
from tests.simulation.inline_executor import InlineExecutor
from tests.simulation.lake import FileLake, RewritePlan, TableContents
from tests.simulation.object_store import LocationFileSystem, ObjectStore
from tests.simulation.scheduler import Scheduler

from penstock.committers.cleaning.deletion import DeletionGuard
from penstock.committers.contract import Batch, DataFile, DataFiles, Mode
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.manifest import LakeManifest, PlannedFiles
from penstock.committers.file_tables.shared_files import SHARES_PROPERTY
from penstock.committers.iceberg import (
    catalog,
    cleanup,
    committer,
    expiry,
    expiry_commit,
    file_deletion,
    new_table,
    snapshot,
    table,
)
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.iceberg.data_files import iceberg_data_files
from penstock.committers.iceberg.file_schema_check import check_files_fit
from penstock.committers.iceberg.plan import plan_target
from penstock.committers.iceberg.table import line_of, load_if_there, version_of
from penstock.committers.iceberg.target import IcebergTableLayout
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.iceberg import sink as sink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink, IcebergTarget
from penstock.datasource.lake.cleanup import PartnerFiles
from penstock.datasource.lake.pair import TablePair

TABLE = ("sales", "orders")
ROWS = pa.schema([("id", pa.int64())])
MAINTENANCE_EVERY = 2
"""Batches."""
KEEP_SNAPSHOTS = 3
GRACE_S = 3600.0
TABLE_PROPERTIES = {"commit.manifest.min-count-to-merge": "3", "write.metadata.previous-versions-max": "3"}
"""So that a history of a few batches has merged manifests, and old metadata files to delete."""

_NO_STATISTICS = json.dumps({**{name: {} for name in METRICS}, "split_offsets": [4]})


class SimulatedIceberg(IcebergTarget):
    """The product's target, with the columns that the simulation writes."""

    def __init__(self, sink: IcebergSink, beside: DeltaSimLake | None = None) -> None:
        new, self._beside = sink.new, beside
        if beside is not None and beside.pair is not None:
            own = {
                SHARES_PROPERTY: beside.pair.name_of_delta,
                "write.data.path": beside.pair.data_location,
                "write.object-storage.enabled": "false",
            }
            properties = {"gc.enabled": "false", **new.properties}
            new = replace(new, properties=properties, own_properties=own)
        super().__init__(sink.catalog, sink.address, new, sink.options)
        if beside is not None and beside.pair is not None:
            self._partner = beside.pair.name_of_delta

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """Files that another table shares are below the location of that one."""
        return (
            super().discard(payloads) if self._beside is None else self._beside.open_table().discard(payloads)
        )

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        if self._beside is not None and self._beside.pair is not None:
            self._beside.pair.check(ROWS)
        return super().plan_batch(ROWS, mode, batch_id)

    def rewrite_config(self, content: LakeManifest) -> Any:
        return None if self.target_of(content) is None else RewritePlan()


class IcebergSimLake(FileLake):
    """See `SimulatedLake`. The sink, the committer and all below it are the product's own.

    Args:
        is_remote: a REST catalog over an object store; else the embedded catalog, on the local disk
        beside: the table whose data files it shares
    """

    kind = "iceberg"
    has_whole_history = False

    def __init__(self, scheduler: Scheduler, *, is_remote: bool, beside: DeltaSimLake | None = None) -> None:
        self.objects = ObjectStore(scheduler, is_remote=is_remote) if beside is None else beside.objects
        self._beside = beside
        self._clock = Clock(scheduler)
        warehouse = "s3://lake" if is_remote else "/lake"
        self._sink = _sink(warehouse, is_remote)
        self._state = CatalogState(
            self.objects, self._clock, warehouse if is_remote else f"file://{warehouse}", GRACE_S
        )
        self.table_uri = self._sink.table_uri
        self.data_location = f"{self._state.location_of(TABLE)}/data"
        if beside is not None:
            self.data_location = beside.data_location
            beside.pair = TablePair(DeltaSink(DeltaOptions(path=beside.table_uri)), self._sink)
            beside.files_of_partner = self._files_for_partner
        self._catalog = (RemoteCatalog if is_remote else EmbeddedCatalog)(self._state, "lake")
        engine = IcebergEngine(self._catalog, TABLE, self.objects, self.data_location)
        self.append, self.compact, self.vacuum = engine.append, engine.compact, engine.remove_orphans
        self.roll_back, self.drop = engine.roll_back, engine.drop
        self._engine = engine

    @contextmanager
    def installed(self) -> Iterator[None]:
        def open_catalog(config: object, *, create: bool = True) -> Any:
            return self._catalog

        def known_properties(config: object) -> dict[str, str]:
            return {}

        with pyiceberg_in_memory(self._clock), pytest.MonkeyPatch.context() as patch:
            for module in (table, new_table):
                patch.setattr(module, "open_catalog", open_catalog)
            patch.setattr(catalog, "known_properties", known_properties)
            for module in (committer, cleanup):
                patch.setattr(module, "iceberg_files", self._files)
            patch.setattr(committer, "check_files_fit", _remembering_fit())
            patch.setattr(committer, "plan_target", _remembering_target())
            patch.setattr(snapshot, "iceberg_data_files", _data_files)
            patch.setattr(file_deletion, "ThreadPoolExecutor", InlineExecutor)
            patch.setattr(expiry, "uuid", self._clock)
            read = SimpleNamespace(table_metadata=lambda file: file.read())
            patch.setattr(expiry_commit, "FromInputFile", read)
            patch.setattr(sink, "datetime", self._clock)
            patch.setattr(sink, "BATCHES_PER_MAINTENANCE", MAINTENANCE_EVERY)
            yield

    def _files(
        self, location: str, io_properties: Mapping[str, str], deletion_guard: DeletionGuard | None = None
    ) -> TableFiles:
        opened: Any = LocationFileSystem(self.objects, location)
        return TableFiles(location, "the catalog.* options", lambda: opened, deletion_guard=deletion_guard)

    # The product ------------------------------------------------------------------------------------

    def open_table(self) -> SimulatedIceberg:
        return SimulatedIceberg(self._sink, self._beside)

    def _files_for_partner(self, store: Any) -> PartnerFiles:
        files = PartnerFiles.__new__(PartnerFiles)  # in the place of its options
        files.table, files._uri, files._store = self.cleanable_table(store), self.table_uri, store
        return files

    def cleanable_table(self, store: Any) -> IcebergCleanableTable:
        catalog, address = self._sink.catalog, self._sink.address
        return IcebergCleanableTable(
            lambda: load_if_there(catalog, address), address.uri, address.branch, store.expiries
        )

    def maintain(self, store: Any, batch: Batch) -> None:
        self._sink.maintain(store, batch)

    # Foreign writers ----------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return TABLE in self._state.locations

    def expire(self) -> None:
        self._engine.expire(keep=self.objects.scheduler.rng.choice((1, 2, 3)))

    def versions(self) -> Sequence[int]:
        metadata = self._state.metadata(TABLE)
        return [] if metadata is None else [one.snapshot_id for one in line_of(metadata, "main")][:0:-1]

    # At the end -------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        metadata = self._state.metadata(TABLE)
        if metadata is None:
            return TableContents(Counter(), self._state.added.copy(), [], [], list(self._state.tokens), {})
        stored = self.objects.objects
        head = metadata.snapshot_by_name("main")
        live = list(self._live([head] if head else []))
        readable = set(self._live(metadata.snapshots))
        below = f"{self.data_location}/"
        return TableContents(
            rows=self._ids_there(path for path in live if path in stored),
            added=self._state.added.copy(),
            missing=sorted(path for path in readable if path not in stored),
            orphans=[path for path in stored if path.startswith(below) and path not in readable],
            tokens=list(self._state.tokens),
            digests=dict(_digest(one) for one in line_of(metadata, "main") if QUERY_ID in _said(one)),
            deleted_early=self._state.deleted_early,
        )

    def _ids_there(self, paths: Iterable[str]) -> Counter[int]:
        stored = self.objects.objects
        return Counter(row_id for path in paths for row_id in stored[path].content)

    def metadata(self) -> TableMetadata | None:
        """Without a step."""
        return self._state.metadata(TABLE)

    def _live(self, snapshots: Iterable[Snapshot]) -> Iterator[str]:
        """Their data files. A manifest or a manifest list that is gone stands for what it names."""
        for one in snapshots:
            for manifest in self._peek(one.manifest_list):
                for entry in (manifest,) if isinstance(manifest, str) else self._peek(manifest.manifest_path):
                    if isinstance(entry, str):
                        yield entry
                    elif entry.status is not ManifestEntryStatus.DELETED:
                        yield entry.data_file.file_path

    def _peek(self, path: str) -> Sequence[Any]:
        """The records of a file; its path if it is gone."""
        stored = self.objects.objects.get(path)
        return (path,) if stored is None else stored.content


def _said(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties


def _digest(snapshot: Snapshot) -> tuple[tuple[str, int], str]:
    said = _said(snapshot)
    return (said[QUERY_ID], int(said[BATCH_ID])), said[DIGEST]


def _sink(warehouse: str, is_remote: bool) -> IcebergSink:
    place: dict[str, Any] = {"warehouse": warehouse}
    if is_remote:
        place = {"catalog": "lake", "catalog_properties": {"uri": "http://lake", "warehouse": warehouse}}
    options = IcebergOptions(
        table=".".join(TABLE),
        table_properties=TABLE_PROPERTIES,
        snapshots_max=KEEP_SNAPSHOTS,
        snapshot_grace_s=GRACE_S,
        **place,
    )
    return IcebergSink(options)


def _remembering_fit() -> Any:
    """What fits a schema and a partitioning once, always does."""
    known: dict[Any, list[str]] = {}

    def fit(metadata: TableMetadata, content: LakeManifest) -> list[str]:
        ids = (metadata.current_schema_id, metadata.default_spec_id, metadata.last_column_id)
        key = (metadata.table_uuid, *ids, content.schema_json, content.new_columns, content.partition_spec_id)
        if key not in known:
            known[key] = check_files_fit(metadata, content)
        return list(known[key])

    return fit


def _remembering_target() -> Any:
    """Nobody alters the columns, layout or write properties of a table: only its version changes."""
    known: dict[Any, IcebergTableLayout] = {}

    def target(table: Table, source: pa.Schema, branch: str, *, created: bool, **options: Any) -> Any:
        key = table.metadata.table_uuid
        if key not in known:
            known[key] = plan_target(table, source, branch, created=created, **options)
        return replace(known[key], table_version=version_of(table.metadata, branch), created=created)

    return target


def _data_files(files: Iterable[DataFile], *about: Any) -> Iterator[Any]:
    """The product's own, over files without statistics."""
    with_statistics = [replace(file, statistics=file.statistics or _NO_STATISTICS) for file in files]
    return iceberg_data_files(with_statistics, *about)
