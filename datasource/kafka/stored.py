"""Kafka topics for commands and the delivery process, opened by their address in the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ...committers.errors import check_installed
from ...committers.kafka.cluster import KIND, TIMEOUT_S, KafkaAddress
from ..destinations import DestinationType
from ..options.declaring import options_of
from ..requests.service import RequestService
from ..requests.stored import StoredRequests
from ..stored.stored_table import TableNow
from .options import KafkaOptions, cluster_of

if TYPE_CHECKING:
    from ...committers.contract import DataFile, Manifest, StreamKey, Token
    from ...committers.kafka.committer import KafkaCommitter
    from ...committers.row_log.log import LoggedBatch
    from ...committers.store.sql import SqlManifestStore
    from ..stored.table_access import TableAccess
    from .sink import KafkaSink

_PREFIX = "kafka."


def require_client() -> None:
    """See `check_installed`."""
    check_installed(
        "penstock.kafka needs",
        "confluent-kafka",
        "penstock[kafka]",
        module="confluent_kafka",
        where="driver and where the delivery process runs",
    )


@dataclass(frozen=True, slots=True)
class StoredKafka(StoredRequests):
    """See `StoredTable`. Reads the markers, and cleans the row log; it sends no rows."""

    stream: StreamKey | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the client, with the secrets of this process."""

    def committer(self) -> KafkaCommitter:  # type: ignore[override]
        require_client()
        from ...committers.kafka.committer import KafkaCommitter

        address = KafkaAddress.parse(self.table_uri)
        return KafkaCommitter(cluster_of(address, self.properties, TIMEOUT_S), address)

    def now(self) -> TableNow | None:  # type: ignore[override]
        committer = self.committer()
        target_id = committer.target_id()
        if target_id is None:
            return None
        marker = None if self.stream is None else committer.marker(self.stream.query_id)
        return TableNow(target_id, 0 if marker is None else marker.revision)

    def logged_batches(self, manifest: Manifest) -> Sequence[LoggedBatch] | None:
        from ...committers.kafka.content import batches_in

        return batches_in(manifest)

    def token_of(self, store: SqlManifestStore, stream: StreamKey) -> Token | None:
        return self.committer().token(stream.query_id)


@dataclass(frozen=True, slots=True)
class KafkaMarker:
    """See `QueryRecords`: the marker of a query."""

    sink: KafkaSink
    query_id: str

    def found(self) -> Sequence[str]:
        return self.sink.open_table().found(self.query_id)

    def remove(self) -> None:
        self.sink.open_table().remove(self.query_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaService(RequestService):
    """What opens topics, from the options of a query or the address in the store."""

    def sink(self, options: Mapping[str, str]) -> KafkaSink:  # type: ignore[override]
        require_client()
        from .sink import KafkaSink

        return KafkaSink(KafkaOptions.parse(options))

    def destination(self, data_source: str) -> DestinationType:
        return DestinationType(
            kind=KIND,
            data_source=data_source,
            options=options_of(KafkaOptions),
            sink=self._sink_of,
            stored_table=self._stored,
            files_of=_files_of,
            has_row_log=True,
            records=lambda stream, sink: KafkaMarker(sink, stream.query_id),
        )

    def _stored(self, stream: StreamKey, access: TableAccess) -> StoredKafka:
        given, storage = self._split(access)
        servers = {"bootstrapServers": KafkaAddress.parse(stream.table_uri).servers}
        properties = {
            name.removeprefix(_PREFIX): value
            for name, value in (given if self._are_for(servers, given, access) else {}).items()
            if name.startswith(_PREFIX)
        }
        return StoredKafka(KIND, stream.table_uri, storage, stream=stream, properties=properties)


def _files_of(manifest: Manifest) -> Sequence[DataFile]:
    from ...committers.kafka.content import decode

    return decode(manifest).files


SERVICE = KafkaService(
    kind=KIND,
    options=cast("Any", KafkaOptions),
    requests=lambda _: cast("Any", None),
    library="confluent-kafka",
    package="penstock[kafka]",
    secrets_are_for="bootstrapServers",
)
DESTINATION = SERVICE.destination("penstock.datasource.kafka.source:KafkaDataSource")
