"""The same Iceberg table on two sides: in the simulation's memory, and pyiceberg's own on a disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from tests.simulation.iceberg_engine import METRICS, IcebergEngine
from tests.simulation.iceberg_lake import ROWS, TABLE_PROPERTIES, IcebergSimLake
from tests.simulation.memory_store import MemoryExpiries
from tests.simulation.object_store import StoredObject
from tests.simulation.scheduler import Scheduler

from penstock.committers.contract import Batch, DataFile, Manifest, StreamKey
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.committers.iceberg.address import IcebergAddress
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.iceberg.committer import IcebergTableCommitter
from penstock.committers.iceberg.expiry import Expired, ExpiryPolicy, SnapshotExpiry
from penstock.committers.iceberg.new_table import NewIcebergTable
from penstock.committers.iceberg.snapshot import Attempt, prepare_attempt
from penstock.committers.iceberg.table import load, load_if_there, token_property

QUERY_ID = "q"
KEEP_SNAPSHOTS = 2
GRACE_S = 3600.0
STATISTICS = '{"split_offsets": [4], ' + ", ".join(f'"{name}": {{}}' for name in METRICS) + "}"


class DiskObjects:
    """Data files on a disk, as `IcebergEngine` writes and reads them. It remembers their rows itself."""

    def __init__(self) -> None:
        self._rows: dict[str, StoredObject] = {}
        self.scheduler = Scheduler(0)

    def put(self, path: str, content: Any, *, size_bytes: int = 1) -> None:
        file = _local(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(repr(content))
        self._rows[path] = StoredObject(content, size_bytes, 0.0)

    def get(self, path: str) -> StoredObject:
        if not _local(path).exists():
            raise FileNotFoundError(path)
        return self._rows[path]

    def delete(self, path: str) -> bool:
        there = _local(path).exists()
        _local(path).unlink(missing_ok=True)
        return there


@dataclass
class Side:
    """A table that does not exist yet.

    Args:
        active: inside, pyiceberg and the product work on this side
        list_files: all that lies below a location
    """

    name: str
    catalog: Catalog
    config: CatalogConfig
    address: IcebergAddress
    active: Callable[[], AbstractContextManager[None]]
    objects: Any
    list_files: Callable[[str], list[str]]
    now: datetime = datetime(2030, 1, 1, tzinfo=timezone.utc)
    expiries: MemoryExpiries = field(default_factory=MemoryExpiries)
    _manifests: dict[str, Any] = field(default_factory=dict)

    @property
    def is_remote(self) -> bool:
        return not self.config.is_embedded

    @property
    def committer(self) -> IcebergTableCommitter:
        return IcebergTableCommitter(self.config, self.address)

    def on_branch(self, branch: str) -> Side:
        """The same table, written elsewhere."""
        return replace(self, address=replace(self.address, branch=branch))

    def load(self) -> Table:
        return load(self.config, self.address)

    # What the product does --------------------------------------------------------------------------

    def plan(self) -> Any:
        """Creates the table if need be."""
        return self.committer.plan(ROWS, NewIcebergTable(True, properties=TABLE_PROPERTIES))

    def manifest(self, batch_id: int, *, overwrite: bool = False, digest: str = "") -> Manifest:
        """Of a batch of two files, which are written."""
        target = self.plan()
        batch = Batch(StreamKey(QUERY_ID, self.address.uri), batch_id, digest or f"{batch_id:064x}")
        files = tuple(DataFile(f"b{batch_id}-{part}.parquet", 1, 1, (), STATISTICS) for part in range(2))
        for part, file in enumerate(files):
            self.objects.put(f"{target.data_location}/{file.path}", (10 * batch_id + part,))
        return build_manifest(batch, target.content(files, "overwrite" if overwrite else "append"))

    def attempt(self, manifest: Manifest, table: Table | None = None) -> Attempt:
        return prepare_attempt(table or self.load(), manifest, decode(manifest), self.address.branch, [])

    def expire(self, after: timedelta = timedelta(0)) -> Expired:
        """The product's expiry, so much later."""
        self.now += after
        numbers = iter(range(10**6))
        expiry = SnapshotExpiry(
            self.load,
            self.expiries,
            self.address.uri,
            ExpiryPolicy(KEEP_SNAPSHOTS, GRACE_S),
            now=lambda: self.now,
            new_id=lambda: f"{self.now} {next(numbers)}",
        )
        return expiry.run()

    def cleanable(self) -> IcebergCleanableTable:
        return IcebergCleanableTable(
            lambda: load_if_there(self.config, self.address),
            self.address.uri,
            self.address.branch,
            self.expiries,
        )

    # Foreign writers ---------------------------------------------------------------------------------

    @property
    def engine(self) -> IcebergEngine:
        if not hasattr(self, "_engine"):
            location = self.load().location_provider().data_path
            self._engine = IcebergEngine(self.catalog, self.address.identifier, self.objects, location)
        return self._engine

    # What is there ----------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """All that lies below the table's location."""
        return self.list_files(self.load().location())

    def live(self, branch: str = "main") -> list[str]:
        """Base names of the data files of a branch."""
        table = self.load()
        head = table.metadata.snapshot_by_name(branch)
        manifests = [] if head is None else head.manifests(table.io)
        return sorted(
            _name(entry.data_file.file_path)
            for manifest in manifests
            for entry in manifest.fetch_manifest_entry(table.io)
        )

    def shape(self) -> dict[str, Any]:
        """All that can be said of the table without ids that are drawn by lot, times and places."""
        table = self.load()
        metadata, files = table.metadata, self.list_files(table.location())
        number = {one.snapshot_id: at for at, one in enumerate(metadata.snapshots)}
        return {
            "snapshots": [self._snapshot_shape(table, one, number) for one in metadata.snapshots],
            "refs": {name: number.get(ref.snapshot_id) for name, ref in metadata.refs.items()},
            "next sequence number": metadata.next_sequence_number(),
            "properties": sorted(set(metadata.properties) - {token_property(QUERY_ID, "main")}),
            "metadata log": len(metadata.metadata_log),
            "files": Counter(_kind(path) for path in files),
        }

    def _snapshot_shape(self, table: Table, snapshot: Snapshot, number: Mapping[int, int]) -> Any:
        assert snapshot.summary is not None
        summary, parent = snapshot.summary.additional_properties, snapshot.parent_snapshot_id
        return (
            None if parent is None else number.get(parent, "gone"),
            snapshot.sequence_number,
            snapshot.summary.operation,
            {key: text for key, text in summary.items() if key.startswith("penstock.")},
            [
                (number.get(one.added_snapshot_id or -1, "gone"), self._manifest_shape(table, one))
                for one in snapshot.manifests(table.io)
            ],
        )

    def _manifest_shape(self, table: Table, manifest: ManifestFile) -> Any:
        """A manifest never changes, so it is read once."""
        path = manifest.manifest_path
        if path not in self._manifests:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            shapes = [
                (one.status.name, one.sequence_number, _name(one.data_file.file_path)) for one in entries
            ]
            self._manifests[path] = (
                (manifest.sequence_number, manifest.min_sequence_number),
                (manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count),
                manifest.added_rows_count,
                sorted(shapes),
            )
        return self._manifests[path]


def simulated_side(*, is_remote: bool, lake: IcebergSimLake | None = None) -> Side:
    lake = lake or IcebergSimLake(Scheduler(0), is_remote=is_remote)
    sink = lake._sink

    def list_files(location: str) -> list[str]:
        return [path for path in lake.objects.objects if path.startswith(f"{location}/")]

    name = "simulated, remote" if is_remote else "simulated"
    return Side(name, lake._catalog, sink.catalog, sink.address, lake.installed, lake.objects, list_files)


def real_side(name: str, config: CatalogConfig, table: str = "orders") -> Side:
    """
    Args:
        table: becomes the namespace of a catalog that is shared
    """
    namespace = "sales" if config.is_embedded else table
    address = IcebergAddress(config.address_name, (namespace, table))
    return Side(name, open_catalog(config), config, address, nullcontext, DiskObjects(), _files_below)


def _files_below(location: str) -> list[str]:
    """But for the checksums that Hadoop puts beside each file."""
    found = (path for path in _local(location).rglob("*") if path.is_file())
    return [str(path) for path in found if path.suffix != ".crc"]


def _local(location: str) -> Path:
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _kind(path: str) -> str:
    name = _name(path)
    if name.startswith("snap-"):
        return "manifest list"
    return "data" if name.endswith(".parquet") else "manifest" if name.endswith(".avro") else "metadata"


def outcome(act: Callable[[], object]) -> Any:
    """What an act ends in, without ids: the type of its result, or of its error."""
    try:
        result = act()
    except Exception as error:  # noqa: BLE001  what it is, is what is compared
        return f"raises {type(error).__name__}"
    return result if isinstance(result, (str, int, list, Expired, type(None))) else type(result).__name__
