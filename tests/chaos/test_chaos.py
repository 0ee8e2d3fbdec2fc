"""The chaos campaign in small: short trials succeed, and one whose table is damaged fails."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice, product, repeat
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from servers.http_rows import http_rows
from servers.started import Servers
from tests.chaos import delivery_faults
from tests.chaos.campaign import Campaign
from tests.chaos.checks import check_during_trial
from tests.chaos.deliveries import DeliveryStore, Lease
from tests.chaos.deployments import CLUSTER, LOCAL, Deployment, Place, ReceivedRows, Setup, all_setups
from tests.chaos.faults import KILL_AT_POINT, KILL_DRIVER, KILL_DRIVER_AT_POINT, Fault
from tests.chaos.plan import (
    ANYWHERE,
    AT_THE_BEGINNING,
    ENDING,
    IN_RECOVERY,
    NEW_COLUMN,
    SURVIVED,
    WITHOUT_TABLE,
    DriverPlan,
    plan_trial,
)
from tests.chaos.report import Report
from tests.chaos.source import ROWS_PER_FILE, Source
from tests.chaos.trial import Result, Trial
from tests.conformance.harnesses import HttpHarness
from tests.support.backlogs import QUERY, DecoupledLake
from tests.support.stored_lake import NOW
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.crash_points import DELIVERY_POINTS, STREAM_POINTS
from penstock.testing import DeltaTable


def test_plans_reach_every_crash_point_and_every_fault() -> None:
    """Within forty drivers in each setup."""
    faults: set[Fault] = set()
    points: dict[bool, set[str]] = {False: set(), True: set()}
    for setup in all_setups():
        of_setup = replace(setup, master=CLUSTER)
        for seed in range(10):
            for plan, _ in zip(plan_trial(random.Random(seed), of_setup), range(40), strict=False):
                faults |= {*plan.faults, plan.end}
                points[setup.is_decoupled] |= {plan.point} if plan.point else set()
    assert points[False] == set(STREAM_POINTS) == {*ANYWHERE, *IN_RECOVERY, AT_THE_BEGINNING, NEW_COLUMN}
    assert points[True] == {*WITHOUT_TABLE, AT_THE_BEGINNING}
    assert faults == {*SURVIVED, *ENDING, KILL_AT_POINT, KILL_DRIVER_AT_POINT}
    assert len({fault.name for fault in faults}) == len(faults)


def test_every_crash_point_of_a_delivery_is_hit() -> None:
    names = {fault.name for fault in SURVIVED}
    assert names >= {f"kill delivery at {point}" for point in DELIVERY_POINTS}
    assert set(delivery_faults.POINTS) >= set(DELIVERY_POINTS)


def test_every_second_trial_is_decoupled(tmp_path: Path) -> None:
    """At the end of a round also those whose setup is never coupled."""
    setups = all_setups()
    trials = Campaign(1, tmp_path, Servers(tmp_path), print).trials(setups)
    found = [setup for _, setup in islice(trials, len(setups))]
    assert {replace(setup, master=LOCAL) for setup in found} == set(setups)
    of_fence = sum(setup.environment == "Redis fence" for setup in setups)
    pairs = (len(setups) - of_fence) // 2
    assert [setup.delivery for setup in found] == ["coupled", "decoupled"] * pairs + ["decoupled"] * of_fence


def test_the_same_seed_plans_the_same_trial() -> None:
    def plans(seed: int) -> list[DriverPlan]:
        setup = Setup("delta", "S3", "postgres")
        return [plan for plan, _ in zip(plan_trial(random.Random(seed), setup), range(20), strict=False)]

    assert plans(1) == plans(1) != plans(2)


# The checker ------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "source").mkdir()
    source = Source(tmp_path / "source")
    source.grow_to(4)
    return source


@pytest.fixture
def deployment(tmp_path: Path, source: Source) -> Deployment:
    """A table with the first three files of the source, and a checkpoint that knows them as committed."""
    files = sorted(source.folder.iterdir())
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoints" / "ids"
    for folder in ("commits", "offsets", "sources/0"):
        (checkpoint / folder).mkdir(parents=True)
    for batch_id, file in enumerate(files[:3]):
        write_deltalake(table, pq.read_table(file), mode="append")
        (checkpoint / "commits" / f"{batch_id}").write_text("v1\n{}")
        (checkpoint / "offsets" / f"{batch_id}").write_text(f'v1\n{{}}\n{{"logOffset":{batch_id}}}')
        entry = {"path": file.as_uri(), "timestamp": 0, "batchId": batch_id}
        (checkpoint / "sources/0" / f"{batch_id}").write_text(f"v1\n{json.dumps(entry)}")
    return Deployment(Setup("delta", "disk", "sqlite"), tmp_path, Place(DeltaTable(table), {}, table), "")


def test_a_table_with_all_committed_batches_is_right(deployment: Deployment, source: Source) -> None:
    verdict = check_during_trial(deployment, source)
    assert (verdict.rows, verdict.problems) == (3 * ROWS_PER_FILE, [])


def test_a_batch_that_is_committed_to_the_table_but_not_logged_by_spark_is_right(
    deployment: Deployment, source: Source
) -> None:
    """The driver died between the two."""
    (deployment.checkpoint / "commits" / "2").unlink()
    assert check_during_trial(deployment, source).problems == []


def test_a_committed_batch_that_is_missing_in_the_table_is_lost(
    deployment: Deployment, source: Source
) -> None:
    file = commit(deployment, lambda add: {"remove": {"path": add["path"], "dataChange": True}})
    verdict = check_during_trial(deployment, source)
    assert (verdict.lost, verdict.doubled) == (ROWS_PER_FILE, 0), file
    assert "lost" in verdict.problems[0]


def test_the_delivered_batches_of_a_decoupled_stream_must_be_in_the_table(
    deployment: Deployment, source: Source
) -> None:
    """Other batches that Spark has logged may still be pending."""
    (deployment.checkpoint / "commits" / "3").write_text("v1\n{}")
    shutil.copy(deployment.checkpoint / "offsets" / "2", deployment.checkpoint / "offsets" / "3")
    commit(deployment, lambda add: {"remove": {"path": add["path"], "dataChange": True}})
    assert check_during_trial(deployment, source, delivered=-1).problems == []
    assert check_during_trial(deployment, source, delivered=0).lost == ROWS_PER_FILE


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_the_campaign_reads_leases_and_parked_streams_from_the_store(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("new_postgres_url")() if where == "postgres" else None
    lake = DecoupledLake(tmp_path, url, QUERY)
    deliveries, store = lake.store.deliveries, DeliveryStore(lake.store_url)
    assert (store.lease(), store.delivered(), store.parked(), store.is_backlog_full()) == (
        None,
        -1,
        None,
        False,
    )
    lake.fill(2)
    lake.recover()
    lease = deliveries.acquire(lake.stream, "here/4711/x", 60)
    deliveries.park(lake.stream, "me", "a test")
    deliveries.wait(lake.stream, NOW)
    parked = store.parked()
    assert (store.lease(), store.delivered(), store.is_backlog_full()) == (Lease(4711, 1), 1, True)
    assert parked is not None
    assert parked.startswith("a test")
    assert lease is not None
    deliveries.release(lease)
    assert store.lease() is None
    lake.store.close()


def test_reading_a_missing_store_does_not_create_it(tmp_path: Path) -> None:
    assert DeliveryStore(f"sqlite:///{tmp_path}/x/penstock.sqlite").delivered() == -1
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_a_data_file_doubles_its_rows(deployment: Deployment, source: Source) -> None:
    double_rows(deployment)
    verdict = check_during_trial(deployment, source)
    assert (verdict.lost, verdict.doubled) == (0, ROWS_PER_FILE)


def test_a_data_file_that_is_added_twice_is_found(deployment: Deployment, source: Source) -> None:
    """Readers of Delta do not double its rows."""
    commit(deployment, lambda add: {"add": add})
    assert check_during_trial(deployment, source).files_twice == 1


def test_a_missing_data_file_is_found(deployment: Deployment, source: Source) -> None:
    assert deployment.place.folder is not None
    next(deployment.place.folder.glob("*.parquet")).unlink()
    assert any("missing" in problem for problem in check_during_trial(deployment, source).problems)


def test_rows_that_a_service_has_twice_are_counted_and_may_be_few(
    deployment: Deployment, source: Source
) -> None:
    files = sorted(source.folder.iterdir())[:3]
    rows = [row for file in files for row in pq.read_table(file, columns=["id", "day"]).to_pylist()]
    with http_rows() as service:
        harness = HttpHarness(deployment.root, service)
        place = Place(ReceivedRows(harness), harness.options)
        received = replace(deployment, setup=Setup("http", "plain service", "sqlite"), place=place)
        assert check_during_trial(received, source).lost == 3 * ROWS_PER_FILE, "it has none"
        for sent in (rows[1:], rows[:1]):
            send_rows(service.url, sent)
        verdict = check_during_trial(received, source)
        assert (verdict.rows, verdict.doubled, verdict.problems) == (len(rows), 0, [])

        send_rows(service.url, rows[:7])
        assert check_during_trial(received, source, doubles_max=7).problems == []
        verdict = check_during_trial(received, source, doubles_max=6)
        assert (verdict.doubled, verdict.lost) == (7, 0)
        assert "doubled" in verdict.problems[0]


def send_rows(url: str, rows: list[dict[str, Any]]) -> None:
    urlopen(Request(url, json.dumps(rows).encode(), {"Content-Type": "application/json"})).close()


def test_only_services_that_do_not_know_ids_may_double_rows() -> None:
    """Other services, like tables, have each row once. JetStream knows the ids of rows from a row log."""
    setups = all_setups(stores=["sqlite"])
    assert {(setup.environment, setup.delivery) for setup in setups if setup.doubles_rows} == {
        *product(("plain service", "Kinesis", "Redis stream"), ("coupled", "decoupled")),
        ("JetStream", "coupled"),
    }


def commit(deployment: Deployment, action: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Add a version to a Delta table by hand, with an action made from the first `add`; that one's path."""
    assert deployment.place.folder is not None
    log = deployment.place.folder / "_delta_log"
    adds = (json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines())
    add = next(entry["add"] for entry in adds if "add" in entry)
    made = json.dumps(action(dict(add)))
    for version in range(1, 1000):
        with suppress(FileExistsError), (log / f"{version:020}.json").open("x") as file:
            file.write(made + "\n")
            return str(add["path"])
    raise AssertionError("no version was free")


def double_rows(deployment: Deployment) -> None:
    """Add the rows of a data file a second time, in another file."""

    def under_another_name(add: dict[str, Any]) -> dict[str, Any]:
        assert deployment.place.folder is not None
        path = unquote(add["path"])
        folder, _, name = path.rpartition("/")
        copy = f"{folder}/copy-{name}" if folder else f"copy-{name}"
        shutil.copy(deployment.place.folder / path, deployment.place.folder / copy)
        return {"add": {**add, "path": quote(copy)}}

    commit(deployment, under_another_name)


# With Spark -------------------------------------------------------------------------------------------


def _double_rows(trial: Trial) -> str:
    double_rows(trial.deployment)
    return "another commit has copied a data file"


DOUBLE_ROWS = Fault("double rows", "kill", _double_rows)
KILL_TASK_WORKER = next(fault for fault in SURVIVED if fault.name == "kill task worker")
BATCHES_AHEAD = 12
"""Enough to hit a worker, which is at work for milliseconds of each; at the crash point all workers wait."""


def run_trial(setup: Setup, folder: Path, fault: Fault) -> Result:
    """Inject the fault, kill the driver between prepare and commit, and let another one continue."""
    first = DriverPlan(0, 2, "prepare.done", BATCHES_AHEAD, [fault], KILL_DRIVER_AT_POINT)
    quiet = DriverPlan(0, 1, None, None, (), KILL_DRIVER)
    with Servers(folder) as servers:
        campaign = Campaign(1, folder, servers, print)
        return campaign.run_trial(1, setup, chain([first], repeat(quiet)), lambda faults: faults > 1)


@pytest.mark.spark
@pytest.mark.campaign
@pytest.mark.parametrize(
    "setup",
    [
        Setup("iceberg", "disk", "sqlite", "decoupled"),
        Setup("redis", "Redis fence", "sqlite", "decoupled"),
        Setup("nats", "JetStream ids", "sqlite"),
    ],
    ids=lambda setup: setup.format,
)
def test_a_short_trial_ends_with_each_row_once(setup: Setup, tmp_path: Path) -> None:
    with skipped_if_unreachable():
        result = run_trial(setup, tmp_path, KILL_TASK_WORKER)

    assert result.problems == []
    assert [(event.fault, event.counts) for event in result.events] == [
        ("kill task worker", True),
        ("kill driver at a crash point", True),
    ]
    assert result.verdict.rows >= 40 * result.batches > 6
    assert (result.verdict.lost, result.verdict.doubled, result.verdict.files_twice) == (0, 0, 0)


@pytest.mark.spark
@pytest.mark.campaign
def test_a_trial_whose_rows_were_doubled_fails_and_keeps_its_files(tmp_path: Path) -> None:
    result = run_trial(Setup("delta", "disk", "sqlite"), tmp_path, DOUBLE_ROWS)

    (event,) = result.events
    assert event.verdict.doubled > 0
    assert "doubled" in result.problems[0]
    report = Report(1, "make chaos", 60.0, [result])
    assert not report.is_good
    assert "trial 1" in report.markdown()
    kept = json.loads((tmp_path / "trial-1" / "trial.json").read_text())
    assert kept["events"][0]["fault"] == "double rows"
    assert (tmp_path / "trial-1" / "driver-0.log").exists()
