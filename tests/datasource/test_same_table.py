"""A table that goes back behind what the store knows to be in it, token and all, stops the stream."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from tests.sink_stream import SinkStream
from tests.tables import IcebergOnDisk, rows
from typer.testing import CliRunner

from penstock import TableChangedError
from penstock.cli.app import app
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink

BATCH_1_MISSING = "holds batch 0 as the last one of query q0, which has delivered batch 1"


@pytest.fixture
def stream(tmp_path: Path) -> SinkStream:
    options = {"table": "lake.ids", "warehouse": str(tmp_path), "store": f"sqlite:///{tmp_path}/store.db"}
    return SinkStream(IcebergSink(IcebergOptions.parse(options)))


def row(number: int) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64())})


def put_back_catalog(warehouse: Path, location: str) -> None:
    """As a backup of the catalog that is restored."""
    with closing(sqlite3.connect(warehouse / "catalog.sqlite")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))


def remove_token(warehouse: Path, _location: str) -> None:
    uri = f"sqlite:///{warehouse}/catalog.sqlite"
    table = load_catalog("penstock", type="sql", uri=uri, warehouse=f"file://{warehouse}").load_table(
        "lake.ids"
    )
    table.transaction().remove_properties("penstock.q0").commit_transaction()


@pytest.mark.parametrize(
    ("go_back", "says"),
    [(put_back_catalog, BATCH_1_MISSING), (remove_token, "holds no batch of query q0")],
)
def test_a_token_behind_the_store_stops_the_stream_until_an_operator_accepts_it(
    stream: SinkStream, tmp_path: Path, go_back: Callable[[Path, str], None], says: str
) -> None:
    table = IcebergOnDisk(tmp_path)
    stream.run(row(0))
    location = table.metadata_location
    stream.run(row(1))
    go_back(tmp_path, location)
    left = rows(table, "id")

    with pytest.raises(TableChangedError, match=says):
        stream.run(row(2))
    assert rows(table, "id") == left

    command = ["recover", "--store", str(stream.sink.options.store), "--accept-table", "--yes"]
    accepted = CliRunner().invoke(app, command)
    assert accepted.exit_code == 0, accepted.output
    stream.run(row(2))
    assert rows(table, "id") == [*left, (2,)]
