"""SIGKILL to a driver with a fan-out and a pair of tables, and to their delivery processes.

Both streams are in one driver, killed before and after each of them has prepared a batch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from servers.http_rows import http_rows
from tests.spark.killed_stream import ROWS, KilledDriver, KilledStream
from tests.support.backlogs import wait_until
from tests.support.fanouts import NAMES, Fanout
from tests.support.lake_pairs import LakePair, lake_pair

from penstock.committers.store.sql import open_store
from penstock.testing import RunningJob

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def delivering(store_url: str, log: Path, **environment: str) -> RunningJob:
    """A delivery process of one store."""
    deliver = ("deliver", "--store", store_url, "--lease-seconds", "1")
    return RunningJob([sys.executable, "-m", "penstock.cli", *deliver], log, environment)


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fanout, LakePair]]:
    """Both after the kills, with everything delivered. A delivery process of the pair dies once it has
    committed to one of the tables and not yet to the other. The services take each key once.
    """
    root = tmp_path_factory.mktemp("kills")
    fanout_folder, pair_folder = root / "fanout", root / "pair"
    with ExitStack() as stack:
        urls = [f"sqlite:///{folder}/checkpoint/penstock.sqlite" for folder in (fanout_folder, pair_folder)]
        store = stack.enter_context(open_store(urls[0]))
        search, events = (stack.enter_context(http_rows()) for _ in range(2))
        fanout = Fanout(fanout_folder, store, urls[0], search, events)
        pair = stack.enter_context(lake_pair(pair_folder, urls[1]))
        unique = {"format": "row", "idColumn": "id", "maxInFlightRequests": "2"}
        own = {
            f"target.{name}.{key}": value for name in ("search", "events") for key, value in unique.items()
        }
        for service in (search, events):
            service.set(deduplicate=True, latency_s=0.01)
        log_of_fanout, log_of_pair = root / "fanout.log", root / "pair.log"

        def deliver_and_die(turn: int) -> None:
            landed, before = root / f"landed-{turn}", len(search.ids())
            pause = {"PENSTOCK_PAUSE_AT": "commit.landed", "PENSTOCK_PAUSE_FILE": str(landed)}
            with delivering(urls[0], log_of_fanout), delivering(urls[1], log_of_pair, **pause):
                wait_until(landed.exists, 120)
                wait_until(lambda: len(search.ids()) > before, 60)  # a delivery of the fan-out is under way

        points = ("prepare.start@1", "prepare.done@2")
        streams = [
            KilledStream(fanout_folder, "penstock.fanout", fanout.options(**own), points),
            KilledStream(pair_folder, "penstock.lake", pair.options(partitionBy="day"), points),
        ]
        KilledDriver(root, streams, meanwhile=deliver_and_die).run()
        stack.enter_context(delivering(urls[0], log_of_fanout))
        stack.enter_context(delivering(urls[1], log_of_pair))
        streams_of = (fanout.store.streams, pair.store.streams)
        wait_until(lambda: all(one.pending == 0 for streams in streams_of for one in streams()), 120)
        yield fanout, pair


def test_a_fanout_loses_nothing_and_doubles_nothing(delivered: tuple[Fanout, LakePair]) -> None:
    fanout, _ = delivered
    for name in NAMES:
        assert fanout.ids(name) == list(range(ROWS)), name
    assert len(fanout.store.streams()) == len(NAMES)


def test_both_tables_of_a_pair_have_the_same_rows(delivered: tuple[Fanout, LakePair]) -> None:
    _, pair = delivered
    assert pair.ids() == [list(range(ROWS))] * 2
    delta, iceberg = (sorted(table.rows("id, day")) for table in pair.tables)
    assert delta == iceberg
    in_delta, in_iceberg = pair.named()
    assert in_delta == in_iceberg
    targets = {stream.query_name.partition(".")[2] for stream in pair.store.streams()}
    assert targets == {"delta", "iceberg"}
