"""A Delta table in a simulation: the product's own code for it, over a fake of the Delta library."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from tests.simulation.delta_log import LOG, DeltaLog
from tests.simulation.delta_versions import Entry, TableVersion
from tests.simulation.fake_deltalake import (
    CheckpointFile,
    FakeDeltaTable,
    FakeLogFiles,
    TableFileSystem,
    table_class,
)
from tests.simulation.lake import FileLake, RewritePlan, TableContents
from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import Actor, Scheduler, UnreachableError

from penstock.committers.cleaning.cleanup import CleanableTable
from penstock.committers.contract import Batch, Mode
from penstock.committers.delta import cleanup, files, history, plan, table
from penstock.committers.delta.cleanup import DeltaCleanableTable
from penstock.committers.delta.history import NOTE_KEY
from penstock.committers.delta.log_checkpoints import LogCheckpoints
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.delta.table import KIND
from penstock.committers.file_tables.evolution import SchemaEvolution
from penstock.committers.file_tables.manifest import LakeManifest, PlannedFiles
from penstock.committers.file_tables.shared_files import SHARES_PROPERTY
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink, DeltaTarget
from penstock.datasource.lake.cleanup import SharedCleanable
from penstock.datasource.lake.pair import TablePair

ROWS = pa.schema([("id", pa.int64())])
WIDER_ROWS = ROWS.append(pa.field("extra", pa.string()))

_FOREIGN = "-foreign.parquet"


class SimulatedDelta(DeltaTarget):
    """The product's target, with the columns that the simulation writes."""

    def __init__(self, lake: DeltaSimLake) -> None:
        pair = lake.pair
        shared = {} if pair is None else {SHARES_PROPERTY: pair.name_of_iceberg}
        super().__init__(
            lake.table_uri,
            DeltaOptions(path=lake.table_uri, table_properties=shared),
            None if pair is None else pair.name_of_iceberg,
            snapshot_cache=lake._snapshot_cache(),
            log_checkpoints=LogCheckpoints(clock=lambda: 0.0),
            now_ms=lambda: lake.log.now_ms,
        )
        self._lake = lake

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedFiles:
        if self._lake.pair is not None:
            self._lake.pair.check(ROWS)
        is_wider = self._lake.wider_from is not None and batch_id >= self._lake.wider_from
        evolution = SchemaEvolution.ADD_COLUMNS if is_wider else SchemaEvolution.FAIL
        self._query = replace(self._query, schema_evolution=evolution)
        return super().plan_batch(WIDER_ROWS if is_wider else ROWS, mode, batch_id)

    def rewrite_config(self, content: LakeManifest) -> Any:
        return None if self.target_of(content) is None else RewritePlan()


class DeltaSimLake(FileLake):
    """See `SimulatedLake`."""

    kind = KIND
    """Of its manifests."""
    has_whole_history = True
    """Does it tell of every data file that was ever added?"""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.objects = ObjectStore(scheduler, is_remote=is_remote)
        self.table_uri = self.data_location = "s3://lake/table" if is_remote else "/lake/table"
        self.log = DeltaLog(self.objects, self.table_uri)
        self.pair: TablePair | None = None
        """With the table that has the same data files."""
        self.files_of_partner: Callable[[Any], Any] = lambda store: None
        """What the other table needs of them, for clean-up."""
        self.wider_from: int | None = None
        """The first batch whose rows have a column more; None for none."""
        self._scheduler = scheduler
        self.delta_table = table_class(self.log)
        """In the place of the library's class."""
        self._foreign_files = 0
        self._views_of: dict[Actor, SnapshotCache] = {}

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, the product's modules use the fakes of this lake instead of the library."""
        library_files = SimpleNamespace(PyFileSystem=lambda opened: opened, FileSelector=pafs.FileSelector)

        def open_location(table_uri: str, options: Any) -> TableFileSystem:
            assert table_uri.rstrip("/").endswith(self.table_uri)
            return TableFileSystem(self.log)

        with pytest.MonkeyPatch.context() as patch:
            for module in (table, plan, history):
                patch.setattr(module, "DeltaTable", self.delta_table)
            for module in (files, cleanup, history):
                patch.setattr(module, "DeltaStorageHandler", open_location)
                patch.setattr(module, "pafs", library_files)
            patch.setattr(files, "local_root", lambda _uri: None)
            patch.setattr(cleanup, "pq", SimpleNamespace(ParquetFile=CheckpointFile))
            yield

    def open_table(self) -> SimulatedDelta:
        """The product's target, as a new process has it.

        Its plans have the columns that the simulation writes, whatever rows are given; `rewrite_config`
        has no more than compaction asks for.
        """
        return SimulatedDelta(self)

    def _snapshot_cache(self) -> SnapshotCache:
        """Each actor is a process, and remembers what it has seen itself."""
        actor = self._scheduler.current
        if actor is None:
            return self.new_cache()
        return self._views_of.setdefault(actor, self.new_cache())

    def new_cache(self) -> SnapshotCache:
        return SnapshotCache(lambda: self._scheduler.now, lambda _uri, _options: FakeLogFiles(self.log))

    def cleanable_table(self, store: Any) -> CleanableTable:
        """The product's view for clean-up."""
        own = DeltaCleanableTable(self.table_uri, {})
        return own if self.pair is None else SharedCleanable(own, self.files_of_partner(store))

    def maintain(self, store: Any, batch: Batch) -> None:
        """The product's maintenance after a batch."""
        DeltaSink(DeltaOptions(path=self.table_uri)).maintain(store, batch)

    # Foreign writers: each loads the table, works, and commits as another engine does. ---------------------

    @property
    def exists(self) -> bool:
        """Without a step."""
        return self.log.has_files()

    def append(self, row_id: int) -> None:
        """Write a file with this id and add it."""
        with giving_up():
            seen = self.delta_table(self.table_uri)
            self._commit(seen, self._entry("WRITE", add=[self._write((row_id,))]))

    def compact(self) -> None:
        """All rows into one file."""
        with giving_up():
            seen = self.delta_table(self.table_uri)
            small = list(seen.at.files.values())
            if len(small) > 1:
                ids = self.log.read("read files", lambda: self._ids_in(small))
                big = self._write(ids)
                self._commit(seen, self._entry("OPTIMIZE", add=[big], remove=small, data_change=False))

    def vacuum(self, older_than_s: float) -> None:
        """Delete data files older than this that the table's newest version does not name.

        As delta-rs does it: it decides, notes its start in the log, deletes, and notes its end."""
        with giving_up():
            seen = self.delta_table(self.table_uri)
            unneeded = self._unneeded(seen.at, self._scheduler.now - older_than_s)
            if unneeded:
                retention = {"specifiedRetentionMillis": str(int(older_than_s * 1000))}
                self._commit(seen, self._entry("VACUUM START", retention))
                for path in unneeded:
                    self.objects.delete(path)
                self._commit(seen, self._entry("VACUUM END", {"status": "COMPLETED"}))

    def expire(self) -> None:
        """A log checkpoint, and the entries before it deleted, however young they are."""
        with giving_up():
            seen = self.delta_table(self.table_uri)
            self.log.write_checkpoint(seen.at)
            self.log.drop_before(seen.version(), self._scheduler.now)

    def versions(self) -> Sequence[int]:
        """That one could go back to, oldest first, without a step."""
        return [version.number for version in self._readable()[:-1]]

    def roll_back(self, version: int) -> None:
        """To the version's number or, every other time, to its time: the log notes either."""
        moment = math.ceil(self.log.written_at(version) * 1000) / 1000
        is_by_time = self._scheduler.rng.random() < 0.5 and self.log.number_at(moment) == version
        with giving_up():
            seen = self.delta_table(self.table_uri)
            seen.restore(datetime.fromtimestamp(moment, timezone.utc) if is_by_time else version)

    def _commit(self, seen: FakeDeltaTable, entry: Entry) -> None:
        self.log.after_commit(self.log.commit(seen.version(), entry))

    def _entry(self, operation: str, parameters: Mapping[str, str] | None = None, **actions: Any) -> Entry:
        info = {"operation": operation, "operationParameters": parameters or {}}
        return Entry(info, self.log.now_ms, **actions)

    def _write(self, ids: Sequence[int]) -> AddAction:
        path = self._new_foreign_path()
        self.objects.put(f"{self.table_uri}/{path}", tuple(ids), size_bytes=len(ids))
        return AddAction(path, len(ids), {}, self.log.now_ms, True, "{}")

    def _new_foreign_path(self) -> str:
        self._foreign_files += 1
        return f"part-{self._foreign_files:05}{_FOREIGN}"

    def _ids_in(self, files: Sequence[AddAction]) -> list[int]:
        missing = [file.path for file in files if not self.log.has(file.path)]
        if missing:
            raise FileNotFoundError(missing[0])
        stored = self.objects.objects
        return [row_id for file in files for row_id in stored[f"{self.table_uri}/{file.path}"].content]

    def _unneeded(self, version: TableVersion, older_than: float) -> list[str]:
        """What a full vacuum deletes: neither in the version, nor taken out of one or written lately."""
        skipped, found = len(self.table_uri) + 1, []
        for path, stored in self.objects.list(f"{self.table_uri}/").items():
            name = path[skipped:]
            since = version.tombstones.get(name, stored.modified_at * 1000)
            if self._is_unneeded(version, name) and since < older_than * 1000:
                found.append(path)
        return found

    def _is_unneeded(self, version: TableVersion, path: str) -> bool:
        return not path.startswith(LOG) and path not in version.files

    # The end ------------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        """Without a step."""
        newest = self.log.segment().version()
        stored, place = self.objects.objects, f"{self.table_uri}/"
        there = [path for path in newest.files if place + path in stored]
        named = {path for version in self._readable() for path in version.files}
        data_files = [path.removeprefix(place) for path in stored if path.startswith(place)]
        return TableContents(
            rows=self._ids_there(there),
            added=Counter(file.path for version in newest.lineage() for file in _added(version)),
            missing=[path for path in newest.files if place + path not in stored],
            orphans=[path for path in data_files if not path.startswith(LOG) and path not in named],
            tokens=[token for version in newest.lineage() for token in _tokens(version)],
            digests=dict(_digest(entry) for entry in self._history_of(newest) if _is_of_batch(entry)),
        )

    def _ids_there(self, paths: Sequence[str]) -> Counter[int]:
        stored, place = self.objects.objects, f"{self.table_uri}/"
        return Counter(row_id for path in paths for row_id in stored[place + path].content)

    def _history_of(self, version: TableVersion) -> Iterator[Entry]:
        """The entries of the log that are left of it: not one that lands where the log was cleaned up."""
        known = {id(one.entry) for one in version.lineage()}
        return (entry for entry in self.log.entries() if id(entry) in known)

    def _readable(self) -> list[TableVersion]:
        """Versions that the log can still make, oldest first, without a step."""
        found = []
        for number in range(self.log.segment().number + 1):
            with suppress(DeltaError):
                found.append(self.log.segment(number).version())
        return found


@contextmanager
def giving_up() -> Iterator[None]:
    """A foreign writer whose request fails, or who loses a race, gives up."""
    with suppress(DeltaError, OSError, UnreachableError):
        yield


def _added(version: TableVersion) -> Iterator[AddAction]:
    """Files of the product that the version has for the first time.

    RESTORE brings back those of earlier versions. Foreign writers add a file twice when their request is sent
    twice, as delta-rs does; a path is still one file.
    """
    if version.entry.info["operation"] != "RESTORE":
        changed = {file.path for file in version.entry.remove}
        added = (file for file in version.entry.add if file.path not in changed)
        yield from (file for file in added if not file.path.endswith(_FOREIGN))


def _is_of_batch(entry: Entry) -> bool:
    return "query_id" in json.loads(entry.info.get(NOTE_KEY, "{}")).get("penstock", ())


def _digest(entry: Entry) -> tuple[tuple[str, int], str]:
    said = json.loads(entry.info[NOTE_KEY])["penstock"]
    return (said["query_id"], said["batch_id"]), said["digest"]


def _tokens(version: TableVersion) -> Iterator[tuple[str, int, int]]:
    for app_id, batch_id in version.entry.txn.items():
        product, query_id, *what = app_id.split(":")
        if product == "penstock" and not what:
            yield query_id, batch_id, version.number
