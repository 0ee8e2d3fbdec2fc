"""`penstock gc` deletes files of batch writes whose driver died, once they can no longer be committed."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.lakes import LAKES
from tests.support.stored_lake import NOW, OLD, Lake, files_of, paths

from penstock.cli.gc import CleanedTable, clean_table
from penstock.committers.contract import ManifestState
from penstock.committers.errors import RetryableError
from penstock.committers.iceberg import table as iceberg_table
from penstock.committers.protocol.batch_writes import (
    COMMIT_WITHIN,
    GIVEN_UP_AFTER,
    batch_write_id,
    batch_write_of,
)
from penstock.committers.protocol.commit_runner import CommitRunner
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.protocol.two_phase import TwoPhaseCommitter
from penstock.datasource.committing import commit_batch_write
from penstock.datasource.planning.batch_plan import CommittableMessage
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.conformance.query import committables
from penstock.testing.faults import at_point

HOUR = timedelta(hours=1)
ONE_DAY_MS = 24 * 3600 * 1000
ACCESS = TableAccess({}, {})
LATE = "started at .*, more than 6 days ago.* Run the write again"


@pytest.fixture(params=LAKES)
def lake(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A stream has written one batch; its store is the one that clean-up knows."""
    with Lake(tmp_path, kind=request.param) as lake:
        lake.commit(0, lake.write(0))
        yield lake


def gc(lake: Lake, grace: timedelta = HOUR) -> CleanedTable:
    cleaned = clean_table(lake.store, lake.store.streams(), ACCESS, NOW, grace, delete=True)
    assert cleaned.error is None
    return cleaned


# Clean-up -------------------------------------------------------------------------------------------


def test_files_of_a_killed_batch_write_are_deleted_once_it_cannot_be_committed(lake: Lake) -> None:
    before = lake.on_disk()
    lake.batch_write(GIVEN_UP_AFTER + HOUR)
    rows = lake.rows()
    assert gc(lake).deleted == 2
    assert lake.on_disk() == before
    assert lake.rows() == rows


@pytest.mark.parametrize(
    ("began", "modified", "grace"),
    [
        (GIVEN_UP_AFTER - HOUR, OLD, HOUR),
        (OLD, GIVEN_UP_AFTER - HOUR, HOUR),
        (timedelta(days=9), OLD, timedelta(days=10)),
        (OLD, timedelta(days=9), timedelta(days=10)),
    ],
    ids=["write began lately", "file is young", "write is within the grace", "file is within the grace"],
)
def test_young_files_are_kept(lake: Lake, began: timedelta, modified: timedelta, grace: timedelta) -> None:
    lake.batch_write(began, files_age=modified)
    cleaned = gc(lake, grace)
    assert cleaned.deleted == 0
    assert cleaned.found is not None
    assert len(cleaned.found.young) + len(cleaned.found.unsettled) == 2


def test_files_of_a_committed_batch_write_stay(lake: Lake) -> None:
    message = lake.batch_write(COMMIT_WITHIN - HOUR)
    commit_batch_write(lake.sink, [message])
    lake.lake.compact()
    for path in lake.on_disk():
        lake.set_age(path, OLD)
    before, rows = lake.on_disk(), lake.rows()
    later = NOW + OLD
    assert clean_table(lake.store, lake.store.streams(), ACCESS, later, HOUR, delete=True).error is None
    assert paths(files_of(message)) <= lake.on_disk() == before, "an earlier version names them"
    assert lake.rows() == rows


def test_files_that_a_manifest_of_the_store_names_stay(lake: Lake) -> None:
    """The write had a store, and another address of the same table."""
    message = lake.batch_write(OLD)
    batch = replace(
        message.committable.batch, stream=replace(message.committable.batch.stream, table_uri="/alias")
    )
    manifest = replace(lake.manifest_of_write(message), batch=batch)
    lake.store.register_stream(batch.stream, lake.kind)
    lake.store.claim(batch.stream, "run")
    lake.store.prepare(manifest, "run")
    streams = [status for status in lake.store.streams() if status.key == lake.stream]

    def deleted() -> int:
        return clean_table(lake.store, streams, ACCESS, NOW, HOUR, delete=True).deleted

    assert deleted() == 0
    lake.store.finish(batch, ManifestState.ABORTED)
    assert deleted() == 2


def test_files_of_a_table_that_was_replaced_stay(lake: Lake) -> None:
    """As those of streams. The table id is checked again before each deletion."""
    lake.batch_write(OLD)
    cleanup = lake.cleanup()
    found = cleanup.find(NOW, HOUR)
    assert len(found.unneeded) == 2
    lake.lake.replace()
    assert sum(cleanup.delete(found)) == 0
    assert gc(lake).deleted == 0


def test_files_of_batch_writes_of_earlier_versions_stay(lake: Lake) -> None:
    """Their ids do not say when they began."""
    lake.query_id = f"write-{uuid.uuid4()}"
    lake.write(0)
    before = lake.on_disk()
    gc(lake)
    assert lake.on_disk() == before


# Commit ---------------------------------------------------------------------------------------------


def test_a_late_commit_is_refused(lake: Lake) -> None:
    rows, version = lake.rows(), lake.lake.version()
    with pytest.raises(RetryableError, match=LATE):
        commit_batch_write(lake.sink, [lake.batch_write(COMMIT_WITHIN + HOUR)])
    assert (lake.rows(), lake.lake.version()) == (rows, version)

    commit_batch_write(lake.sink, [lake.batch_write(COMMIT_WITHIN - HOUR)])
    assert len(lake.rows()) == len(rows) + 2


def test_a_commit_that_gets_late_between_retries_is_refused_and_its_files_are_given_up(lake: Lake) -> None:
    """Another writer is faster the first time; by the second it is too late."""
    message = lake.batch_write(COMMIT_WITHIN - HOUR)
    batch = message.committable.batch
    lake.store.register_stream(batch.stream, lake.kind)
    committer = TwoPhaseCommitter(
        lake.store, lake.committer(), sleep=lambda _: None, now=Mock(side_effect=[NOW, NOW + 2 * HOUR])
    )
    with (
        at_point("commit.start", lambda: lake.commit(1, lake.write(1))),
        pytest.raises(RetryableError, match=LATE),
    ):
        committer.commit(lake.manifest_of_write(message), committables([message]))
    assert len(lake.rows()) == 4, "the two batches of the stream"
    record = lake.store.record(batch.stream, 0)
    assert record is not None
    assert record.state is ManifestState.ABORTED
    assert "6 days" in record.reason


def recover(lake: Lake, message: CommittableMessage, now: datetime) -> ManifestState:
    """Recover a batch write whose driver had a store, and died between prepare and mark."""
    batch = message.committable.batch
    lake.store.register_stream(batch.stream, lake.kind)
    lake.store.claim(batch.stream, "run")
    lake.store.prepare(lake.manifest_of_write(message), "run")
    table = lake.committer()
    with suppress(RetryableError):
        Recovery(lake.store, table, CommitRunner(lake.store, table, now=lambda: now)).recover(batch.stream)
    record = lake.store.record(batch.stream, 0)
    assert record is not None
    assert ("Look for its rows" in record.reason) == (record.state is ManifestState.ABORTED)
    return record.state


@pytest.mark.parametrize("are_there", [True, False])
def test_recovery_gives_up_a_batch_write_that_began_too_long_ago(lake: Lake, are_there: bool) -> None:
    """Whether its files exist or were cleaned up. The outcome of earlier attempts is unknown."""
    message = lake.batch_write(COMMIT_WITHIN + HOUR)
    if not are_there:
        lake.committer().delete_files([file.path for file in files_of(message)])
    rows = lake.rows()
    assert recover(lake, message, NOW) is ManifestState.ABORTED
    assert lake.rows() == rows


def test_recovery_finds_a_batch_write_without_token(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    message = lake.batch_write(COMMIT_WITHIN - HOUR)
    lake.committer().commit(lake.manifest_of_write(message))
    monkeypatch.setattr(iceberg_table, "BATCH_WRITE_TOKEN_KEPT_MS", -ONE_DAY_MS)
    lake.commit(1, lake.write(1))
    rows = lake.rows()
    assert recover(lake, message, NOW + timedelta(days=8)) is ManifestState.COMMITTED
    assert lake.rows() == rows


# Ids ------------------------------------------------------------------------------------------------


def test_an_id_has_the_start_of_the_write_and_its_table() -> None:
    write = batch_write_of(batch_write_id(NOW, "table-1", str(uuid.uuid4())))
    assert write is not None
    assert write.began_at == NOW.replace(microsecond=0)
    assert write.is_into("table-1")
    assert not write.is_into("table-2")
    assert not write.is_into(None)


@pytest.mark.parametrize(
    "query_id", [f"write-{uuid.UUID(int=7)}", str(uuid.UUID(int=7)), "write-1764000000-", "write-1"]
)
def test_other_ids_say_nothing(query_id: str) -> None:
    assert batch_write_of(query_id) is None
