"""SIGKILL at random moments to a driver of three streams, table to table to table: no row is lost or doubled.

DuckDB reads the tables.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest
from tests.support.driver_process import DriverProcess
from tests.support.lakes import DeltaLake, IcebergLake, LakeTable

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


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_pipeline_of_tables_that_is_killed_at_random_loses_and_doubles_nothing(
    kind: str, tmp_path: Path
) -> None:
    """`PENSTOCK_SEED` chooses other moments and rows."""
    rng = random.Random(seed := int(os.environ.get("PENSTOCK_SEED", "0")))
    events = Events(tmp_path / "source", seed)
    written = 0
    for turn in range(KILLS):
        with DriverProcess([str(tmp_path), kind], tmp_path / f"driver-{turn}.log", program=DRIVER) as driver:
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
        compact(tmp_path, kind)
    with DriverProcess([str(tmp_path), kind, "--to-the-end"], tmp_path / "end.log", program=DRIVER) as driver:
        assert driver.wait() == 0, driver.tail()

    bronze: LakeTable = (
        IcebergLake(tmp_path / "warehouse", "lake.bronze")
        if kind == "iceberg"
        else DeltaLake(tmp_path / "bronze")
    )
    assert sorted(bronze.rows("seq, key, kind, amount, op")) == [tuple(row.values()) for row in events.rows]
    silver = DeltaLake(tmp_path / "silver").rows("key, seq, kind, amount")
    assert sorted(silver) == sorted(
        (key, row["seq"], row["kind"], row["amount"]) for key, row in events.silver().items()
    )
    gold = Counter(
        (row[0], int(str(row[1])), int(str(row[2])))
        for row in DeltaLake(tmp_path / "gold").rows("kind, keys, amount")
    )
    assert gold == events.gold()


def compact(root: Path, kind: str) -> None:
    """What others do to the first table, while no driver runs."""
    if kind == "delta" and (root / "bronze" / "_delta_log").exists():
        DeltaLake(root / "bronze").compact()


def wait_for_batches(root: Path, more: int) -> None:
    """Wait until the streams have begun some more batches, or have nothing left."""

    def begun() -> int:
        return len(list((root / "checkpoints").glob("*/offsets/[0-9]*")))

    before, deadline = begun(), time.monotonic() + 60
    while begun() < before + more and time.monotonic() < deadline:
        time.sleep(0.05)
