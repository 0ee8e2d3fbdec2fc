"""Claims: every row is committed once, however often its batch is run."""

from __future__ import annotations

import pytest

from ...committers.contract import AlreadyCommitted, Committed, ManifestState
from ...committers.errors import CheckpointMismatchError
from ...committers.store.sql import SqlManifestStore
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import Query, ids


class CommitClaims(Claims):
    def test_the_rows_of_all_tasks_are_committed_once(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(1, 2), ids(), ids(3))
        query.run(store, query.batch(1), ids(4))

        check_rows(harness, 1, 2, 3, 4)
        check_nothing_left(harness)
        record = store.record(query.stream, 0)
        assert record is not None
        assert (record.state, record.rows) == (ManifestState.COMMITTED, 3)

    def test_an_empty_batch_is_committed_and_adds_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(), ids())
        query.run(store, query.batch(1), ids(1))

        assert query.state(store, 0) is ManifestState.COMMITTED
        check_rows(harness, 1)

    def test_rows_are_invisible_until_their_batch_is_committed(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(1))
        query.prepare(store, query.batch(1), ids(2), ids(3))

        if harness.promises.is_atomic:
            check_rows(harness, 1)
            assert list(harness.uncommitted())
        query.run(store, query.batch(1), ids(2), ids(3), run_id="r2")
        check_rows(harness, 1, 2, 3)

    def test_a_replay_is_skipped(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(1))
        plan = query.plan(store, query.batch(0))

        assert plan.writers is None
        query.commit(store, query.write(plan, [ids(1)], run_id="r2"))
        check_rows(harness, 1)

    def test_a_replay_after_the_store_was_lost_adds_nothing(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        query.run(store, query.batch(0), ids(1))
        query.run(store, query.batch(1), ids(2))
        query.run(other_store, query.batch(1), ids(2), run_id="r2")
        query.run(other_store, query.batch(2), ids(3), run_id="r2")

        check_rows(harness, 1, 2, 3)

    def test_a_commit_that_is_repeated_adds_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        messages = query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)])
        manifest = query.manifest(messages)

        first = query.target().commit(manifest)
        assert isinstance(first, Committed)
        again = query.target().commit(manifest)
        assert isinstance(again, AlreadyCommitted)
        assert again.table_version in (first.table_version, None)
        check_rows(harness, 1, 2)

    def test_a_batch_before_the_token_adds_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        late = query.build(store, query.batch(0), ids(1))
        query.target().commit(late)
        query.run(store, query.batch(1), ids(2))

        assert isinstance(query.target().commit(late), AlreadyCommitted)
        check_rows(harness, 1, 2)

    def test_the_token_is_the_last_batch_of_the_query(self, query: Query, store: SqlManifestStore) -> None:
        """The digest is as long as the destination can store, and differs for other offsets."""
        assert query.target().token(query.query_id) is None
        for batch_id in range(2):
            query.run(store, query.batch(batch_id), ids(batch_id))

        token = query.target().token(query.query_id)
        assert token is not None
        assert token.batch_id == 1
        assert token.matches(query.batch(1).digest)
        assert len(token.digest) >= 8
        assert not token.matches(query.batch(1, "other").digest)
        assert query.target().token("q2") is None

    def test_the_token_is_checked_once_a_batch_is_to_be_added(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """An error of the check ends the attempt, on the version that was checked."""
        query.run(store, query.batch(0), ids(1))
        manifest = query.build(store, query.batch(1), ids(2))

        def refuse(token: object) -> None:
            raise CheckpointMismatchError(f"behind {token}")

        with pytest.raises(CheckpointMismatchError, match=r"behind Token\(batch_id=0"):
            query.target().commit(manifest, refuse)
        check_rows(harness, 1, early=[2])
        query.target().commit(manifest)
        query.target().commit(manifest, refuse)
        check_rows(harness, 1, 2)

    def test_a_target_sees_its_own_commit(self, query: Query, store: SqlManifestStore) -> None:
        manifest = query.build(store, query.batch(0), ids(1))
        target = query.target()
        assert target.token(query.query_id) is None
        target.commit(manifest)

        token = target.token(query.query_id)
        assert token is not None
        assert token.batch_id == 0

    def test_two_queries_have_a_token_each(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        other = Query(harness, "q2", store=store)
        query.run(store, query.batch(0), ids(1))
        other.run(store, other.batch(0), ids(2))
        other.run(store, other.batch(1), ids(3))
        query.run(store, query.batch(1), ids(4))

        tokens = [one.target().token(one.query_id) for one in (query, other)]
        assert [token and token.batch_id for token in tokens] == [1, 1]
        check_rows(harness, 1, 2, 3, 4)

    def test_commands_find_the_destination_by_its_address(
        self, query: Query, store: SqlManifestStore
    ) -> None:
        query.run(store, query.batch(0), ids(1))

        token = query.stored_committer().token(query.query_id)
        assert token == query.target().token(query.query_id)
        assert query.stored_table().now() is not None
