"""A Delta table that a query changes by key, with real Parquet files in the object store in memory."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from tests.simulation.changed_rows import (
    CHANGES,
    Expected,
    Row,
    SourceOfChanges,
    ids_of_batch,
    parquet_of,
)
from tests.simulation.delta_lake import DeltaSimLake, SimulatedDelta, giving_up
from tests.simulation.delta_versions import TableVersion
from tests.simulation.fake_deltalake import CheckpointFile, FakeLogFiles
from tests.simulation.lake import TableContents
from tests.simulation.scheduler import Actor, DiskFullError, Scheduler, UnreachableError

from penstock.committers.changes import file_search, key_files, tombstones
from penstock.committers.changes.key_files import FOLDER, SUFFIX, Keys, WrittenKeys, key_table
from penstock.committers.changes.rewriting import MaskedFile
from penstock.committers.changes.tombstones import Tombstones
from penstock.committers.contract import AttemptId, Batch, Changes, DataFile, DataFiles, Manifest, Mode
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
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.compaction import Compaction, CompactionPolicy, Rewritten
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.manifest import LakeManifest, PlannedFiles
from penstock.datasource.delta.sink import DeltaTarget
from penstock.writers.parquet.file_names import FileNames, parse_file_name

TOMBSTONE_FILES_MAX = 2
"""So that some histories merge them."""

FILE_BYTES = 1000
"""Of each data file, so that any two are worth compacting."""

QUERY_IDS = [f"q{number}" for number in range(1, 20)]

COMPACTION = CompactionPolicy(target_file_bytes=2**20, small_file_bytes=2**19, files_min=2, attempts_max=2)


class OfEachProcess(MutableMapping[Any, Any]):
    """What a module remembers, in each process for itself."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._of: dict[Actor | None, dict[Any, Any]] = {}

    @property
    def _own(self) -> dict[Any, Any]:
        return self._of.setdefault(self._scheduler.current, {})

    def __getitem__(self, key: Any) -> Any:
        return self._own[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._own[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


class OneAfterAnother:
    """In the place of threads."""

    def __init__(self, _count: int) -> None:
        self.map = map

    def __enter__(self) -> OneAfterAnother:
        return self

    def __exit__(self, *_error: object) -> None:
        pass


class SimulatedChangedDelta(SimulatedDelta):
    """The product's target, of a query in upsert mode."""

    def __init__(self, lake: ChangedDeltaSimLake) -> None:
        super().__init__(lake)
        self._changed = lake
        self._rewrite = lake.rewrite

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        return DeltaTarget.plan_batch(self, CHANGES, self._changed.source.changes, batch_id)


class ChangedDeltaSimLake(DeltaSimLake):
    """See `SimulatedLake`. The product finds, masks and remembers rows as it does in a real table."""

    has_whole_history = False
    """Key files and files without any row that counts never come into it."""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        super().__init__(scheduler, is_remote=is_remote)
        self.source = SourceOfChanges.of(scheduler.rng)
        self._has_vector_files = scheduler.rng.random() < 0.7
        self._small_files_max = scheduler.rng.choice([0, 0, 1, 16])
        self._tombstones: list[tuple[float, int, int]] = []
        """When, which key, and its place: written, or on their way."""
        self._expected: dict[TableVersion, Expected] = {}
        self._rows: dict[str, list[Row]] = {}
        """Of each data file that was ever there, by path."""
        self._mismatches: list[str] = []

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        scheduler, rng = self._scheduler, self._scheduler.rng

        def new_uuid() -> uuid.UUID:
            return uuid.UUID(int=rng.getrandbits(128), version=4)

        class ClockedTombstones(Tombstones):
            def __init__(self, files: TableFiles, batch: Batch, mode: Changes) -> None:
                super().__init__(files, batch, mode, lambda: scheduler.now)

        with super().installed(), pytest.MonkeyPatch.context() as patch:
            for module in (key_files, file_search):
                patch.setattr(module, "ThreadPoolExecutor", OneAfterAnother)
            patch.setattr(changes, "Tombstones", ClockedTombstones)
            patch.setattr(changes, "SMALL_FILES_MAX", self._small_files_max)
            patch.setattr(change_features, "open_log_files", lambda *_given: FakeLogFiles(self.log))
            patch.setattr(tombstones, "_indexes", OfEachProcess(scheduler))
            patch.setattr(tombstones, "FILES_MAX", TOMBSTONE_FILES_MAX)
            patch.setattr(active_files, "_kept", OfEachProcess(scheduler))
            patch.setattr(active_files, "pq", SimpleNamespace(ParquetFile=CheckpointFile))
            patch.setattr(compaction, "SnapshotCache", self.new_cache)
            patch.setattr(compaction, "now_ms", lambda: self.log.now_ms)
            patch.setattr(deletion_vectors, "uuid", SimpleNamespace(UUID=uuid.UUID, uuid4=new_uuid))
            if self._has_vector_files:
                patch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
            self.log.on_create = self._note_tombstones
            yield

    def open_table(self) -> SimulatedDelta:
        return SimulatedChangedDelta(self)

    @staticmethod
    def parse_file_name(path: str) -> Any:
        return parse_file_name(path) or parse_vector_name(path, QUERY_IDS)

    def _note_tombstones(self, path: str, content: bytes) -> None:
        if path.startswith(f"{FOLDER}/tombstones-"):
            table = pq.read_table(pa.BufferReader(content), use_threads=False)
            keys, places = table["key.0"].to_pylist(), table["order.0"].to_pylist()
            self._tombstones += [(self._scheduler.now, *pair) for pair in zip(keys, places, strict=True)]

    # Tasks ----------------------------------------------------------------------------------------------

    def write(self, attempt: AttemptId, ids: Sequence[int]) -> DataFiles:
        """As `ChangeFileWriter` does, in up to two parts: files of rows, then their keys.

        Raises:
            UnreachableError, DiskFullError: of the object store.
        """
        names, files = FileNames.of(attempt), list[DataFile]()
        try:
            for some in filter(None, (ids[:4], ids[4:])):
                in_order = sorted(map(self.source.row, some), key=lambda row: row.place)
                last = list({row.key: row for row in in_order}.values())
                rows = [row for row in last if not row.is_deleted]
                written = [self._put(str(names.name(len(files), "zstd")), rows)] if rows else []
                files += written
                keys = [pa.array([row.key for row in last], pa.int64())]
                order = [pa.array([row.place for row in last], pa.int64())]
                told = Keys(tuple(keys), tuple(order), pa.array([row.is_deleted for row in last]))
                about = WrittenKeys(told, attempt.batch_id, tuple([file.path for file in written]))
                sink = pa.BufferOutputStream()
                pq.write_table(key_table(about), sink)
                path = f"{FOLDER}/{names.name(len(files), SUFFIX)}"
                content = sink.getvalue().to_pybytes()
                files.append(DataFile(path, len(content), len(last)))
                self.objects.put(self._place(path), content, size_bytes=len(content))
        except Exception:
            self._delete(files)
            raise
        return tuple(files)

    def _put(self, path: str, rows: Sequence[Row]) -> DataFile:
        content, keys = parquet_of(rows), [row.key for row in rows]
        self._rows[path] = list(rows)
        stats = {"numRecords": len(rows), "minValues": {"key": min(keys)}, "maxValues": {"key": max(keys)}}
        self.objects.put(self._place(path), content, size_bytes=len(content))
        return DataFile(path, FILE_BYTES, len(rows), statistics=json.dumps(stats))

    def _delete(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self.objects.delete(self._place(file.path))

    def _place(self, path: str) -> str:
        return f"{self.table_uri}/{path}"

    # Files that are written again -------------------------------------------------------------------------

    def rewrite(
        self, manifest: Manifest, content: LakeManifest, files: Sequence[MaskedFile]
    ) -> Sequence[DataFile]:
        """See `RewriteFiles`."""
        run_id = f"{self._scheduler.rng.getrandbits(64):x}"
        batch, new = manifest.batch, list[DataFile]()
        for number, one in enumerate(files):
            names = FileNames(batch.stream.query_id, run_id, batch.batch_id, number, 0)
            new += self._written_again({one.file.path: one.masked}, names)
        return new

    def _written_again(self, masked: Mapping[str, pa.Array | None], names: FileNames) -> list[DataFile]:
        """The rows of some files in a new one, but for those with these numbers."""
        try:
            left = list[Row]()
            for path, numbers in masked.items():
                gone = set() if numbers is None else set(numbers.to_pylist())
                self.objects.get(self._place(path))
                left += [row for number, row in enumerate(self._rows[path]) if number not in gone]
            return [self._put(str(names.name(0, "zstd")), left)] if left else []
        except (UnreachableError, DiskFullError, FileNotFoundError) as error:
            raise RetryableError(f"a file cannot be written again: {error!r}") from error

    def maintain_table(self, query_id: str, recent: Callable[[], Any]) -> str:
        """The product's compaction of the table, as a delivery process does it."""
        table = DeltaCompactableTable(self.table_uri, {}, query_id, lambda value, _kind: str(value))
        run_id = f"{self._scheduler.rng.getrandbits(64):x}"

        def rewrite(
            content: LakeManifest,
            groups: Sequence[tuple[DataFile, ...]],
            batch_id: int,
            deleted: Mapping[str, pa.Array] = MappingProxyType({}),
        ) -> list[Rewritten]:
            return [
                Rewritten(sources, tuple(self._written_again(masked, names)))
                for number, sources in enumerate(groups)
                for masked in ({file.path: deleted.get(file.path) for file in sources},)
                for names in (FileNames(query_id, run_id, batch_id, number, 0),)
                if len(sources) > 1 or masked[sources[0].path] is not None
            ]

        sleep = self._scheduler.sleep
        return Compaction(table, rewrite, COMPACTION, recent=recent, sleep=sleep).run().summary()

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
                    gone = [number for number, row in enumerate(self._rows[path]) if row not in left]
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
        file = self._put(path, rows)
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

    def ids_of(self, batch: Batch, paths: Iterable[str]) -> set[int]:
        return set(ids_of_batch(batch.stream.query_id, batch.digest))

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
            problems=list(self._mismatches),
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
            remembered: dict[int, list[int]] = {}
            for at, key, place in self._tombstones:
                if at <= written_at:
                    remembered.setdefault(key, []).append(place)
            ignores_late = self.source.changes.late_rows == "ignore"
            rows = [[self.source.row(one) for one in ids] for ids in batches]
            expected.commit(rows, remembered, there, ignores_late=ignores_late)
        elif operation == "DELETE":
            expected.rows.pop(int(entry.info["operationParameters"]["key"]), None)
        elif operation == "WRITE" and NOTE_KEY not in entry.info:
            expected.append([row for file in entry.add for row in self._rows[file.path]])
        if Counter(there) != expected.all_rows():
            wrong = f"it has {sorted(there)} instead of {sorted(expected.all_rows().elements())}"
            self._mismatches.append(f"version {version.number} of the table, {operation}: {wrong}")
        return expected

    def _live_rows(self, version: TableVersion, path: str) -> list[Row]:
        """Of a file, whether it is still there or not."""
        rows, vector = self._rows[path], version.vectors.get(path)
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
