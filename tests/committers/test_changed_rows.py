"""Changes by key to a service in memory: which rows are sent, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.keyed_service import ChangedQuery

from penstock.committers.errors import ConfigurationError, PenstockError, SchemaMismatchError
from penstock.committers.requests import changed_rows
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture
def query(tmp_path: Path, store: SqlManifestStore) -> ChangedQuery:
    return ChangedQuery(tmp_path, store)


def partial(query: ChangedQuery) -> ChangedQuery:
    """NULL in `text` and `more` keeps the value."""
    assert query.changes is not None
    query.changes = replace(query.changes, partial_columns=("text", "more"))
    return query


def test_a_key_is_sent_once_in_a_batch_by_order_and_not_by_place(query: ChangedQuery) -> None:
    """A coupled query, too: the rows of all its tasks pass one sender."""
    query.run(0, [(1, 3, "c"), (2, 1, "x"), (1, 1, "a")], [(1, 2, "b"), (2, 2), (3, 1, "z")])

    assert query.texts == {1: "c", 3: "z"}
    assert sorted(query.service.sent) == [("delete", 2), ("put", 1), ("put", 3)]


def test_the_rows_of_a_key_in_several_windows_are_sent_in_the_order_of_batches(
    query: ChangedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the first request takes longest. A window has whole batches, also if one is larger."""
    monkeypatch.setattr(changed_rows, "WINDOW_ROWS_MAX", 3)
    rows: list[Any] = [(1, 9, "a"), (2, 9, "a"), (1, 8, "-"), (2, 8, "-")]
    manifests = [
        query.manifest(0, rows),
        query.manifest(1, [(1, 1, "b")]),
        query.manifest(2, [(1, 2), (2, 2, "c")]),
    ]
    query.commit(*manifests)

    assert query.texts == {2: "c"}
    assert [row_id for _, row_id in query.service.sent] == [1, 2, 1, 2]


def test_a_row_before_the_recorded_progress_still_counts(query: ChangedQuery) -> None:
    """The last row of key 1 was acknowledged before the crash. The older ones behind it are not sent."""
    manifest = query.manifest(
        0, [(1, 9, "new"), (2, 1, "b")], [(1, 1, "old"), (3, 1, "c"), (4, 1, "d"), (1, 2)]
    )
    query.service.fails_after = 2
    with pytest.raises(PenstockError):
        query.commit(manifest)
    query.service.fails_after = None
    query.commit(manifest)

    assert query.texts == {1: "new", 2: "b", 3: "c", 4: "d"}
    assert query.service.sent == [("put", 1), ("put", 2), ("put", 3), ("put", 4)]


def test_with_late_rows_ignored_the_newest_row_of_all_batches_is_sent(
    tmp_path: Path, store: SqlManifestStore
) -> None:
    query = ChangedQuery(tmp_path, store)
    assert query.changes is not None
    query.changes = replace(query.changes, late_rows="ignore")
    query.commit(query.manifest(0, [(1, 5, "new")]), query.manifest(1, [(1, 4, "old")]))

    assert query.service.sent == [("put", 1)]
    assert query.texts == {1: "new"}


@pytest.mark.parametrize("second", [(1, 1, "b"), (1, 1)])
@pytest.mark.parametrize("tasks", [1, 2])
def test_two_rows_that_no_order_separates_are_refused_before_the_batch_is_prepared(
    query: ChangedQuery, tasks: int, second: Any
) -> None:
    rows = [(1, 1, "a"), second, (2, 1, "b"), (2, 1, "b")]
    with pytest.raises(SchemaMismatchError, match="Two different rows have the same key"):
        query.manifest(0, *(rows[number::tasks] for number in range(tasks)))


def test_rows_that_differ_only_in_columns_that_are_dropped_are_equal(query: ChangedQuery) -> None:
    """So are doubled events, in one task or in two."""
    query.run(0, [(1, 1, "a"), (1, 1, "a"), (2, 1)], [(1, 1, "a"), (2, 1)])

    assert query.texts == {1: "a"}
    assert len(query.service.sent) == 2


def test_a_query_without_a_place_for_the_row_log_is_told_why_it_needs_one(query: ChangedQuery) -> None:
    """Such as a batch write, which has no checkpoint."""
    query.options = replace(query.options, row_log=None)
    with pytest.raises(ConfigurationError, match=r"rowLog is missing: with writeMode=upsert"):
        query.manifest(0, [(1, 1, "a")])


# Partial rows -----------------------------------------------------------------------------------------


def test_partial_rows_of_a_batch_are_one_update(query: ChangedQuery) -> None:
    """They complete each other in their order, whichever task has them."""
    partial(query).service.rows = {1: {"id": 1, "text": "old", "more": "old"}, 2: {"id": 2, "more": "old"}}
    query.run(0, [(1, 3, "c", None), (1, 1, "a", "x")], [(1, 2, "b", None), (2, 1, "t", None)])

    assert query.service.rows[1] == {"id": 1, "n": 3, "text": "c", "more": "x"}
    assert query.service.rows[2] == {"id": 2, "n": 1, "text": "t", "more": "old"}
    assert sorted(query.service.sent) == [("put", 1), ("update", 2)]


def test_a_partial_row_behind_a_deletion_keeps_nothing(query: ChangedQuery) -> None:
    partial(query).service.rows = {row_id: {"id": row_id, "more": "old"} for row_id in (1, 2)}
    query.run(
        0, [(1, 1), (2, 3, "a", None), (2, 1, None, "x"), (2, 2)], [(1, 2, "a", None), (2, 4, "b", None)]
    )

    assert query.service.rows == {
        1: {"id": 1, "n": 2, "text": "a", "more": None},
        2: {"id": 2, "n": 4, "text": "b", "more": None},
    }


def test_partial_rows_are_not_merged_over_batches(query: ChangedQuery) -> None:
    """The first batch may be recorded before a crash: the second one alone does not have its values."""
    first = partial(query).manifest(0, [(1, 1, "a", None)])
    second = query.manifest(1, [(1, 2, None, "b")])
    query.commit(first, second)

    assert query.service.sent == [("update", 1), ("update", 1)]
    assert query.service.rows == {1: {"id": 1, "n": 2, "text": "a", "more": "b"}}


def test_two_partial_rows_that_no_order_separates_are_refused(query: ChangedQuery) -> None:
    """Also if a later row completes them."""
    with pytest.raises(SchemaMismatchError, match="Two different rows have the same key"):
        partial(query).manifest(0, [(1, 1, "a", None), (1, 1, "b", None), (1, 2, None, "x")])
