"""Transactions of one stream: its rows and its marker become visible together, or not at all.

A process opens a session for a stream once: `init_transactions` ends what earlier processes have left open,
and fences them. Only then is the marker read, so its batch is final. The session stays open for the next
batches. Whatever fails, it is closed, and the next one starts from the marker.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Producer

from ..errors import NEXT_TRY, RetryableError
from .brokers import Brokers, LastError, library_logger, opened
from .cluster import KafkaCluster, progress_partition
from .errors import FENCED, error_of, failed
from .markers import Marker, MarkerReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"
Record: TypeAlias = "tuple[str, bytes | None, bytes | None, int, int, Headers | None]"
"""Topic, value, key, partition (-1: by the key), timestamp in milliseconds (0: now) and headers."""

SESSIONS_MAX = 100
"""Sessions that stay open in a process."""
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
    """A producer with a transactional id, and the stream's marker. Use it in `Kafka.session` only."""

    def __init__(self, cluster: KafkaCluster, key: str, settings: TransactionSettings) -> None:
        self._cluster = cluster
        self._key = key
        self._settings = settings
        self._last = LastError()
        self._failed: KafkaError | None = None
        """Of the first record that failed."""
        self.marker: Marker | None = None
        own = {**settings.config, "transactional.id": key, "error_cb": self._last}
        defaults = {"linger.ms": "20", "queue.buffering.max.kbytes": "131072"}
        given = KafkaCluster(
            cluster.address, (*defaults.items(), *cluster.properties), cluster.secrets, cluster.timeout_s
        )
        self._producer = opened(given, _new_producer, own)

    def begin(self, read_marker: Callable[[], Marker | None]) -> None:
        """Fence other processes, then read the marker.

        Raises:
            RetryableError: the brokers do not answer, or deny access.
        """
        with self._failing("The transactional id was not taken over"):
            self._until_done(self._producer.init_transactions)
        self.marker = read_marker()

    def send(self, records: Iterable[list[Record]], check: Callable[[], None]) -> None:
        """Begin a transaction, and send records.

        Args:
            records: some at a time
            check: called between them; its error ends the transaction

        Raises:
            FencedSessionError, PenstockError: nothing was committed.
        """
        deadline = time.monotonic() + self._settings.timeout_s
        with self._failing("Records were not sent"):
            self._producer.poll(0)
            self._last.clear()
            self._producer.begin_transaction()
            for some in records:
                check()
                self._produce(some, deadline)
                self._producer.poll(0)
                if time.monotonic() > deadline:
                    raise self._too_slow()
            self._flush(deadline, check)

    def mark(self, marker: Marker | None) -> None:
        """Send the marker. Its partition belongs to the transaction for a short time only, because an open
        transaction hides the markers of others. Raises as `send`.

        Args:
            marker: None: it is deleted
        """
        value = None if marker is None else marker.encoded()
        topic, partition = self._cluster.address.progress_topic, progress_partition(self._key)
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
            where = f"Kafka at {self._cluster.address.servers}, transactional id {self._key}"
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


class Kafka:
    """What a process has open for one cluster."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.brokers = Brokers(cluster)
        self.markers = MarkerReader(cluster, self.brokers)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, TransactionSettings], Session] = OrderedDict()
        self._in_use: dict[str, threading.Lock] = {}

    @contextmanager
    def session(
        self, key: str, settings: TransactionSettings, *, stays_open: bool = True
    ) -> Iterator[Session]:
        """Open a session, or use the one that is open. One thread at a time has it.

        An error within the block closes it: whatever the producer has left open is ended by the next one.

        Args:
            stays_open: for the next batch of the stream

        Raises:
            FencedSessionError, PenstockError: the session cannot be opened.
        """
        with self._lock:
            of_key = self._in_use.setdefault(key, threading.Lock())
        with of_key:
            with self._lock:
                session = self._sessions.pop((key, settings), None)
            if session is None:
                self.brokers.check_progress_topic()
                session = Session(self.cluster, key, settings)
                session.begin(lambda: self.markers.read(key))
            yield session
            if not stays_open:
                return
            with self._lock:
                self._sessions[key, settings] = session
                while len(self._sessions) > SESSIONS_MAX:
                    self._sessions.popitem(last=False)

    def close(self) -> None:
        with self._lock:
            self._sessions.clear()
        self.markers.close()


_opened: dict[KafkaCluster, Kafka] = {}
_of_parents: list[dict[KafkaCluster, Kafka]] = []
_pid = 0
_lock = threading.Lock()


def kafka(cluster: KafkaCluster) -> Kafka:
    """Return what this process has open for the cluster."""
    global _pid
    with _lock:
        if _pid != os.getpid():  # a fork has no threads of its parent's clients: they cannot even be closed
            _of_parents.append(dict(_opened))
            _opened.clear()
            _pid = os.getpid()
        if cluster not in _opened:
            _opened[cluster] = Kafka(cluster)
        return _opened[cluster]


def close_all() -> None:
    """Close everything, as the end of the process does."""
    with _lock:
        for one in _opened.values():
            one.close()
        _opened.clear()
