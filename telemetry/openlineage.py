"""Run events by the official client of OpenLineage, which is configured by its own means.

A batch of a target is a run, and so is a delivery. Their parent is the query, with Spark's id of the query
as its run id. Run ids are derived: after a crash the same run is told again, and a backend updates it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version
from typing import Any

import attr
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, RunEvent, RunState
from openlineage.client.event_v2 import Run as LineageRun
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    RunFacet,
    dataset_version_dataset,
    datasource_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
)

from ..committers.lineage import SourceLineage
from ..committers.texts.safe_text import safe, shortened
from . import observer as base
from .datasets import DatasetName, dataset_of, place_of
from .observer import Run
from .sending import Sender, silence

PRODUCER = f"urn:penstock:{version('penstock')}"
OFFSETS_FACET, BATCHES_FACET = "penstock_offsets", "penstock_batches"
PARTITIONS_MAX = 2000
"""Partitions of a topic in one event."""
ERROR_CHARS_MAX = 10_000


@attr.define
class OffsetsFacet(InputDatasetFacet):
    """What a batch or a delivery has read of a source."""

    source: str
    """Its position in the query, or its name."""
    partitions: list[dict[str, int | None]] = attr.field(factory=list)
    """Of a Kafka topic: `partition`, `from`, and `until`, exclusive. `from` is null for a new partition."""
    start: str | None = None
    """Of another source: its offset, as in Spark's offset log."""
    end: str | None = None

    @staticmethod
    def _get_schema() -> str:
        return "urn:penstock:facets:offsets:1"


@attr.define
class BatchesFacet(RunFacet):
    """The batches of a run."""

    queryId: str  # noqa: N815
    firstBatchId: int  # noqa: N815
    lastBatchId: int  # noqa: N815
    deliveryId: int | None = None  # noqa: N815

    @staticmethod
    def _get_schema() -> str:
        return "urn:penstock:facets:batches:1"


@dataclass(frozen=True, slots=True)
class _Event:
    run: Run
    state: RunState
    at: datetime
    error: str = ""


class OpenLineage(base.Observer):
    """Makes and sends events in the background.

    Args:
        client: for tests; None: configured by the environment or `openlineage.yml`
    """

    def __init__(self, client: OpenLineageClient | None = None, sender: Sender | None = None) -> None:
        silence("urllib3.connectionpool", "openlineage.client.transport.http")
        self._client = client
        self._sender = sender or Sender("OpenLineage")
        self._namespace = os.environ.get("OPENLINEAGE_NAMESPACE") or "default"

    def on_start(self, run: Run) -> None:
        """See `Observer`."""
        self._put(run, RunState.START)

    def on_complete(self, run: Run) -> None:
        """See `Observer`."""
        self._put(run, RunState.COMPLETE)

    def on_fail(self, run: Run, error: str) -> None:
        """See `Observer`."""
        self._put(run, RunState.FAIL, error)

    def wait(self, wait_s: float) -> None:
        self._sender.wait(wait_s)

    def _put(self, run: Run, state: RunState, error: str = "") -> None:
        event = _Event(run, state, datetime.now(timezone.utc), error)
        self._sender.put(partial(self._send, event))

    def _send(self, event: _Event) -> None:
        if self._client is None:
            self._client = OpenLineageClient()
        self._client.emit(run_event(event, self._namespace))


def run_event(event: _Event, namespace: str) -> RunEvent:
    """Return an event of a run, with everything that is known by then."""
    run, query_id = event.run, event.run.batch.stream.query_id
    output = dataset_of(run.kind, run.batch.stream.table_uri)
    query = run.query.query_name or query_id
    step = "batch" if run.delivery_id is None else "delivery"
    facets: dict[str, RunFacet] = {
        "parent": parent_run.ParentRunFacet(
            run=parent_run.Run(runId=str(_uuid(query_id))),
            job=parent_run.Job(namespace=namespace, name=safe(query)),
            producer=PRODUCER,
        ),
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=version("pyspark"),
            name="spark",
            openlineageAdapterVersion=version("penstock"),
            producer=PRODUCER,
        ),
        BATCHES_FACET: BatchesFacet(
            query_id, run.batches[0].batch_id, run.batch.batch_id, run.delivery_id, producer=PRODUCER
        ),
    }
    if event.error:
        text = shortened(safe(event.error), ERROR_CHARS_MAX)
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=text, programmingLanguage="PYTHON", producer=PRODUCER
        )
    job_type = job_type_job.JobTypeJobFacet(
        processingType="STREAMING", integration="PENSTOCK", jobType=step.upper(), producer=PRODUCER
    )
    return RunEvent(
        eventType=event.state,
        eventTime=event.at.isoformat(),
        run=LineageRun(runId=str(run_id(run)), facets=facets),
        job=Job(
            namespace=namespace, name=f"{safe(query)}.{step}.{output.name}", facets={"jobType": job_type}
        ),
        inputs=[one for source in run.sources for one in _inputs(run, source.lineage(), namespace)],
        outputs=[_output(run, output, event.state)],
        producer=PRODUCER,
    )


def run_id(run: Run) -> uuid.UUID:
    """Return the id of a run. It is derived from the batch, or from the delivery in the store."""
    batch = run.batch
    which = f"batch {batch.batch_id}" if run.delivery_id is None else f"delivery {run.delivery_id}"
    return uuid.uuid5(_uuid(batch.stream.query_id), f"{batch.stream.table_uri} {which} {batch.digest}")


def _uuid(query_id: str) -> uuid.UUID:
    """Return Spark's id of a query, which is a UUID. That of a batch write has a prefix."""
    try:
        return uuid.UUID(query_id)
    except ValueError:
        return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:penstock:query:{query_id}")


def _output(run: Run, name: DatasetName, state: RunState) -> OutputDataset:
    facets: dict[str, Any] = {
        "dataSource": datasource_dataset.DatasourceDatasetFacet(
            name=name.namespace, uri=name.namespace, producer=PRODUCER
        )
    }
    if run.query.columns:
        fields = [
            schema_dataset.SchemaDatasetFacetFields(name=column, type=kind)
            for column, kind in run.query.columns
        ]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)
    output = OutputDataset(namespace=name.namespace, name=name.name, facets=facets)
    if state is not RunState.COMPLETE or not run.is_committed:
        return output
    if run.table_version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(
            datasetVersion=str(run.table_version), producer=PRODUCER
        )
    output.outputFacets = {
        "outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=run.rows, size=run.size_bytes, fileCount=run.files, producer=PRODUCER
        )
    }
    return output


def _inputs(run: Run, source: SourceLineage, namespace: str) -> Iterator[InputDataset]:
    """Return a topic of Kafka each, the folders of a file source, or the source itself if that is all that is
    known of it.
    """
    if not source.end:
        for topic in dict.fromkeys(one.topic for one in source.partitions):
            read = [one for one in source.partitions if one.topic == topic]
            listed: list[dict[str, int | None]] = [
                {"partition": one.partition, "from": one.from_offset, "until": one.until_offset}
                for one in read[:PARTITIONS_MAX]
            ]
            facet = OffsetsFacet(source.source, listed, producer=PRODUCER)
            yield InputDataset(run.query.kafka or "kafka", topic, inputFacets={OFFSETS_FACET: facet})
        return
    facet = OffsetsFacet(source.source, start=source.start or None, end=source.end, producer=PRODUCER)
    names = [place_of(folder) for folder in run.query.source_folders]
    if not names:
        query = run.query.query_name or run.batch.stream.query_id
        names = [DatasetName(namespace, f"{safe(query)}.source.{source.source}")]
    for name in names:
        yield InputDataset(name.namespace, name.name, inputFacets={OFFSETS_FACET: facet})


def observer() -> OpenLineage:
    """Return the observer of a process."""
    return OpenLineage()
