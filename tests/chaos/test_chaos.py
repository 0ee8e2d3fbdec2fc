"""The kill campaign in small: short lives go well, and one whose table is damaged does not."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from rich.console import Console
from servers.started import Servers
from tests.chaos.campaign import Campaign
from tests.chaos.checks import check_during_life
from tests.chaos.deliveries import DeliveryStore, HeldLease
from tests.chaos.delivery_faults import KillDeliveryAtPoint
from tests.chaos.fault import Fault, Kind
from tests.chaos.faults import AT_ITS_END, WHILE_IT_LIVES
from tests.chaos.kills import KillAtPoint, KillDriver, KillWorker
from tests.chaos.life import Life, Result
from tests.chaos.places import CLUSTER, FORMATS, STORES, Place, Site, all_places
from tests.chaos.plan import (
    ANYWHERE,
    AT_THE_BEGINNING,
    IN_RECOVERY,
    NEW_COLUMN,
    WITHOUT_TABLE,
    DriverPlan,
    plan_life,
)
from tests.chaos.report import Report, Screen
from tests.chaos.source import ROWS_PER_FILE, Source
from tests.delivery.backlogs import QUERY, DecoupledLake
from tests.lake import NOW

from penstock.committers.crash_points import DELIVERY_POINTS, STREAM_POINTS
from penstock.testing import DeltaTable


def test_plans_reach_every_crash_point_and_every_fault() -> None:
    """Within forty drivers in each place."""
    faults: set[Fault] = set()
    points: dict[bool, set[str]] = {False: set(), True: set()}
    for place in all_places(FORMATS, STORES):
        of_place = replace(place, master=CLUSTER)
        for seed in range(10):
            for plan, _ in zip(plan_life(random.Random(seed), of_place), range(40), strict=False):
                faults |= {*plan.faults, plan.end}
                points[place.is_decoupled] |= {plan.point} if plan.point else set()
    assert points[False] == set(STREAM_POINTS) == {*ANYWHERE, *IN_RECOVERY, AT_THE_BEGINNING, NEW_COLUMN}
    assert points[True] == {*WITHOUT_TABLE, AT_THE_BEGINNING}
    assert faults == {*WHILE_IT_LIVES, *AT_ITS_END, KillAtPoint(), KillDriver(at_point=True)}


def test_every_crash_point_of_a_delivery_is_hit() -> None:
    hit = {fault.point for fault in WHILE_IT_LIVES if isinstance(fault, KillDeliveryAtPoint)}
    assert hit >= set(DELIVERY_POINTS)


def test_every_second_life_is_decoupled(tmp_path: Path) -> None:
    places = all_places(FORMATS, STORES)
    lives = Campaign(1, tmp_path, Servers(tmp_path), Screen(Console(quiet=True))).lives(places)
    found = [place.delivery for _, place in islice(lives, 2 * len(places))]
    assert found == ["coupled", "decoupled"] * len(places)


def test_the_same_seed_plans_the_same_life() -> None:
    def plans(seed: int) -> list[DriverPlan]:
        place = Place("delta", "S3", "postgres")
        return [plan for plan, _ in zip(plan_life(random.Random(seed), place), range(20), strict=False)]

    assert plans(1) == plans(1) != plans(2)


# The checker ------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Source:
    (tmp_path / "source").mkdir()
    source = Source(tmp_path / "source")
    source.grow_to(4)
    return source


@pytest.fixture
def site(tmp_path: Path, source: Source) -> Site:
    """A table with the first three files of the source, and a checkpoint that knows them as committed."""
    files = sorted(source.folder.iterdir())
    checkpoint, table = tmp_path / "checkpoint", tmp_path / "table"
    for folder in ("commits", "offsets", "sources/0"):
        (checkpoint / folder).mkdir(parents=True)
    for batch_id, file in enumerate(files[:3]):
        write_deltalake(table, pq.read_table(file), mode="append")
        (checkpoint / "commits" / f"{batch_id}").write_text("v1\n{}")
        (checkpoint / "offsets" / f"{batch_id}").write_text(f'v1\n{{}}\n{{"logOffset":{batch_id}}}')
        entry = {"path": file.as_uri(), "timestamp": 0, "batchId": batch_id}
        (checkpoint / "sources/0" / f"{batch_id}").write_text(f"v1\n{json.dumps(entry)}")
    place = Place("delta", "disk", "sqlite")
    return Site(place, tmp_path, checkpoint, "", {}, DeltaTable(table), table)


def test_a_table_with_all_that_was_committed_is_right(site: Site, source: Source) -> None:
    verdict = check_during_life(site, source)
    assert (verdict.rows, verdict.problems) == (3 * ROWS_PER_FILE, [])


def test_a_batch_that_is_committed_to_the_table_but_not_logged_by_spark_is_right(
    site: Site, source: Source
) -> None:
    """The driver died between the two."""
    (site.checkpoint / "commits" / "2").unlink()
    assert check_during_life(site, source).problems == []


def test_a_committed_batch_that_is_not_in_the_table_is_lost(site: Site, source: Source) -> None:
    file = commit(site, lambda add: {"remove": {"path": add["path"], "dataChange": True}})
    verdict = check_during_life(site, source)
    assert (verdict.lost, verdict.doubled) == (ROWS_PER_FILE, 0), file
    assert "lost" in verdict.problems[0]


def test_of_a_decoupled_stream_what_the_store_calls_delivered_must_be_there(
    site: Site, source: Source
) -> None:
    """Other batches that Spark has logged may still wait."""
    (site.checkpoint / "commits" / "3").write_text("v1\n{}")
    shutil.copy(site.checkpoint / "offsets" / "2", site.checkpoint / "offsets" / "3")
    commit(site, lambda add: {"remove": {"path": add["path"], "dataChange": True}})
    assert check_during_life(site, source, delivered=-1).problems == []
    assert check_during_life(site, source, delivered=0).lost == ROWS_PER_FILE


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_the_campaign_reads_of_the_store_who_delivers_and_what_is_parked(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("new_postgres_url")() if where == "postgres" else None
    lake = DecoupledLake(tmp_path, url, QUERY)
    deliveries, seen = lake.store.deliveries, DeliveryStore(lake.store_url)
    assert (seen.lease(), seen.delivered(), seen.parked(), seen.waits()) == (None, -1, None, False)
    lake.fill(2)
    lake.recover()
    lease = deliveries.acquire(lake.stream, "here/4711/x", 60)
    deliveries.park(lake.stream, "me", "a test")
    deliveries.wait(lake.stream, NOW)
    parked = seen.parked()
    assert (seen.lease(), seen.delivered(), seen.waits()) == (HeldLease(4711, 1), 1, True)
    assert parked is not None
    assert parked.startswith("a test")
    assert lease is not None
    deliveries.release(lease)
    assert seen.lease() is None
    lake.store.close()


def test_a_look_into_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    assert DeliveryStore(f"sqlite:///{tmp_path}/x/penstock.sqlite").delivered() == -1
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_a_data_file_doubles_its_rows(site: Site, source: Source) -> None:
    double_rows(site)
    verdict = check_during_life(site, source)
    assert (verdict.lost, verdict.doubled) == (0, ROWS_PER_FILE)


def test_a_data_file_that_is_added_twice_is_found(site: Site, source: Source) -> None:
    """Readers of Delta do not double its rows."""
    commit(site, lambda add: {"add": add})
    assert check_during_life(site, source).files_twice == 1


def test_a_data_file_that_is_gone_is_found(site: Site, source: Source) -> None:
    assert site.table_folder is not None
    next(site.table_folder.glob("*.parquet")).unlink()
    assert any("missing" in problem for problem in check_during_life(site, source).problems)


def commit(site: Site, action: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """Add a version to a Delta table by hand, with an action made from the first `add`; that one's path."""
    assert site.table_folder is not None
    log = site.table_folder / "_delta_log"
    adds = (json.loads(line) for file in sorted(log.glob("*.json")) for line in file.read_text().splitlines())
    add = next(entry["add"] for entry in adds if "add" in entry)
    made = json.dumps(action(dict(add)))
    for version in range(1, 1000):
        with suppress(FileExistsError), (log / f"{version:020}.json").open("x") as file:
            file.write(made + "\n")
            return str(add["path"])
    raise AssertionError("no version was free")


def double_rows(site: Site) -> None:
    """What must never happen: the rows of a data file come a second time, in another file."""

    def under_another_name(add: dict[str, Any]) -> dict[str, Any]:
        assert site.table_folder is not None
        path = unquote(add["path"])
        folder, _, name = path.rpartition("/")
        copy = f"{folder}/copy-{name}" if folder else f"copy-{name}"
        shutil.copy(site.table_folder / path, site.table_folder / copy)
        return {"add": {**add, "path": quote(copy)}}

    commit(site, under_another_name)


# With Spark -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoubleRows(Fault):
    """What the campaign must notice."""

    kind: ClassVar[Kind] = "kill"
    name: str = "double rows"

    def happen(self, life: Life) -> str:
        double_rows(life.site)
        return "another commit has copied a data file"


BATCHES_AHEAD = 12
"""Enough to hit a worker, which is at work for milliseconds of each; at the crash point all of them rest."""


def live(place: Place, folder: Path, *faults: Fault) -> Result:
    """These faults, then the driver is killed between prepare and commit, then another one goes on."""
    first = DriverPlan(0, 0, 2, "prepare.done", BATCHES_AHEAD, faults, KillDriver(at_point=True))
    quiet = DriverPlan(1, 0, 1, None, None, (), KillDriver())
    with Servers(folder) as servers:
        campaign = Campaign(1, folder, servers, Screen(Console(quiet=True)), keep=True)
        return campaign.live_by(1, place, chain([first], repeat(quiet)), lambda so_far: so_far > len(faults))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [Place("delta", "disk", "sqlite"), Place("iceberg", "disk", "sqlite", "decoupled")], ids=str
)
def test_a_short_life_ends_with_each_row_once(place: Place, tmp_path: Path) -> None:
    result = live(place, tmp_path, KillWorker("task worker"))

    assert result.problems == []
    assert [(event.fault, event.counts) for event in result.events] == [
        ("kill task worker", True),
        ("kill driver at a crash point", True),
    ]
    assert result.verdict.rows >= 40 * result.batches > 6
    assert (result.verdict.lost, result.verdict.doubled, result.verdict.files_twice) == (0, 0, 0)


@pytest.mark.spark
@pytest.mark.slow
def test_a_life_whose_rows_were_doubled_fails_and_keeps_its_files(tmp_path: Path) -> None:
    result = live(Place("delta", "disk", "sqlite"), tmp_path, DoubleRows())

    (event,) = result.events
    assert event.verdict.doubled > 0
    assert "doubled" in result.problems[0]
    report = Report(1, 1.0, "make chaos", 60.0, [result])
    assert not report.is_good
    assert "life 1" in report.markdown()
    kept = json.loads((tmp_path / "life-1" / "life.json").read_text())
    assert kept["events"][0]["fault"] == "double rows"
    assert (tmp_path / "life-1" / "driver-0.log").exists()
