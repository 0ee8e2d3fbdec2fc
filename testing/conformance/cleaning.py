"""Claims: the clean-up finds what tasks have left behind, and nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from ...cli.gc import CleanedTable, clean_table
from ...committers.store.sql import SqlManifestStore
from ...datasource.destinations import Cleanable
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import NO_ACCESS, Query, ids

DAYS_LATER = datetime.now(timezone.utc) + timedelta(days=3)


class CleaningClaims(Claims):
    def test_clean_up_deletes_the_files_of_lost_attempts(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        if not isinstance(query.stored_table(), Cleanable):
            return
        query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)], run_id="lost")
        query.run(store, query.batch(0), ids(1), ids(2), run_id="r2")
        query.run(store, query.batch(1), ids(3), run_id="r2")
        lost = len(harness.uncommitted())
        assert lost

        found = _clean(query, store, delete=False)
        assert (found.files, found.deleted, len(harness.uncommitted())) == (lost, 0, lost)
        assert _clean(query, store).deleted == lost
        check_nothing_left(harness)
        assert _clean(query, store).files == 0
        check_rows(harness, 1, 2, 3)

    def test_clean_up_keeps_files_that_are_pending_young_or_of_another_query(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """The other files belong to a query that the store does not know."""
        if not isinstance(query.stored_table(), Cleanable):
            return
        query.run(store, query.batch(0), ids(0))
        stranger = Query(harness, "stranger")
        stranger.write(stranger.plan(other_store, stranger.batch(0)), [ids(7)])
        query.write(query.plan(store, query.batch(1)), [ids(1)], run_id="running")
        query.prepare(store, query.batch(1), ids(1))
        kept = set(harness.uncommitted())

        assert len(kept) == 3
        assert _clean(query, store).deleted == 0
        assert set(harness.uncommitted()) == kept
        query.run(store, query.batch(1), ids(1), run_id="r2")
        query.run(store, query.batch(2), ids(2), run_id="r2")
        assert _clean(query, store, now=datetime.now(timezone.utc)).deleted == 0
        check_rows(harness, 0, 1, 2)


def _clean(
    query: Query, store: SqlManifestStore, *, delete: bool = True, now: datetime = DAYS_LATER
) -> CleanedTable:
    cleaned = clean_table(store, [query.status(store)], NO_ACCESS, now, timedelta(days=1), delete=delete)
    assert cleaned.error is None
    return cleaned
