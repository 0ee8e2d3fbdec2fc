"""An Iceberg table that a query changes by key, with real Parquet files in the object store in memory."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record
from tests.simulation.changed_files import ChangedFiles, OfEachProcess
from tests.simulation.changed_rows import CHANGES, Expected, Row, ids_of_batch
from tests.simulation.fake_iceberg_catalog import DIGEST, QUERY_ID
from tests.simulation.fake_pyiceberg import without_totals
from tests.simulation.iceberg_engine import METRICS, IcebergEngine, data_file
from tests.simulation.iceberg_lake import TABLE, IcebergSimLake, SimulatedIceberg
from tests.simulation.inline_executor import InlineExecutor
from tests.simulation.lake import TableContents
from tests.simulation.object_store import LocationFileSystem
from tests.simulation.scheduler import Scheduler

from penstock.committers.cleaning.deletion import DeletionGuard
from penstock.committers.contract import Mode
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.manifest import PlannedFiles
from penstock.committers.iceberg import changes, compaction, live_files, position_deletes, snapshot
from penstock.committers.iceberg.compaction import IcebergCompactableTable
from penstock.committers.iceberg.library import changed_files
from penstock.committers.iceberg.library.changed_files import MergingChangeFiles
from penstock.committers.iceberg.live_files import LiveFiles, ManifestCache
from penstock.committers.iceberg.position_deletes import DeletedRows, DeleteFiles, deletes_content
from penstock.datasource.iceberg.sink import IcebergTarget
from penstock.writers.iceberg import deletes

KEY_ID = 2
"""The field id of the column `key`."""

DELETED_KEY = "other.deleted-key"
"""In the summary of a snapshot: another engine has deleted the rows with this key."""


class SimulatedChangedIceberg(SimulatedIceberg):
    """The product's target, of a query in upsert mode."""

    def __init__(self, lake: ChangedIcebergSimLake) -> None:
        super().__init__(lake._sink)
        self._changed = lake
        self._rewrite = lake.rewrite

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        return IcebergTarget.plan_batch(self, CHANGES, self._changed.source.changes, batch_id)


class ChangedIcebergSimLake(ChangedFiles, IcebergSimLake):
    """See `SimulatedLake`."""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        super().__init__(scheduler, is_remote=is_remote)
        self._expected: dict[int, Expected] = {}
        """By snapshot."""
        self._state.on_commit = self._note_commit
        self._caches = OfEachProcess(scheduler)
        engine = ChangingEngine(self)
        self.append, self.compact, self.vacuum = engine.append, engine.compact, engine.remove_orphans
        self.roll_back, self.drop = engine.roll_back, engine.drop
        self.delete_key = partial(engine.delete_key, scheduler.rng.random() < 0.5)
        self._engine = engine

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        with super().installed(), pytest.MonkeyPatch.context() as patch:
            for module in (changes, live_files, position_deletes):
                patch.setattr(module, "ThreadPoolExecutor", InlineExecutor)
            # Manifests in memory are no bytes: each is read where it is.
            patch.setattr(live_files, "_Downloaded", lambda io, _path: io)
            for module in (changes, compaction):
                patch.setattr(module, "iceberg_files", self._files)
                patch.setattr(module, "open_location", lambda _properties: self._opened)
            for module in (snapshot, compaction):
                patch.setattr(module, "live_files", self.live_files)
            patch.setattr(changes, "Tombstones", self.clocked_tombstones())
            patch.setattr(changed_files, "update_snapshot_summaries", without_totals)
            patch.setattr(deletes, "uuid", self._clock)
            yield

    def open_table(self) -> SimulatedChangedIceberg:
        return SimulatedChangedIceberg(self)

    def live_files(self, table: Table, branch: str) -> LiveFiles:
        """The product's, with what the process has read before."""
        cache = self._caches.setdefault("manifests", ManifestCache())
        return live_files.live_files(table, branch, cache)

    def compactable_table(self, query_id: str) -> IcebergCompactableTable:
        return IcebergCompactableTable(self._sink.catalog, self._sink.address, query_id)

    @staticmethod
    def statistics_of(rows: Sequence[Row]) -> str:
        keys = [row.key for row in rows]
        bounds = {
            name: {str(KEY_ID): struct.pack("<q", key).hex()}
            for name, key in (("lower_bounds", min(keys)), ("upper_bounds", max(keys)))
        }
        return json.dumps({**{name: {} for name in METRICS}, **bounds, "split_offsets": [4]})

    def _files(
        self, location: str, io_properties: Mapping[str, str], deletion_guard: DeletionGuard | None = None
    ) -> TableFiles:
        opened: Any = LocationFileSystem(self.objects, location, self.note_tombstones)
        return TableFiles(location, "the catalog.* options", lambda: opened, deletion_guard=deletion_guard)

    @contextmanager
    def _opened(self, location: str) -> Iterator[pa.NativeFile]:
        folder, _, name = location.rpartition("/")
        with self._files(folder, {}).opened(name) as file:
            yield file

    # The end ------------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        """What counts as the rows of the table are those that have come into it, also if they were replaced
        or deleted since. Whether the table has the right ones is told by its problems.
        """
        metadata, contents = self.metadata(), super().contents()
        head = None if metadata is None else metadata.snapshot_by_name("main")
        rows = contents.rows if head is None else self._expected[head.snapshot_id].ids
        return replace(contents, rows=rows, problems=list(self.mismatches))

    def _ids_there(self, paths: Iterable[str]) -> Counter[int]:
        return Counter()

    def _note_commit(self, before: TableMetadata | None, after: TableMetadata) -> None:
        """Note what the table must have after a commit, and whether it has that."""
        head = after.snapshot_by_name("main")
        if head is None or head.snapshot_id in self._expected:
            return
        parent = None if before is None else before.snapshot_by_name("main")
        expected = Expected() if parent is None else self._expected[parent.snapshot_id].copy()
        there, said = self._rows_of(head), _said(head)
        if QUERY_ID in said:
            batches = [ids_of_batch(said[QUERY_ID], digest) for digest in _digests(said)]
            expected = self.expected_after(expected, batches, there, self.objects.scheduler.now)
        elif DELETED_KEY in said:
            expected.rows.pop(int(said[DELETED_KEY]), None)
        elif head.summary is not None and head.summary.operation is Operation.APPEND:
            expected.append([row for path in self._added_by(head) for row in self.rows_in[self.below(path)]])
        self.compare(f"{head.snapshot_id} of the table, {said or head.summary}", there, expected)
        self._expected[head.snapshot_id] = expected

    def below(self, location: str) -> str:
        """The path below the location of the data files."""
        return location.removeprefix(f"{self.data_location}/")

    def _rows_of(self, head: Snapshot) -> list[Row]:
        """Without a step: the files are read as Iceberg's specification says, not by the product."""
        gone: dict[str, set[tuple[int, int]]] = {}
        for entry, number in self._entries(head, ManifestContent.DELETES):
            content = self.objects.ever[entry.data_file.file_path].content
            for row in pq.read_table(pa.BufferReader(content), use_threads=False).to_pylist():
                gone.setdefault(row["file_path"], set()).add((row["pos"], number))
        rows = []
        for entry, number in self._entries(head, ManifestContent.DATA):
            path = entry.data_file.file_path
            deleted = {row for row, of_delete in gone.get(path, ()) if of_delete >= number}
            stored = self.rows_in[self.below(path)]
            rows += [row for at, row in enumerate(stored) if at not in deleted]
        return rows

    def _entries(self, head: Snapshot, content: ManifestContent) -> Iterator[tuple[ManifestEntry, int]]:
        """Its live files, with their sequence numbers."""
        for manifest in self.objects.objects[head.manifest_list].content:
            if manifest.content == content:
                for entry in self.objects.objects[manifest.manifest_path].content:
                    if entry.status is not ManifestEntryStatus.DELETED:
                        number = entry.sequence_number
                        yield entry, manifest.sequence_number if number is None else number

    def _added_by(self, head: Snapshot) -> Iterator[str]:
        for entry, _ in self._entries(head, ManifestContent.DATA):
            if entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == head.snapshot_id:
                yield entry.data_file.file_path


class ChangingEngine(IcebergEngine):
    """Another engine, whose rows have keys, and which can delete some.

    Args:
        lake: whose table it changes
    """

    def __init__(self, lake: ChangedIcebergSimLake) -> None:
        super().__init__(lake._catalog, TABLE, lake.objects, lake.data_location)
        self._lake = lake

    def append(self, row_id: int) -> None:
        with self._putting_off():
            self._catalog.load_table(self._name)
            file = self._file_of([self._lake.source.row(row_id)])
            self._commit(lambda table, transaction: self._append(table, transaction, file))

    def compact(self) -> None:
        """All rows into one file, with the deletes applied."""
        with self._putting_off():
            self._commit(self._rewrite_all)

    def delete_key(self, writes_deletes: bool) -> None:
        """DELETE of the rows with one key: one delete file for several data files, or files written again."""
        key = self._objects.scheduler.rng.randrange(self._lake.source.keys)
        with self._putting_off():
            self._commit(partial(self._delete_rows if writes_deletes else self._rewrite_without, key))

    def _rewrite_all(self, table: Table, transaction: Transaction) -> Any:
        rows = self._rows(table)
        if len(rows) < 2:
            return None
        new = [row for some in rows.values() for row in some.values()]
        return self._replace(table, transaction, rows, new, Operation.REPLACE, {})

    def _rewrite_without(self, key: int, table: Table, transaction: Transaction) -> Any:
        has_key = {
            path: rows
            for path, rows in self._rows(table).items()
            if any(row.key == key for row in rows.values())
        }
        new = [row for rows in has_key.values() for row in rows.values() if row.key != key]
        return self._replace(table, transaction, has_key, new, Operation.OVERWRITE, {DELETED_KEY: str(key)})

    def _delete_rows(self, key: int, table: Table, transaction: Transaction) -> Any:
        found = [
            (path, number)
            for path, rows in sorted(self._rows(table).items())
            for number, row in rows.items()
            if row.key == key
        ]
        if not found:
            return None
        paths, numbers = zip(*found, strict=True)
        content = deletes_content(paths[0], pa.array([0]))
        table_of = pq.read_table(pa.BufferReader(content)).schema
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pydict({"file_path": paths, "pos": numbers}, schema=table_of), sink)
        location = f"{self._data_location}/other-{next(self._numbers)}-deletes.parquet"
        content = sink.getvalue().to_pybytes()
        self._objects.put(location, content, size_bytes=len(content))
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(found),
            file_size_in_bytes=len(content),
        )
        file.spec_id = 0
        producer = self._producer(table, transaction, Operation.DELETE, (), {DELETED_KEY: str(key)})
        producer.append_deletes(file)
        producer.commit()
        return producer

    def _replace(
        self,
        table: Table,
        transaction: Transaction,
        removed: Iterable[str],
        rows: Sequence[Row],
        operation: Operation,
        summary: Mapping[str, str],
    ) -> Any:
        removed = list(removed)
        if not removed:
            return None
        producer = self._producer(table, transaction, operation, removed, summary)
        if rows:
            producer.append_data_file(self._file_of(rows))
        producer.commit()
        return producer

    def _producer(
        self,
        table: Table,
        transaction: Any,
        operation: Operation,
        removed: Iterable[str],
        summary: Mapping[str, str],
    ) -> MergingChangeFiles:
        live = self._live(table).manifests
        return MergingChangeFiles(operation, transaction, table, "main", live, set(removed), summary)

    def _live(self, table: Table) -> LiveFiles:
        return live_files.live_files(table, "main", ManifestCache())

    def _rows(self, table: Table) -> dict[str, dict[int, Row]]:
        """The rows of each data file that are not deleted, by their numbers."""
        live, deleted = self._live(table), DeletedRows(self._lake._opened)
        applying = DeleteFiles(live.deletes, "the table")
        found = {}
        for path, entry in live.data.items():
            self._objects.get(path)
            gone = set(deleted.of(entry.data_file, applying.applying_to(entry)).to_pylist())
            stored = self._lake.rows_in[self._lake.below(path)]
            found[path] = {number: row for number, row in enumerate(stored) if number not in gone}
        return found

    def _file_of(self, rows: Sequence[Row]) -> DataFile:
        path = f"other-{next(self._numbers)}.parquet"
        written = self._lake.put_rows(path, rows)
        return data_file(f"{self._data_location}/{path}", written.rows)


def _said(head: Snapshot) -> Mapping[str, str]:
    return {} if head.summary is None else head.summary.additional_properties


def _digests(said: Mapping[str, str]) -> Iterator[str]:
    """Of the batches that a commit of the product brings, in their order."""
    merged = said.get("penstock.merged")
    if merged is None:
        yield said[DIGEST]
    else:
        yield from (one.partition(":")[2] for one in merged.split(" "))
