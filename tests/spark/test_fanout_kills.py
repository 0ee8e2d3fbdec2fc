"""SIGKILL to a driver with a fan-out and a pair of tables, and to their delivery processes.

Both streams are in one driver, killed before and after each of them has prepared a batch.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from servers.http_rows import http_rows
from tests.spark.killed_stream import ROWS, KilledDriver, KilledStream
from tests.support.backlogs import start_cli, wait_until
from tests.support.fanouts import NAMES, Fanout
from tests.support.lake_pairs import LakePair, lake_pair

from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.kills]


class Deliveries:
    """Delivery processes of one store, each started after the one before was killed."""

    def __init__(self, store_url: str) -> None:
        self._store_url = store_url
        self._process: subprocess.Popen[str] | None = None

    def start(self, **environment: str) -> None:
        deliver = ("deliver", "--store", self._store_url, "--lease-seconds", "1")
        self._process = start_cli(*deliver, **environment)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


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
        of_fanout, of_pair = Deliveries(urls[0]), Deliveries(urls[1])
        stack.callback(of_fanout.kill)
        stack.callback(of_pair.kill)

        def deliver_and_die(turn: int) -> None:
            landed = root / f"landed-{turn}"
            of_fanout.start()
            of_pair.start(PENSTOCK_PAUSE_AT="commit.landed", PENSTOCK_PAUSE_FILE=str(landed))
            wait_until(landed.exists, 120)
            time.sleep(1)  # so that a delivery of the fan-out is under way
            of_fanout.kill()
            of_pair.kill()

        points = ("prepare.start@1", "prepare.done@2")
        streams = [
            KilledStream(fanout_folder, "penstock.fanout", fanout.options(**own), points),
            KilledStream(pair_folder, "penstock.lake", pair.options(partitionBy="day"), points),
        ]
        KilledDriver(root, streams, meanwhile=deliver_and_die).run()
        of_fanout.start()
        of_pair.start()
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
