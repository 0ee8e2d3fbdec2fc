"""What a process has open for a cluster: sessions of streams, and clients that read. Use `kafka`."""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from confluent_kafka import KafkaException

from .brokers import Brokers
from .errors import FENCED, error_of, failed
from .markers import Marker, MarkerReader
from .parts import StreamSession
from .transactions import FencedSessionError, Session, TransactionSettings

if TYPE_CHECKING:
    from .cluster import KafkaAddress, KafkaCluster
    from .split import Split

_SessionKey: TypeAlias = "tuple[str, TransactionSettings, Split | None]"

SESSIONS_MAX = 100
SESSION_FILES = 50
"""Descriptors that a session is expected to take: some for each broker."""


def _sessions_max() -> int:
    """Return how many sessions stay open in a process. Others get half of its descriptors."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files_max == resource.RLIM_INFINITY:
        return SESSIONS_MAX
    return max(1, min(SESSIONS_MAX, files_max // 2 // SESSION_FILES))


class Kafka:
    """What a process has open for one cluster: the streams to all of its topics share it."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.brokers = Brokers(cluster)
        self.markers = MarkerReader(cluster, self.brokers)
        self._lock = threading.Lock()
        self._sessions: OrderedDict[_SessionKey, StreamSession] = OrderedDict()
        self._in_use: dict[str, threading.Lock] = {}

    @contextmanager
    def session(
        self,
        address: KafkaAddress,
        query_id: str,
        settings: TransactionSettings,
        split: Split | None = None,
        *,
        next_batch: int | None = None,
        stays_open: bool = True,
    ) -> Iterator[StreamSession]:
        """Open a session of a stream, or use the one that is open. One thread at a time has it.

        An error within the block closes it: whatever the producer has left open is ended by the next one.

        Args:
            split: of the rows; None: as in the markers
            next_batch: see `StreamSession.begin`
            stays_open: for the next batch of the stream

        Raises:
            FencedSessionError, PenstockError: the session cannot be opened.
        """
        first = Marker(query_id, address.uri, -1, "", 0, "")
        key = address.transactional_id(query_id)
        with self._lock:
            of_key = self._in_use.setdefault(key, threading.Lock())
        with of_key:
            with self._lock:
                session = self._sessions.pop((key, settings, split), None)
            if session is None:
                self.brokers.check_progress_topic()
                session = self._begun(key, split, first, settings, next_batch)
            yield session
            if not stays_open or session.split != split:  # the next one divides by this split
                return
            with self._lock:
                self._sessions[key, settings, split] = session
                while len(self._sessions) > _sessions_max():
                    self._sessions.popitem(last=False)

    def _begun(
        self,
        key: str,
        split: Split | None,
        first: Marker,
        settings: TransactionSettings,
        next_batch: int | None,
    ) -> StreamSession:
        for is_last in (False, True):
            session = StreamSession(
                key,
                split,
                first,
                lambda part_key: Session(self.cluster, part_key, settings),
                self.markers.read,
            )
            try:
                session.begin(next_batch)
            except KafkaException as error:  # a marker may be replaced or not: the next one reads it
                if error_of(error).code() in FENCED:
                    raise FencedSessionError(self.cluster.secrets.message(str(error))) from None
                if is_last:
                    what = f"{first.address}: the marker was not replaced"
                    raise failed(self.cluster, error_of(error), what) from None
            else:
                return session
        raise AssertionError

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
