"""Snapshots expire after batches, on a real table and with real data files, and the stream goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from tests.sink_stream import SinkStream
from tests.tables import IcebergOnDisk, rows

from penstock.committers.errors import CheckpointMismatchError
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink

BATCHES = 45


def stream(folder: Path, **options: str) -> tuple[SinkStream, IcebergOnDisk]:
    given = {"table": "lake.ids", "warehouse": str(folder / "warehouse")}
    given["store"] = f"sqlite:///{folder}/store.db"
    sink = IcebergSink(IcebergOptions.parse({**given, **options}))
    return SinkStream(sink), IcebergOnDisk(folder / "warehouse")


def ids(first: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


def run(one: SinkStream, batches: int) -> None:
    for _ in range(batches):
        one.run(ids(one.next_batch, 1))


def metadata_files(table: IcebergOnDisk, pattern: str) -> set[str]:
    return {path.name for path in (table.folder / "metadata").glob(pattern)}


def test_a_stream_with_default_settings_keeps_from_20_to_50_snapshots(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of the expired ones stay for an hour, for readers that still use them."""
    one, table = stream(tmp_path)
    with caplog.at_level(logging.WARNING):
        run(one, 40)
        before = table.versions()
        run(one, BATCHES - 40)

    assert (before, table.versions()) == (40, 20 + 4)
    assert rows(table, "id") == [(number,) for number in range(BATCHES)]
    assert len(metadata_files(table, "snap-*.avro")) == BATCHES
    assert caplog.records == []


def test_a_stream_that_keeps_2_snapshots_leaves_no_file_of_the_others_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, table = stream(tmp_path, keepSnapshots="2", snapshotGrace="0s")
    with caplog.at_level(logging.WARNING):
        run(one, BATCHES)

    assert rows(table, "id") == [(number,) for number in range(BATCHES)]
    assert table.versions() == 2 + 4
    snapshots = {Path(one["manifest-list"]).name for one in table.metadata()["snapshots"]}
    expired = metadata_files(table, "snap-*.avro") - snapshots
    assert len(expired) <= 10
    assert len(table.data_files()) == BATCHES
    assert caplog.records == []


def test_a_stream_that_shall_not_expire_snapshots_keeps_them(tmp_path: Path) -> None:
    one, table = stream(tmp_path, keepSnapshots="2", snapshotGrace="0s", expireSnapshots="false")
    run(one, 21)
    assert table.versions() == 21


def test_a_batch_whose_snapshot_has_expired_is_not_taken_again(tmp_path: Path) -> None:
    """Not even from a driver that has lost the store: the table knows its last batch."""
    one, table = stream(tmp_path, keepSnapshots="2", snapshotGrace="0s")
    run(one, 11)
    assert table.versions() == 2
    other, _ = stream(tmp_path, keepSnapshots="2", store=f"sqlite:///{tmp_path}/other.db")
    other.next_batch = 5
    with pytest.raises(CheckpointMismatchError, match="already has batch 10"):
        run(other, 1)
    assert rows(table, "id") == [(number,) for number in range(11)]
