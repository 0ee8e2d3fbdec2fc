"""Delete the small files that compacted deliveries have replaced. Runs in the delivery process.

No reader has ever seen these files: they were rewritten before the commit. A file is deleted only if its
delivery has been in the table, by the table's own token, for the grace period, and if it is not referenced by
the delivery itself, by any readable version of the table, or by a version whose files are still to be
deleted.

The order of reading is that of `committers.cleaning.cleanup`: first the token, then the references. Later
commits belong to later batches.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice

from ..committers.cleaning.cleanup import CleanableTable
from ..committers.contract import Manifest, StreamKey
from ..committers.store.delivery_queries import DeliveryRecord
from ..committers.store.sql import SqlManifestStore
from ..datasource.destinations import paths_of

SOURCES_GRACE = timedelta(hours=1)
DELIVERIES_AT_ONCE = 20
"""Deliveries for which the file names in the table are read once."""


def remove_sources(
    store: SqlManifestStore,
    stream: StreamKey,
    open_table: Callable[[], CleanableTable],
    committed_before: datetime,
    until: Callable[[], bool] = lambda: False,
) -> int:
    """Delete the files that deliveries have replaced, and their records. Return how many were deleted.

    Args:
        open_table: opens the table, without cached state
        committed_before: only deliveries committed before this time
        until: called between deliveries; True leaves the rest for the next time

    Raises:
        RetryableError: the table, its storage or the store cannot be reached.
        ManifestCorruptError: a manifest is damaged, so that its files are unknown.
    """
    deleted = 0
    committed = (
        delivery
        for delivery in store.deliveries.with_sources(stream)
        if delivery.finished_at is not None and delivery.finished_at < committed_before
    )
    while not until() and (some := list(islice(committed, DELIVERIES_AT_ONCE))):
        deleted += _remove(store, stream, open_table(), some)
    return deleted


def _remove(
    store: SqlManifestStore, stream: StreamKey, table: CleanableTable, deliveries: Sequence[DeliveryRecord]
) -> int:
    _, tokens = table.id_and_tokens([stream.query_id])
    token = tokens.get(stream.query_id)
    settled = [one for one in deliveries if token is not None and one.last_batch_id <= token.batch_id]
    if not settled:
        return 0
    unneeded = {posixpath.basename(path): path for one in settled for path in _replaced(store, one)}
    for names in table.names():
        for name in names:
            unneeded.pop(name, None)
    deleted = table.delete_files(unneeded.values())
    for one in settled:
        store.deliveries.sources_removed(one.delivery_id)
    return deleted


def _replaced(store: SqlManifestStore, delivery: DeliveryRecord) -> set[str]:
    whole = store.deliveries.manifest(delivery)
    kept = set() if whole is None else set(_paths([whole]))
    return set(_paths(store.deliveries.sources(delivery))) - kept


def _paths(manifests: Iterable[Manifest]) -> Iterator[str]:
    return (path for manifest in manifests for path in paths_of(manifest))
