"""Claims: a commit with unknown outcome loses nothing, and only unreferenced files are deleted."""

from __future__ import annotations

import pytest

from ...committers.contract import ManifestState
from ...committers.errors import CommitStateUnknownError, RetryableError
from ...committers.store.sql import SqlManifestStore
from ..faults import Lost
from .claims import LOSSES, SMALL_REQUESTS, Claims, check_nothing_left, check_repeated, check_rows
from .harness import DestinationHarness
from .query import Query, ids, payloads, quietly, task


class ResponseClaims(Claims):
    @pytest.mark.parametrize("batch_id", [0, 1])
    def test_a_committed_batch_whose_response_was_lost_is_not_added_again(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, batch_id: int
    ) -> None:
        """The destination finds it at once; or it reports an unknown state, and the next start finds it."""
        for earlier in range(batch_id):
            query.run(store, query.batch(earlier), ids(earlier))
        with harness.losing("response"):
            quietly(lambda: query.run(store, query.batch(batch_id), ids(batch_id)), CommitStateUnknownError)
        assert batch_id in harness.ids()
        query.run(store, query.batch(batch_id), ids(batch_id), run_id="r2")

        check_rows(harness, *range(batch_id + 1))
        assert query.state(store, batch_id) is ManifestState.COMMITTED

    def test_a_batch_whose_response_and_store_were_lost_is_not_added_again(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        with harness.losing("response"):
            quietly(lambda: query.run(store, query.batch(0), ids(1)), CommitStateUnknownError)
        query.run(other_store, query.batch(0), ids(1), run_id="r2")

        check_rows(harness, 1)

    def test_a_batch_whose_request_was_lost_is_committed_by_the_next_start(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Spark's abort deletes nothing: the manifest references the files, and may still be committed."""
        query.run(store, query.batch(0), ids(0))
        with (
            harness.losing("request"),
            pytest.raises((RetryableError, CommitStateUnknownError)),
        ):
            query.run(store, query.batch(1), ids(1), ids(2))
        assert query.state(store, 1) is ManifestState.PREPARED
        plan = query.plan(store, query.batch(1))

        assert plan.writers is None, "the prepared rows are committed, and not written again"
        check_rows(harness, 0, 1, 2)

    @pytest.mark.parametrize("lost", ["request", "response"])
    def test_a_task_whose_requests_or_responses_are_lost_repeats_only_these(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, lost: Lost
    ) -> None:
        """If rows are sent in requests. With a key or an id, rows that are repeated are there once."""
        losing = harness.losing_requests(lost, LOSSES)
        if losing is None:
            return
        query = query.with_options(**SMALL_REQUESTS)
        with losing:
            query.run(store, query.batch(0), ids(*range(6)), ids(*range(6, 12)))

        check_repeated(harness, *range(12), lost=lost)

    def test_an_abort_after_an_unknown_end_deletes_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        messages = query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)])
        before = sorted(harness.uncommitted())
        query.abort(messages)

        assert sorted(harness.uncommitted()) == before
        query.commit(store, messages)
        check_rows(harness, 1, 2)

    def test_an_abort_of_a_batch_with_a_failed_task_leaves_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        messages = query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)])
        query.abort([*messages, None])

        check_rows(harness, early=[1, 2])
        check_nothing_left(harness)

    def test_a_task_that_fails_leaves_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        plan = query.plan(store, query.batch(0))

        def failing() -> object:
            yield from ids(1, 2).to_batches()
            raise RuntimeError("the source failed")

        with pytest.raises(RuntimeError, match="the source failed"):
            plan.write(failing(), task(plan.batch))  # type: ignore[arg-type]
        check_rows(harness, early=[1, 2])
        check_nothing_left(harness)

    def test_discarding_is_idempotent_and_touches_no_other_batch(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.prepare(store, query.batch(0), ids(1))
        kept = set(harness.uncommitted())
        other = Query(harness, "q2")
        messages = other.write(other.plan(store, other.batch(0)), [ids(2), ids(3)])
        staged = set(harness.uncommitted()) - kept
        deleted = len(staged) if harness.promises.discards else 0

        assert [other.target().discard(payloads(messages)) for _ in range(2)] == [deleted, 0]
        assert set(harness.uncommitted()) == (kept if harness.promises.discards else kept | staged)
        query.recover(store)
        check_rows(harness, 1, early=[2, 3])

    def test_a_deleted_payload_is_reported_as_missing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        manifest = query.prepare(store, query.batch(0), ids(1), ids(2))
        assert list(query.target().missing(manifest)) == []
        harness.delete_uncommitted()

        for _ in range(2):
            assert len(query.target().missing(manifest)) == manifest.files

    def test_a_missing_payload_is_written_again_by_the_replay(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.prepare(store, query.batch(0), ids(1), ids(2))
        if not harness.promises.stages_rows:
            return
        harness.delete_uncommitted()
        (left,) = query.recover(store)
        assert left.state is ManifestState.PREPARED
        assert "are missing" in left.reason
        query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")

        check_rows(harness, 1, 2)

    def test_a_missing_payload_that_no_replay_writes_again_is_an_error(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Spark has continued: a later batch would hide the loss."""
        query.prepare(store, query.batch(0), ids(1))
        if not harness.promises.stages_rows:
            return
        harness.delete_uncommitted()
        with pytest.raises(Exception, match="its rows would be lost"):
            query.plan(store, query.batch(1))

        check_rows(harness)
        assert query.state(store, 0) is ManifestState.PREPARED
