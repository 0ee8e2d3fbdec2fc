"""Fixtures and checks for all claims of the suite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from ...committers.store.sql import SqlManifestStore, open_store
from ..faults import Lost
from .harness import DestinationHarness
from .query import Query

LOSSES = 2
SMALL_REQUESTS = {"maxBatchSize": "2", "maxInFlightRequests": "1"}
"""What one loss can repeat at most."""


class Claims:
    """Fixtures. The author of a destination adds `harness`."""

    @pytest.fixture
    def harness(self) -> DestinationHarness:
        raise NotImplementedError(
            "Override the fixture `harness`, which returns a harness of an empty destination."
        )

    @pytest.fixture
    def query(self, harness: DestinationHarness, store: SqlManifestStore) -> Query:
        return Query(harness, store=store)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqlManifestStore]:
        with open_store(f"sqlite:///{tmp_path}/store.db") as store:
            yield store

    @pytest.fixture
    def other_store(self, tmp_path: Path) -> Iterator[SqlManifestStore]:
        """An empty store, as after the first one was lost."""
        with open_store(f"sqlite:///{tmp_path}/other.db") as store:
            yield store


def check_rows(harness: DestinationHarness, *expected: int, early: Collection[int] = ()) -> None:
    """Check that each row is there once, or at least once if no more is promised.

    Args:
        early: rows of tasks whose batch is not committed; a destination that is not atomic may show them
    """
    found = sorted(harness.ids())
    if not harness.promises.is_atomic:
        found = [row_id for row_id in found if row_id not in early]
    if not harness.promises.is_exactly_once:
        found = sorted(set(found))
    assert found == sorted(expected)
    assert harness.problems() == []


def check_nothing_left(harness: DestinationHarness) -> None:
    """Check that tasks have left nothing behind, unless the destination deletes it by itself."""
    if harness.promises.discards:
        assert sorted(harness.uncommitted()) == []


def check_repeated(harness: DestinationHarness, *expected: int, lost: Lost) -> None:
    """Check that each row has arrived, and that only rows with a lost response are there twice, if any.

    Args:
        lost: `LOSSES` times, of requests that are `SMALL_REQUESTS`
    """
    found = Counter(harness.ids())
    assert sorted(found) == sorted(expected)
    can_repeat = lost == "response" and not harness.promises.is_exactly_once
    repeated = found.total() - len(found)
    assert repeated <= (LOSSES * int(SMALL_REQUESTS["maxBatchSize"]) if can_repeat else 0)
    assert harness.problems() == []
