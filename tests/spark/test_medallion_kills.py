"""SIGKILL at random moments to a driver of three streams, table to table to table: no row is lost or doubled.

The first table is read by a library of its format, the others by DuckDB.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.support.driver_process import DriverProcess
from tests.support.ducklake_history import MERGE
from tests.support.ducklakes import sqlite_lake
from tests.support.hudi import HudiLake
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.lance_lake import LanceLake

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kills,
    pytest.mark.slow,
    pytest.mark.campaign,
    pytest.mark.timeout(1800),
]

DRIVER = Path(__file__).parents[1] / "support" / "medallion_driver.py"
FILES, ROWS, KEYS, KILLS = 30, 500, 300, 6
KINDS = ("a", "b", "c")


@dataclass
class Events:
    """Events of keys, a file after the other."""

    folder: Path
    seed: int

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.rows = [
            {
                "seq": number,
                "key": rng.randrange(KEYS),
                "kind": rng.choice(KINDS),
                "amount": rng.randrange(1000),
                "op": rng.choice("uuuud"),
            }
            for number in range(FILES * ROWS)
        ]
        self.folder.mkdir()

    def write(self, number: int) -> None:
        part = pl.DataFrame(self.rows[number * ROWS : (number + 1) * ROWS])
        unfinished = self.folder / f".{number:03d}"
        part.write_parquet(unfinished)
        unfinished.rename(self.folder / f"{number:03d}.parquet")

    def silver(self) -> dict[object, dict[str, object]]:
        newest = {row["key"]: row for row in self.rows}
        return {key: row for key, row in newest.items() if row["op"] != "d"}

    def gold(self) -> Counter[tuple[str, int, int]]:
        rows = list(self.silver().values())
        return Counter(
            (kind, len(own), sum(int(str(row["amount"])) for row in own))
            for kind in KINDS
            for own in [[row for row in rows if row["kind"] == kind]]
        )


@dataclass(frozen=True)
class Bronze:
    """The first table."""

    source: str
    options: dict[str, str]
    rows: Callable[[], list[tuple[object, ...]]]
    """Columns in the order of the events'."""
    compact: Callable[[], object] = lambda: None
    """What others do to the table, while no driver runs."""

    @property
    def arguments(self) -> list[str]:
        """Of the driver."""
        return [self.source, json.dumps(self.options)]


COLUMNS = ("seq", "key", "kind", "amount", "op")


def delta(root: Path) -> Bronze:
    lake = DeltaLake(root / "bronze")
    return Bronze("penstock.delta", lake.options, lambda: lake.rows(", ".join(COLUMNS)), lake.compact)


def iceberg(root: Path) -> Bronze:
    lake = IcebergLake(root / "warehouse", "lake.bronze")
    return Bronze("penstock.iceberg", lake.options, lambda: lake.rows(", ".join(COLUMNS)))


def lance(root: Path) -> Bronze:
    lake = LanceLake(root / "bronze")
    return Bronze(
        "penstock.lance", lake.options, lambda: _tuples(lake.load().to_table()), lambda: lake.compact()
    )


def hudi(root: Path) -> Bronze:
    lake = HudiLake(root / "bronze")
    return Bronze("penstock.hudi", lake.options, lambda: _tuples(lake.read()))


def ducklake(root: Path) -> Bronze:
    lake, columns = sqlite_lake(root / "bronze"), ", ".join(COLUMNS)
    lake.folder.mkdir()
    lake.sql("CREATE TABLE events (seq BIGINT, key BIGINT, kind VARCHAR, amount BIGINT, op VARCHAR)")
    return Bronze(
        "penstock.ducklake",
        {"catalog": lake.catalog, "table": "main.events"},
        lambda: lake.sql(f"SELECT {columns} FROM events"),
        lambda: lake.sql(MERGE),
    )


def _tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in rows.select(COLUMNS).to_pylist()]


@pytest.mark.parametrize("kind", [delta, iceberg, lance, hudi, ducklake])
def test_a_pipeline_of_tables_that_is_killed_at_random_loses_and_doubles_nothing(
    kind: Callable[[Path], Bronze], tmp_path: Path
) -> None:
    """`PENSTOCK_SEED` chooses other moments and rows."""
    rng = random.Random(seed := int(os.environ.get("PENSTOCK_SEED", "0")))
    events, bronze = Events(tmp_path / "source", seed), kind(tmp_path)
    arguments = [str(tmp_path), *bronze.arguments]
    written = 0
    for turn in range(KILLS):
        with DriverProcess(arguments, tmp_path / f"driver-{turn}.log", program=DRIVER) as driver:
            last = FILES * (turn + 1) // KILLS
            wait_for_batches(tmp_path, 2)
            for number in range(written, last):
                events.write(number)
                time.sleep(rng.random() * 0.5)
            written = last
            wait_for_batches(tmp_path, rng.randrange(1, 6))
            time.sleep(rng.random())
            assert driver.is_running(), driver.tail()
            driver.kill()
        if (tmp_path / "checkpoints/bronze/commits/0").exists():
            bronze.compact()
    with DriverProcess([*arguments, "--to-the-end"], tmp_path / "end.log", program=DRIVER) as driver:
        assert driver.wait() == 0, driver.tail()

    assert sorted(bronze.rows()) == [tuple(row.values()) for row in events.rows]
    silver = DeltaLake(tmp_path / "silver").rows("key, seq, kind, amount")
    assert sorted(silver) == sorted(
        (key, row["seq"], row["kind"], row["amount"]) for key, row in events.silver().items()
    )
    gold = Counter(
        (row[0], int(str(row[1])), int(str(row[2])))
        for row in DeltaLake(tmp_path / "gold").rows("kind, keys, amount")
    )
    assert gold == events.gold()


def wait_for_batches(root: Path, more: int) -> None:
    """Wait until the streams have begun some more batches, or have nothing left."""

    def begun() -> int:
        return len(list((root / "checkpoints").glob("*/offsets/[0-9]*")))

    before, deadline = begun(), time.monotonic() + 60
    while begun() < before + more and time.monotonic() < deadline:
        time.sleep(0.05)
