"""What the planner process last saw of a decoupled stream's table, so that no batch waits for a catalog.

The first plan of a process looks at the table and waits for it. Later batches take what was seen then, and a
thread looks again in the background now and then. This is a cache and nothing else: without it, as in a new
process, the table is looked at again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from ..committers.contract import ContentT, PayloadT
from ..committers.errors import RetryableError
from ..committers.safe_text import get_logger

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.contract import PlannedBatch, StreamKey, Token
    from .sink import Sink

logger = get_logger(__name__)

REFRESH_S = 10.0
"""A plan that is older is looked at again, after the batch that has found it so was planned with it."""
PLANS_MAX = 16


@dataclass(frozen=True, slots=True)
class PlanKey(Generic[PayloadT, ContentT]):
    """What a plan depends on: a query that is started with other options or columns has another."""

    stream: StreamKey
    sink: Sink[PayloadT, ContentT]
    rows: pa.Schema
    overwrite: bool


@dataclass(frozen=True, slots=True)
class CachedTable(Generic[PayloadT, ContentT]):
    """What one look at the table has found."""

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
    """The process may end while the thread waits for a dead catalog."""
    threading.Thread(target=body, name="penstock-plan", daemon=True).start()


class PlanCache:
    """Plans by stream. Safe to share among threads.

    Args:
        clock: seconds
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
        """What was seen last; None if the table must be looked at now.

        Raises:
            PenstockError: what the last look in the background has ended in, unless it was an outage.
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
        """Look again in the background, if it is time; one look per stream at once."""
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
            logger.warning("The next batches of %s go by what was known of it: %s", entry.key.stream, error)
        except BaseException as error:  # noqa: BLE001 - the next batch raises it
            failure = error
        with self._lock:
            entry.cached, entry.error = cached, failure
            entry.loaded_at, entry.is_loading = self._clock(), False


PLANS = PlanCache()
"""Of this process."""
