"""Claims: the batches of a decoupled query are delivered once and in order.

The delivery process is `penstock deliver --once`, in this process.
"""

from __future__ import annotations

import threading

import pytest

from ...committers import crash_points
from ...committers.contract import AlreadyCommitted, ManifestState
from ...committers.deliveries.contract import Mergeable
from ...committers.errors import CheckpointMismatchError
from ...committers.store.sql import SqlManifestStore
from ...committers.store.status import StreamStatus
from ...datasource.file_table import Compactable
from ...datasource.stored.table_access import TableAccess
from ...delivery.attempts import DeliveryListener, ServiceSettings
from ...delivery.context import DeliveryContext
from ...delivery.drain import Drained, drain
from ..faults import Lost, crash_at
from .claims import LOSSES, SMALL_REQUESTS, Claims, check_nothing_left, check_repeated, check_rows
from .crashes import crash_around_commit
from .harness import DestinationHarness
from .query import NO_ACCESS, Query, ids

OF_A_DELIVERY = (*crash_points.DELIVERY_POINTS, "commit.start", "commit.landed")


class DeliveryClaims(Claims):
    @pytest.fixture
    def decoupled(self, harness: DestinationHarness, store: SqlManifestStore) -> Query:
        return Query(harness, options={"delivery": "decoupled"}, store=store)

    def test_prepared_batches_are_delivered_once(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """In one commit if the target is `Mergeable`. Nothing is visible before."""
        _prepare(decoupled, store, 5)
        if harness.promises.is_atomic or not harness.promises.stages_rows:
            check_rows(harness)

        delivered = _delivered(store)
        assert (delivered.batches, delivered.left, delivered.failure) == (5, 0, None)
        assert delivered.deliveries == (1 if isinstance(decoupled.target(), Mergeable) else 5)
        check_rows(harness, *range(10))
        token = decoupled.target().token(decoupled.query_id)
        assert token is not None
        assert token.batch_id == 4
        assert _delivered(store).deliveries == 0

    def test_a_delivered_batch_is_not_written_again_if_the_store_was_lost(
        self,
        decoupled: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """Or the query stops, if the token was lost with the store."""
        _prepare(decoupled, store, 3)
        deliver(store)
        if decoupled.has_token_in_store:
            with pytest.raises(CheckpointMismatchError, match="lost with the store"):
                decoupled.plan(other_store, decoupled.batch(2))
            check_rows(harness, *range(6))
            return
        assert decoupled.plan(other_store, decoupled.batch(2)).writers is None

        check_rows(harness, *range(6))

    @pytest.mark.parametrize("point", OF_A_DELIVERY)
    def test_a_crash_of_a_delivery_process_loses_and_doubles_nothing(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        """Only a `Compactable` target reaches the points of compaction."""
        _prepare(decoupled, store, 3)
        if _is_reached(point, decoupled, harness):
            with crash_at(point):
                deliver(store)
        deliver(store)

        check_rows(harness, *range(6))
        assert not store.pending(decoupled.stream)

    @pytest.mark.parametrize("has_committed", [False, True], ids=["before its commit", "after its commit"])
    def test_a_crash_around_the_commit_of_a_delivery_loses_and_doubles_nothing(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness, has_committed: bool
    ) -> None:
        _prepare(decoupled, store, 3)
        with crash_around_commit(decoupled, has_committed):
            deliver(store)
        deliver(store)

        check_rows(harness, *range(6))

    @pytest.mark.parametrize("lost", ["request", "response"])
    def test_a_delivery_whose_commit_was_lost_is_finished_by_the_next(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness, lost: Lost
    ) -> None:
        _prepare(decoupled, store, 3)
        with harness.losing(lost):
            deliver(store)
        deliver(store)

        check_rows(harness, *range(6))
        assert not store.pending(decoupled.stream)

    @pytest.mark.parametrize("lost", ["request", "response"])
    def test_a_delivery_whose_requests_or_responses_are_lost_repeats_only_these(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness, lost: Lost
    ) -> None:
        """If rows are sent in requests. With a key or an id, rows that are repeated are there once."""
        losing = harness.losing_requests(lost, LOSSES)
        if losing is None:
            return
        _prepare(decoupled.with_options(**SMALL_REQUESTS), store, 3)
        with losing:
            deliver(store)

        check_repeated(harness, *range(6), lost=lost)
        assert not store.pending(decoupled.stream)

    def test_an_answer_that_acknowledges_nothing_delivers_nothing(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """If rows are sent in requests. After the retries it is an error, and the rows wait."""
        answering = harness.without_acknowledgements()
        if answering is None:
            return
        _prepare(decoupled.with_options(retryFor="1s"), store, 2)
        with answering:
            delivered = _delivered(store)

        assert (delivered.batches, delivered.left) == (0, 2)
        assert delivered.failure is not None
        check_rows(harness)
        deliver(store)
        check_rows(harness, *range(4))
        assert not store.pending(decoupled.stream)

    def test_a_delivery_process_that_resumes_late_adds_nothing(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """It was paused before its commit. Another process has delivered its batches."""
        _prepare(decoupled, store, 3)
        with crash_at("deliver.prepared"):
            deliver(store)
        unfinished = store.deliveries.unfinished(decoupled.stream)
        assert unfinished is not None
        deliver(store)

        assert isinstance(decoupled.target().commit(unfinished.manifest), AlreadyCommitted)
        check_rows(harness, *range(6))

    def test_a_backlog_with_a_batch_that_overwrites_keeps_its_order(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        if not harness.promises.overwrites:
            return
        decoupled.run(store, decoupled.batch(0), ids(0))
        deliver(store)
        for batch_id, overwrite in enumerate((False, True, False), 1):
            decoupled.run(store, decoupled.batch(batch_id), ids(batch_id), overwrite=overwrite)
        delivered = _delivered(store)

        assert delivered.left == 0
        check_rows(harness, 2, 3)

    def test_missing_prepared_rows_stop_the_delivery(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Spark has continued. A later batch must not be delivered before them."""
        _prepare(decoupled, store, 1)
        harness.delete_uncommitted()
        decoupled.run(store, decoupled.batch(1), ids(7))
        delivered = _delivered(store)

        assert delivered.failure is not None
        assert decoupled.state(store, 0) is ManifestState.PREPARED
        check_rows(harness)

    def test_a_delivery_leaves_nothing_behind(
        self, decoupled: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Except for the inputs of a compaction, which are deleted later."""
        _prepare(decoupled, store, 3)
        deliver(store)

        if not isinstance(decoupled.target(), Compactable):
            check_nothing_left(harness)
        check_rows(harness, *range(6))


def _prepare(decoupled: Query, store: SqlManifestStore, batches: int) -> None:
    """Prepare batches of two rows each, from two tasks."""
    for batch_id in range(batches):
        decoupled.run(store, decoupled.batch(batch_id), ids(2 * batch_id), ids(2 * batch_id + 1))


class _FirstFailure(DeliveryListener):
    """Stop after the first failure instead of trying again after a pause."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def on_failure(self, stream: StreamStatus, error: Exception, wait_s: float | None) -> None:
        self._stop.set()


def deliver(store: SqlManifestStore, access: TableAccess = NO_ACCESS) -> Drained | None:
    """Deliver the prepared batches of the decoupled query; None if there is none."""
    stop = threading.Event()
    settings = ServiceSettings(maintains=False, lease_wait_s=5)
    listeners = [_FirstFailure(stop)]
    context = DeliveryContext(access=access, settings=settings, listeners=listeners, stop=stop)
    drained = drain(store, context)
    assert [one.error for one in drained if one.error is not None] == []
    return drained[0] if drained else None


def _delivered(store: SqlManifestStore) -> Drained:
    drained = deliver(store)
    assert drained is not None
    return drained


def _is_reached(point: str, decoupled: Query, harness: DestinationHarness) -> bool:
    if point.startswith("compact"):
        return isinstance(decoupled.target(), Compactable)
    return point in crash_points.DELIVERY_POINTS or point in harness.promises.crash_points
