"""Writes generated flights of one year as Parquet files in time order, the source of the notebooks."""

from __future__ import annotations

import os
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import polars as pl

ROWS = 240_000
HOURS = 365 * 24
BEGIN = datetime(2025, 1, 1, tzinfo=timezone.utc)
ORIGINS = {"EWR": 36, "JFK": 33, "LGA": 31}
DESTINATIONS = {"ATL": 17, "BOS": 15, "CLT": 14, "LAX": 16, "MCO": 14, "MIA": 12, "ORD": 18, "SFO": 13}
CARRIERS = {"AA": 33, "B6": 55, "DL": 48, "EV": 54, "UA": 59, "WN": 12}
DELAY_MIN = 15
"""Mean delay in minutes."""
CANCELLED = 0.025
"""Part of the flights without a delay."""


def write_flights(folder: Path, files: int) -> int:
    """Write the flights into `files` Parquet files of equal time spans; return the number of rows.

    Spark reads files in the order of their modification time, so it is set to the start of the time span.
    """
    folder.mkdir(parents=True)
    flights = generate_flights()
    for number in range(files):
        first, after = (position * ROWS // files for position in (number, number + 1))
        path = folder / f"flights-{number:03}.parquet"
        flights[first:after].write_parquet(path)
        os.utime(path, (flights["time_hour"][first].timestamp(),) * 2)
    return ROWS


def generate_flights() -> pl.DataFrame:
    """Return the same flights in each run, in the order of their departure."""
    rng = random.Random(2025)

    def chosen(weights: dict[str, int]) -> list[str]:
        return rng.choices(list(weights), list(weights.values()), k=ROWS)

    hours = [BEGIN + timedelta(hours=number * HOURS // ROWS) for number in range(ROWS)]
    delays = [
        None if rng.random() < CANCELLED else round(rng.expovariate(1 / DELAY_MIN)) for _ in range(ROWS)
    ]
    return pl.DataFrame(
        {
            "time_hour": hours,
            "month": [hour.month for hour in hours],
            "carrier": chosen(CARRIERS),
            "flight": rng.choices(range(1, 8000), k=ROWS),
            "origin": chosen(ORIGINS),
            "dest": chosen(DESTINATIONS),
            "dep_delay": delays,
        }
    )


CHANGES_PER_FILE = 20_000
BOOKINGS = 15_000


def write_changes(folder: Path, files: int) -> None:
    """Write changes of bookings into `files` Parquet files, in the order of their log sequence numbers.

    Each booking is created, changed and deleted, maybe several times. The rows of a file are in any order.
    """
    folder.mkdir(parents=True)
    rng, there = random.Random(2026), set[int]()
    for number in range(files):
        first = number * CHANGES_PER_FILE
        rows = [_change(rng, there, lsn) for lsn in range(first, first + CHANGES_PER_FILE)]
        rng.shuffle(rows)
        path = folder / f"changes-{number:03}.parquet"
        pl.DataFrame(rows, orient="row", schema=["id", "seats", "dest", "op", "lsn"]).write_parquet(path)
        os.utime(path, (BEGIN.timestamp() + number,) * 2)


def _change(rng: random.Random, there: set[int], lsn: int) -> tuple[int, int | None, str | None, str, int]:
    """One change of a booking. A deletion has no other values.

    Args:
        there: the bookings that exist
    """
    booking = rng.randrange(BOOKINGS)
    if booking in there and rng.random() < 0.1:
        there.discard(booking)
        return booking, None, None, "d", lsn
    op = "u" if booking in there else "c"
    there.add(booking)
    return booking, rng.randrange(1, 9), rng.choice(list(DESTINATIONS)), op, lsn
