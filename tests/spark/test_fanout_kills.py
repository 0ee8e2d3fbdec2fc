"""SIGKILL to a driver with a fan-out, a pair of tables and a query with routes, and to their deliveries.

All streams are in one driver, killed before and after each of them has prepared a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from servers.http_rows import http_rows
from tests.spark.killed_stream import ROWS, KilledDriver, KilledStream
from tests.support.backlogs import wait_until
from tests.support.fanouts import NAMES, Fanout
from tests.support.lake_pairs import LakePair, lake_pair
from tests.support.lakes import DeltaLake
from tests.support.routes import RoutedTables, routed_tables

from penstock.committers.store.sql import open_store
from penstock.testing import RunningJob

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def delivering(store_url: str, log: Path, **environment: str) -> RunningJob:
    """A delivery process of one store."""
    deliver = ("deliver", "--store", store_url, "--lease-seconds", "1")
    return RunningJob([sys.executable, "-m", "penstock.cli", *deliver], log, environment)


@pytest.fixture(scope="module")
def delivered(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Fanout, LakePair, RoutedTables]]:
    """All after the kills, with everything delivered. The delivery processes of the pair and of the routes
    die once they have committed to one of the tables and not yet to another. The services take each key once.
    """
    root = tmp_path_factory.mktemp("kills")
    folders = fanout_folder, pair_folder, routes_folder = root / "fanout", root / "pair", root / "routes"
    with ExitStack() as stack:
        urls = [f"sqlite:///{folder}/checkpoint/penstock.sqlite" for folder in folders]
        store = stack.enter_context(open_store(urls[0]))
        search, events = (stack.enter_context(http_rows()) for _ in range(2))
        fanout = Fanout(fanout_folder, store, urls[0], search, events)
        pair = stack.enter_context(lake_pair(pair_folder, urls[1]))
        routes = stack.enter_context(routed_tables(routes_folder, urls[2]))
        unique = {"format": "row", "idColumn": "id", "maxInFlightRequests": "2"}
        own = {
            f"target.{name}.{key}": value for name in ("search", "events") for key, value in unique.items()
        }
        for service in (search, events):
            service.set(deduplicate=True, latency_s=0.01)
        logs = [root / f"{folder.name}.log" for folder in folders]

        def deliver_and_die(turn: int) -> None:
            before, landed = len(search.ids()), [root / f"{name}-{turn}" for name in ("pair", "routes")]
            with ExitStack() as deliveries:
                deliveries.enter_context(delivering(urls[0], logs[0]))
                for url, log, file in zip(urls[1:], logs[1:], landed, strict=True):
                    pause = {"PENSTOCK_PAUSE_AT": "commit.landed", "PENSTOCK_PAUSE_FILE": str(file)}
                    deliveries.enter_context(delivering(url, log, **pause))
                wait_until(lambda: all(file.exists() for file in landed), 120)
                wait_until(lambda: len(search.ids()) > before, 60)  # a delivery of the fan-out is under way

        points = ("prepare.start@1", "prepare.done@2")
        streams = [
            KilledStream(fanout_folder, "penstock.fanout", fanout.options(**own), points),
            KilledStream(pair_folder, "penstock.lake", pair.options(partitionBy="day"), points),
            KilledStream(routes_folder, "penstock.delta", routes.options_by("day"), points),
        ]
        KilledDriver(root, streams, meanwhile=deliver_and_die).run()
        for url, log in zip(urls, logs, strict=True):
            stack.enter_context(delivering(url, log))
        streams_of = (fanout.store.streams, pair.store.streams, routes.store.streams)
        wait_until(lambda: all(one.pending == 0 for streams in streams_of for one in streams()), 120)
        yield fanout, pair, routes


Delivered: TypeAlias = "tuple[Fanout, LakePair, RoutedTables]"


def test_routes_lose_nothing_and_double_nothing(delivered: Delivered) -> None:
    routes = delivered[2]
    folders = list((routes.root / "lake").iterdir())
    assert len(folders) == 3
    found = [row for folder in folders for row in DeltaLake(folder).rows("id, day")]
    assert sorted(int(str(row[0])) for row in found) == list(range(ROWS))
    assert all(DeltaLake(folder).rows("DISTINCT day") == [(folder.name,)] for folder in folders)


def test_a_fanout_loses_nothing_and_doubles_nothing(delivered: Delivered) -> None:
    fanout = delivered[0]
    for name in NAMES:
        assert fanout.ids(name) == list(range(ROWS)), name
    assert len(fanout.store.streams()) == len(NAMES)


def test_both_tables_of_a_pair_have_the_same_rows(delivered: Delivered) -> None:
    pair = delivered[1]
    assert pair.ids() == [list(range(ROWS))] * 2
    delta, iceberg = (sorted(table.rows("id, day")) for table in pair.tables)
    assert delta == iceberg
    in_delta, in_iceberg = pair.named()
    assert in_delta == in_iceberg
    targets = {stream.query_name.partition(".")[2] for stream in pair.store.streams()}
    assert targets == {"delta", "iceberg"}
