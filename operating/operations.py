"""What an operator asks and decides, from Python: `penstock.status`, `history`, `recover`, `retry`.

The commands with the same names print the same. Each call opens the store and closes it again.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..committers.errors import ConfigurationError
from ..committers.store.selection import select, select_query
from ..committers.store.sql import SqlManifestStore
from ..datasource.stored.table_access import TableAccess
from .records import BatchRecord, DeliveredRecord, Records, StreamRecord
from .recovery import recover_stream
from .stores import open_named_store


@dataclass(frozen=True, slots=True)
class History:
    """The newest batches of a query, and for a decoupled one its newest deliveries."""

    batches: Records[BatchRecord]
    deliveries: Records[DeliveredRecord]

    def _repr_html_(self) -> str:
        shown = self.batches._repr_html_()
        return f"{shown}{self.deliveries._repr_html_()}" if self.deliveries else shown


def status(
    store: str | None = None, *, checkpoint: str | None = None, stream: str | None = None
) -> Records[StreamRecord]:
    """Return the streams of a store, as `penstock status` lists them.

    Args:
        store: SQLAlchemy URL, as in the query's option `store`; by default $PENSTOCK_STORE
        checkpoint: instead of `store`: the checkpoint directory of a query, with the store in it
        stream: only this one: a query's name, its id or the beginning of its id, or a table

    Raises:
        ConfigurationError: there is no such store or stream.
        RetryableError: the store does not answer.
    """
    with _opened(store, checkpoint) as opened:
        return Records(StreamRecord, map(StreamRecord.of, select(opened.streams(), stream)))


def history(
    stream: str | None = None, store: str | None = None, *, checkpoint: str | None = None, limit: int = 20
) -> History:
    """Return the newest batches and deliveries of a query, the newest first, as `penstock history` lists
    them.

    Args:
        stream: a query's name, its id or the beginning of its id, or a table; not needed if the store has
            only one query
        store: see `status`
        checkpoint: see `status`
        limit: number of batches, and of deliveries, for each of its tables

    Raises:
        ConfigurationError: there is no such store, or no such query.
        RetryableError: the store does not answer.
    """
    if limit < 1:
        raise ConfigurationError(f"history: limit is {limit}. Give at least 1.")
    with _opened(store, checkpoint) as opened:
        found = select_query(opened.streams(), stream)
        batches = [BatchRecord.of(one, batch) for one in found for batch in opened.history(one.key, limit)]
        delivered = [
            DeliveredRecord.of(one, delivery)
            for one in found
            for delivery in opened.deliveries.recent(one.key, limit)
        ]
    return History(Records(BatchRecord, batches), Records(DeliveredRecord, delivered))


def recover(
    stream: str | None = None,
    store: str | None = None,
    *,
    checkpoint: str | None = None,
    storage: Mapping[str, str] | None = None,
    catalog: Mapping[str, str] | None = None,
    streams: Mapping[str, Mapping[str, Any]] | None = None,
) -> Records[BatchRecord]:
    """Commit the batches that were prepared and not committed, as the next start of the query would do.

    Safe while the query runs.

    Args:
        stream: see `status`; by default all
        store: see `status`
        checkpoint: see `status`
        storage: see `start_delivery`
        catalog: see `start_delivery`
        streams: see `start_delivery`

    Returns:
        the batches, with their state now

    Raises:
        ConfigurationError: there is no such store or stream.
        PenstockError: a table cannot be written. The streams of other tables were recovered.
    """
    access = TableAccess.given(storage, catalog, streams, "recover")
    found, error = list[BatchRecord](), None
    with _opened(store, checkpoint) as opened:
        for one in select(opened.streams(), stream):
            if one.pending:
                recovered = recover_stream(opened, one, access)
                error = error or recovered.error
                now = [opened.record(one.key, batch.record.batch.batch_id) for batch in recovered.batches]
                found += [BatchRecord.of(one, record) for record in now if record is not None]
    if error is not None:
        raise error
    return Records(BatchRecord, found)


def retry(
    stream: str | None = None,
    store: str | None = None,
    *,
    checkpoint: str | None = None,
    reason: str = "",
    who: str | None = None,
) -> Records[StreamRecord]:
    """Resume the deliveries of parked and failing streams, at once and with all attempts.

    First correct the cause, which is in the `error` of the stream. A running delivery then delivers the
    batches.

    Args:
        stream: see `status`; by default all
        store: see `status`
        checkpoint: see `status`
        reason: kept in the store
        who: likewise; by default the current user

    Returns:
        the streams that were resumed

    Raises:
        ConfigurationError: there is no such store or stream.
        RetryableError: the store does not answer.
    """
    with _opened(store, checkpoint) as opened:
        stopped = [
            one
            for one in select(opened.streams(), stream)
            if one.delivery.parked_at is not None or one.delivery.tries
        ]
        for one in stopped:
            opened.deliveries.retry(one.key, who or getpass.getuser(), reason)
        resumed = {one.key for one in stopped}
        return Records(StreamRecord, [StreamRecord.of(one) for one in opened.streams() if one.key in resumed])


@contextmanager
def _opened(store: str | None, checkpoint: str | None) -> Iterator[SqlManifestStore]:
    if store is None and checkpoint is None:
        store = os.environ.get("PENSTOCK_STORE") or None
    with open_named_store(checkpoint, store) as opened:
        yield opened
