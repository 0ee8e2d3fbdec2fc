"""Claims: with `history=true` a destination has all versions of its rows, whatever order they arrive in.

A destination that does not compute rows promises only that it refuses the option.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ...committers.contract import AlreadyCommitted, Committed
from ...committers.errors import PenstockError, SchemaMismatchError
from ...committers.store.sql import SqlManifestStore
from ..faults import crash_at
from .claims import Claims, check_nothing_left
from .deliveries import deliver
from .harness import DestinationHarness
from .partial_rows import computes
from .upserts import Upserts, changes, check_nothing_left_but_keys, upserts_of


class HistoryClaims(Claims):
    @pytest.fixture
    def history(self, harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
        return history_of(harness, store)

    def test_a_change_ends_the_version_before(self, history: Upserts) -> None:
        """Each change is a version, also of one batch; a deletion ends the last one."""
        if not computes(history, "history"):
            return
        history.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 1, "c"), (9, 1)))
        history.run(1, changes((1, 2, "A"), (2, 2)), changes((1, 3, "AA"), (4, 2, "d")))
        check_versions(
            history,
            (1, 1, 2, "a"),
            (1, 2, 3, "A"),
            (1, 3, None, "AA"),
            (2, 1, 2, "b"),
            (3, 1, None, "c"),
            (4, 2, None, "d"),
        )
        history.run(2, changes((2, 5, "again"), (3, 4)))
        check_versions(
            history,
            (1, 1, 2, "a"),
            (1, 2, 3, "A"),
            (1, 3, None, "AA"),
            (2, 1, 2, "b"),
            (2, 5, None, "again"),
            (3, 1, 4, "c"),
            (4, 2, None, "d"),
        )

    @pytest.mark.parametrize("tasks", [1, 2])
    def test_late_changes_split_versions(self, history: Upserts, tasks: int) -> None:
        """Before the first version, inside of one, after a deletion; and late deletions."""
        if not computes(history, "history"):
            return
        history.run(0, changes((1, 10, "a"), (1, 20, "b"), (2, 10, "a"), (2, 20), (3, 10, "a"), (3, 20, "b")))
        late: list[Any] = [(1, 15, "late"), (1, 5, "first"), (2, 30, "after"), (2, 15, "late"), (3, 15)]
        history.run(1, *(changes(*late[number::tasks]) for number in range(tasks)))
        check_versions(
            history,
            (1, 5, 10, "first"),
            (1, 10, 15, "a"),
            (1, 15, 20, "late"),
            (1, 20, None, "b"),
            (2, 10, 15, "a"),
            (2, 15, 20, "late"),
            (2, 30, None, "after"),
            (3, 10, 15, "a"),
            (3, 20, None, "b"),
        )

    def test_changes_that_come_again_change_no_version(self, history: Upserts) -> None:
        """In one batch, in another batch, and as the same batch again. Other content replaces the version."""
        if not computes(history, "history"):
            return
        rows: list[Any] = [(1, 1, "a"), (1, 2, "b"), (1, 4), (2, 1, "c"), (1, 1, "a")]
        query = history.query
        manifest = query.build(history.store, query.batch(0), changes(*rows[::2]), changes(*rows[1::2]))
        assert isinstance(query.target().commit(manifest), Committed)
        assert isinstance(query.target().commit(manifest), AlreadyCommitted)
        expected = ((1, 1, 2, "a"), (1, 2, 4, "b"), (2, 1, None, "c"))
        check_versions(history, *expected)
        history.run(1, changes(*rows))
        check_versions(history, *expected)
        history.run(2, changes((1, 2, "B"), (2, 1, "c")))
        check_versions(history, (1, 1, 2, "a"), (1, 2, 4, "B"), (2, 1, None, "c"))

    @pytest.mark.parametrize("tasks", [1, 2])
    def test_two_versions_of_one_time_are_refused(self, history: Upserts, tasks: int) -> None:
        if not computes(history, "history"):
            return
        rows = [(1, 1, "a"), (1, 1, "b"), (1, 2, "c")]
        with pytest.raises(SchemaMismatchError, match="orderBy"):
            history.run(0, *(changes(*rows[number::tasks]) for number in range(tasks)))
        check_nothing_left(history.harness)

    def test_a_delivery_makes_the_versions_of_its_batches(self, history: Upserts) -> None:
        if not computes(history, "history"):
            return
        decoupled = history.with_options(delivery="decoupled")
        decoupled.run(0, changes((1, 1, "a"), (2, 1, "b")), changes((1, 5, "e")))
        decoupled.run(1, changes((1, 3, "c"), (2, 2)), changes((2, 1, "B")))
        decoupled.run(2, changes((2, 4, "d"), (1, 5)))
        deliver(decoupled.store)
        check_versions(decoupled, (1, 1, 3, "a"), (1, 3, 5, "c"), (2, 1, 2, "B"), (2, 4, None, "d"))

    @pytest.mark.parametrize("point", ["prepare.done", "commit.start", "commit.landed"])
    def test_a_crash_ends_a_version_once(self, history: Upserts, point: str) -> None:
        if not computes(history, "history"):
            return
        history.run(0, changes((1, 1, "a"), (2, 1, "b")))
        parts = changes((1, 3, "c"), (2, 2)), changes((1, 2, "late"))
        with crash_at(point):
            history.run(1, *parts)
        history.run(1, *parts[::-1], run_id="r2")
        check_versions(history, (1, 1, 2, "a"), (1, 2, 3, "late"), (1, 3, None, "c"), (2, 1, 2, "b"))
        check_nothing_left_but_keys(history.harness)

    def test_a_table_that_has_no_versions_is_refused(self, history: Upserts) -> None:
        """So is a query that has a column of the history itself."""
        if not computes(history, "history"):
            return
        upserts = upserts_of(history.harness, history.store)
        upserts.run(0, changes((1, 1, "a")))
        with pytest.raises(SchemaMismatchError, match="history=true: the table has no column"):
            history.run(1, changes((1, 2, "b")))
        rows = changes((1, 2, "b"))
        taken = rows.append_column("valid_to", pa.array([1], pa.int64()))
        with pytest.raises(PenstockError, match="has the column 'valid_to'"):
            history.run(1, taken)


def history_of(harness: DestinationHarness, store: SqlManifestStore) -> Upserts:
    return upserts_of(harness, store).with_options(history="true")


def check_versions(history: Upserts, *expected: tuple[int, int, int | None, str]) -> None:
    """
    Args:
        expected: id, beginning, end and text
    """
    found = sorted(history.harness.version_rows(), key=str)
    assert found == sorted([(*one[:3], one[2] is None, one[3]) for one in expected], key=str)
