"""A table whose token is older than the last batch of the store stops the stream."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.cli import penstock
from tests.support.lakes import IcebergLake, rows
from tests.support.query import Batches, Query

from penstock import TableChangedError

BATCH_1_MISSING = "has batch 0 as its last batch of query q0, which has already committed batch 1"


@pytest.fixture
def stream(tmp_path: Path) -> Batches:
    return Batches(Query(IcebergLake(tmp_path), "q0", {"store": f"sqlite:///{tmp_path}/store.db"}))


def put_back_catalog(warehouse: Path, location: str) -> None:
    """As a backup of the catalog that is restored."""
    with closing(sqlite3.connect(warehouse / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def remove_token(warehouse: Path, _location: str) -> None:
    table = IcebergLake(warehouse).load()
    table.transaction().remove_properties("penstock.q0").commit_transaction()


@pytest.mark.parametrize(
    ("go_back", "says"), [(put_back_catalog, BATCH_1_MISSING), (remove_token, "has no batch of query q0")]
)
def test_a_token_behind_the_store_stops_the_stream_until_an_operator_accepts_it(
    stream: Batches, tmp_path: Path, go_back: Callable[[Path, str], None], says: str
) -> None:
    table = IcebergLake(tmp_path)
    stream.run([0])
    location = table.metadata_location
    stream.run([1])
    go_back(tmp_path, location)
    left = rows(table, "id")

    with pytest.raises(TableChangedError, match=says):
        stream.run([2])
    assert rows(table, "id") == left

    penstock(stream.query.options["store"], "recover", "--accept-table", "--yes")
    stream.run([2])
    assert rows(table, "id") == [*left, (2,)]
