"""A real Delta table and a real store, with files as the writers leave them, for tests without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.committers.cleanup import Cleanup, Found, StoredFile
from penstock.committers.contract import Batch, DataFile, Manifest, ManifestState, StreamKey
from penstock.committers.delta.cleanup import DeltaCleanableTable
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.manifest import KIND, build_manifest, decode
from penstock.committers.store.sql import open_store
from penstock.committers.two_phase import TwoPhaseCommitter
from penstock.writers.partitions import directory
from penstock.writers.plan import FileNames, parse_file_name

NOW = datetime.now(timezone.utc)
OLD, YOUNG = timedelta(days=30), timedelta(days=1)
GRACE = timedelta(days=7)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
DAYS = ("2026-11-20", "a b%20/c")


class Lake:
    """A real Delta table and a real store, with files as the writers leave them, 30 days ago."""

    def __init__(self, folder: Path, store_url: str | None = None, query_id: str = "q0") -> None:
        self.table = folder / "table"
        self.stores = folder / "stores"
        self.store_url = store_url or f"sqlite:///{self.stores}/0.db"
        self.store = open_store(self.store_url)
        self.query_id = query_id
        self.digests: dict[int, str] = {}
        self.runs = self.ids = 0
        self.target = self.committer().plan(SCHEMA, partition_by=["day"])
        self.register()

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.query_id, str(self.table))

    def register(self) -> None:
        self.store.register(self.stream, KIND, "ids", self.target.table_id)

    def lose_store(self) -> None:
        self.store.close()
        self.store_url = f"sqlite:///{self.stores}/{len(list(self.stores.glob('*.db')))}.db"
        self.store = open_store(self.store_url)
        self.register()

    def committer(self) -> DeltaTableCommitter:
        return DeltaTableCommitter(str(self.table), {})

    def batch(self, batch_id: int) -> Batch:
        return Batch(self.stream, batch_id, self.digests.get(batch_id, f"{batch_id:064x}"))

    def write(self, batch_id: int, age: timedelta = OLD) -> list[DataFile]:
        """The files of one task attempt, one per table partition."""
        self.runs += 1
        names = FileNames(self.query_id, f"run-{self.runs}", batch_id, 0, 0)
        return [self._write(f"{names.name(n, 'zstd')}", day, age) for n, day in enumerate(DAYS)]

    def _write(self, name: str, day: str, age: timedelta) -> DataFile:
        path = f"{directory((('day', day),))}/{name}"
        self.ids += 1
        file = self.table / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array([self.ids])}), file)
        self.set_age(path, age)
        statistics = json.dumps({"numRecords": 1})
        return DataFile(path, file.stat().st_size, 1, (("day", day),), statistics)

    def set_age(self, path: str, age: timedelta) -> None:
        os.utime(self.table / path, 2 * ((NOW - age).timestamp(),))

    def prepare(self, batch_id: int, files: Iterable[DataFile], mode: str = "append") -> Manifest:
        target = self.committer().plan(SCHEMA)
        content = target.content(list(files), "overwrite" if mode == "overwrite" else "append")
        manifest = build_manifest(self.batch(batch_id), content)
        self.runs += 1
        self.store.claim(self.stream, f"run-{self.runs}")
        self.store.prepare(manifest, f"run-{self.runs}")
        return manifest

    def commit(self, batch_id: int, files: Iterable[DataFile], mode: str = "append") -> None:
        self.prepare(batch_id, files, mode)
        self.recover()

    def recover(self) -> None:
        TwoPhaseCommitter(self.store, self.committer()).recover(self.stream)

    def cleanup(self) -> Cleanup:
        known = [stream.key for stream in self.store.streams()]
        table = DeltaCleanableTable(str(self.table), {})
        return Cleanup(self.store, table, known, known, parse_file_name, paths_of)

    def find(self) -> Found:
        return self.cleanup().find(NOW - GRACE)

    def clean_up(self) -> int:
        one = self.cleanup()
        return sum(one.delete(one.find(NOW - GRACE)))

    def on_disk(self) -> set[str]:
        files = {str(path.relative_to(self.table)) for path in self.table.rglob("*.parquet")}
        return {path for path in files if not path.startswith("_delta_log")}

    def named_by_store(self) -> set[str]:
        states = (ManifestState.PREPARED, ManifestState.COMMITTED)
        streams = [stream.key for stream in self.store.streams()]
        return {
            p
            for s in streams
            for state in states
            for m in self.store.manifests(s, state)
            for p in paths_of(m)
        }

    def versions(self) -> Mapping[int, set[str]]:
        """The files of each version of the table that can be read, as the Delta library tells."""
        newest = deltalake.DeltaTable(str(self.table)).version()
        found = {}
        for version in range(newest + 1):
            try:
                table = deltalake.DeltaTable(str(self.table), version=version)
            except deltalake.exceptions.DeltaError:
                continue
            found[version] = {os.path.relpath(uri, self.table) for uri in table.file_uris()}
        return found

    def rows(self) -> list[tuple[object, ...]]:
        """The newest version, by another engine than the one that wrote it."""
        files = [str(self.table / path) for path in max(self.versions().items())[1]]
        return duckdb.sql(f"SELECT id FROM read_parquet({files!r}) ORDER BY id").fetchall() if files else []


def paths_of(manifest: Manifest) -> list[str]:
    return [file.path for file in decode(manifest).files]


def paths(files: Iterable[DataFile | StoredFile]) -> set[str]:
    return {file.path for file in files}
