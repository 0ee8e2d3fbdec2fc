"""Claims: a process that dies between any two steps loses no row and doubles none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from ...committers import crash_points
from ...committers.contract import ManifestState
from ...committers.store.sql import SqlManifestStore
from ..faults import Crash, crash_at
from .claims import Claims, check_nothing_left, check_rows
from .harness import DestinationHarness
from .query import TEXTS, Query, ids

OF_THE_PROTOCOL = ("prepare.start", "prepare.done", "mark.done")
"""Crash points of every batch. A destination adds its own."""

OF_A_DESTINATION = tuple(
    point
    for point in crash_points.STREAM_POINTS
    if point not in (*OF_THE_PROTOCOL, "evolve.done", "recover.start", "recover.done")
)


class CrashClaims(Claims):
    @pytest.mark.parametrize("step", ["planned", "task dies", "first task finished", "all tasks finished"])
    def test_a_crash_before_the_manifest_loses_and_doubles_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, step: str
    ) -> None:
        plan = query.plan(store, query.batch(0))
        if step == "task dies":
            writer = query.write_and_die(plan, ids(1, 2))
            if not harness.promises.stages_rows:
                writer.abort()  # its thread would go on sending
            del writer
        elif step != "planned":
            query.write(plan, [ids(1, 2), ids(3)][: 1 if step == "first task finished" else 2])
        _restart(query, store)

        check_rows(harness, 1, 2, 3, 4)

    @pytest.mark.parametrize("point", [*OF_THE_PROTOCOL, *OF_A_DESTINATION])
    def test_a_crash_at_a_crash_point_loses_and_doubles_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        """Only for the points that the destination declares in its promises."""
        if point in (*OF_THE_PROTOCOL, *harness.promises.crash_points):
            with crash_at(point):
                query.run(store, query.batch(0), ids(1, 2), ids(3))
        else:
            with pytest.raises(AssertionError, match="was not reached"), crash_at(point):
                query.run(store, query.batch(0), ids(1, 2), ids(3))
        _restart(query, store)

        check_rows(harness, 1, 2, 3, 4)
        assert not store.pending(query.stream)

    @pytest.mark.parametrize("point", ["evolve.done", "commit.start", "commit.landed"])
    def test_a_crash_of_a_batch_with_a_new_column_loses_and_doubles_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        """Only for the points that the destination declares in its promises."""
        if not harness.promises.adds_columns or point not in harness.promises.crash_points:
            return
        query.run(store, query.batch(0), ids(0))
        wider = Query(harness, options={"schemaEvolution": "addColumns"}, store=store)
        rows = pa.table({"id": [1], "text": ["a"]}, schema=TEXTS)
        with crash_at(point):
            wider.run(store, wider.batch(1), rows)
        wider.run(store, wider.batch(1), rows, run_id="r2")

        check_rows(harness, 0, 1)
        assert query.state(store, 1) is ManifestState.COMMITTED

    @pytest.mark.parametrize("has_committed", [False, True], ids=["before its commit", "after its commit"])
    @pytest.mark.parametrize("batch_id", [0, 1])
    def test_a_crash_around_the_commit_loses_and_doubles_nothing(
        self,
        query: Query,
        store: SqlManifestStore,
        harness: DestinationHarness,
        has_committed: bool,
        batch_id: int,
    ) -> None:
        for earlier in range(batch_id):
            query.run(store, query.batch(earlier), ids(earlier + 10))
        with crash_around_commit(query, has_committed):
            query.run(store, query.batch(batch_id), ids(1), ids(2))
        assert (1 in harness.ids()) == has_committed or not harness.promises.is_atomic
        assert query.state(store, batch_id) is ManifestState.PREPARED
        plan = query.plan(store, query.batch(batch_id))

        assert plan.writers is None, "the prepared rows are committed, and not written again"
        check_rows(harness, *range(10, 10 + batch_id), 1, 2)
        check_nothing_left(harness)

    @pytest.mark.parametrize(
        "point", ["recover.start", "commit.start", "commit.landed", "mark.done", "recover.done"]
    )
    def test_a_crash_in_recovery_loses_and_doubles_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness, point: str
    ) -> None:
        query.prepare(store, query.batch(0), ids(1), ids(2))
        if point.startswith("commit") and point not in harness.promises.crash_points:
            with crash_around_commit(query, has_committed=point == "commit.landed"):
                query.plan(store, query.batch(0))
        else:
            with crash_at(point):
                query.plan(store, query.batch(0))
        query.run(store, query.batch(0), ids(1), ids(2), run_id="r3")

        check_rows(harness, 1, 2)
        assert query.state(store, 0) is ManifestState.COMMITTED
        check_nothing_left(harness)

    def test_a_crash_in_every_start_loses_and_doubles_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """Three batches, each with a crash before and after its commit."""
        for batch_id in range(3):
            for number, has_committed in enumerate((False, True)):
                with crash_around_commit(query, has_committed):
                    query.run(store, query.batch(batch_id), ids(batch_id), run_id=f"r{batch_id}{number}")
            query.run(store, query.batch(batch_id), ids(batch_id), run_id=f"r{batch_id}")

        check_rows(harness, 0, 1, 2)

    def test_recovery_without_a_replay_commits_pending_batches(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        query.prepare(store, query.batch(0), ids(1), ids(2))
        recovered = query.recover(store)

        assert [(one.record.batch.batch_id, one.state) for one in recovered] == [(0, ManifestState.COMMITTED)]
        assert query.recover(store) == []
        check_rows(harness, 1, 2)

    def test_a_replay_with_other_partitions_adds_nothing(
        self, query: Query, store: SqlManifestStore, harness: DestinationHarness
    ) -> None:
        """The prepared rows are committed, and those of the second run discarded."""
        messages = query.write(query.plan(store, query.batch(0)), [ids(1), ids(2)], run_id="r2")
        query.prepare(store, query.batch(0), ids(1, 2), run_id="r1")
        query.commit(store, messages)

        check_rows(harness, 1, 2)
        check_nothing_left(harness)


def _restart(query: Query, store: SqlManifestStore) -> None:
    """Run the batch again with other partitions, then the next one."""
    query.run(store, query.batch(0), ids(1), ids(2, 3), run_id="r2")
    query.run(store, query.batch(1), ids(4), run_id="r2")


@contextmanager
def crash_around_commit(query: Query, has_committed: bool) -> Iterator[None]:
    """Crash before the target's `commit`, or after it."""
    target, crashed = type(query.target()), []
    commit = target.commit

    def die(self: Any, *args: Any, **kwargs: Any) -> None:
        crashed.append(has_committed and commit(self, *args, **kwargs))
        raise Crash

    with mock.patch.object(target, "commit", die):
        with suppress(Crash):
            yield
    assert crashed, "the target's commit was not called"
