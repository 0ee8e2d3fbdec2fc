"""Claims: a query notices that its destination was dropped, replaced or rolled back, if it can know that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ...committers.contract import Manifest, ManifestState, StreamKey
from ...committers.errors import CheckpointMismatchError, PenstockError, TableChangedError
from ...committers.store.sql import SqlManifestStore
from ...datasource.sink import SupportsOrigins, SupportsTableIdentity
from .claims import Claims, check_rows
from .harness import DestinationHarness
from .query import Query, ids


class ChangeClaims(Claims):
    """A target without `SupportsTableIdentity` promises only that no row is doubled."""

    @pytest.mark.parametrize("change", ["dropped", "dropped and created again", "rolled back"])
    def test_a_destination_that_has_changed_is_not_written(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, change: str
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        query.run(store, query.batch(1), ids(1))
        if not isinstance(query.target(), SupportsTableIdentity):
            harness.drop()
            _at_most_once(query, store, harness)
            return
        _change(harness, change)
        rows = sorted(harness.ids())
        for _ in range(2):
            with pytest.raises(TableChangedError):
                query.run(store, query.batch(2), ids(2), run_id="r2")

        assert sorted(harness.ids()) == rows

    @pytest.mark.parametrize("change", ["dropped", "dropped and created again"])
    def test_a_destination_that_changes_before_the_commit_is_not_committed_to(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, change: str
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        messages = query.write(query.plan(store, query.batch(1)), [ids(1)])
        if not isinstance(query.target(), SupportsTableIdentity):
            return
        _change(harness, change)
        with pytest.raises(TableChangedError):
            query.commit(store, messages)

        check_rows(harness)
        assert query.state(store, 1) is ManifestState.PREPARED

    def test_a_table_that_an_operator_accepts_is_written_again(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """As with `penstock recover --accept-table`."""
        query.run(store, query.batch(0), ids(0))
        if not isinstance(query.target(), SupportsTableIdentity):
            return
        harness.recreate()
        now = query.stored_table().now()
        assert now is not None
        store.accept_table(query.stream, now.table_id, now.version)
        committer = query.stored_table().committer()
        assert isinstance(committer, SupportsTableIdentity)
        committer.accept(query.query_id)
        query.run(store, query.batch(1), ids(1), run_id="r2")

        check_rows(harness, 1)

    def test_a_new_query_over_the_rows_of_an_earlier_one_is_noticed(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """The checkpoint was deleted with its store, but the destination has recorded the first query."""
        checkpoint = {"checkpointLocation": "/checkpoints/q1"}
        query.run(store, query.batch(0), ids(0))
        again = Query(harness, "q2", {**checkpoint, "newQuery": "refuse"})
        if isinstance(query.target(), SupportsOrigins):
            for one in (store, other_store):
                with pytest.raises(CheckpointMismatchError, match="rows of an earlier query"):
                    again.plan(one, again.batch(0))
        allowed = Query(harness, "q2", {**checkpoint, "newQuery": "allow"})
        allowed.run(other_store, allowed.batch(0), ids(1))

        check_rows(harness, 0, 1)

    def test_a_query_that_wrote_elsewhere_before_is_refused(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Spark goes on at the offsets of the checkpoint, so the rows before would be missing here."""
        elsewhere = StreamKey(query.query_id, "elsewhere")
        store.register_stream(elsewhere, "delta")
        store.claim(elsewhere, "r0")
        before = replace(query.batch(0), stream=elsewhere)
        store.prepare(Manifest(before, "delta", 1, b"", 0, 0, 0, is_empty=True), "r0")
        with pytest.raises(CheckpointMismatchError, match=r"starts with batch 1\..* written to elsewhere\."):
            query.plan(store, query.batch(1))
        check_rows(harness)
        allowed = query.with_options(newTarget="allow")
        allowed.run(store, query.batch(1), ids(1))
        query.run(store, query.batch(2), ids(2))

        check_rows(harness, 1, 2)


def _change(harness: DestinationHarness, change: str) -> None:
    changes = {
        "dropped": harness.drop,
        "dropped and created again": harness.recreate,
        "rolled back": harness.roll_back,
    }
    changes[change]()


def _at_most_once(query: Query, store: SqlManifestStore, harness: DestinationHarness) -> None:
    try:
        query.run(store, query.batch(2), ids(2), run_id="r2")
    except PenstockError:
        check_rows(harness)
    else:
        check_rows(harness, 2)
