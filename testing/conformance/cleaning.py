"""Claims: the clean-up finds what tasks have left behind, and nothing else."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ...cli.gc import CleanedTable, clean_table
from ...committers.store.sql import SqlManifestStore
from ...datasource.settings import register_stream
from ...datasource.stored.stored_table import Cleanable
from ...delivery.retiring import Retirement
from ...operating.leases import held_lease
from .claims import Claims, check_nothing_left, check_rows
from .deliveries import deliver
from .harness import DestinationHarness
from .query import NO_ACCESS, Query, ids

DAYS_LATER = datetime.now(timezone.utc) + timedelta(days=3)


class CleaningClaims(Claims):
    @pytest.fixture
    def untidy(self, harness: DestinationHarness, store: SqlManifestStore) -> Query:
        """A query whose tasks leave something."""
        options = {} if harness.promises.stages_rows else {"delivery": "decoupled"}
        return Query(harness, options=options, store=store)

    def test_clean_up_deletes_the_files_of_lost_attempts(
        self, untidy: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        if not isinstance(untidy.stored_table(), Cleanable):
            return
        untidy.write(untidy.plan(store, untidy.batch(0)), [ids(1), ids(2)], run_id="lost")
        untidy.run(store, untidy.batch(0), ids(1), ids(2), run_id="r2")
        untidy.run(store, untidy.batch(1), ids(3), run_id="r2")
        deliver(store)
        lost = len(harness.uncommitted())
        assert bool(lost) != harness.promises.undoes_attempts

        listed = lost if harness.promises.discards else 0
        found = _clean(untidy, store, delete=False)
        assert (found.files, found.deleted, len(harness.uncommitted())) == (listed, 0, lost)
        assert _clean(untidy, store).deleted == listed
        check_nothing_left(harness)
        assert _clean(untidy, store).files == 0
        check_rows(harness, 1, 2, 3)

    def test_clean_up_keeps_files_that_are_pending_young_or_of_another_query(
        self,
        untidy: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """The other files belong to a query that the store does not know."""
        if not isinstance(untidy.stored_table(), Cleanable):
            return
        untidy.run(store, untidy.batch(0), ids(0))
        deliver(store)
        stranger = Query(harness, "stranger", untidy.options, store=store)
        stranger.write(stranger.plan(other_store, stranger.batch(0)), [ids(7)])
        untidy.write(untidy.plan(store, untidy.batch(1)), [ids(1)], run_id="running")
        untidy.prepare(store, untidy.batch(1), ids(1))
        kept = set(harness.uncommitted())

        assert len(kept) == (2 if harness.promises.undoes_attempts else 3)
        assert _clean(untidy, store).deleted == 0
        assert set(harness.uncommitted()) == kept
        untidy.run(store, untidy.batch(1), ids(1), run_id="r2")
        untidy.run(store, untidy.batch(2), ids(2), run_id="r2")
        deliver(store)
        assert _clean(untidy, store, now=datetime.now(timezone.utc)).deleted == 0
        check_rows(harness, 0, 1, 2)

    def test_a_retired_stream_leaves_nothing_but_its_rows(
        self,
        untidy: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """What its tasks have left goes whatever its age, also of a batch that was never prepared. What
        another query has left stays.
        """
        untidy.run(store, untidy.batch(0), ids(1), ids(2))
        deliver(store)
        cleans = isinstance(untidy.stored_table(), Cleanable) and harness.promises.discards
        untidy.write(untidy.plan(store, untidy.batch(1)), [ids(8)], run_id="running")
        own = set(harness.uncommitted())
        stranger = Query(harness, "stranger", untidy.options, store=store)
        stranger.write(stranger.plan(other_store, stranger.batch(0)), [ids(7)])
        others = set(harness.uncommitted()) - own
        retirement = Retirement(store, untidy.status(store), NO_ACCESS, held_lease)
        found = retirement.find()
        retirement.claim()
        removed = retirement.run()

        assert removed == found
        assert store.streams() == []
        assert set(harness.uncommitted()) == (others if cleans else own | others)
        check_rows(harness, 1, 2, early=(7, 8))
        register_stream(untidy.sink(), store, untidy.stream)
        assert Retirement(store, untidy.status(store), NO_ACCESS, held_lease).find().records == []


def _clean(
    query: Query, store: SqlManifestStore, *, delete: bool = True, now: datetime = DAYS_LATER
) -> CleanedTable:
    cleaned = clean_table(store, [query.status(store)], NO_ACCESS, now, timedelta(days=1), delete=delete)
    assert cleaned.error is None
    return cleaned
