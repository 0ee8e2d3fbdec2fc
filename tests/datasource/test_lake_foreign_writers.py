"""Compaction of two tables that share their files, while others write or maintain one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from unittest import mock

import pytest
from deltalake import DeltaTable
from tests.support.cli import Ended
from tests.support.lake_pairs import (
    NO_RETENTION,
    LakePair,
    age_files,
    agree,
    compacted,
    delivered,
    run,
    share,
    some,
)

from penstock.committers.contract import Conflict
from penstock.committers.delta.compaction import DeltaCompactableTable
from penstock.committers.errors import CommitStateUnknownError, ConfigurationError, TableChangedError
from penstock.committers.file_tables import shared_compaction
from penstock.committers.iceberg.compaction import IcebergCompactableTable
from penstock.delivery.maintenance_steps import StoredContext
from penstock.testing.faults import at_point, crash_at


def delete_from_delta(pair: LakePair, row_id: int) -> None:
    DeltaTable(str(pair.delta.path)).delete(f"id = {row_id}")


def delete_from_iceberg(pair: LakePair, row_id: int) -> None:
    pair.iceberg.load().delete(f"id = {row_id}")


def test_rows_deleted_from_delta_before_its_commit_leave_both_as_they_are(pair: LakePair) -> None:
    delivered(pair)
    files = pair.files()
    with at_point("pair.prepared", lambda: delete_from_delta(pair, 3)):
        assert compacted(pair) == (
            "compacted nothing: Delta: other writers have removed or changed the same files"
        )
    assert pair.ids() == [[0, 1, 2, 4, 5, 6, 7], list(range(8))]
    assert pair.files() == files, "the new file was deleted"
    assert pair.store.compactions.of_stream(pair.stream("delta")) is None


def test_rows_deleted_from_iceberg_after_the_commit_to_delta_stay_deleted(pair: LakePair) -> None:
    delivered(pair, **NO_RETENTION)
    with at_point("pair.first", lambda: delete_from_iceberg(pair, 3)):
        assert "except Iceberg: other writers have removed" in compacted(pair)
    assert pair.ids() == [list(range(8)), [0, 1, 2, 4, 5, 6, 7]]
    age_files(pair)
    assert Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete").code == 0
    assert pair.maintain()["vacuum"].error is None
    assert pair.ids() == [list(range(8)), [0, 1, 2, 4, 5, 6, 7]], "each has its own files"


@pytest.mark.parametrize(
    ("point", "delete", "except_for"),
    [
        ("pair.prepared", delete_from_delta, ""),
        ("pair.first", delete_from_iceberg, ", except Iceberg: some old files"),
    ],
)
def test_a_group_that_others_have_changed_does_not_hold_up_the_others(
    pair: LakePair, point: str, delete: Callable[[LakePair, int], None], except_for: str
) -> None:
    query = pair.query(partitionBy="kind")
    for batch_id in range(4):
        run(pair, query, batch_id, some(batch_id * 3))
    assert pair.deliver().code == 0
    with at_point(point, lambda: delete(pair, 3)):
        assert except_for in compacted(pair)
    with_3 = list(range(12))
    without_3 = [n for n in with_3 if n != 3]
    expected = [without_3, with_3]
    assert pair.ids() == (expected if delete is delete_from_delta else expected[::-1])
    delta, iceberg = pair.named()
    assert len(delta & iceberg) == (5 if delete is delete_from_delta else 2), "of the other two partitions"


def test_a_second_table_that_others_write_all_the_time_gets_the_files_later(pair: LakePair) -> None:
    delivered(pair)
    busy = mock.patch.object(IcebergCompactableTable, "replace", return_value=Conflict("another writer"))
    with busy as replace:
        assert compacted(pair) == "compacted nothing: Iceberg: another writer"
    assert replace.call_count == 5
    agree(pair, 8)
    assert compacted(pair) == "compacted 8 files into 1"
    assert len(share(pair)) == 1
    agree(pair, 8)


@pytest.mark.parametrize("table", [DeltaCompactableTable, IcebergCompactableTable])
def test_a_lost_response_is_no_second_commit(pair: LakePair, table: type) -> None:
    delivered(pair)
    replace = table.replace  # type: ignore[attr-defined]

    def lose(*arguments: object) -> None:
        replace(*arguments)
        raise CommitStateUnknownError("the response was lost")

    with mock.patch.object(table, "replace", lose):
        assert isinstance(pair.maintain()["compact"].error, CommitStateUnknownError)
    agree(pair, 8)
    assert compacted(pair) == "compacted 8 files into 1"
    assert len(share(pair)) == 1
    agree(pair, 8)
    assert [table.versions() for table in pair.tables] == [3, 2]


def test_a_table_that_is_dropped_in_between_ends_the_compaction(pair: LakePair) -> None:
    delivered(pair)
    with at_point("pair.first", pair.iceberg.forget):
        assert isinstance(pair.maintain()["compact"].error, TableChangedError)
    assert pair.delta.ids() == list(range(8))
    assert pair.store.compactions.of_stream(pair.stream("delta")) is None


@pytest.mark.parametrize(
    ("is_cleaned_up", "reason"),
    [(False, "the stream has committed too many batches"), (True, "1 new files are missing")],
)
def test_batches_that_pass_the_names_of_the_new_files_end_the_compaction(
    pair: LakePair, is_cleaned_up: bool, reason: str
) -> None:
    """Clean-up may delete these files, because no table lists them."""
    query = delivered(pair)
    with mock.patch.object(shared_compaction, "batch_ahead", return_value=4), crash_at("pair.prepared"):
        pair.maintain()
    run(pair, query, 4)
    assert pair.deliver().code == 0
    if is_cleaned_up:
        age_files(pair)
        assert Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete").code == 0
    assert compacted(pair).startswith(f"compacted nothing: Delta: {reason}")
    agree(pair, 10)


def test_files_of_the_first_table_are_committed_to_the_second_after_any_number_of_batches(
    pair: LakePair,
) -> None:
    """Clean-up keeps them, because the first table lists them."""
    query = delivered(pair)
    with mock.patch.object(shared_compaction, "batch_ahead", return_value=4), crash_at("pair.first"):
        pair.maintain()
    run(pair, query, 4)
    assert pair.deliver().code == 0
    age_files(pair)
    assert Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete").code == 0
    assert compacted(pair) == "compacted 8 files into 1"
    assert len(share(pair)) == 3
    agree(pair, 10)


def test_a_store_that_does_not_know_the_other_table_is_reported(pair: LakePair) -> None:
    delivered(pair)
    with mock.patch.object(StoredContext, "sink_of", return_value=None):
        error = pair.maintain()["compact"].error
    assert isinstance(error, ConfigurationError)
    assert "the manifest store does not know" in str(error)


# Maintenance by others ------------------------------------------------------------------------------------


def test_optimize_by_others_ends_the_compaction_and_loses_no_file_of_iceberg(pair: LakePair) -> None:
    query = delivered(pair, **NO_RETENTION)
    DeltaTable(str(pair.delta.path)).optimize.compact()
    done = pair.maintain()
    assert (done["compact"].done, done["vacuum"].done) == ("", "")
    agree(pair, 8)
    run(pair, query, 4)
    assert pair.deliver().code == 0
    agree(pair, 10)


def test_a_long_retention_keeps_files_from_a_vacuum_by_others(pair: LakePair) -> None:
    """Of a batch that is not delivered yet, and of an older snapshot."""
    long = json.dumps({"delta.deletedFileRetentionDuration": "interval 30000 days"})
    query = delivered(pair, **{"target.delta.tableProperties": long})
    assert compacted(pair) == "compacted 8 files into 1"
    run(pair, query, 4)
    age_files(pair)
    assert DeltaTable(str(pair.delta.path)).vacuum(dry_run=False, full=True) == []
    assert pair.deliver().code == 0
    agree(pair, 10)


def test_snapshots_that_pyiceberg_expires_keep_their_files(pair: LakePair) -> None:
    delivered(pair)
    old = pair.iceberg.version()
    assert compacted(pair) == "compacted 8 files into 1"
    pair.iceberg.load().maintenance.expire_snapshots().by_id(old).commit()
    assert len(pair.files()) == 9
    agree(pair, 8)
