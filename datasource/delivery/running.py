"""A delivery process from beginning to end: its stores, one service for each, and how they end together."""

from __future__ import annotations

import logging
import posixpath
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from ...committers.errors import ConfigurationError
from ...committers.store.sql import SqlManifestStore, StreamStatus, open_store, sqlite_url
from ...writers.filesystem import local_path
from ..checkpoint import STORE_FILE
from ..table_access import TableAccess
from .service import PASSING, DeliveryService, Pauses, Watcher
from .worker import ServiceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a delivery process is to deliver, and with what."""

    stores: tuple[str, ...] = field(repr=False)
    """URLs: they may hold passwords."""
    access: TableAccess
    settings: ServiceSettings
    is_chosen: Callable[[StreamStatus], bool] = lambda stream: True
    waits_for_stores: bool = False
    """A store that is not there yet is waited for: the first start of its query makes it."""
    spark: SparkSession | None = None


def store_of_checkpoint(checkpoint: str) -> str:
    """The URL of the store in a checkpoint directory, which need not be there yet.

    Raises:
        ConfigurationError: the directory is not on a local disk.
    """
    directory = local_path(checkpoint)
    if directory is None:
        raise ConfigurationError(
            f"{checkpoint} is not on a local disk. Give the query's option `store` instead, as the store."
        )
    return sqlite_url(posixpath.join(directory, STORE_FILE))


def opened(url: str, assignment: Assignment, stop: threading.Event) -> SqlManifestStore | None:
    """The store, once it is there and answers; None if the process shall end before.

    Raises:
        ConfigurationError: there is none, and it is not waited for; or it cannot be opened for good.
    """
    pauses = Pauses()
    while not stop.is_set():
        if assignment.waits_for_stores and not _may_be_there(url):
            stop.wait(assignment.settings.poll_s)
            continue
        try:
            return open_store(url, must_exist=not assignment.waits_for_stores)
        except PASSING as error:
            wait_s = pauses.begin()
            logger.warning("Tried again in %.0f s: %s", wait_s, error)
            stop.wait(wait_s)
    return None


def _may_be_there(url: str) -> bool:
    """False for a SQLite file that nobody has made: a query's first start shall do it, not this process."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        return True  # opening it says what is wrong
    return parsed.get_backend_name() != "sqlite" or Path(parsed.database or "").is_file()


def deliver(assignment: Assignment, watchers: Sequence[Watcher], stop: threading.Event) -> None:
    """Deliver until `stop` is set; returns once all deliveries that ran have landed. Any thread.

    Raises:
        PenstockError: a store is not there, or cannot be understood; the other services have ended too.
    """
    services = [_StoreThread(url, assignment, watchers, stop) for url in assignment.stores]
    for service in services:
        service.start()
    stop.wait()
    for service in services:
        service.join()
    for service in services:
        if service.error is not None:
            raise service.error


class _StoreThread(threading.Thread):
    """The service of one store. Its error ends them all."""

    def __init__(
        self, url: str, assignment: Assignment, watchers: Sequence[Watcher], stop: threading.Event
    ) -> None:
        super().__init__(name="delivery service", daemon=True)
        self._url = url
        self._assignment = assignment
        self._watchers = watchers
        self._stop_all = stop
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - `deliver` raises it again
            self.error = error
            self._stop_all.set()

    def _serve(self) -> None:
        assignment = self._assignment
        store = opened(self._url, assignment, self._stop_all)
        if store is None:
            return
        with store:
            DeliveryService(
                store,
                assignment.access,
                assignment.settings,
                self._watchers,
                stop=self._stop_all,
                is_chosen=assignment.is_chosen,
                spark=assignment.spark,
            ).run()
