"""A stream through a sink without Spark: each batch is planned, written by one task, and committed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.committers.contract import AttemptId, Batch, Committable, DataFiles, StreamKey
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.committers.store.sql import open_store
from penstock.datasource.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.committing import commit_stream_batch
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.planning import plan_batch, store_url


@dataclass
class SinkStream:
    """The option `store` of the sink says where its manifests are."""

    sink: FileTableSink
    query_id: str = "q0"
    next_batch: int = 0

    def run(self, rows: pa.Table, schema: pa.Schema | None = None) -> None:
        """The next batch.

        Args:
            schema: of the query, if Spark hands over its rows otherwise
        """
        batch = Batch(
            StreamKey(self.query_id, self.sink.table_uri), self.next_batch, f"{self.next_batch:064x}"
        )
        planned = self._plan(batch, schema or rows.schema)
        assert planned.writers is not None, "the batch is in the table already"
        writer = planned.writers.open(AttemptId(self.query_id, "run", batch.batch_id, 0, 0))
        for part in rows.to_batches():
            writer.write(part)
        committable = Committable(batch, "run", 0, 0, writer.finish())
        commit_stream_batch(self.sink, [CommittableMessage(committable, planned.content)])
        self.next_batch += 1

    def _plan(self, batch: Batch, schema: pa.Schema) -> BatchPlan[DataFiles, LakeManifest]:
        with open_store(store_url(self.sink.options)) as store:
            return plan_batch(self.sink, store, batch, schema, overwrite=False)
