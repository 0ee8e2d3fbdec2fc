"""The sink and the target of `penstock.kafka`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...committers.contract import Batch, DataFiles, Manifest, Mode, PlannedBatch
from ...committers.delta.probing import storage_probe
from ...committers.errors import ConfigurationError
from ...committers.kafka import content
from ...committers.kafka.checking import check_brokers, check_topic
from ...committers.kafka.clients import kafka
from ...committers.kafka.cluster import KIND
from ...committers.kafka.committer import KafkaCommitter, KafkaWriting
from ...committers.kafka.transactions import TransactionSettings
from ...committers.probing import Probe
from ...committers.row_log.log import RowLog
from ...writers.row_log.writer import RowLogWriters
from ..checked import ChecksByDryRun
from ..options.row_log import create_row_log, missing_row_log, row_log_of
from ..plain_sink import StorageSink
from .options import KafkaOptions

if TYPE_CHECKING:
    import pyarrow as pa

LOGGED = "log"
"""The content of batches whose rows name their destination: nothing was planned for it."""


@dataclass(frozen=True, slots=True)
class KafkaSink(StorageSink):
    """See `Sink`."""

    options: KafkaOptions
    kind: str = KIND

    @property
    def table_uri(self) -> str:
        return self.options.address.uri

    def open_table(self) -> KafkaTarget:
        return KafkaTarget(self.options)

    def probes(self) -> Sequence[Probe]:
        """See `ProbesStorage`."""
        location = row_log_of(self.options.row_log, self.options.checkpoint_location)
        return () if location is None else (storage_probe(location, self.options.storage_options),)


class KafkaTarget(ChecksByDryRun, KafkaCommitter):
    """The target of a stream, with the options of its query. See `Target` and `Mergeable`."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._location = row_log_of(options.row_log, options.checkpoint_location)
        self._transactions = TransactionSettings(options.transaction_timeout_s, options.record_bytes_max)
        writing = None
        if self._location is not None:
            log = RowLog(self._location, dict(options.storage_options))
            writing = KafkaWriting(
                options.records,
                log,
                self._transactions,
                options.split,
                options.bad_rows,
                options.dead_letter_max,
            )
        super().__init__(options.cluster, options.address, writing)

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[DataFiles, str]:
        if mode != "append":
            raise ConfigurationError(
                "penstock.kafka cannot overwrite: records cannot be taken back. Write in the output mode "
                "append."
            )
        records = self._options.records
        records.check_schema(rows)
        if self._location is None:
            raise missing_row_log("penstock.kafka")
        opened = kafka(self._cluster)
        check_brokers(opened.brokers, self._transactions)
        if self._topic is None:
            target_id = opened.brokers.target_id(None)
        else:
            (topic,) = opened.brokers.existing([self._topic]).values()
            check_topic(opened.brokers, topic, self._transactions)
            target_id = opened.brokers.target_id(topic)
        checks = records.planned(rows).check
        create_row_log(self._location)
        writers = RowLogWriters(self._location, self._options.storage_options, checks)
        return PlannedBatch(writers, target_id, target_id)

    def manifest(self, batch: Batch, planned: str, payloads: Sequence[DataFiles]) -> Manifest:
        return content.encode(batch, "" if planned == LOGGED else planned, payloads)

    # Decoupled delivery: see `SupportsOrdering` and `Mergeable` ---------------------------------------

    def target_id_of(self, manifest: Manifest) -> str:
        return content.decode(manifest).target_id

    def check_follows(self, planned: str, pending: Iterable[Manifest]) -> None:
        """Batches of records do not depend on each other."""

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return content.mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        return content.merge(manifests)
