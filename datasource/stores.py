"""Manifest stores that this process keeps open between batches. Driver only.

Spark reuses its planner and commit processes, and opening a store costs more than a query. This is only a
cache: a store is opened again if it fails, if its file was deleted or replaced, or in a forked process.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from ..committers.store.sql import SqlManifestStore, open_store

OPEN_S_MAX = 60.0
"""Seconds after which a store is opened again, to notice that a newer version has upgraded its tables."""
STORES_MAX = 8


_Key: TypeAlias = tuple[str, float]
"""URL of a store, and how long its calls wait."""


@dataclass(frozen=True, slots=True)
class _Open:
    store: SqlManifestStore
    process: int
    opened_at: float


class StoreCache:
    """Open stores by URL. Thread-safe: a store is never closed while it is in use."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: dict[_Key, _Open] = {}

    @contextmanager
    def borrow(self, url: str, wait_s: float = 0.0) -> Iterator[SqlManifestStore]:
        """Yield the store at the URL. Raises as `open_store`. An error in the block closes the store.

        Args:
            wait_s: see `open_store`
        """
        key = (url, wait_s)
        opened = self._take(key) or self._open(key)
        try:
            yield opened.store
        except BaseException:
            opened.store.close()
            raise
        self._give_back(key, opened)

    def _open(self, key: _Key) -> _Open:
        url, wait_s = key
        return _Open(open_store(url, wait_s=wait_s), os.getpid(), self._clock())

    def _take(self, key: _Key) -> _Open | None:
        with self._lock:
            opened = self._idle.pop(key, None)
        if opened is None:
            return None
        if (
            opened.process != os.getpid()
        ):  # the connections belong to the parent process, which alone may close them
            opened.store.engine.dispose(close=False)
            return None
        if self._clock() - opened.opened_at < OPEN_S_MAX and opened.store.has_same_file:
            return opened
        opened.store.close()
        return None

    def _give_back(self, key: _Key, opened: _Open) -> None:
        with self._lock:
            surplus = [self._idle.pop(key, None)]
            self._idle[key] = opened
            if len(self._idle) > STORES_MAX:
                surplus.append(self._idle.pop(next(iter(self._idle))))
        for other in surplus:
            if other is not None:
                other.store.close()


_STORES = StoreCache()

borrow_store = _STORES.borrow
"""Borrow the store at a URL, as a context manager."""
