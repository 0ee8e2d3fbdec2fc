"""Snapshots expire after batches, on a real table and with real data files, and the stream goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.lakes import IcebergLake, iceberg_lake
from tests.support.query import Batches, Query

from penstock.committers.errors import CheckpointMismatchError

BATCHES = 45


def stream(folder: Path, **options: str) -> tuple[Batches, IcebergLake]:
    lake = iceberg_lake(folder)
    return Batches(Query(lake, options={"store": f"sqlite:///{folder}/store.db", **options})), lake


def run(one: Batches, batches: int) -> None:
    for _ in range(batches):
        one.run([one.next_batch])


def metadata_files(table: IcebergLake, pattern: str) -> set[str]:
    return {path.name for path in (table.folder / "metadata").glob(pattern)}


def test_a_stream_keeps_20_to_50_snapshots(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of the expired ones stay for an hour, for readers that still use them."""
    one, table = stream(tmp_path)
    with caplog.at_level(logging.WARNING):
        run(one, 40)
        before = table.versions()
        run(one, BATCHES - 40)

    assert (before, table.versions()) == (40, 20 + 4)
    assert table.ids() == list(range(BATCHES))
    assert len(metadata_files(table, "snap-*.avro")) == BATCHES
    assert caplog.records == []


def test_2_snapshots_keep_no_other_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, table = stream(tmp_path, keepSnapshots="2", snapshotGrace="0s")
    with caplog.at_level(logging.WARNING):
        run(one, BATCHES)

    assert table.ids() == list(range(BATCHES))
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
    assert table.ids() == list(range(11))
