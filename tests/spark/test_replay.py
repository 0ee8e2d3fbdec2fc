"""Replays through a real Spark: the same offsets are skipped, other offsets are an error, never a loss."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable
from tests.spark.id_stream import IdStream

pytestmark = pytest.mark.spark


def test_a_replayed_batch_writes_no_data_file(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run()
    files, versions = ids.data_files(), ids.versions()
    ids.forget_commit(2)
    ids.run()

    assert ids.data_files() == files
    assert ids.versions() == versions
    assert (ids.checkpoint / "commits" / "2").exists()


def test_a_replay_after_the_store_was_lost_adds_no_rows(ids: IdStream) -> None:
    """The table knows its last batch by itself."""
    ids.add_files(3)
    ids.run()
    files = ids.data_files()
    ids.forget_commit(2)
    for path in ids.checkpoint.glob("penstock.sqlite*"):
        path.unlink()
    ids.add_files(1)
    ids.run()

    assert len(ids.data_files() - files) == 1
    assert ids.findings().rows == 400
    assert ids.findings().problems == []


def test_a_rewound_checkpoint_that_reads_other_rows_is_an_error(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run()
    _rewind(ids, to_batch=1)
    (ids.source / "00001.parquet").rename(ids.source / "renamed.parquet")
    files = ids.data_files()
    message = ids.fails_with()

    assert "CheckpointMismatchError" in message
    assert "penstock show" in message
    assert "penstock renew" in message
    assert ids.data_files() == files


def test_a_rewound_checkpoint_that_reads_the_same_rows_is_harmless(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run()
    files = ids.data_files()
    for batch_id in (1, 2):
        ids.forget_commit(batch_id)
    (ids.checkpoint / "offsets" / "2").unlink()
    (ids.checkpoint / "offsets" / ".2.crc").unlink()
    ids.run()

    assert ids.data_files() == files
    assert ids.findings().problems == []


def _rewind(ids: IdStream, to_batch: int) -> None:
    """As an operator would: the checkpoint forgets all batches from `to_batch` on."""
    for folder in ("offsets", "commits", "sources/0"):
        for path in (ids.checkpoint / folder).iterdir():
            name = path.name.strip(".").removesuffix(".crc")
            if name.isdecimal() and int(name) >= to_batch:
                path.unlink()


def test_copies_of_a_checkpoint_that_read_the_same_deliver_each_row_once(ids: IdStream) -> None:
    """Both have the query id: a batch that one has committed is a replay to the other."""
    ids.add_files(2)
    ids.run()
    copy = ids.copy_checkpoint("copy")
    ids.add_files(1)
    ids.run()
    ids.add_files(1)
    ids.run(checkpointLocation=str(copy))
    ids.run()

    assert ids.findings().rows == 400
    assert ids.findings().problems == []


def test_a_copied_checkpoint_that_reads_other_rows_is_an_error(ids: IdStream) -> None:
    ids.add_files(2)
    ids.run()
    copy = ids.copy_checkpoint("copy")
    ids.add_files(2)
    two_at_once = ids.rows(files_per_batch=2)
    ids.run()
    files = ids.data_files()

    assert "CheckpointMismatchError" in ids.fails_with(two_at_once, checkpointLocation=str(copy))
    assert ids.data_files() == files
    assert ids.findings().problems == []


def test_a_fresh_checkpoint_is_a_new_stream(ids: IdStream) -> None:
    """Batch ids restart at 0 under another query id: its rows are new rows, not replays."""
    ids.add_files(2)
    ids.run()
    shutil.rmtree(ids.checkpoint)
    ids.run()

    assert ids.findings().rows == 400


def test_a_dropped_table_is_an_error(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run()
    shutil.rmtree(ids.table)
    ids.add_files(1)

    assert "TableChangedError" in ids.fails_with()


def test_a_table_that_was_dropped_and_created_again_is_an_error(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run()
    schema = DeltaTable(str(ids.table)).schema()
    shutil.rmtree(ids.table)
    DeltaTable.create(str(ids.table), schema)
    ids.add_files(1)

    assert "dropped and created again" in ids.fails_with()


def test_a_table_restored_to_before_the_token_is_an_error(ids: IdStream) -> None:
    """RESTORE takes back rows but not tokens."""
    ids.add_files(3)
    ids.run()
    DeltaTable(str(ids.table)).restore(1)
    ids.add_files(1)

    assert "was restored" in ids.fails_with()


def test_a_compacted_and_vacuumed_table_goes_on(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run()
    DeltaTable(str(ids.table)).optimize.compact()
    DeltaTable(str(ids.table)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    ids.forget_commit(2)
    ids.add_files(1)
    ids.run()

    assert ids.findings().rows == 400
    assert ids.findings().lost == 0
