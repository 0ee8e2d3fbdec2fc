"""Another engine at work on an Iceberg table: what Java's Iceberg does in Spark, Flink and Trino.

It differs from the product in what matters here: after a conflict it rebases and tries again, on its own; and
when it does not know how a commit ended, it leaves everything as it is and gives up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    RESTError,
    ValidationException,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import Record
from sqlalchemy.exc import OperationalError
from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import UnreachableError

T = TypeVar("T")

ATTEMPTS_MAX = 5
"""`commit.retry.num-retries` and the first one."""
MAIN = "main"
METRICS = (
    *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
    *("lower_bounds", "upper_bounds"),
)
"""Of a data file."""

_OF_CATALOG = (CommitFailedException, NoSuchTableError, RESTError, ValidationException)
_PUT_OFF = (*_OF_CATALOG, OSError, OperationalError, UnreachableError)


class IcebergEngine:
    """Reads and writes the main branch. None of its methods raises what goes wrong on the way.

    Args:
        data_location: where its data files go
    """

    def __init__(
        self, catalog: Catalog, name: tuple[str, ...], objects: ObjectStore, data_location: str
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._objects = objects
        self._data_location = data_location
        self._numbers = itertools.count()

    def append(self, row_id: int) -> None:
        """Add a file with this row."""
        with self._putting_off():
            self._catalog.load_table(self._name)
            file = self._write_file((row_id,))
            self._commit(lambda table, transaction: self._append(table, transaction, file))

    def compact(self) -> None:
        """All rows into one file, unless one of the files has gone meanwhile."""
        with self._putting_off():
            old = head_files(self._catalog.load_table(self._name))
            if len(old) < 2:
                return
            rows = [row for file in old for row in self._objects.get(file.file_path).content]
            new = self._write_file(tuple(rows))
            self._commit(lambda table, transaction: self._rewrite(table, transaction, old, new))

    def roll_back(self, snapshot_id: int) -> None:
        """Set the main branch back to a snapshot behind its head."""
        with self._putting_off():
            self._commit(lambda table, transaction: self._set_main(table, transaction, snapshot_id))

    def expire(self, keep: int) -> None:
        """Take all but the newest snapshots out, and delete at once what only they needed."""
        with self._putting_off():
            before = self._catalog.load_table(self._name)
            self._commit(lambda table, transaction: self._remove_old(table, transaction, keep))
            after = self._catalog.load_table(self._name)
            for path in sorted(set(_named(before)) - set(_named(after))):
                self._objects.delete(path)

    def remove_orphans(self, older_than_s: float) -> None:
        """Delete files below the table's location that no snapshot needs, and that are older than this. As
        Iceberg's own action, which does not look into folders whose names begin with `_`.
        """
        with self._putting_off():
            table = self._catalog.load_table(self._name)
            listed = self._objects.list(f"{table.location()}/")
            written_before = self._objects.scheduler.now - older_than_s
            needed = {table.metadata_location, *_named(table)}
            needed.update(entry.metadata_file for entry in table.metadata.metadata_log)
            for path, stored in listed.items():
                is_hidden = "/_" in path.removeprefix(table.location())
                if path not in needed and not is_hidden and stored.modified_at < written_before:
                    self._objects.delete(path)

    def drop(self) -> None:
        """Drop the table; its files stay."""
        with self._putting_off():
            self._catalog.drop_table(self._name)

    # Commits ----------------------------------------------------------------------------------------

    def _commit(self, build: Callable[[Table, Transaction], Any]) -> None:
        """Build on the newest metadata and send; after a conflict, again.

        Args:
            build: stages the updates; returns the producer of the snapshot, if there is one
        """
        for attempt in range(1, ATTEMPTS_MAX + 1):
            table = self._catalog.load_table(self._name)
            transaction = Transaction(table)
            producer = build(table, transaction)
            requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), *transaction._requirements)
            if not transaction._updates:
                return
            try:
                self._catalog.commit_table(table, requirements, transaction._updates)
                return
            except CommitFailedException:
                if producer is not None:
                    producer._clean_all_uncommitted()
                if attempt == ATTEMPTS_MAX:
                    raise

    def _append(self, table: Table, transaction: Transaction, file: DataFile) -> Any:
        producer = _FastAppendFiles(Operation.APPEND, transaction, table.io)
        producer.append_data_file(file)
        producer.commit()
        return producer

    def _rewrite(self, table: Table, transaction: Transaction, old: list[DataFile], new: DataFile) -> Any:
        if not {file.file_path for file in old} <= {file.file_path for file in head_files(table)}:
            self._objects.delete(new.file_path)
            raise ValidationException("Missing required files to delete")
        # Java says `replace`, which pyiceberg cannot. The product only asks whether it is an append.
        producer = _OverwriteFiles(Operation.OVERWRITE, transaction, table.io)
        for file in old:
            producer.delete_data_file(file)
        producer.append_data_file(new)
        producer.commit()
        return producer

    def _set_main(self, table: Table, transaction: Transaction, snapshot_id: int) -> None:
        line = _line(table.metadata)
        if snapshot_id not in [snapshot.snapshot_id for snapshot in line[1:]]:
            raise ValidationException(f"snapshot {snapshot_id} is not behind the head")
        update = SetSnapshotRefUpdate.model_validate(
            {"ref-name": MAIN, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
        )
        transaction._stage((update,), (_main_is(line[0].snapshot_id),))

    def _remove_old(self, table: Table, transaction: Transaction, keep: int) -> None:
        line = _line(table.metadata)
        kept = {snapshot.snapshot_id for snapshot in line[:keep]}
        gone = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id not in kept]
        if gone and line:
            update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": gone})
            transaction._stage((update,), (_main_is(line[0].snapshot_id),))

    # Files ------------------------------------------------------------------------------------------

    def _write_file(self, rows: tuple[int, ...]) -> DataFile:
        path = f"{self._data_location}/other-{next(self._numbers)}.parquet"
        self._objects.put(path, rows, size_bytes=len(rows))
        return data_file(path, len(rows))

    @contextmanager
    def _putting_off(self) -> Iterator[None]:
        """Somebody will try again some time; what has not become of it is left as it is."""
        try:
            yield
        except FileNotFoundError as error:
            self._objects.scheduler.log(f"  gives up: {error} is not there")
        except _PUT_OFF as error:
            self._objects.scheduler.log(f"  gives up: {type(error).__name__}: {error}")


def data_file(path: str, rows: int) -> DataFile:
    """Of an unpartitioned table, without statistics."""
    metrics: dict[str, Any] = {name: {} for name in METRICS}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=rows,
        file_size_in_bytes=rows,
        **metrics,
    )
    file.spec_id = 0
    return file


def head_files(table: Table) -> list[DataFile]:
    """Of the main branch."""
    head = table.metadata.snapshot_by_name(MAIN)
    manifests = [] if head is None else head.manifests(table.io)
    return [entry.data_file for one in manifests for entry in one.fetch_manifest_entry(table.io)]


def _named(table: Table) -> Iterator[str]:
    """Manifest lists, manifests and data files of all snapshots."""
    seen: set[str] = set()
    for snapshot in table.metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen:
                seen.add(manifest.manifest_path)
                yield manifest.manifest_path
                yield from (one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io))


def _line(metadata: TableMetadata) -> list[Snapshot]:
    """The main branch's head and the snapshots behind it."""
    line: list[Snapshot] = []
    snapshot = metadata.snapshot_by_name(MAIN)
    while snapshot is not None:
        line.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)
    return line


def _main_is(snapshot_id: int) -> AssertRefSnapshotId:
    return AssertRefSnapshotId.model_validate({"ref": MAIN, "snapshot-id": snapshot_id})
