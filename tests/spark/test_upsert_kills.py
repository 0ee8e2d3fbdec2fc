"""SIGKILL to a driver whose streams change rows by key: the tables have what a dict has.

All streams are in one driver, and read the same changes. Other libraries and processes read the
tables.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.clickhouse import ClickHouse
from servers.mysql import MySqlProcess
from tests.conformance.harnesses import (
    DeltaHarness,
    HudiHarness,
    IcebergHarness,
    MySqlHarness,
    PostgresHarness,
)
from tests.spark.killed_stream import KilledDriver, KilledStream, SourceFiles
from tests.support.clickhouse_table import ClickHouseHarness
from tests.support.duckdb_table import DuckDbHarness
from tests.support.random_changes import RandomChanges
from tests.support.sqlite_table import SqliteHarness

from penstock.testing.conformance import DestinationHarness
from penstock.testing.conformance.query import source_of
from penstock.testing.conformance.upserts import OPTIONS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kills,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(1800),
]

SHORT: Mapping[str, Sequence[str]] = {
    "delta": ("prepare.done", "commit.landed"),
    "iceberg": ("commit.start", "commit.landed"),
    "postgres": ("prepare.done", "commit.landed"),
    "hudi": ("commit.start", "commit.landed"),
    "mariadb": ("prepare.done", "commit.landed"),
    "mysql": ("prepare.start", "commit.landed"),
    "clickhouse": ("clickhouse.decided", "clickhouse.moved"),
    "sqlite": ("commit.start", "commit.landed"),
    "duckdb": ("prepare.done", "commit.landed"),
}
"""What the driver is killed at, into each destination."""
NAMES = tuple(SHORT)
IGNORING_LATE_ROWS = ("iceberg", "postgres", "mariadb", "clickhouse", "sqlite", "duckdb")

RANDOM_POINTS = (
    *("write.file_open", "write.files_closed", "prepare.start", "prepare.done"),
    *("commit.start", "commit.landed", "mark.done"),
)
POINT_KILLS, MOMENT_KILLS = 5, 3


@dataclass
class KilledChanges:
    """Streams of the same changes into all destinations, with kills of their driver."""

    root: Path
    changes: RandomChanges
    harnesses: Mapping[str, DestinationHarness]

    def run(self, kills: Mapping[str, Sequence[str]], moments: int = 0, seed: int = 0) -> None:
        """
        Args:
            moments: kills at random moments, after those at crash points
        """
        streams = []
        for name, harness in self.harnesses.items():
            (folder := self.root / name).mkdir()
            own = {"lateRows": "ignore"} if name in IGNORING_LATE_ROWS else {}
            options = {**harness.options, **OPTIONS, **own}
            streams.append(KilledStream(folder, source_of(harness).name(), options, kills[name]))
        rng, points = random.Random(seed), max(map(len, kills.values()))

        def wait(turn: int) -> None:
            if turn >= points:
                _wait_for_a_batch(rng.choice(streams).checkpoint)
                time.sleep(rng.random())

        files = SourceFiles("id LONG, n LONG, text STRING, op STRING", self.changes.write)
        KilledDriver(self.root, streams, meanwhile=wait, files=files, more_turns=moments).run()

    def check(self, name: str) -> int:
        """Compare a table with the changes; return the number of its rows."""
        found = sorted(self.harnesses[name].changed_rows())
        assert found == self.changes.expected(ignores_late=name in IGNORING_LATE_ROWS)
        assert self.harnesses[name].problems() == []
        return len(found)


def _wait_for_a_batch(checkpoint: Path) -> None:
    """Wait until the query starts a batch, or has ended."""

    def started() -> int:
        return len(list((checkpoint / "offsets").glob("[0-9]*")))

    before, deadline = started(), time.monotonic() + 60
    while started() == before and time.monotonic() < deadline:
        time.sleep(0.02)


NewHarnesses = Callable[[Path], Mapping[str, DestinationHarness]]


@pytest.fixture(scope="module")
def harnesses(
    new_postgres_url: Callable[[], str],
    mariadb_server: MySqlProcess,
    oracle_mysql_server: MySqlProcess,
    clickhouse_server: ClickHouse,
) -> NewHarnesses:
    """Makes those of empty destinations, with a folder for those that need one."""
    return lambda root: {
        "delta": DeltaHarness(root / "delta"),
        "iceberg": IcebergHarness(root / "iceberg"),
        "postgres": PostgresHarness(new_postgres_url),
        "hudi": HudiHarness(root / "hudi"),
        "mariadb": MySqlHarness(mariadb_server.new_url),
        "mysql": MySqlHarness(oracle_mysql_server.new_url),
        "clickhouse": ClickHouseHarness(clickhouse_server),
        "sqlite": SqliteHarness(root / "sqlite"),
        "duckdb": DuckDbHarness(root / "duckdb"),
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, harnesses: NewHarnesses) -> KilledChanges:
    """After two kills, and a run to the end of the source."""
    root = tmp_path_factory.mktemp("upsert_kills")
    killed = KilledChanges(root, RandomChanges(4, 500, 300), harnesses(root))
    killed.run(SHORT)
    return killed


@pytest.mark.parametrize("name", NAMES)
def test_a_driver_that_is_killed_between_the_phases_changes_each_key_once(
    name: str, killed: KilledChanges
) -> None:
    assert killed.check(name) > 200


def test_a_million_changes_of_random_keys_with_random_kills(tmp_path: Path, harnesses: NewHarnesses) -> None:
    """At random crash points of random batches, and at random moments. `PENSTOCK_SEED` chooses others."""
    rng = random.Random(seed := int(os.environ.get("PENSTOCK_SEED", "0")))
    changes = RandomChanges(20, 50_000, 100_000, seed)
    killed = KilledChanges(tmp_path, changes, harnesses(tmp_path))

    def points() -> list[str]:
        batches = sorted(rng.sample(range(changes.files - MOMENT_KILLS), POINT_KILLS))
        return [f"{rng.choice(RANDOM_POINTS)}@{batch}" for batch in batches]

    kills = {name: points() for name in NAMES}
    started = time.monotonic()
    killed.run(kills, MOMENT_KILLS, seed)
    print(f"killed at {kills}, {time.monotonic() - started:.0f} s")  # noqa: T201 - for `make kills`
    for name in NAMES:
        print(f"{name}: {killed.check(name):,} rows")  # noqa: T201 - for `make kills`
