"""A Delta table that a query changes by key, with real Parquet files in the object store in memory."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction
from tests.simulation.changed_files import ChangedFiles, OfEachProcess
from tests.simulation.changed_rows import (
    CHANGES,
    Expected,
    Row,
    ids_of_batch,
)
from tests.simulation.delta_lake import DeltaSimLake, SimulatedDelta, giving_up
from tests.simulation.delta_versions import TableVersion
from tests.simulation.fake_deltalake import CheckpointFile, FakeLogFiles
from tests.simulation.lake import TableContents
from tests.simulation.scheduler import Scheduler

from penstock.committers.changes.key_files import FOLDER
from penstock.committers.contract import Mode
from penstock.committers.delta import active_files, change_features, changes, compaction, deletion_vectors
from penstock.committers.delta.change_features import has_vectors
from penstock.committers.delta.compaction import DeltaCompactableTable
from penstock.committers.delta.deletion_vectors import (
    DeletionVector,
    NewVectors,
    parse_vector_name,
    read_vector,
)
from penstock.committers.delta.history import NOTE_KEY
from penstock.committers.file_tables.manifest import PlannedFiles
from penstock.datasource.delta.sink import DeltaTarget
from penstock.writers.parquet.file_names import parse_file_name

QUERY_IDS = [f"q{number}" for number in range(1, 20)]


class SimulatedChangedDelta(SimulatedDelta):
    """The product's target, of a query in upsert mode."""

    def __init__(self, lake: ChangedDeltaSimLake) -> None:
        super().__init__(lake)
        self._changed = lake
        self._rewrite = lake.rewrite

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        return DeltaTarget.plan_batch(self, CHANGES, self._changed.source.changes, batch_id)


class ChangedDeltaSimLake(ChangedFiles, DeltaSimLake):
    """See `SimulatedLake`."""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        super().__init__(scheduler, is_remote=is_remote)
        self._has_vector_files = scheduler.rng.random() < 0.7
        self._small_files_max = scheduler.rng.choice([0, 0, 1, 16])
        self._expected: dict[TableVersion, Expected] = {}

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        scheduler, rng = self._scheduler, self._scheduler.rng

        def new_uuid() -> uuid.UUID:
            return uuid.UUID(int=rng.getrandbits(128), version=4)

        with super().installed(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(changes, "Tombstones", self.clocked_tombstones())
            patch.setattr(changes, "SMALL_FILES_MAX", self._small_files_max)
            patch.setattr(change_features, "open_log_files", lambda *_given: FakeLogFiles(self.log))
            patch.setattr(active_files, "_kept", OfEachProcess(scheduler))
            patch.setattr(active_files, "pq", SimpleNamespace(ParquetFile=CheckpointFile))
            patch.setattr(compaction, "SnapshotCache", self.new_cache)
            patch.setattr(compaction, "now_ms", lambda: self.log.now_ms)
            patch.setattr(deletion_vectors, "uuid", SimpleNamespace(UUID=uuid.UUID, uuid4=new_uuid))
            if self._has_vector_files:
                patch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
            self.log.on_create = self.note_tombstones
            yield

    def open_table(self) -> SimulatedDelta:
        return SimulatedChangedDelta(self)

    @staticmethod
    def parse_file_name(path: str) -> Any:
        return parse_file_name(path) or parse_vector_name(path, QUERY_IDS)

    @staticmethod
    def statistics_of(rows: Sequence[Row]) -> str:
        keys = [row.key for row in rows]
        stats = {"numRecords": len(rows), "minValues": {"key": min(keys)}, "maxValues": {"key": max(keys)}}
        return json.dumps(stats)

    def compactable_table(self, query_id: str) -> DeltaCompactableTable:
        return DeltaCompactableTable(self.table_uri, {}, query_id, lambda value, _kind: str(value))

    # Foreign writers ------------------------------------------------------------------------------------

    def append(self, row_id: int) -> None:
        with giving_up():
            seen = self.delta_table(self.table_uri)
            self._commit(seen, self._entry("WRITE", add=[self._add([self.source.row(row_id)])]))

    def compact(self) -> None:
        with giving_up():
            seen = self.delta_table(self.table_uri)
            small = list(seen.at.files.values())
            if len(small) > 1:
                rows = self.log.read("read files", lambda: self._rows_of_files(seen.at, small))
                big = [self._add(rows)] if rows else []
                self._commit(seen, self._entry("OPTIMIZE", add=big, remove=small, data_change=False))

    def delete_key(self) -> None:
        """DELETE, by an engine that masks rows, or writes files again if the table allows no vectors."""
        with giving_up():
            seen, key = self.delta_table(self.table_uri), self._scheduler.rng.randrange(self.source.keys)
            can_mask = has_vectors(seen.metadata().configuration)
            removed, added, new, vectors = [], [], NewVectors("foreign", 0), {}
            for path, file in seen.at.files.items():
                rows = self.log.read("read file", partial(self._rows_of_files, seen.at, [file]))
                left = [row for row in rows if row.key != key]
                if len(left) < len(rows):
                    removed.append(file)
                if left and len(left) < len(rows):
                    gone = [number for number, row in enumerate(self.rows_in[path]) if row not in left]
                    added.append(file if can_mask else self._add(left))
                    vectors.update({path: new.add(pa.array(gone)).to_action()} if can_mask else {})
            if new.file is not None:
                path, content = new.file
                self.objects.put(self._place(path), content, size_bytes=len(content))
            if removed:
                actions: Any = {"add": added, "remove": removed, "vectors": vectors}
                self._commit(seen, self._entry("DELETE", {"key": str(key)}, **actions))

    def _add(self, rows: Sequence[Row]) -> AddAction:
        path = self._new_foreign_path()
        file = self.put_rows(path, rows)
        return AddAction(
            path, file.size_bytes, {}, self.log.now_ms, True, json.dumps({"numRecords": len(rows)})
        )

    def _rows_of_files(self, version: TableVersion, files: Sequence[AddAction]) -> list[Row]:
        """Without a step.

        Raises:
            FileNotFoundError: one is missing.
        """
        vectors = [DeletionVector.of(one) for one in version.vectors.values()]
        paths = [*(file.path for file in files), *filter(None, (vector.path for vector in vectors))]
        if missing := [path for path in paths if not self.log.has(path)]:
            raise FileNotFoundError(missing[0])
        return [row for file in files for row in self._live_rows(version, file.path)]

    def _is_unneeded(self, version: TableVersion, path: str) -> bool:
        in_use = {DeletionVector.of(one).path for one in version.vectors.values()}
        return not path.startswith(FOLDER) and path not in in_use and super()._is_unneeded(version, path)

    # The end --------------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        """What counts as the rows of the table are those that have come into it, also if they were replaced
        or deleted since. Whether the table has the right ones is told by its problems.
        """
        newest = self.log.segment().version()
        lineage = newest.lineage()
        for version in lineage:
            if version not in self._expected:
                self._expected[version] = self._expected_at(version, lineage)
        stored = self.objects.objects
        vectors = [DeletionVector.of(one).path for one in newest.vectors.values()]
        needed = [*newest.files, *(path for path in vectors if path is not None)]
        contents = super().contents()
        return replace(
            contents,
            rows=self._expected[newest].ids,
            missing=[path for path in needed if self._place(path) not in stored],
            problems=list(self.mismatches),
        )

    def _ids_there(self, paths: Iterable[str]) -> Counter[int]:
        return Counter()

    def _expected_at(self, version: TableVersion, lineage: Sequence[TableVersion]) -> Expected:
        entry, operation = version.entry, version.entry.info["operation"]
        if version.previous is None:
            return Expected()
        expected = self._expected[version.previous].copy()
        there = [row for path in version.files for row in self._live_rows(version, path)]
        if entry.restored is not None:
            expected = self._expected[next(one for one in lineage if one.number == entry.restored)].copy()
        elif batches := list(_batches(version)):
            written_at = self.objects.ever[self.log.path(version.number)].modified_at
            expected = self.expected_after(expected, batches, there, written_at)
        elif operation == "DELETE":
            expected.rows.pop(int(entry.info["operationParameters"]["key"]), None)
        elif operation == "WRITE" and NOTE_KEY not in entry.info:
            expected.append([row for file in entry.add for row in self.rows_in[file.path]])
        self.compare(f"{version.number} of the table, {operation}", there, expected)
        return expected

    def _live_rows(self, version: TableVersion, path: str) -> list[Row]:
        """Of a file, whether it is still there or not."""
        rows, vector = self.rows_in[path], version.vectors.get(path)
        if vector is None:
            return rows
        content_of = lambda path: self.objects.ever[self._place(path)].content  # noqa: E731
        gone = set(read_vector(DeletionVector.of(vector), content_of, self.table_uri).to_pylist())
        return [row for number, row in enumerate(rows) if number not in gone]


def _batches(version: TableVersion) -> Iterator[range]:
    """The rows of the batches that a commit of the product brings, in their order."""
    if NOTE_KEY in version.entry.info:
        said = json.loads(version.entry.info[NOTE_KEY])["penstock"]
        if "query_id" in said:
            merged = said.get("merged") or f"{said['batch_id']}:{said['digest']}"
            for one in merged.split(" "):
                yield ids_of_batch(said["query_id"], one.partition(":")[2])
