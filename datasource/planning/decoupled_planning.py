"""Plan a batch of a decoupled stream from the store and the cached state of the table. Driver only.

The first plan of a process reads the table, with all checks of coupled mode. Later plans use the cached
state, which a background thread refreshes. Where plans cannot be cached (`PlannedBatch.is_lasting`), each
batch waits until the table is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from ...committers.contract import (
    Batch,
    ContentT,
    Manifest,
    ManifestState,
    PayloadT,
    PlannedBatch,
    StreamKey,
    Token,
)
from ...committers.errors import RetryableError, TableChangedError
from ...committers.protocol.checkpoint_forks import DigestOf
from ...committers.protocol.decision import Action
from ...committers.protocol.decoupled import DecoupledCommitter
from ...committers.target import Target
from ...committers.texts.safe_text import get_logger
from ..options.delivery import DeliveryOptions
from ..settings import register_stream
from ..sink import SupportsOrdering, SupportsTableIdentity, check_same_table, mode_of, open_table
from .backlog import BacklogBound, wait_for_delivery
from .new_query import check_new_query
from .plan_cache import CachedTable, PlanCache, PlanKey

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import WrittenTable

logger = get_logger(__name__)

T = TypeVar("T")

RETRY_S = 2.0

MayStartWith: TypeAlias = Callable[[Batch], bool]


def plan_decoupled(
    key: PlanKey[PayloadT, ContentT],
    store: SqlManifestStore,
    batch: Batch,
    digest_of: DigestOf,
    plans: PlanCache,
    may_start_with: MayStartWith,
) -> PlannedBatch[PayloadT, ContentT] | None:
    """Wait until the backlog has room, then return how to write the batch; None if it must not be written.

    Args:
        may_start_with: see `DecoupledCommitter`

    Raises:
        PenstockError: see its subclasses; no data has moved.
    """
    cached = plans.get(key)
    if cached is None:
        return _plan_first(key, store, batch, digest_of, plans, may_start_with)
    committer = DecoupledCommitter(store, open_table(key.sink, store), may_start_with)
    if committer.begin(batch, digest_of, cached.token) is Action.SKIP:
        return None
    wait_for_delivery(store, batch, bound_of(key.sink.options), has_routes=key.has_routes)
    written = store.written_table(batch.stream)
    load = partial(_reload, key, store, written, cached.planned.target_id, batch.batch_id)
    if cached.planned.is_lasting:
        plans.refresh(key, load)
        return cached.planned
    now = with_retry(load, key.sink.options.backlog_wait_s)
    plans.put(key, now)
    return now.planned


def bound_of(options: DeliveryOptions) -> BacklogBound:
    return BacklogBound(
        batches=options.backlog_batches_max,
        size_bytes=options.backlog_bytes_max,
        age_s=options.backlog_s_max,
        wait_s=options.backlog_wait_s,
    )


def _reload(
    key: PlanKey[PayloadT, ContentT],
    store: SqlManifestStore,
    written: WrittenTable | None,
    table_id: str,
    batch_id: int,
) -> CachedTable[PayloadT, ContentT]:
    """Read the table, maybe in the background. Never create a dropped table.

    The store is used only if the plan is not lasting, because it may be closed in the background.
    """
    table = open_table(key.sink, store)
    if isinstance(table, SupportsTableIdentity):
        table.check_unchanged(key.stream.query_id, table_id, None)
    check_same_table(table, key.stream, written)
    token = table.token(key.stream.query_id)
    return CachedTable(table.plan_batch(key.rows, mode_of(key.sink.options, key.overwrite), batch_id), token)


def _plan_first(
    key: PlanKey[PayloadT, ContentT],
    store: SqlManifestStore,
    batch: Batch,
    digest_of: DigestOf,
    plans: PlanCache,
    may_start_with: MayStartWith,
) -> PlannedBatch[PayloadT, ContentT] | None:
    """Plan with the table itself; None if the batch must not be written."""
    is_known = _is_known(store, batch.stream)
    wait_s = key.sink.options.backlog_wait_s if is_known else 0
    table, token = with_retry(partial(_load_first, key, store), wait_s)
    if is_known:
        # the deliveries that the query waits for use the options of this start
        register_stream(key.sink, store, batch.stream, siblings=key.siblings)
    else:
        check_new_query(key.sink, store, table, batch, key.overwrite)
    committer = DecoupledCommitter(store, table, may_start_with)
    if committer.begin(batch, digest_of, token) is Action.SKIP:
        return None
    if is_known:
        store.deliveries.wait(batch.stream, None)  # a driver may have been killed while waiting
    wait_for_delivery(store, batch, bound_of(key.sink.options), has_routes=key.has_routes)
    mode = mode_of(key.sink.options, key.overwrite)
    planned = with_retry(lambda: table.plan_batch(key.rows, mode, batch.batch_id), wait_s)
    if isinstance(table, SupportsOrdering):
        pending = store.manifests(batch.stream, ManifestState.PREPARED)
        table.check_follows(planned.content, (one for one in pending if one.batch.batch_id < batch.batch_id))
    plans.put(key, CachedTable(planned, token))
    return planned


def _is_known(store: SqlManifestStore, stream: StreamKey) -> bool:
    return bool(store.history(stream, 1))


def _load_first(
    key: PlanKey[PayloadT, ContentT], store: SqlManifestStore
) -> tuple[Target[PayloadT, ContentT], Token | None]:
    stream = key.stream
    table, written = open_table(key.sink, store), store.written_table(stream)
    try:
        waiting = _newest_pending(store, stream)
        if (
            waiting is not None
            and isinstance(table, SupportsOrdering)
            and isinstance(table, SupportsTableIdentity)
        ):
            table.check_unchanged(stream.query_id, table.target_id_of(waiting), None)
        check_same_table(table, stream, written)
    except TableChangedError:
        # a new store must know the stream, so that an operator can accept the table
        register_stream(key.sink, store, stream, siblings=key.siblings)
        raise
    return table, table.token(stream.query_id)


def _newest_pending(store: SqlManifestStore, stream: StreamKey) -> Manifest | None:
    """Return the newest prepared batch; None if all are delivered."""
    newest = store.history(stream, 1)
    if not newest or newest[0].state is not ManifestState.PREPARED:
        return None
    return store.manifest(stream, newest[0].batch.batch_id)


def with_retry(
    call: Callable[[], T],
    wait_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Retry for a while if the table does not answer, so that a restart does not fail during an outage.

    Raises:
        RetryableError: the table does not answer in time.
    """
    began = clock()
    while True:
        try:
            return call()
        except RetryableError as error:
            if clock() - began >= wait_s:
                raise
            logger.warning("The query waits until its table can be read: %s", error)
            sleep(RETRY_S)
