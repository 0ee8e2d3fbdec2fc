"""The target of a query with routes that is there from the start: the rows of all tables, in the row log.

The batches of a query with routes have a manifest here, too: it says that those of all tables are prepared.
So a plan costs the same for any number of tables, and a replay writes nothing. As all manifests of a batch
are stored in one transaction, the tables need no record of the batches that have no rows for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ...committers.contract import (
    Batch,
    DataFile,
    Manifest,
    ManifestRecord,
    Mode,
    PartitionField,
    PlannedBatch,
    StreamKey,
    TaskWriterFactory,
)
from ...committers.delta.probing import storage_probe
from ...committers.errors import ConfigurationError
from ...committers.probing import Probe
from ...committers.protocol.checkpoint_forks import mismatch
from ...committers.requests.committer import RequestCommitter
from ...committers.requests.content import RequestManifests, RequestPayload
from ...committers.requests.contract import Sent
from ...committers.row_log.log import RowLog
from ...writers.row_log.route_names import RouteColumns
from ...writers.row_log.routes import RouteWriters
from ..checked import ChecksByDryRun
from ..destinations import DestinationType
from ..options.delivery import DeliveryOptions
from ..options.row_log import create_row_log, storage_options_of
from ..plain_sink import StorageSink
from ..requests.stored import StoredRequests

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    from ..sink import Destination, Sink
    from ..stored.table_access import TableAccess

KIND = "routes"


@dataclass(frozen=True, slots=True)
class RoutesSink(StorageSink):
    """See `Sink`. Its address is the template of the tables' addresses."""

    table_uri: str
    options: DeliveryOptions  # type: ignore[assignment]  # those of the sample, see `Templates`
    location: str
    """Of the row log."""
    columns: RouteColumns
    sample: Sink[Any, Any] = field(repr=False, compare=False)
    kind: str = KIND

    @property
    def storage_options(self) -> Mapping[str, str]:
        return storage_options_of(self.options)

    def open_table(self) -> RoutesTarget:
        return RoutesTarget(self)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        return (storage_probe(self.location, self.storage_options),)

    def partitioning(self) -> tuple[PartitionField, ...]:
        """See `Partitioned`: by route, so that a batch writes one file for each table."""
        return tuple(PartitionField(name, (name,), "identity") for name in self.columns.names)

    def open_filesystem(self, location: str) -> tuple[FileSystem, str]:
        return self.sample.open_filesystem(location)


class RoutesTarget(ChecksByDryRun, RequestCommitter):
    """See `Target`. Its commit only records that the batch is prepared for all tables."""

    def __init__(self, sink: RoutesSink) -> None:
        self._sink = sink
        super().__init__(KIND, sink.table_uri, None, RowLog(sink.location, dict(sink.storage_options)))

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[RequestPayload, str]:
        if mode != "append":
            raise ConfigurationError(
                "With routeBy a query cannot replace rows: tables without rows in the batch are not known. "
                "Write in the output mode append."
            )
        sink = self._sink
        sink.columns.check_schema(rows)
        create_row_log(sink.location)
        writers = RouteWriters(sink.location, sink.storage_options, sink.columns, rows)
        return PlannedBatch(cast("TaskWriterFactory[RequestPayload]", writers), KIND, "", is_lasting=False)

    def manifest(self, batch: Batch, content: str, payloads: Sequence[RequestPayload]) -> Manifest:
        manifest = self._manifests.encode_sent(batch, [one for one in payloads if isinstance(one, Sent)])
        return replace(manifest, is_empty=False)  # or the batch would leave no token

    def check_supersede(self, record: ManifestRecord) -> None:
        """See `RefusesOtherRows`: tables may have delivered the rows."""
        raise mismatch(record.batch, "prepared from other source offsets")


def _not_delivered(stream: StreamKey, options: Mapping[str, str], access: TableAccess) -> Destination:
    raise ConfigurationError(
        f"{stream} stands for the tables of a query with routeBy, which are delivered each on its own. Name "
        "one of them."
    )


def _no_files(manifest: Manifest) -> Sequence[DataFile]:
    return RequestManifests(KIND).files(manifest)


DESTINATION = DestinationType(
    kind=KIND,
    data_source="",
    options=(),
    sink=_not_delivered,
    stored_table=lambda stream, access: StoredRequests(KIND, stream.table_uri, access.for_object_store(())),
    files_of=_no_files,
)
