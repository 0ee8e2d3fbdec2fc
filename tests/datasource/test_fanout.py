"""One query, several targets: what its tasks write, what is prepared together, and what stays apart."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from servers.http_rows import HttpRows
from tests.support.backlogs import start_cli, wait_until
from tests.support.fanouts import NAMES, Fanout, http_fanout

from penstock.committers.contract import Batch, ManifestState, StreamKey
from penstock.committers.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    FencedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.store import manifest_queries
from penstock.committers.store.sql import open_store
from penstock.datasource.stored.table_access import TableAccess
from penstock.operating.admin import abort, undelivered
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids
from penstock.testing.faults import Crash, at_point, crash_at

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED


@pytest.fixture
def fanout(tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows]) -> Iterator[Fanout]:
    with http_fanout(tmp_path, two_http_servers) as fanout:
        yield fanout


def run(
    fanout: Fanout, query: Query, batch_id: int, *rows: int, offsets: str = "", run_id: str = "r1"
) -> None:
    """A batch with two tasks, each with the given number of rows or with one row."""
    first, second = (batch_id * 2, batch_id * 2 + 1) if not rows else (rows[0], rows[1])
    query.run(fanout.store, query.batch(batch_id, offsets), ids(first), ids(second), run_id=run_id)


def all_ids(fanout: Fanout) -> list[list[int]]:
    return [fanout.ids(name) for name in NAMES]


# One pass ----------------------------------------------------------------------------------------------


def test_each_target_gets_each_row_once(fanout: Fanout) -> None:
    query = fanout.query()
    for batch_id in range(3):
        run(fanout, query, batch_id)
    assert fanout.states(2) == [PREPARED] * 4
    assert len(fanout.row_log()) == 6, "one log for both services"
    assert fanout.search.ids() == []

    assert fanout.deliver().code == 0
    assert fanout.states(2) == [COMMITTED] * 4
    assert all_ids(fanout) == [list(range(6))] * 4
    assert fanout.row_log() == []


def test_a_target_that_is_down_holds_up_nobody(fanout: Fanout) -> None:
    query = fanout.query(**{"target.search.retryFor": "1s", "target.search.backlogBatches": "3"})
    fanout.search.set(answers=(401,) * 1000)
    for batch_id in range(3):
        run(fanout, query, batch_id)
        assert fanout.deliver().code == 1
        assert fanout.states(batch_id) == [COMMITTED, COMMITTED, PREPARED, COMMITTED]
    for name in ("lake", "ice", "events"):
        assert fanout.ids(name) == list(range(6)), name
    assert len(fanout.row_log()) == 6, "the service that is down needs them"

    with pytest.raises(RetryableError, match=r"^Target search: .* 3 batches wait \(backlogBatches=3\)"):
        run(fanout, query.with_options(backlogWaitSeconds="0"), 3)

    fanout.search.set()
    assert fanout.deliver().code == 0
    assert fanout.ids("search") == list(range(6))
    assert sorted(fanout.events.ids()) == list(range(6)), "nothing was sent again"
    assert fanout.row_log() == []


def test_a_value_that_one_target_refuses_names_it_and_leaves_nothing(fanout: Fanout) -> None:
    query = fanout.query(**{"target.events.idColumn": "id"})
    plan = query.plan(fanout.store, query.batch(0))
    with pytest.raises(
        SchemaMismatchError, match=r"^Target events, search: Target events: A row has NULL in the column"
    ):
        query.write(plan, [ids(1, None)])  # type: ignore[arg-type]
    assert fanout.row_log() == []
    assert fanout.files() == set()


def test_a_task_that_fails_in_one_target_leaves_nothing_of_the_others(fanout: Fanout) -> None:
    query = fanout.query()
    plan = query.plan(fanout.store, query.batch(0))
    failure = RetryableError("the disk of the log is full")
    with (
        mock.patch("penstock.writers.row_log.writer.RowLogWriter.finish", side_effect=failure),
        pytest.raises(RetryableError, match=r"^Target events, search: the disk of the log is full"),
    ):
        query.write(plan, [ids(1)])
    assert fanout.row_log() == []
    assert fanout.files() == set()


def test_a_target_with_a_row_log_of_its_own_does_not_share_it(fanout: Fanout, tmp_path: Path) -> None:
    query = fanout.query(**{"target.events.rowLog": str(tmp_path / "other-log")})
    run(fanout, query, 0)
    assert len(fanout.row_log()) == 2
    assert len(list((tmp_path / "other-log").rglob("*.arrow"))) == 2
    assert fanout.deliver("events").code == 0
    assert list((tmp_path / "other-log").rglob("*.arrow")) == []
    assert len(fanout.row_log()) == 2


def test_a_row_log_with_two_paths_is_refused(fanout: Fanout, tmp_path: Path) -> None:
    """The delivery of one target would delete files that the other one needs."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    query = fanout.query(rowLog=str(tmp_path / "logs"), **{"target.events.rowLog": str(tmp_path / "link")})
    with pytest.raises(
        ConfigurationError, match=r"target.events.rowLog=.*link and target.search.rowLog=.*logs are the"
    ):
        run(fanout, query, 0)

    assert fanout.states(0) == [None] * 4
    assert list((tmp_path / "logs").iterdir()) == []


# Prepared together --------------------------------------------------------------------------------------


def test_a_crash_before_the_manifests_are_stored_prepares_no_target(fanout: Fanout) -> None:
    query = fanout.query()
    with crash_at("prepare.start"):
        run(fanout, query, 0)
    assert fanout.states(0) == [None] * 4
    run(fanout, query, 0, run_id="r2")
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[0, 1]] * 4


@pytest.mark.parametrize("stored", [1, 2, 3])
def test_a_crash_within_the_transaction_prepares_no_target(fanout: Fanout, stored: int) -> None:
    """After the manifests of some targets."""
    query, left, real = fanout.query(), [stored], manifest_queries.put_manifest

    def put(*arguments: Any) -> Any:
        if not left[0]:
            raise Crash
        left[0] -= 1
        return real(*arguments)

    with mock.patch.object(manifest_queries, "put_manifest", put), pytest.raises(Crash):
        run(fanout, query, 0)
    assert fanout.states(0) == [None] * 4
    run(fanout, query, 0, run_id="r2")
    assert fanout.states(0) == [PREPARED] * 4


def test_a_replay_after_the_manifests_are_stored_writes_nothing(fanout: Fanout) -> None:
    query = fanout.query()
    with crash_at("prepare.done"):
        run(fanout, query, 0)
    assert fanout.states(0) == [PREPARED] * 4
    files, log = fanout.files(), fanout.row_log()
    run(fanout, query, 0, 7, 8, run_id="r2")
    assert (fanout.files(), fanout.row_log()) == (files, log)
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[0, 1]] * 4


def test_a_run_that_was_taken_over_prepares_no_target_and_deletes_what_it_wrote(fanout: Fanout) -> None:
    query = fanout.query()

    def take_over() -> None:
        fanout.store.claim(fanout.stream("search"), "r2")  # the last one

    with at_point("prepare.start", take_over), pytest.raises(FencedError):
        run(fanout, query, 0)
    assert fanout.states(0) == [None] * 4
    assert fanout.row_log() == []
    assert fanout.files() == set()


def test_an_abort_deletes_what_the_other_tasks_wrote(fanout: Fanout) -> None:
    query = fanout.query()
    plan = query.plan(fanout.store, query.batch(0))
    messages = query.write(plan, [ids(1), ids(2)])
    assert (len(fanout.row_log()), len(fanout.files())) == (2, 4)
    query.abort([messages[0], None, messages[1]])
    assert (fanout.row_log(), fanout.files()) == ([], set())


def test_files_that_only_some_targets_prepare_are_kept_for_them(fanout: Fanout) -> None:
    """A concurrent driver without `events` has prepared the batch for the others since it was planned."""
    query = fanout.query()
    plan = query.plan(fanout.store, query.batch(0))
    messages = query.write(plan, [ids(0), ids(1)], "r2")
    fewer = fanout.query("lake", "ice", "search")
    run(fanout, fewer, 0, run_id="r1")
    query.commit(fanout.store, messages)

    fanout.names = NAMES
    assert fanout.states(0) == [PREPARED] * 4
    assert len(fanout.row_log()) == 4, "both drivers' files, one for each service"
    assert len(fanout.files()) == 4, "those of the concurrent driver"
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[0, 1]] * 4
    assert _gc(fanout) == set(fanout.row_log()), "what was not listed by all is left to the clean-up"


def test_a_batch_whose_files_are_missing_in_one_target_is_written_again_for_it_alone(fanout: Fanout) -> None:
    query = fanout.query()
    with crash_at("prepare.done"):
        run(fanout, query, 0)
    for path in (fanout.folder / "checkpoint" / "row-log").rglob("*.arrow"):
        path.unlink()
    files = fanout.files()
    run(fanout, query, 0, run_id="r2")
    assert fanout.files() == files
    assert len(fanout.row_log()) == 2
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[0, 1]] * 4


# Other offsets, and operators ----------------------------------------------------------------------------


def test_a_replay_with_other_offsets_replaces_the_batch_in_all_targets(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    run(fanout, query, 0, 7, 8, offsets="other", run_id="r2")
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[7, 8]] * 4


def test_a_target_that_refuses_a_replay_refuses_it_before_others_abort_the_batch(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    assert fanout.deliver("search").code == 0  # the last one in the order of names
    with pytest.raises(CheckpointMismatchError, match=r"^Target search: .* committed from other"):
        run(fanout, query, 0, 7, 8, offsets="other", run_id="r2")
    assert fanout.states(0) == [PREPARED, PREPARED, COMMITTED, PREPARED]


def test_operators_act_on_one_target(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    operators = fanout.store.deliveries
    assert operators.skip(fanout.stream("search"), 0, "me", "bad rows")
    operators.park(fanout.stream("ice"), "me", "maintenance")
    run(fanout, query, 0, run_id="r2")
    run(fanout, query, 1)
    assert fanout.states(0) == [PREPARED, PREPARED, ABORTED, PREPARED]
    fanout.deliver()
    assert fanout.states(1) == [COMMITTED, PREPARED, COMMITTED, COMMITTED]
    assert fanout.ids("search") == [2, 3]
    assert fanout.ids("events") == [0, 1, 2, 3]
    assert fanout.row_log() == []


def test_a_batch_that_an_operator_aborted_in_one_target_is_written_again_for_it(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    fanout.deliver("events")
    assert fanout.store.deliveries.abort_pending(fanout.stream("search"), -1, "me", "checkpoint lost")
    run(fanout, query, 0, run_id="r2")
    assert fanout.states(0) == [PREPARED, PREPARED, PREPARED, COMMITTED]
    assert fanout.deliver().code == 0
    assert all_ids(fanout) == [[0, 1]] * 4


def test_an_abort_of_one_target_keeps_the_row_log_that_another_one_needs(fanout: Fanout) -> None:
    run(fanout, fanout.query(), 0)
    files, access = fanout.row_log(), TableAccess({}, {})
    search = next(one for one in fanout.store.streams() if one.key == fanout.stream("search"))
    _, waiting = undelivered(fanout.store, search, access)
    abort(fanout.store, search, access, "me", "checkpoint lost", [one.batch for one in waiting])
    assert fanout.row_log() == files
    assert fanout.deliver("events").code == 0
    assert fanout.ids("events") == [0, 1]


# Other targets ---------------------------------------------------------------------------------------------


def test_a_new_target_starts_with_the_next_batch(fanout: Fanout, caplog: pytest.LogCaptureFixture) -> None:
    query = fanout.query("lake", "search")
    run(fanout, query, 0)
    added = {f"target.{name}.newTarget": "allow" for name in ("events", "ice")}
    query = fanout.query(**added)
    run(fanout, query, 1, run_id="r2")
    run(fanout, query, 2, run_id="r2")
    told = [one for one in caplog.messages if "starts with batch 1" in one]
    assert [one.partition(" (")[0] for one in told] == ["Target events", "Target ice"]
    assert fanout.deliver().code == 0
    assert fanout.ids("lake") == fanout.ids("search") == list(range(6))
    assert fanout.ids("ice") == fanout.ids("events") == list(range(2, 6))
    assert fanout.row_log() == []


def test_a_target_that_comes_back_reports_the_batches_that_it_missed(fanout: Fanout) -> None:
    run(fanout, fanout.query(), 0)
    run(fanout, fanout.query("lake", "search"), 1, run_id="r2")
    strict = fanout.query()
    with pytest.raises(
        CheckpointMismatchError, match=r"Target events .* has the batches up to 0 .* with batch 2"
    ):
        run(fanout, strict, 2, run_id="r3")
    run(fanout, fanout.query(newTarget="allow"), 2, run_id="r3")
    assert fanout.deliver().code == 0
    assert fanout.ids("ice") == [0, 1, 4, 5]


def test_targets_that_get_no_more_rows_are_named_once(
    fanout: Fanout, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if another sink is started on the checkpoint of a fan-out."""
    run(fanout, fanout.query(), 0)
    alone = Query(fanout.lake, options={"delivery": "decoupled"})
    for batch_id in (1, 2):
        run(fanout, alone, batch_id)
    (warning,) = [text for text in caplog.messages if "no longer writes to" in text]
    assert all(fanout.stream(name).table_uri in warning for name in ("ice", "search", "events"))
    assert fanout.stream("lake").table_uri not in warning
    assert "from batch 1 on" in warning


def test_batches_of_a_target_that_was_removed_are_still_delivered(fanout: Fanout) -> None:
    run(fanout, fanout.query(), 0)
    run(fanout, fanout.query("lake", "events"), 1, run_id="r2")
    assert fanout.deliver().code == 0
    fanout.names = NAMES
    assert fanout.ids("ice") == fanout.ids("search") == [0, 1]
    assert fanout.row_log() == []


def test_a_store_that_was_lost_is_noticed(fanout: Fanout) -> None:
    """No target is taken for a new one."""
    query = fanout.query()
    run(fanout, query, 0)
    url = f"sqlite:///{fanout.folder}/other.db"
    with open_store(url) as other, pytest.raises(CheckpointMismatchError, match="were lost with the store"):
        query.plan(other, query.batch(1))


def test_the_store_has_the_targets_and_no_secret(fanout: Fanout) -> None:
    secret = "geheim-4711"
    query = fanout.query(queryName="flights", **{"target.search.bearerToken": secret})
    run(fanout, query, 0)
    streams = {one.query_name: one for one in fanout.store.streams()}
    assert streams.keys() == {f"flights.{name}" for name in NAMES}
    assert secret not in repr(query.with_targets())
    assert secret.encode() not in b"".join(path.read_bytes() for path in fanout.folder.glob("store.db*"))
    plan = query.plan(fanout.store, query.batch(1))
    assert secret not in repr(plan)


# Clean-up --------------------------------------------------------------------------------------------------


def cleanable(fanout: Fanout, name: str) -> dict[str, int]:
    """The last batch of each query whose files the clean-up may delete, by the address of this target."""
    from penstock.datasource.requests.stored import StoredRequests

    stream = fanout.stream(name)
    table = StoredRequests("http", stream.table_uri, {}).cleanable(fanout.store)
    return {query_id: token.batch_id for query_id, token in table.id_and_tokens(["q1"])[1].items()}


def test_clean_up_keeps_what_another_target_needs(fanout: Fanout) -> None:
    query = fanout.query()
    for batch_id in range(3):
        run(fanout, query, batch_id)
    assert fanout.deliver("events").code == 0
    assert cleanable(fanout, "events") == {"q1": -1}
    assert cleanable(fanout, "search") == {}
    assert fanout.store.deliveries.skip(fanout.stream("search"), 0, "me", "bad")
    assert cleanable(fanout, "events") == {"q1": 0}
    assert fanout.deliver("search").code == 0
    assert cleanable(fanout, "events") == cleanable(fanout, "search") == {"q1": 2}


def test_clean_up_waits_for_a_new_target(fanout: Fanout) -> None:
    """Its tasks may be writing a batch that the others have delivered already."""
    run(fanout, fanout.query("lake", "search"), 0)
    assert fanout.deliver().code == 0
    assert cleanable(fanout, "search") == {"q1": 0}
    query = fanout.query()
    query.plan(fanout.store, query.batch(0))
    assert cleanable(fanout, "search") == {"q1": -1}
    run(fanout, query, 0, run_id="r2")
    assert fanout.deliver().code == 0
    assert cleanable(fanout, "search") == {"q1": 0}


def test_clean_up_keeps_what_another_target_may_write_again(fanout: Fanout) -> None:
    """Its batch was aborted for a replay, which may be under way."""
    run(fanout, fanout.query(), 0)
    assert fanout.deliver("events").code == 0
    assert fanout.store.deliveries.abort_pending(fanout.stream("search"), -1, "me", "checkpoint lost")
    assert cleanable(fanout, "events") == {"q1": -1}


def test_clean_up_does_not_wait_for_a_target_that_was_removed(fanout: Fanout) -> None:
    run(fanout, fanout.query(), 0)
    assert fanout.deliver().code == 0
    run(fanout, fanout.query("lake", "events"), 1, run_id="r2")
    assert fanout.deliver().code == 0
    assert cleanable(fanout, "events") == {"q1": 1}


def test_of_two_targets_that_deliver_at_once_one_deletes_the_files(fanout: Fanout) -> None:
    """Both have recorded their progress when the first one looks."""
    query = fanout.query()
    run(fanout, query, 0)

    stream, ended = str(fanout.stream("search")), []

    def deliver_search() -> None:
        process = start_cli("deliver", "--once", "--store", fanout.store_url, stream)
        ended.append((*process.communicate(), process.returncode))

    with at_point("commit.landed", deliver_search):
        assert fanout.deliver("events").code == 0
    assert ended[0][2] == 0, ended
    assert fanout.states(0) == [PREPARED, PREPARED, COMMITTED, COMMITTED]
    assert fanout.row_log() == []


def test_a_target_whose_delivery_died_after_its_last_record_keeps_no_files(
    fanout: Fanout, tmp_path: Path
) -> None:
    """Its batch is still PREPARED in the store. What counts is its progress."""
    query = fanout.query()
    run(fanout, query, 0)
    pause = {"PENSTOCK_PAUSE_AT": "commit.landed", "PENSTOCK_PAUSE_FILE": str(tmp_path / "paused")}
    search = start_cli(
        "deliver", "--once", "--store", fanout.store_url, str(fanout.stream("search")), **pause
    )
    wait_until((tmp_path / "paused").exists)
    search.kill()
    search.communicate()
    assert fanout.state("search", 0) is PREPARED
    assert fanout.deliver("events").code == 0
    assert fanout.row_log() == []


def test_a_crash_between_delivery_and_deletion_is_cleaned_up(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    assert fanout.deliver("search").code == 0
    with mock.patch(
        "penstock.committers.file_tables.files.TableFiles.delete", side_effect=PenstockError("down")
    ):
        assert fanout.deliver("events").code == 0
    assert len(fanout.row_log()) == 2
    found = _gc(fanout)
    assert found == set(fanout.row_log())


def _gc(fanout: Fanout) -> set[str]:
    """The files of the row log that `penstock gc` would delete."""
    from datetime import datetime, timedelta, timezone

    from penstock.datasource.destinations import cleanup_of
    from penstock.datasource.requests.stored import StoredRequests

    found: set[str] = set()
    for name in ("search", "events"):
        stream = fanout.stream(name)
        stored = StoredRequests("http", stream.table_uri, {})
        cleanup = cleanup_of(stored, fanout.store, [stream])
        later = datetime.now(timezone.utc) + timedelta(days=10)
        found |= {Path(file.path).name for file in cleanup.find(later, timedelta(days=1)).unneeded}
    return found


def test_clean_up_deletes_nothing_that_a_target_still_reads(fanout: Fanout) -> None:
    query = fanout.query()
    run(fanout, query, 0)
    assert fanout.deliver("events").code == 0
    assert len(fanout.row_log()) == 2
    assert _gc(fanout) == set()
    shutil.copytree(fanout.folder / "checkpoint" / "row-log", fanout.folder / "copy")
    assert fanout.deliver("search").code == 0
    shutil.copytree(fanout.folder / "copy", fanout.folder / "checkpoint" / "row-log", dirs_exist_ok=True)
    assert len(_gc(fanout)) == 2


def test_a_query_with_one_target_deletes_its_files_itself(fanout: Fanout) -> None:
    """Another query with the same row log and target does not matter."""
    query = fanout.query("events")
    run(fanout, query, 0)
    other = Batch(StreamKey("q2", fanout.stream("events").table_uri), 0, "0" * 64)
    fanout.store.register_stream(other.stream, "http")
    assert fanout.deliver("events").code == 0
    assert fanout.row_log() == []
