"""What all claims of the suite have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ...committers.store.sql import SqlManifestStore, open_store
from .harness import DestinationHarness
from .query import Query


class Claims:
    """Fixtures. `harness` is the author's."""

    @pytest.fixture
    def harness(self) -> DestinationHarness:
        raise NotImplementedError(
            "Override the fixture `harness`: it returns a harness of an empty destination."
        )

    @pytest.fixture
    def query(self, harness: DestinationHarness) -> Query:
        return Query(harness)

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SqlManifestStore]:
        with open_store(f"sqlite:///{tmp_path}/store.db") as store:
            yield store

    @pytest.fixture
    def other_store(self, tmp_path: Path) -> Iterator[SqlManifestStore]:
        """An empty one, as after the loss of the first."""
        with open_store(f"sqlite:///{tmp_path}/other.db") as store:
            yield store


def check_rows(harness: DestinationHarness, *expected: int) -> None:
    """Each row once; or at least once, where no more is promised."""
    found = sorted(harness.ids())
    if not harness.promises.is_exactly_once:
        found = sorted(set(found))
    assert found == sorted(expected)
    assert harness.problems() == []


def check_nothing_left(harness: DestinationHarness) -> None:
    """Tasks have left nothing that no reader sees."""
    assert sorted(harness.uncommitted()) == []
