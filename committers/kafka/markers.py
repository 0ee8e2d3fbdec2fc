"""Markers: which batch of a query Kafka has. A record of a compacted topic, written in the transaction that
has the rows of the batch.

A marker is read up to the end of its partition, as readers of uncommitted records see it. What committed
readers see is shorter while a transaction of another query is open in the partition, and could hide a marker.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..contract import Token
from ..errors import NEXT_TRY, ConfigurationError, PenstockError, RetryableError, TableChangedError
from .brokers import Brokers, library_logger, opened
from .cluster import progress_partition
from .errors import UNKNOWN_TOPIC, error_of, failed
from .split import Split

if TYPE_CHECKING:
    from .cluster import KafkaCluster

VERSION = 1
_OF_PARTS = ("split", "files")
TAIL = 1000
"""Records of the partition that are read first: the marker of a running query is among the last ones."""
POLL_S = 0.5
RETRY_S = 0.1
PATIENCE_S = 1.0
"""How long a read waits for its next record at first, then twice as long each time. Reads for other streams
come in between.
"""


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch of a stream in Kafka."""

    query: str
    address: str
    batch: int
    """-1: none, but an operator has accepted the topic."""
    digest: str
    revision: int
    """Number of transactions of the stream."""
    target: str
    """Id of cluster and topic, see `Brokers.target_id`."""
    version: int = VERSION
    split: str = ""
    """Of a stream with several parts, see `Split`. Only their markers have this and the next field."""
    files: dict[str, str] = field(default_factory=dict)
    """Of each batch of the last transaction, see `files_of`."""

    @property
    def token(self) -> Token | None:
        return None if self.batch < 0 else Token(self.batch, self.digest)

    def encoded(self) -> bytes:
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value or name not in _OF_PARTS}
        ).encode()

    @classmethod
    def decode(cls, key: str, topic: str, value: bytes | None) -> Marker | None:
        """Return the marker in a record; None if it was deleted.

        Raises:
            TableChangedError: the record is not a marker.
        """
        if not value:
            return None
        try:
            given = json.loads(value)
            if given["version"] != VERSION:
                raise ValueError(f"version {given['version']!r}")
            if not isinstance(given["batch"], int) or not isinstance(given["digest"], str):
                raise TypeError("batch or digest of another type")
            marker = cls(**given)
            if not isinstance(given.get("split", ""), str) or not isinstance(given.get("files", {}), dict):
                raise TypeError("split or files of another type")
            Split.parse(marker.split)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TableChangedError(
                f"The record of {key} in the topic {topic} is not a marker of this version of Penstock "
                f"({error}). It says which batches of the query Kafka has. Nothing was committed. Use the "
                "version of Penstock that wrote it, or restore the record."
            ) from error
        return marker


class _NothingCameError(Exception):
    """The brokers do not answer, or the transaction of another stream hides the rest of the partition."""


class MarkerReader:
    """Reads markers of one cluster. One in a process, for all of its streams."""

    def __init__(self, cluster: KafkaCluster, brokers: Brokers) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._topic = cluster.progress_topic
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._read: dict[str, tuple[int, Marker | None]] = {}
        """By key: the marker, and the end of the partition when it was read."""

    def read(self, key: str) -> Marker | None:
        """Return the marker of a stream; None if there is none, or no progress topic.

        Raises:
            RetryableError: it cannot be read now.
            TableChangedError: it is damaged.
        """
        deadline, patience_s = time.monotonic() + self._cluster.timeout_s, PATIENCE_S
        while True:
            left_s = deadline - time.monotonic()
            try:
                with self._lock:
                    return self._read_up_to_the_end(key, progress_partition(key), min(patience_s, left_s))
            except _NothingCameError:
                patience_s *= 2
                if time.monotonic() > deadline:
                    raise self._hidden(key) from None
            except KafkaException as error:
                failure = self._failure(error)
                if failure is None:
                    return None
                if isinstance(failure, ConfigurationError) or time.monotonic() > deadline:
                    raise failure from None
            time.sleep(RETRY_S)  # a partition without a leader, for example

    def _failure(self, error: KafkaException) -> PenstockError | None:
        """Return the error to raise if it lasts; None if there is no progress topic."""
        self.close()
        self._brokers.reconnect()
        code = error_of(error).code()
        failure = failed(self._cluster, error_of(error), f"Markers in the topic {self._topic} were not read")
        if code not in (KafkaError._NOENT, *UNKNOWN_TOPIC):
            return failure
        if self._brokers.topics([self._topic]):
            return RetryableError(str(failure))
        with self._lock:
            self._read.clear()
        return None

    def _hidden(self, key: str) -> RetryableError:
        return RetryableError(
            f"The marker {key} in partition {progress_partition(key)} of the topic {self._topic} could not "
            f"be read within {self._cluster.timeout_s:g} s. The brokers do not answer, or a transaction of "
            f"another query is open there, which ends after its transactionTimeout. {NEXT_TRY}"
        )

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _read_up_to_the_end(self, key: str, partition: int, patience_s: float) -> Marker | None:
        """
        Raises:
            _NothingCameError: no record for so long.
        """
        end = self._brokers.end(self._topic, partition)
        seen, marker = self._read.get(key, (0, None))
        if seen == end:
            return marker
        if seen > end:  # the topic was created again
            seen, marker = 0, None
        first = max(seen, end - TAIL)
        found, is_found = self._search(key, partition, first, end, patience_s)
        while not is_found and first > seen:
            last, first = first, max(seen, first - 10 * (end - first))
            found, is_found = self._search(key, partition, first, last, patience_s)
        marker = found if is_found else marker
        self._read[key] = end, marker
        return marker

    def _search(
        self, key: str, partition: int, first: int, end: int, patience_s: float
    ) -> tuple[Marker | None, bool]:
        """Return the last marker in a part of the partition, and whether there is one."""
        if self._consumer is None:
            self._consumer = opened(self._cluster, _new_consumer, _CONFIG)
        consumer = self._consumer
        value: bytes | None = None
        is_found, wanted = False, key.encode()
        came_at = time.monotonic()
        consumer.assign([TopicPartition(self._topic, partition, first)])
        try:
            while True:
                record = consumer.poll(POLL_S)
                if record is not None and self._is_over(record, end):
                    break
                if record is not None and not record.error():
                    came_at = time.monotonic()
                    if record.key() == wanted:
                        value, is_found = record.value(), True
                        if record.offset() == end - 1:
                            break
                if time.monotonic() > came_at + patience_s:
                    raise _NothingCameError
        finally:
            consumer.unassign()
        return (Marker.decode(key, self._topic, value) if is_found else None), is_found

    def _is_over(self, record: Any, end: int) -> bool:
        error = record.error()
        if error is None:
            return bool(record.offset() >= end)
        if error.code() == KafkaError._PARTITION_EOF:
            return bool(record.offset() >= end)
        is_of_group = error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED  # which is not needed
        if error.fatal() or not (error.retriable() or is_of_group):
            raise KafkaException(error)
        return False


def _new_consumer(config: dict[str, Any]) -> Consumer:
    return Consumer(config, logger=library_logger)


_CONFIG = {
    "group.id": "penstock",  # required by the library; no group is joined, and its ACL is not needed
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "fetch.wait.max.ms": 1,
}
