"""Claims: of two drivers on one checkpoint only one commits; other queries and writers are not affected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from ...committers.contract import Committed, ManifestState
from ...committers.errors import CheckpointMismatchError, FencedError
from ...committers.store.sql import SqlManifestStore, open_store
from ..faults import at_point
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import Query, ids

_T = TypeVar("_T")


class ConcurrencyClaims(Claims):
    def test_a_run_that_was_taken_over_commits_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.run(store, query.batch(0), ids(0), run_id="r1")
        messages = query.write(query.plan(store, query.batch(1)), [ids(1)], run_id="r1")
        query.run(store, query.batch(1), ids(1), run_id="r2")
        query.run(store, query.batch(2), ids(2), run_id="r2")
        with pytest.raises(FencedError):
            query.commit(store, messages)

        check_rows(harness, 0, 1, 2)
        check_nothing_left(harness)

    def test_a_driver_that_resumes_late_adds_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """It was paused before its commit. Another driver has committed its manifest and the next batch."""
        manifest = query.prepare(store, query.batch(0), ids(1))
        query.recover(store)
        query.run(store, query.batch(1), ids(2), run_id="r2")
        query.target().commit(manifest)

        check_rows(harness, 1, 2)

    @pytest.mark.parametrize("batch_id", [0, 1])
    def test_two_drivers_that_commit_one_batch_at_once_add_it_once(
        self, query: Query, tmp_path: Path, harness: DestinationHarness, batch_id: int
    ) -> None:
        """Each has its own store, so only the destination can prevent that."""
        barrier, names = threading.Barrier(2), ("a", "b")
        for name in names:
            with open_store(f"sqlite:///{tmp_path}/{name}.db") as store:
                if batch_id:
                    query.run(store, query.batch(0), ids(0), run_id=f"{name}0")
                else:
                    query.plan(store, query.batch(0))  # which creates the table

        def drive(name: str) -> None:
            with open_store(f"sqlite:///{tmp_path}/{name}.db") as store:
                plan = query.plan(store, query.batch(batch_id))
                messages = query.write(plan, [ids(1, 2), ids(3)], run_id=f"{name}1")
                barrier.wait(60)
                query.commit(store, messages)

        assert _errors_of(drive, names, on_error=barrier.abort) == []
        check_rows(harness, *range(batch_id), 1, 2, 3)

    def test_a_concurrent_driver_that_commits_first_is_noticed_by_the_commit(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """It has loaded the destination before, but its commit must be based on the current state."""
        messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
        manifest, target = query.manifest(messages), query.target()
        target.token(query.query_id)
        query.run(other_store, query.batch(0), ids(1), run_id="r2")
        target.commit(manifest)

        check_rows(harness, 1)

    def test_a_batch_that_overwrites_late_removes_nothing_of_the_next_batch(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Another driver commits the batch and the next one, while this one is about to commit."""
        if not harness.promises.overwrites or "commit.start" not in harness.promises.crash_points:
            return
        manifest = query.build(store, query.batch(0), ids(0), overwrite=True)
        following = query.with_options(newTarget="allow").build(store, query.batch(1), ids(1))

        def commit_both() -> None:
            for one in (manifest, following):
                assert isinstance(query.target().commit(one), Committed)

        with at_point("commit.start", commit_both):
            query.target().commit(manifest)
        check_rows(harness, 0, 1)

    def test_other_offsets_under_a_committed_batch_id_are_refused(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """By the store or, if that was lost, by the destination."""
        query.run(store, query.batch(0), ids(1))
        for one in (store,) if query.has_token_in_store else (store, other_store):
            with pytest.raises(CheckpointMismatchError):
                query.run(one, query.batch(0, "other"), ids(2), run_id="r2")

        check_rows(harness, 1)
        check_nothing_left(harness)

    def test_other_offsets_are_refused_in_the_commit(
        self,
        query: Query,
        store: SqlManifestStore,
        other_store: SqlManifestStore,
        harness: DestinationHarness,
    ) -> None:
        """The query on the copied checkpoint has committed after this batch was planned."""
        what = "with other source offsets"
        if query.has_token_in_store:  # then it must be the same store
            other_store, what = store, "prepared from other source offsets"
        messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
        query.run(other_store, query.batch(0, "other"), ids(2), run_id="r2")
        with pytest.raises(CheckpointMismatchError, match=what):
            query.commit(store, messages)

        check_rows(harness, 2, early=[1])

    def test_a_pending_batch_with_other_offsets_is_replaced(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.prepare(store, query.batch(0), ids(1))
        query.run(store, query.batch(0, "other"), ids(2), run_id="r2")

        check_rows(harness, 2, early=[1])
        assert query.state(store, 0) is ManifestState.COMMITTED

    @pytest.mark.parametrize(
        "when", ["before the plan", "while tasks write", "before the commit", "in the commit"]
    )
    def test_rows_of_other_writers_stay(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, when: str
    ) -> None:
        query.run(store, query.batch(0), ids(0))
        if when == "before the plan":
            harness.append(100)
        plan = query.plan(store, query.batch(1))
        if when == "while tasks write":
            harness.append(100)
        messages = query.write(plan, [ids(1), ids(2)])
        if when == "before the commit":
            harness.append(100)
        if when == "in the commit":
            point = "commit.start" if "commit.start" in harness.promises.crash_points else "prepare.done"
            with at_point(point, lambda: harness.append(100)):
                query.commit(store, messages)
        else:
            query.commit(store, messages)

        check_rows(harness, 0, 1, 2, 100)

    def test_two_queries_commit_concurrently(
        self, query: Query, tmp_path: Path, harness: DestinationHarness
    ) -> None:
        with open_store(f"sqlite:///{tmp_path}/first.db") as store:
            query.run(store, query.batch(0), ids(0))

        def drive(first: int) -> None:
            query = Query(harness, f"t{first}")
            with open_store(f"sqlite:///{tmp_path}/{query.query_id}.db") as store:
                for batch_id in range(5):
                    query.run(store, query.batch(batch_id), ids(first + batch_id))

        assert _errors_of(drive, (100, 200)) == []
        check_rows(harness, 0, *range(100, 105), *range(200, 205))


def _errors_of(
    drive: Callable[[_T], None], drivers: Iterable[_T], on_error: Callable[[], None] = lambda: None
) -> list[BaseException]:
    """Run each driver in a thread of its own, and return their errors."""
    errors = []

    def run(driver: _T) -> None:
        try:
            drive(driver)
        except BaseException as error:  # noqa: BLE001  the caller shows it
            errors.append(error)
            on_error()

    threads = [threading.Thread(target=run, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors
