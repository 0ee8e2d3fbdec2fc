"""A delivery process from start to end: one service for each store, which all end together."""

from __future__ import annotations

import posixpath
import threading
from dataclasses import dataclass, field, replace

from ..committers.deliveries.results import TRANSIENT_ERRORS
from ..committers.errors import ConfigurationError, PenstockError, StoreMissingError, StoreUnreachableError
from ..committers.store.selection import is_named
from ..committers.store.sql import SqlManifestStore, open_store, sqlite_url
from ..committers.store.status import StreamStatus
from ..committers.store.urls import displayed_url
from ..committers.texts.safe_text import get_logger
from ..datasource.planning.moved_checkpoint import follow_moved_checkpoint
from ..datasource.spark.checkpoint import STORE_FILE
from ..writers.local_path import local_path
from .context import DeliveryContext, new_holder
from .service import DeliveryService, Pauses

logger = get_logger(__name__)

POLL_INTERVAL_S = 0.5
"""Seconds between two checks whether a service has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryScope:
    """The stores and streams that a delivery process delivers."""

    stores: tuple[str, ...] = field(repr=False)
    """URLs, which may contain passwords."""
    stream: str | None = None
    """A query's name, its id or the beginning of its id, or a table. None: all streams."""
    waits_for_stores: bool = False
    """Wait for a store that does not exist yet, which the first start of its query creates, and for a
    database
    that does not answer."""

    def is_chosen(self, status: StreamStatus) -> bool:
        return self.stream is None or is_named(status, self.stream)


def store_of_checkpoint(checkpoint: str) -> str:
    """Return the URL of the store in a checkpoint directory, which need not exist yet.

    Raises:
        ConfigurationError: the directory is not on a local disk.
    """
    directory = local_path(checkpoint)
    if directory is None:
        raise ConfigurationError(
            f"The checkpoint {checkpoint} is not on a local disk. Give the query's option `store` as the "
            "store instead."
        )
    return sqlite_url(posixpath.join(directory, STORE_FILE))


def open_to_deliver(url: str) -> SqlManifestStore:
    """Open a store that exists, and follow its checkpoint if that was moved. Raises as `open_store`."""
    store = open_store(url, must_exist=True)
    try:
        follow_moved_checkpoint(store)
    except PenstockError:
        store.close()
        raise
    return store


def opened(url: str, scope: DeliveryScope, context: DeliveryContext) -> SqlManifestStore | None:
    """Open the store, if necessary after waiting for it; None if the process is stopped before.

    Raises:
        ConfigurationError: the store does not exist and should not be waited for, or it can never be opened.
    """
    pauses, is_reported = Pauses(), False
    passing = (*TRANSIENT_ERRORS, StoreUnreachableError) if scope.waits_for_stores else TRANSIENT_ERRORS
    while not context.stop.is_set():
        try:
            return open_to_deliver(url)
        except StoreMissingError as error:
            if not scope.waits_for_stores:
                raise
            if not is_reported:
                logger.info("Waiting for a store: %s", error)
            is_reported = True
            context.stop.wait(context.settings.poll_s)
        except passing as error:
            wait_s = pauses.begin()
            logger.warning("Tried again in %.0f s: %s", wait_s, error)
            context.on_store_failure(displayed_url(url), error)
            context.stop.wait(wait_s)
    return None


def deliver(scope: DeliveryScope, context: DeliveryContext) -> None:
    """Deliver until the context's `stop` is set. Returns after the running deliveries have ended.

    Runs in any thread.

    Raises:
        PenstockError: a store does not exist, or its content is not valid. The other services have ended too.
    """
    ended = threading.Event()  # set by an error, which leaves `stop` alone
    within = replace(context, stop=ended)
    services = [_StoreThread(url, scope, within) for url in scope.stores]
    for service in services:
        service.start()
    while not ended.is_set() and not context.stop.wait(POLL_INTERVAL_S):
        pass
    ended.set()
    for service in services:
        service.join()
    for service in services:
        if service.error is not None:
            raise service.error


class _StoreThread(threading.Thread):
    """The service of one store. Its error ends all services."""

    def __init__(self, url: str, scope: DeliveryScope, context: DeliveryContext) -> None:
        super().__init__(name="delivery service", daemon=True)
        self._url = url
        self._scope = scope
        self._context = context
        self.error: Exception | None = None

    def run(self) -> None:
        scope, ended = self._scope, self._context.stop
        try:
            while not ended.is_set():
                store = opened(self._url, scope, self._context)
                if store is not None:
                    # Another holder of leases: an attempt of the service before may still hang with its
                    # lease.
                    context = replace(self._context, holder=new_holder())
                    with store:
                        DeliveryService(store, context, scope.is_chosen).run()
                scope = replace(scope, waits_for_stores=True)  # the file of the store was deleted or replaced
        except Exception as error:  # noqa: BLE001 - `deliver` raises it again
            self.error = error
            ended.set()
