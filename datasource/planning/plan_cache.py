"""Cached table state of decoupled streams in the planner process, so that no batch waits for a catalog.

The first plan of a process reads the table and waits for it. Later batches use the cached state, which a
background thread refreshes from time to time. This is only a cache: without it, as in a new process, the
table is read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from ...committers.contract import ContentT, PayloadT
from ...committers.errors import RetryableError
from ...committers.texts.safe_text import get_logger

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.contract import PlannedBatch, StreamKey, Token
    from ..sink import Sink

logger = get_logger(__name__)

REFRESH_S = 10.0
"""Age at which the state is refreshed, after it has been used for one more batch."""
PLANS_MAX = 16


@dataclass(frozen=True, slots=True)
class PlanKey(Generic[PayloadT, ContentT]):
    """What a plan depends on. A query that is restarted with other options or columns has another key."""

    stream: StreamKey
    sink: Sink[PayloadT, ContentT]
    rows: pa.Schema
    overwrite: bool
    siblings: tuple[str, ...] = ()
    """See `Query.siblings`."""
    has_routes: bool = False
    """The query opens more targets with the rows of a batch."""
    in_function: bool = False
    """A function of `foreachBatch` writes the batches, and may have left some out."""


@dataclass(frozen=True, slots=True)
class CachedTable(Generic[PayloadT, ContentT]):
    """The state of the table when it was last read."""

    planned: PlannedBatch[PayloadT, ContentT]
    token: Token | None


@dataclass(slots=True)
class _Entry:
    key: PlanKey[Any, Any]
    cached: CachedTable[Any, Any]
    loaded_at: float
    is_loading: bool = False
    error: BaseException | None = None


def start_thread(body: Callable[[], None]) -> None:
    """Start a daemon thread: the process may end while it waits for a catalog that is down."""
    threading.Thread(target=body, name="penstock-plan", daemon=True).start()


class PlanCache:
    """Plans by stream. Thread-safe.

    Args:
        clock: in seconds
        start: runs a function in the background
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        self._clock = clock
        self._start = start
        self._lock = threading.Lock()
        self._entries: dict[StreamKey, _Entry] = {}

    def get(self, key: PlanKey[PayloadT, ContentT]) -> CachedTable[PayloadT, ContentT] | None:
        """Return the cached state; None if the table must be read now.

        Raises:
            PenstockError: the error of the last refresh, unless it was an outage.
        """
        with self._lock:
            entry = self._entries.get(key.stream)
            if entry is None or entry.key != key:
                return None
            if entry.error is None:
                return entry.cached
            del self._entries[key.stream]
        raise entry.error

    def put(self, key: PlanKey[PayloadT, ContentT], cached: CachedTable[PayloadT, ContentT]) -> None:
        with self._lock:
            self._entries.pop(key.stream, None)
            self._entries[key.stream] = _Entry(key, cached, self._clock())
            if len(self._entries) > PLANS_MAX:
                del self._entries[next(iter(self._entries))]

    def refresh(
        self, key: PlanKey[PayloadT, ContentT], load: Callable[[], CachedTable[PayloadT, ContentT]]
    ) -> None:
        """Refresh in the background if it is time, one refresh per stream at the same time."""
        with self._lock:
            entry = self._entries.get(key.stream)
            if entry is None or entry.is_loading or self._clock() - entry.loaded_at < REFRESH_S:
                return
            entry.is_loading = True
        self._start(lambda: self._reload(entry, load))

    def _reload(self, entry: _Entry, load: Callable[[], CachedTable[Any, Any]]) -> None:
        cached, failure = entry.cached, None
        try:
            cached = load()
        except RetryableError as error:
            logger.warning("The next batches of %s use the cached table state: %s", entry.key.stream, error)
        except BaseException as error:  # noqa: BLE001  the next batch raises it
            failure = error
        with self._lock:
            entry.cached, entry.error = cached, failure
            entry.loaded_at, entry.is_loading = self._clock(), False


PLANS = PlanCache()
"""The cache of this process."""
