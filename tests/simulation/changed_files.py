"""Tables that a query changes by key, with real Parquet files in the object store in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.simulation.changed_rows import Expected, Row, SourceOfChanges, ids_of_batch, parquet_of
from tests.simulation.inline_executor import InlineExecutor
from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import Actor, DiskFullError, Scheduler, UnreachableError

from penstock.committers.changes import file_search, key_files, tombstones
from penstock.committers.changes.key_files import FOLDER, SUFFIX, Keys, WrittenKeys, key_table
from penstock.committers.changes.rewriting import MaskedFile
from penstock.committers.changes.tombstones import Tombstones
from penstock.committers.contract import AttemptId, Batch, Changes, DataFile, DataFiles, Manifest
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.compaction import (
    CompactableTable,
    Compaction,
    CompactionPolicy,
    Rewritten,
)
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.writers.parquet.file_names import FileNames

TOMBSTONE_FILES_MAX = 2
"""So that some histories merge them."""

FILE_BYTES = 1000
"""Of each data file, so that any two are worth compacting."""

COMPACTION = CompactionPolicy(target_file_bytes=2**20, small_file_bytes=2**19, files_min=2, attempts_max=2)


class OfEachProcess(MutableMapping[Any, Any]):
    """What a module remembers, in each process for itself."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._processes = scheduler
        self._of: dict[Actor | None, dict[Any, Any]] = {}

    @property
    def _own(self) -> dict[Any, Any]:
        return self._of.setdefault(self._processes.current, {})

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


class ChangedFiles:
    """What lakes have in common whose rows a query changes by key. A mix-in; see `SimulatedLake`. The product
    finds, masks and remembers rows as it does in a real table.
    """

    has_whole_history = False
    """Key files and files without any row that counts never come into it."""
    objects: ObjectStore
    data_location: str
    statistics_of: Callable[[Sequence[Row]], str]
    """Of a data file with these rows, as the writers of the format tell them."""
    compactable_table: Callable[[str], CompactableTable]
    """The product's, for a query id."""
    delete_key: Callable[[], object]
    """DELETE of the rows with one key, by another engine."""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        super().__init__(scheduler, is_remote=is_remote)  # type: ignore[call-arg]
        self.source = SourceOfChanges.of(scheduler.rng)
        self.rows_in: dict[str, list[Row]] = {}
        """Of each data file that was ever there, by its path below the location of the data files."""
        self.mismatches: list[str] = []
        self._processes = scheduler
        self._tombstones: list[tuple[float, int, int]] = []
        """When, which key, and its place: written, or on their way."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        scheduler = self._processes
        with super().installed(), pytest.MonkeyPatch.context() as patch:  # type: ignore[misc]
            for module in (key_files, file_search):
                patch.setattr(module, "ThreadPoolExecutor", InlineExecutor)
            patch.setattr(tombstones, "_indexes", OfEachProcess(scheduler))
            patch.setattr(tombstones, "FILES_MAX", TOMBSTONE_FILES_MAX)
            yield

    def clocked_tombstones(self) -> type[Tombstones]:
        """The product's class, by the clock of the simulation."""
        scheduler = self._processes

        class ClockedTombstones(Tombstones):
            def __init__(self, files: TableFiles, batch: Batch, mode: Changes, **of_format: Any) -> None:
                super().__init__(files, batch, mode, lambda: scheduler.now, **of_format)

        return ClockedTombstones

    def note_tombstones(self, path: str, content: bytes) -> None:
        if path.startswith(f"{FOLDER}/tombstones-"):
            table = pq.read_table(pa.BufferReader(content), use_threads=False)
            keys, places = table["key.0"].to_pylist(), table["order.0"].to_pylist()
            self._tombstones += [(self._processes.now, *pair) for pair in zip(keys, places, strict=True)]

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
                written = [self.put_rows(str(names.name(len(files), "zstd")), rows)] if rows else []
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

    def put_rows(self, path: str, rows: Sequence[Row]) -> DataFile:
        content = parquet_of(rows)
        self.rows_in[path] = list(rows)
        self.objects.put(self._place(path), content, size_bytes=len(content))
        return DataFile(path, FILE_BYTES, len(rows), statistics=self.statistics_of(rows))

    def _delete(self, files: Iterable[DataFile]) -> None:
        for file in files:
            self.objects.delete(self._place(file.path))

    def _place(self, path: str) -> str:
        return f"{self.data_location}/{path}"

    # Files that are written again -------------------------------------------------------------------------

    def rewrite(
        self, manifest: Manifest, content: LakeManifest, files: Sequence[MaskedFile]
    ) -> Sequence[DataFile]:
        """See `RewriteFiles`."""
        run_id = f"{self._processes.rng.getrandbits(64):x}"
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
                left += [row for number, row in enumerate(self.rows_in[path]) if number not in gone]
            return [self.put_rows(str(names.name(0, "zstd")), left)] if left else []
        except (UnreachableError, DiskFullError, FileNotFoundError) as error:
            raise RetryableError(f"a file cannot be written again: {error!r}") from error

    def maintain_table(self, query_id: str, recent: Callable[[], Any]) -> str:
        """The product's compaction of the table, as a delivery process does it."""
        table = self.compactable_table(query_id)
        run_id = f"{self._processes.rng.getrandbits(64):x}"

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

        sleep = self._processes.sleep
        return Compaction(table, rewrite, COMPACTION, recent=recent, sleep=sleep).run().summary()

    # What must be there ---------------------------------------------------------------------------------

    def ids_of(self, batch: Batch, paths: Iterable[str]) -> set[int]:
        return set(ids_of_batch(batch.stream.query_id, batch.digest))

    def expected_after(
        self, before: Expected, batches: Sequence[range], there: Sequence[Row], written_at: float
    ) -> Expected:
        """Return the rows after a commit of the product that brings the rows of some batches.

        Args:
            there: the rows that the table has now
            written_at: when it was committed
        """
        expected, remembered = before.copy(), dict[int, list[int]]()
        for at, key, place in self._tombstones:
            if at <= written_at:
                remembered.setdefault(key, []).append(place)
        ignores_late = self.source.changes.late_rows == "ignore"
        rows = [[self.source.row(one) for one in ids] for ids in batches]
        expected.commit(rows, remembered, there, ignores_late=ignores_late)
        return expected

    def compare(self, version: str, there: Sequence[Row], expected: Expected) -> None:
        """Note if a version of the table does not have the rows that it must have."""
        if Counter(there) != expected.all_rows():
            wrong = f"it has {sorted(there)} instead of {sorted(expected.all_rows().elements())}"
            self.mismatches.append(f"version {version}: {wrong}")
