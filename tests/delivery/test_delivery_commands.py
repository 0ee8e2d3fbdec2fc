"""`penstock deliver --once` and decisions of operators on the command line, on tables of each format."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.backlogs import QUERY, DecoupledLake, decoupled
from tests.support.cli import Ended, modules_loaded_by
from tests.support.lakes import LAKES
from tests.support.stored_lake import paths

from penstock.cli.commands import admin
from penstock.committers.contract import Batch, ManifestState, StreamKey
from penstock.committers.store.delivery_queries import DeliveryPhase
from penstock.datasource.destinations import paths_of
from penstock.delivery.statistics import statistics_of
from penstock.operating import leases

REASON = ("--reason", "rows are bad")
OTHER_QUERY = "ffffffff-5a0f-4f4e-9d3e-000000000002"


@pytest.fixture(params=LAKES)
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DecoupledLake]:
    """Of each format, with three prepared batches."""
    with decoupled(tmp_path, request.param, batches=3) as lake:
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


@pytest.fixture
def delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DecoupledLake]:
    """A Delta table with three prepared batches."""
    with decoupled(tmp_path, batches=3, deliveryTries="1") as lake:
        monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
        yield lake


def decisions(lake: DecoupledLake) -> list[tuple[str, str, int | None, str]]:
    return [
        (one.who, one.what, one.batch_id, one.why)
        for one in lake.store.deliveries.operator_actions(lake.stream)
    ]


def state(lake: DecoupledLake, batch_id: int) -> ManifestState:
    record = lake.store.record(lake.stream, batch_id)
    assert record is not None
    return record.state


# deliver --once -------------------------------------------------------------------------------------


def test_once_delivers_everything_that_waits(lake: DecoupledLake) -> None:
    ended = Ended("deliver", "--once")
    assert ended.code == 0, ended.err
    assert "3 batches delivered in 1 commit, 6 rows." in ended.out
    assert lake.row_ids() == list(range(1, 7))


@pytest.mark.usefixtures("delta")
def test_once_reports_in_json() -> None:
    ended = Ended("deliver", "--once", "--json")
    (stream,) = ended.json["streams"]
    assert (stream["query_id"], stream["deliveries"], stream["batches"], stream["rows"]) == (QUERY, 1, 3, 6)
    assert (stream["left"], stream["parked"], stream["failure"], stream["error"]) == (0, False, None, None)
    assert Ended("deliver", "--once", "--json").json["streams"][0]["batches"] == 0


def test_once_maintains_the_table_and_the_next_run_knows_it(lake: DecoupledLake) -> None:
    assert Ended("deliver", "--once").code == 0
    done = lake.store.maintenance.done(lake.stream)
    assert {"compact", "orphans"} < set(done)
    assert Ended("deliver", "--once").code == 0
    assert lake.store.maintenance.done(lake.stream) == done
    assert lake.row_ids() == list(range(1, 7))


def test_once_ends_with_1_if_something_is_left(delta: DecoupledLake) -> None:
    delta.lake.forget()
    ended = Ended("deliver", "--once", "--json")
    assert ended.code == 1
    (stream,) = ended.json["streams"]
    assert (stream["left"], stream["parked"]) == (3, True)
    assert stream["failure"] in " ".join(ended.err.split()) or stream["failure"]
    assert Ended("deliver", "--once").code == 1, "it is parked now"


def test_once_ends_with_1_if_another_process_delivers_the_stream(delta: DecoupledLake) -> None:
    assert delta.store.deliveries.acquire(delta.stream, "another", 60) is not None
    ended = Ended("deliver", "--once", "--lease-wait-seconds", "0.2")
    assert ended.code == 1
    assert "3 batches left because another process delivers the stream" in " ".join(ended.out.split())
    assert Ended("deliver", "--once", "--lease-wait-seconds", "0", "--json").json["streams"][0]["busy"]


def test_once_ends_with_3_if_a_stream_cannot_be_opened_here(delta: DecoupledLake) -> None:
    delta.decouple(noSuchOption="1")
    ended = Ended("deliver", "--once")
    assert ended.code == 3
    assert "noSuchOption" in ended.err
    assert "Traceback" not in ended.err


def test_a_catalog_whose_properties_are_missing_is_asked_for_by_options_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of pyiceberg names an option --uri, which no command has."""
    lake = decoupled(tmp_path, "iceberg", batches=1)
    stream = StreamKey(OTHER_QUERY, "prod:lake.ids")
    options = {"catalog": "prod", "table": "lake.ids"}
    settings = json.dumps({"delivery": "decoupled", "options": options})
    lake.store.register_stream(stream, "iceberg", "other", "t", settings)
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    manifest = lake.store.manifest(lake.stream, 0)
    assert manifest is not None
    lake.store.claim(stream, "run")
    lake.store.prepare(replace(manifest, batch=Batch(stream, 0, manifest.batch.digest)), "run")
    ended = Ended("deliver", OTHER_QUERY, "--once")
    message = " ".join(ended.err.split())
    assert ended.code == 3
    assert "--uri" not in message
    assert "--catalog type=rest --catalog uri=https://catalog.example" in message
    assert "--options-file" in message
    lake.store.close()


def test_damaged_settings_do_not_stop_other_streams(delta: DecoupledLake, tmp_path: Path) -> None:
    other = DecoupledLake(tmp_path / "other", delta.store_url, OTHER_QUERY)
    other.store.register_stream(other.stream, "delta", "damaged", settings="{")
    ended = Ended("deliver", "--once", "--json")
    assert ended.code == 3
    assert "settings of a stream in the manifest store are damaged" in " ".join(ended.err.split())
    good, damaged = ended.json["streams"]
    assert (good["query_id"], good["batches"], good["error"]) == (QUERY, 3, None)
    assert (damaged["query_id"], "damaged" in damaged["error"]) == (OTHER_QUERY, True)
    assert len(delta.rows()) == 6
    other.store.close()


def test_deliver_takes_several_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_STORE", raising=False)
    lakes = []
    for name in ("one", "two"):
        url = f"sqlite:///{tmp_path}/{name}/penstock.sqlite"
        lake = DecoupledLake(tmp_path / name, url, QUERY)
        lake.decouple()
        lake.fill(1)
        lakes.append(lake)
    ended = Ended("deliver", "--once", "-c", f"{tmp_path}/one", "-c", f"{tmp_path}/two")
    assert ended.code == 0, ended.err
    for lake in lakes:
        assert len(lake.rows()) == 2
        lake.store.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--store", "sqlite:////nowhere/at/all.db"),
        ("nosuchstream",),
        ("--parallel", "0"),
        ("--lease-seconds", "0"),
        ("--lease-wait-seconds", "-1"),
        ("--checkpoint", "/tmp", "--store", "sqlite:////tmp/x.db"),
        ("--storage", "geheim"),
    ],
)
def test_wrong_usage_of_deliver_is_reported(delta: DecoupledLake, arguments: tuple[str, ...]) -> None:
    ended = Ended("deliver", "--once", *arguments)
    assert ended.code == 2
    assert "Error: " in ended.err
    assert "geheim" not in ended.err
    assert delta.left == 3


def test_a_store_that_is_nowhere_is_not_made(delta: DecoupledLake, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "store.db"
    assert Ended("deliver", "--once", "--store", f"sqlite:///{missing}").code == 2
    assert not missing.parent.exists()


@pytest.mark.usefixtures("delta")
@pytest.mark.parametrize("command", ["deliver --once", "retry", "status", "park ids --reason x"])
def test_no_command_about_deliveries_loads_spark(command: str) -> None:
    assert "pyspark" not in modules_loaded_by(*command.split())


# park, retry ----------------------------------------------------------------------------------------


def test_park_and_retry_keep_who_and_why(delta: DecoupledLake) -> None:
    assert Ended("park", "ids", *REASON, "--who", "ada").code == 0
    assert delta.status.delivery.parked_by == "ada"
    assert Ended("deliver", "--once").code == 1
    assert Ended("retry").code == 0
    assert delta.status.delivery.parked_at is None
    assert Ended("deliver", "--once").code == 0
    assert decisions(delta) == [("ada", "park", None, "rows are bad"), (getpass.getuser(), "retry", None, "")]


@pytest.mark.usefixtures("delta")
def test_park_and_retry_write_json() -> None:
    parked = Ended("park", "ids", *REASON, "--json").json
    assert (parked["query_id"], parked["decision"], parked["reason"]) == (QUERY, "park", "rows are bad")
    (stream,) = Ended("retry", "ids", "--json").json["streams"]
    assert stream["query_id"] == QUERY
    assert Ended("retry", "--json").json["streams"] == []
    assert "No stream is parked" in Ended("retry").out


@pytest.mark.parametrize(
    "command", [("park", "ids"), ("skip", "ids", "0", "--yes"), ("abort", "ids", "--yes")]
)
def test_decisions_need_a_reason(delta: DecoupledLake, command: tuple[str, ...]) -> None:
    assert Ended(*command).code == 2
    assert Ended(*command, "--reason", " ").code == 2
    assert decisions(delta) == []
    assert delta.left == 3


# skip -----------------------------------------------------------------------------------------------


def test_a_skipped_batch_is_never_committed_and_the_others_are(lake: DecoupledLake, tmp_path: Path) -> None:
    save = ("--save-to", str(tmp_path / "saved"))
    refused = Ended("skip", "ids", "1", *REASON, *save, answer="n\n")
    assert refused.code == 1
    assert "has 2 rows in 2 files" in refused.err
    assert lake.left == 3
    assert Ended("skip", "ids", "1", *REASON, *save, "--who", "ada", answer="y\n").code == 0
    assert decisions(lake) == [("ada", "skip", 1, "rows are bad")]
    assert Ended("deliver", "--once").code == 0
    assert lake.row_ids() == [1, 2, 5, 6]
    assert state(lake, 1) is ManifestState.ABORTED
    found = Ended("dead-letters", "show", "ids", "--json").json["letters"]
    assert sorted(json.loads(one["row"])["id"] for one in found) == [3, 4]


@pytest.mark.usefixtures("delta")
def test_skip_writes_json() -> None:
    skipped = Ended("skip", "ids", "1", *REASON, "--discard-rows", "--yes", "--json").json
    assert (skipped["batch_id"], skipped["state"], skipped["decision"]) == (1, "ABORTED", "skip")
    assert "rows are bad" in skipped["reason"]


def test_a_batch_that_the_table_holds_is_not_skipped(lake: DecoupledLake) -> None:
    """The store does not have it yet: the delivery process died after its commit."""
    manifest = lake.prepare(3, lake.write(3))
    lake.committer().commit(manifest)
    for batch_id in ("0", "3"):
        ended = Ended("skip", "ids", batch_id, *REASON, "--yes")
        assert ended.code == 2
        assert "is in the table" in ended.err
    assert lake.left == 4


@pytest.mark.parametrize("batch_id", ["2", "9"])
def test_only_a_batch_that_waits_can_be_skipped(delta: DecoupledLake, batch_id: str) -> None:
    delta.store.finish(Batch(delta.stream, 2, delta.batch(2).digest), ManifestState.ABORTED)
    assert Ended("skip", "ids", batch_id, *REASON, "--yes").code == 2
    assert decisions(delta) == []


# abort ----------------------------------------------------------------------------------------------


def checkpoint_of(lake: DecoupledLake, folder: Path, query_id: str = QUERY) -> Path:
    checkpoint = folder / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query_id}))
    lake.decouple(str(checkpoint), deliverAfterCheckpoint="true")
    return checkpoint


def test_abort_is_refused_while_the_checkpoint_is_there(lake: DecoupledLake, tmp_path: Path) -> None:
    checkpoint_of(lake, tmp_path)
    ended = Ended("abort", "ids", *REASON, "--yes")
    assert ended.code == 2
    assert "still exists" in ended.err
    assert lake.left == 3


@pytest.mark.parametrize("location", ["checkpoint", "file:checkpoint", "./checkpoint"])
def test_abort_does_not_take_a_relative_checkpoint_for_missing(delta: DecoupledLake, location: str) -> None:
    """An earlier version has stored it. The working directory of the query may be another one."""
    delta.decouple(location, deliverAfterCheckpoint="true")
    ended = Ended("abort", "ids", *REASON, "--yes")
    assert ended.code == 2
    assert "the relative path" in ended.err
    assert "penstock skip" in ended.err
    assert delta.left == 3


@pytest.mark.parametrize("is_reset", [False, True])
def test_abort_deletes_files_of_pending_batches(lake: DecoupledLake, tmp_path: Path, is_reset: bool) -> None:
    """Once the checkpoint is missing, or belongs to another query."""
    assert Ended("deliver", "--once").code == 0
    lake.fill(2, first=3)
    checkpoint = checkpoint_of(lake, tmp_path, OTHER_QUERY)
    if not is_reset:
        (checkpoint / "metadata").unlink()
    waiting = {
        path
        for record in lake.store.pending(lake.stream)
        for path in paths_named(lake, record.batch.batch_id)
    }
    before, rows = lake.on_disk(), lake.rows()
    assert Ended("abort", "ids", *REASON, answer="n\n").code == 1
    assert (lake.left, lake.on_disk()) == (2, before)

    ended = Ended("abort", "ids", *REASON, "--who", "ada", "--yes", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["batches"], ended.json["deleted"]) == ([3, 4], 4)
    assert lake.on_disk() == before - waiting
    assert lake.rows() == rows
    assert (lake.left, {state(lake, 3), state(lake, 4)}) == (0, {ManifestState.ABORTED})
    assert {(who, what) for who, what, _, _ in decisions(lake)} == {("ada", "abort")}
    assert "no undelivered batches" in Ended("abort", "ids", *REASON).out


def test_abort_leaves_what_the_table_holds_though_the_store_does_not_know(lake: DecoupledLake) -> None:
    manifest = lake.prepare(3, lake.write(3))
    lake.committer().commit(manifest)
    lake.fill(1, first=4)
    ended = Ended("abort", "ids", *REASON, "--yes", "--json")
    assert ended.json["batches"] == [4]
    assert {state(lake, batch_id) for batch_id in range(4)} == {ManifestState.PREPARED}
    assert paths_named(lake, 3) <= lake.on_disk()


def test_abort_keeps_files_that_the_table_names(lake: DecoupledLake) -> None:
    """Another query has committed a file of a pending batch."""
    files = lake.write(3)
    lake.prepare(3, files)
    lake.query_id = OTHER_QUERY
    lake.register()
    lake.commit(0, files)
    lake.query_id = QUERY
    ended = Ended("abort", QUERY, *REASON, "--yes", "--json")
    assert ended.json["batches"] == [0, 1, 2, 3]
    assert ended.json["deleted"] == 6
    assert paths(files) <= lake.on_disk()
    assert len(lake.rows()) == 2


def test_abort_aborts_only_named_batches(delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the checkpoint prepares one more while the operator thinks."""
    monkeypatch.setattr(admin, "confirm", lambda *_: delta.fill(1, first=3))
    before = delta.on_disk()
    ended = Ended("abort", "ids", *REASON, "--yes")
    assert ended.code == 3
    assert "Nothing was aborted. Check again" in ended.err
    assert delta.left == 4
    assert before < delta.on_disk()


def test_abort_waits_for_the_delivery_process(delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_WAIT_S", 0.6)
    assert delta.store.deliveries.acquire(delta.stream, "deliverer", 30) is not None
    ended = Ended("abort", "ids", *REASON, "--yes")
    assert ended.code == 3
    assert "penstock park" in ended.err
    assert delta.left == 3


def test_history_shows_version_and_time_of_deliveries(lake: DecoupledLake) -> None:
    assert Ended("deliver", "--once").code == 0
    record = lake.store.deliveries.recent(lake.stream, 1)[0]
    assert record.finished_at is not None
    (line,) = [line for line in Ended("history", "ids").out.splitlines() if "Delivery" in line]
    assert "batches 0 to 2: COMMITTED, 6 rows" in line
    assert line.endswith(f"version {record.table_version}, {record.finished_at:%m-%d %H:%M:%S}")


# forget ---------------------------------------------------------------------------------------------


def test_forget_removes_a_stream_that_has_ended_and_nothing_else(lake: DecoupledLake, tmp_path: Path) -> None:
    assert Ended("deliver", "--once").code == 0
    checkpoint = checkpoint_of(lake, tmp_path)
    ended = Ended("forget", "ids", "--yes")
    assert (ended.code, "still exists" in ended.err) == (2, True)
    (checkpoint / "metadata").unlink()
    rows, others = lake.rows(), StreamKey(OTHER_QUERY, lake.stream.table_uri)
    lake.store.register_stream(others, lake.kind, "others", lake.table_id, "")
    assert Ended("forget", "ids", answer="n\n").code == 1
    assert len(lake.store.streams()) == 2
    ended = Ended("forget", "ids", "--yes")
    assert (ended.code, "3 batches whose merged files" in ended.err) == (3, True)

    for delivery in lake.store.deliveries.with_sources(lake.stream):
        lake.store.deliveries.sources_removed(delivery.delivery_id)
    ended = Ended("forget", "ids", "--yes")
    assert ended.code == 0, ended.err
    assert [one.key for one in lake.store.streams()] == [others]
    assert lake.store.history(lake.stream, 9) == []
    assert lake.rows() == rows


def test_forget_is_refused_while_something_is_left_to_do(delta: DecoupledLake) -> None:
    ended = Ended("forget", "ids", "--yes")
    assert (ended.code, "3 undelivered batches" in ended.err) == (3, True)
    assert Ended("deliver", "--once").code == 0
    assert delta.store.deliveries.acquire(delta.stream, "deliverer", 30) is not None
    ended = Ended("forget", "ids", "--yes")
    assert (ended.code, "its lease is held" in ended.err) == (3, True)
    assert len(delta.store.history(delta.stream, 9)) == 3


def paths_named(lake: DecoupledLake, batch_id: int) -> set[str]:
    manifest = lake.store.manifest(lake.stream, batch_id)
    assert manifest is not None
    return set(paths_of(manifest))


# status ---------------------------------------------------------------------------------------------


def test_status_shows_the_backlog_and_how_fresh_the_table_is(delta: DecoupledLake) -> None:
    waiting = Ended("status", "--json").json["streams"][0]["delivery"]
    assert (waiting["backlog_batches"], waiting["backlog_rows"], waiting["deliveries"]) == (3, 6, 0)
    assert waiting["backlog_bytes"] > 0
    assert 0 <= waiting["backlog_s"] < 60
    assert waiting["freshness_p95_s"] is None
    Ended("deliver", "--once")
    done = Ended("status", "--json").json["streams"][0]["delivery"]
    assert (done["backlog_batches"], done["backlog_s"], done["deliveries"]) == (0, None, 1)
    assert done["last_delivery_trigger"] == "drain"
    assert 0 < done["freshness_p50_s"] <= done["freshness_p95_s"] < 60
    assert done["rows_per_s"] > 0
    ended = Ended("status")
    assert "Backlog    none" in ended.out
    assert "from prepared to readable" in ended.out
    assert "s ago, triggered by drain" in ended.out


def test_status_shows_why_nothing_is_delivered(delta: DecoupledLake) -> None:
    Ended("park", "ids", "--reason", "[red]lawyers[/red]", "--who", "ada")
    delta.store.deliveries.wait(delta.stream, datetime.now(timezone.utc))
    said = Ended("status").out
    assert "by ada: [red]lawyers[/red]" in said
    assert "the query, for 0 s" in said
    parked = Ended("status", "--json").json["streams"][0]["delivery"]
    assert (parked["parked_by"], parked["parked_why"]) == ("ada", "[red]lawyers[/red]")
    assert parked["parked_at"] is not None
    assert parked["waiting_since"] is not None


def test_status_shows_the_last_error(delta: DecoupledLake) -> None:
    delta.lake.forget()
    Ended("deliver", "--once")
    shown = Ended("status", "--json").json["streams"][0]["delivery"]
    assert shown["error"]
    assert shown["tries"] == 1
    assert shown["error"][:40] in " ".join(Ended("status").out.split())


def test_status_shows_a_stream_whose_settings_are_damaged(delta: DecoupledLake) -> None:
    with delta.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE penstock_streams SET settings = '{'")
    ended = Ended("status")
    assert ended.code == 0, ended.err
    assert "3 batches, 6 rows" in ended.out


def test_a_coupled_stream_has_no_delivery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = DecoupledLake(tmp_path, None, QUERY)
    monkeypatch.setenv("PENSTOCK_STORE", lake.store_url)
    assert Ended("status", "--json").json["streams"][0]["delivery"] is None
    assert "Delivery" not in Ended("status").out
    lake.store.close()


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def record(number: int, prepared_s: float, finished_s: float | None, event_s: float | None = None) -> Any:
    """What statistics need of the record of a delivery."""
    prepared_at, finished_at, event_at = (
        None if seconds is None else NOON + timedelta(seconds=seconds)
        for seconds in (prepared_s, finished_s, event_s)
    )
    return SimpleNamespace(
        delivery_id=number,
        phase=DeliveryPhase.PREPARED if finished_at is None else DeliveryPhase.COMMITTED,
        rows=100,
        oldest_event_at=event_at,
        oldest_prepared_at=prepared_at,
        finished_at=finished_at,
    )


def test_freshness_counts_committed_deliveries() -> None:
    records = [record(number, 10 * number, 10 * number + number + 1, 10 * number - 5) for number in range(20)]
    found = statistics_of([record(20, 200, None), *reversed(records)])
    assert found.deliveries == 20
    assert found.freshness is not None
    assert (found.freshness.p50, found.freshness.p95) == (10, 19)
    assert found.event_freshness is not None
    assert (found.event_freshness.p50, found.event_freshness.p95) == (15, 24)
    assert found.rows_per_s == 2000 / 210
    assert found.last == records[-1]


def test_without_a_delivery_there_are_no_figures() -> None:
    found = statistics_of([])
    assert (found.freshness, found.event_freshness, found.rows_per_s, found.last) == (None, None, None, None)


# Changes of the table under a backlog ---------------------------------------------------------------


def dropped(lake: DecoupledLake) -> Callable[[], object]:
    """Drop the table and keep its data files. Returns a function that restores it."""
    table: Any = lake.lake
    if lake.kind == "delta":
        log, away = table.folder / "_delta_log", table.folder.with_name("away")
        log.rename(away)
        return lambda: away.rename(log)
    metadata = table.load().metadata_location
    table.forget()
    return lambda: table.sql_catalog.register_table(table.table, metadata)


def test_a_table_that_is_dropped_under_a_backlog_parks_it_until_it_is_put_back(lake: DecoupledLake) -> None:
    lake.decouple(deliveryTries="1")
    assert Ended("deliver", "--once").code == 0
    lake.fill(2, first=3)
    put_back = dropped(lake)
    assert Ended("deliver", "--once").code == 1
    assert (lake.left, lake.status.delivery.parked_at is None) == (2, False)

    put_back()
    assert lake.row_ids() == list(range(1, 7))
    assert Ended("deliver", "--once").code == 1
    assert Ended("retry", "--reason", "it is back").code == 0
    assert Ended("deliver", "--once").code == 0
    assert lake.row_ids() == list(range(1, 11))


def test_a_table_that_is_restored_under_a_backlog_parks_it_until_it_is_accepted(lake: DecoupledLake) -> None:
    """Delivered batches that the restore removed stay removed; pending ones are delivered."""
    lake.decouple(deliveryTries="1")
    assert Ended("deliver", "--once").code == 0
    before = lake.lake.version()
    lake.fill(1, first=3)
    assert Ended("deliver", "--once").code == 0
    lake.fill(2, first=4)
    lake.lake.go_back(before)
    assert Ended("deliver", "--once").code == 1
    assert (lake.left, lake.status.delivery.parked_at is None) == (2, False)
    assert lake.row_ids() == list(range(1, 7))

    assert Ended("recover", "--accept-table", "--yes").code == 0
    assert Ended("retry", "--reason", "it was on purpose").code == 0
    assert Ended("deliver", "--once").code == 0
    assert lake.row_ids() == [*range(1, 7), *range(9, 13)]


def test_batches_for_a_table_that_was_created_again_are_skipped(lake: DecoupledLake) -> None:
    """The new one has another id: files for the old one are never committed to it."""
    lake.decouple(deliveryTries="1")
    assert Ended("deliver", "--once").code == 0
    lake.fill(1, first=3)
    lake.lake.replace()
    assert Ended("deliver", "--once").code == 1
    accepted = Ended("recover", "--accept-table", "--yes")
    assert accepted.code == 0
    assert "penstock skip" in accepted.err
    assert Ended("retry", "--reason", "it was on purpose").code == 0
    assert Ended("deliver", "--once").code == 1
    assert Ended("skip", QUERY, "3", "--discard-rows", "--yes", *REASON).code == 0
    assert Ended("retry", "--reason", "skipped").code == 0
    assert Ended("deliver", "--once").code == 0
    assert lake.row_ids() == [-1]
