"""What the tests of the Delta committer share: one query writing one table, with real data files."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from penstock.committers.contract import Batch, DataFile, Manifest, Mode, Outcome, StreamKey
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.schema import DeltaTableLayout
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.file_tables.manifest import build_manifest

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@dataclass
class DeltaStream:
    """Makes batches of ids, as the planner and the tasks would, and commits them."""

    uri: str
    query_id: str = "query-1"
    schema: pa.Schema = SCHEMA
    storage_options: Mapping[str, str] = field(default_factory=dict)
    snapshot_cache: Callable[[], SnapshotCache] = SnapshotCache

    def committer(self, **options: str) -> DeltaTableCommitter:
        """As a new process has it, unless `snapshot_cache` says otherwise."""
        return DeltaTableCommitter(
            self.uri, {**self.storage_options, **options}, snapshot_cache=self.snapshot_cache()
        )

    def batch(self, batch_id: int, offsets: str = "") -> Batch:
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(StreamKey(self.query_id, self.uri), batch_id, digest)

    def prepare(
        self,
        batch_id: int,
        ids: Sequence[int],
        *,
        mode: Mode = "append",
        offsets: str = "",
        schema: pa.Schema | None = None,
        **plan: Any,
    ) -> Manifest:
        """Plan the batch, write one file of these ids, and name it in a manifest."""
        target = self.committer().plan(schema or self.schema, overwrite=mode == "overwrite", **plan)
        file = self.write(target, ids)
        return build_manifest(self.batch(batch_id, offsets), target.content([file], mode))

    def write(self, target: DeltaTableLayout, ids: Sequence[int]) -> DataFile:
        """One file below the location: `id` as given, all other columns NULL."""
        columns = [field for field in target.schema if field.name not in target.partition_by]
        rows = pa.table(
            [
                pa.array(ids, f.type) if f.name.lower() == "id" else pa.nulls(len(ids), f.type)
                for f in columns
            ],
            schema=pa.schema(columns),
        )
        path = f"{uuid.uuid4()}.parquet"
        with self._filesystem().open_output_stream(path) as sink:
            pq.write_table(rows, sink)
            size_bytes = sink.tell()
        values = tuple((name, None) for name in target.partition_by)
        return DataFile(path, size_bytes, len(ids), values, f'{{"numRecords":{len(ids)}}}')

    def commit(self, batch_id: int, ids: Sequence[int], **prepare: Any) -> Outcome:
        return self.committer().commit(self.prepare(batch_id, ids, **prepare))

    def _filesystem(self) -> PyFileSystem:
        return PyFileSystem(DeltaStorageHandler(self.uri, dict(self.storage_options)))


def stream_in(folder: Path, query_id: str = "query-1", **options: Any) -> DeltaStream:
    return DeltaStream(str(folder / "table"), query_id, **options)


def clean_up_log(stream: DeltaStream) -> None:
    """Of all that the newest version does not need, however young it is, oldest first. On the local disk."""
    table = DeltaTable(stream.uri)
    table.create_checkpoint()
    for entry in sorted(Path(stream.uri, "_delta_log").glob("*.json")):
        if int(entry.stem) < table.version():
            entry.unlink()


def _kept() -> Callable[[], SnapshotCache]:
    snapshot_cache = SnapshotCache()
    return lambda: snapshot_cache


VIEWS: Mapping[str, Callable[[], Callable[[], SnapshotCache]]] = {
    "a process that goes on": _kept,
    "a new process each time": lambda: SnapshotCache,
    "the library alone": lambda: lambda: SnapshotCache(open_files=lambda _uri, _options: None),
}
"""What a committer may know of its table already, and who writes its commits."""
