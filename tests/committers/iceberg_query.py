"""One query's batches through the Iceberg sink and the store: what Spark and the sink do, without Spark."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from penstock.committers.commit_runner import Retry
from penstock.committers.contract import (
    AlreadyCommitted,
    AttemptId,
    Batch,
    Committable,
    Committed,
    DataFiles,
    Manifest,
    ManifestState,
    StreamKey,
)
from penstock.committers.decision import Action
from penstock.committers.file_tables.manifest import build_manifest
from penstock.committers.recovery import Recovered
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.two_phase import TwoPhaseCommitter
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.sink import mode_of
from penstock.writers.parquet.write_config import WriteConfig


class WrittenBatch(NamedTuple):
    """A batch whose tasks have succeeded, not prepared yet."""

    manifest: Manifest
    committables: list[Committable[DataFiles]]
    plan: WriteConfig


@dataclass(frozen=True)
class IcebergQuery:
    options: IcebergOptions
    store_url: str
    query_id: str = "q"

    @cached_property
    def sink(self) -> IcebergSink:
        return IcebergSink(self.options)

    @property
    def key(self) -> StreamKey:
        return StreamKey(self.query_id, self.sink.table_uri)

    def run(self, batch_id: int, rows: pa.Table, *, overwrite: bool = False) -> WrittenBatch:
        """From the plan to the mark, maintenance included."""
        written = self.write(batch_id, rows, overwrite=overwrite)
        self.commit(written)
        with open_store(self.store_url) as store:
            self.sink.maintain(store, batch_id)
        return written

    def write(self, batch_id: int, rows: pa.Table, *, overwrite: bool = False) -> WrittenBatch:
        batch = Batch(self.key, batch_id, hashlib.sha256(str(batch_id).encode()).hexdigest())
        with open_store(self.store_url) as store:
            table = self.sink.open_table()
            assert TwoPhaseCommitter(store, table).begin(batch) is Action.WRITE
            planned = table.plan_batch(rows.schema, mode_of(overwrite), batch_id)
            store.register_stream(self.key, self.sink.kind, table_id=planned.content.table_id)
        writer = planned.writers.open(AttemptId(self.query_id, "run", batch_id, 0, 0))
        for part in rows.to_batches():
            writer.write(part)
        files = writer.finish()
        manifest = build_manifest(batch, planned.content.with_files(files))
        assert isinstance(planned.writers, WriteConfig)
        return WrittenBatch(manifest, [Committable(batch, "run", 0, 0, files)], planned.writers)

    def commit(self, written: WrittenBatch) -> Committed | AlreadyCommitted:
        with open_store(self.store_url) as store:
            return self._committer(store).commit(written.manifest, written.committables)

    def recover(self) -> list[Recovered]:
        with open_store(self.store_url) as store:
            return self._committer(store).recovery.recover(self.key)

    def _committer(self, store: SqlManifestStore) -> TwoPhaseCommitter[DataFiles]:
        """Waits for nothing."""
        retry = Retry(self.options.commit_attempts_max)
        return TwoPhaseCommitter(store, self.sink.open_table(), retry, sleep=lambda _: None)

    def state(self, batch_id: int) -> ManifestState | None:
        with open_store(self.store_url) as store:
            record = store.record(self.key, batch_id)
        return None if record is None else record.state
