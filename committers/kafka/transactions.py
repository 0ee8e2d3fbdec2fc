"""Transactions of Kafka: rows and a marker become visible together, or not at all.

A process opens the sessions of a stream once: `init_transactions` ends what earlier processes have left open,
and fences them. Only then is the marker read, so its batch is final. The session stays open for the next
batches. Whatever fails, it is closed, and the next one starts from the marker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from ..errors import NEXT_TRY, RetryableError
from .brokers import LastError, library_logger, opened
from .cluster import KafkaCluster, progress_partition
from .errors import FENCED, error_of, failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .markers import Marker
    from .records import Record

STEP_S = 1.0
CLOSE_S = 5.0


class FencedSessionError(Exception):
    """Another process has taken over the stream. Nothing was committed."""


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Limits of transactions."""

    timeout_s: float = 300.0
    """The broker ends a transaction after this time."""
    record_bytes_max: int = 1_000_000

    @property
    def config(self) -> Mapping[str, Any]:
        size = min(1_000_000, self.record_bytes_max)
        return {
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # as Java clients do; the library's own default differs
            "transaction.timeout.ms": int(self.timeout_s * 1000),
            "message.max.bytes": max(1_000, self.record_bytes_max),
            "batch.size": max(1, size),
            "delivery.report.only.error": True,
            "retry.backoff.ms": 20,
        }


class Session:
    """A producer with a transactional id, and the marker that it writes. See `StreamSession`."""

    def __init__(self, cluster: KafkaCluster, key: str, settings: TransactionSettings) -> None:
        self._cluster = cluster
        self._key = key
        self._settings = settings
        self._last = LastError()
        self._failed: KafkaError | None = None
        """Of the first record that failed."""
        self.marker: Marker | None = None
        self._deadline = 0.0
        own = {**settings.config, "transactional.id": key, "error_cb": self._last}
        defaults = {"linger.ms": "20", "queue.buffering.max.kbytes": "131072"}
        given = replace(cluster, properties=(*defaults.items(), *cluster.properties))
        self._producer = opened(given, _new_producer, own)

    def begin(self, read_marker: Callable[[], Marker | None]) -> None:
        """Fence other processes, then read the marker.

        Raises:
            RetryableError: the brokers do not answer, or deny access.
        """
        with self._failing("The transactional id was not taken over"):
            self._until_done(self._producer.init_transactions)
        self.marker = read_marker()

    @property
    def last_batch(self) -> int:
        """Id of the last batch of which Kafka has this part; -1 if there is none."""
        return -1 if self.marker is None else self.marker.batch

    def start(self) -> None:
        """Begin a transaction.

        Raises:
            FencedSessionError, PenstockError: this transaction is not committed.
        """
        self._deadline = time.monotonic() + self._settings.timeout_s
        with self._failing("Records were not sent"):
            self._producer.poll(0)
            self._last.clear()
            self._producer.begin_transaction()

    def send(self, some: Sequence[Record]) -> None:
        """Hand records over to the client. Raises as `start`."""
        with self._failing("Records were not sent"):
            self._produce(some, self._deadline)
            self._producer.poll(0)
            if time.monotonic() > self._deadline:
                raise self._too_slow()

    def flush(self, check: Callable[[], None]) -> None:
        """Wait until the brokers have the records. Raises as `start`.

        Args:
            check: called while it waits; its error ends the transaction
        """
        with self._failing("Records were not sent"):
            self._flush(self._deadline, check)

    def mark(self, marker: Marker | None) -> None:
        """Send the marker. Its partition belongs to the transaction for a short time only, because an open
        transaction hides the markers of others. Raises as `start`.

        Args:
            marker: None: it is deleted
        """
        value = None if marker is None else marker.encoded()
        topic, partition = self._cluster.progress_topic, progress_partition(self._key)
        with self._failing("The marker was not sent"):
            self._producer.produce(topic, value, self._key.encode(), partition)
            self._flush(time.monotonic() + self._cluster.timeout_s, lambda: None)

    def commit(self) -> None:
        """End the transaction.

        Raises:
            KafkaException: it may be committed or not; the next session finds out.
        """
        try:
            self._producer.commit_transaction(self._cluster.timeout_s)
        except SystemError as error:
            raise KafkaException(self._reason(error)) from None

    def replace_marker(self, marker: Marker | None) -> None:
        """Commit a transaction with nothing but the marker.

        Raises:
            FencedSessionError, PenstockError: it is not replaced.
            KafkaException: it may be replaced or not.
        """
        self.start()
        self.mark(marker)
        self.commit()
        self.marker = marker

    def abort(self) -> None:
        """End the transaction without its records, so that readers need not wait for its time-out."""
        with suppress(KafkaException, SystemError):
            self._producer.purge()
            self._producer.abort_transaction(min(CLOSE_S, self._cluster.timeout_s))

    def _produce(self, some: Sequence[Record], deadline: float) -> None:
        produce, on_delivery = self._producer.produce, self._on_delivery
        for topic, value, key, partition, timestamp, headers in some:
            while True:
                try:
                    if timestamp or headers:
                        produce(
                            topic, value, key, partition, on_delivery, timestamp=timestamp, headers=headers
                        )
                    else:  # a third faster without names
                        produce(topic, value, key, partition, on_delivery)
                    break
                except BufferError:  # the queue is full
                    self._producer.poll(0.1)
                    self._raise_failed()
                    if time.monotonic() > deadline:
                        raise self._too_slow() from None

    def _flush(self, deadline: float, check: Callable[[], None]) -> None:
        while self._producer.flush(STEP_S):
            check()
            self._raise_failed()
            if time.monotonic() > deadline:
                raise self._too_slow()
        self._raise_failed()

    def _on_delivery(self, error: KafkaError | None, message: object) -> None:
        self._failed = self._failed or error

    def _raise_failed(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed)
        if (refused := self._last.refused) is not None:
            raise KafkaException(refused)

    def _until_done(self, call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + self._cluster.timeout_s
        while True:
            try:
                call(min(STEP_S, max(0.1, deadline - time.monotonic())))
            except KafkaException as error:
                self._producer.poll(0)
                self._raise_failed()
                if not error_of(error).retriable() or time.monotonic() > deadline:
                    raise KafkaException(self._last.instead_of(error_of(error))) from None
            else:
                return

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KafkaException, SystemError) as error:
            found = self._reason(error)
            if found.code() in FENCED:
                raise FencedSessionError(self._cluster.secrets.message(found.str())) from None
            where = f"Kafka at {self._cluster.servers}, transactional id {self._key}"
            raise failed(self._cluster, found, f"{where}: {what[0].lower()}{what[1:]}") from None

    def _reason(self, error: KafkaException | SystemError) -> KafkaError:
        """Return the error of the transaction, or of its first record, which say more than other errors.

        The client reports a fatal error in a callback, which can end in a SystemError of Python.
        """
        with suppress(KafkaException, SystemError):
            self._producer.poll(0)
        if isinstance(error, KafkaException) and error_of(error).code() in FENCED:
            return error_of(error)
        try:
            self._producer.begin_transaction()  # within a transaction, it fails with the reason
        except KafkaException as of_transaction:
            if error_of(of_transaction).code() != KafkaError._STATE:
                return error_of(of_transaction)
        if isinstance(error, SystemError):
            raise error
        return error_of(error) if self._failed is None else self._failed

    def _too_slow(self) -> RetryableError:
        return RetryableError(
            f"The transaction {self._key} was not sent within transactionTimeout "
            f"({self._settings.timeout_s:g} s). Nothing was committed. Raise it, or deliver less at a time "
            f"(deliverAfterBytes, or smaller batches). {NEXT_TRY}"
        )


def _new_producer(config: dict[str, Any]) -> Producer:
    return Producer(config, logger=library_logger)
