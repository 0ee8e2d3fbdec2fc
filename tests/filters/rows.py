"""A table with every type: the values of each column, the table, and the filters that are tried on it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.lakes import LAKES, LakeTable
from tests.writers.task import NAMES, write_as_task

from penstock.committers.contract import Batch, DataFile, StreamKey
from penstock.committers.file_tables.manifest import build_manifest
from penstock.writers.parquet.write_config import WriteConfig

ROW_GROUPS = {"plain": (24, 100), "encoded": (6, 1200)}
"""By data file: the number of row groups, and their rows. Too few rows are encoded plainly."""
TINY_ROWS = 200
"""Of the table of many tiny files: some have NaN only."""

PARTITIONS = 6
"""Of the partitioned table: all rows of a row group are in one partition."""


def _moments(zone: timezone | None) -> list[datetime]:
    """Moments around which readers round, change calendars, or count."""
    return [
        datetime(1, 1, 1, tzinfo=zone),
        datetime(1582, 10, 4, 23, 59, 59, 999_999, zone),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, zone),
        datetime(1970, 1, 1, tzinfo=zone),
        datetime(2026, 11, 24, 1, 2, 3, 123_456, zone),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, zone),
    ]


def _integers(bits: int) -> list[int]:
    return [-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1]


def _decimals(*numbers: str) -> list[Decimal]:
    return [Decimal(number) for number in numbers]


FLOATS = [-math.inf, -1.5, -0.0, 0.0, 2.0**-20, 1.5, math.inf, math.nan]
DAYS = [date(1, 1, 1), date(1582, 10, 4), date(1969, 12, 31), date(1970, 1, 1), date(2026, 11, 24), date.max]
NINES = f"{'9' * 28}.{'9' * 10}"
TEXTS = ["", "a", "ab", "abc", "abd", "a" * 40, "a" * 39 + "b", "ab\uffff", "ab\U0001f600", "\u00e9"]
UTC = pa.timestamp("us", "UTC")

COLUMNS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [False, True]),
    "i8": (pa.int8(), _integers(8)),
    "i16": (pa.int16(), _integers(16)),
    "i32": (pa.int32(), _integers(32)),
    "i64": (pa.int64(), _integers(64)),
    "f4": (pa.float32(), FLOATS),
    "f8": (pa.float64(), FLOATS),
    "d9": (pa.decimal128(9, 2), _decimals("-9999999.99", "-0.01", "0.00", "1.50", "9999999.99")),
    "d18": (
        pa.decimal128(18, 4),
        _decimals("-99999999999999.9999", "-0.0001", "0.0000", "12345678901234.5678"),
    ),
    "d38": (
        pa.decimal128(38, 10),
        _decimals(f"-{NINES}", "0E-10", "1234567890123456789.0123456789", NINES),
    ),
    "s": (pa.string(), TEXTS),
    "bin": (pa.binary(), [b"", b"\x00", b"a", b"a" * 20, b"\x7f", b"\x80", b"\xff" * 20]),
    "day": (pa.date32(), DAYS),
    "ts": (UTC, _moments(timezone.utc)),
    "ntz": (pa.timestamp("us"), _moments(None)),
    "st.f": (pa.float64(), FLOATS),
    "st.i": (pa.int64(), _integers(64)),
    "l": (pa.list_(pa.field("element", pa.float64())), [[], [1.0], [math.nan]]),
    "m": (pa.map_(pa.string(), pa.float64()), [[], [("k", math.nan)]]),
}  # fmt: skip
PARTITION_COLUMNS: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "p_flag": (pa.bool_(), [False, True]),
    "p_i32": (pa.int32(), [-(2**31) + 10, -1, 0, 1, 2**31 - 1]),
    "p_d9": (pa.decimal128(9, 2), _decimals("0.00", "0.01", "5.00", "12.34", "9999999.99")),
    "p_cut": (pa.decimal128(8, 2), _decimals("-99999.99", "-12.34", "0.00", "0.01", "12.34")),
    "p_s": (pa.string(), ["a", "ab", "a b/c=%", "\u00e9", "abc"]),
    "p_day": (pa.date32(), DAYS[1:]),
    "p_ts": (UTC, _moments(timezone.utc)[1:]),
    "p_f4": (pa.float32(), [-0.0, 0.0, math.nan, 1.5, math.inf]),
    "p_bucket": (pa.string(), ["x", "y", "z", "\u00e9", ""]),
    "p_month": (pa.date32(), DAYS[1:]),
}
"""The values of the partitions, in addition to NULL."""

ALL_COLUMNS = {**COLUMNS, **PARTITION_COLUMNS}
TRIED = {
    "plain": COLUMNS,
    "partitioned": {name: ALL_COLUMNS[name] for name in (*PARTITION_COLUMNS, "f8", "s", "ts")},
    "tiny": {name: COLUMNS[name] for name in ("f4", "f8", "st.f", "i32", "s")},
}
"""Columns that filters are tried on, by layout of the table."""

DELTA_PARTITIONS: Mapping[str, str] = {
    "partitioned": "p_flag, p_i32, p_d9, p_s, p_day, p_ts",
    "tiny": "flag, i32, i64",
}
ICEBERG_PARTITIONS: Mapping[str, str] = {
    "partitioned": (
        "p_flag, p_i32, p_d9, truncate(10, p_cut), truncate(1, p_s), p_day, hour(p_ts), p_f4, "
        "bucket(4, p_bucket), month(p_month)"
    ),
    "tiny": "flag, i32, i64, year(ts), bucket(2, s)",
}


def rows(kind: str) -> Iterator[pa.RecordBatch]:
    """Yield the row groups of one data file: most have three values per column, or NULL. Of `tiny`, one row
    each.
    """
    chance = random.Random(kind)
    number, size = ROW_GROUPS.get(kind, (TINY_ROWS, 1))
    for group in range(number):
        columns = {name: _some(values, chance, size) for name, (_, values) in COLUMNS.items()}
        for name, (_, values) in PARTITION_COLUMNS.items():
            columns[name] = [[None, *values][group % PARTITIONS % (len(values) + 1)]] * size
        arrays = {name: pa.array(columns[name], ALL_COLUMNS[name][0]) for name in columns}
        struct = pa.StructArray.from_arrays([arrays.pop("st.f"), arrays.pop("st.i")], names=["f", "i"])
        yield pa.record_batch({**arrays, "st": struct})


def _some(values: list[Any], chance: random.Random, size: int) -> list[Any]:
    chosen = chance.sample([None, *values], min(3, len(values)))
    return [chance.choice(chosen) for _ in range(size)]


def write_lake(kind: str, folder: Path, layout: str) -> LakeTable:
    """Write a table of this format: one file with small and one with large row groups per partition, or many
    tiny files.
    """
    lake = LAKES[kind](folder)
    columns = (DELTA_PARTITIONS if kind == "delta" else ICEBERG_PARTITIONS).get(layout)
    sink = lake.sink(**({lake.partitioning: columns} if columns else {}))
    table = sink.open_table()
    files: list[DataFile] = []
    for attempt, name in enumerate([layout] if layout == "tiny" else ROW_GROUPS):
        batches = list(rows(name))
        planned = table.plan_batch(batches[0].schema, "append", 0)
        assert isinstance(planned.writers, WriteConfig)
        config = replace(planned.writers, row_group_rows=ROW_GROUPS.get(name, (1, TINY_ROWS))[1])
        rows_of_file = pa.Table.from_batches(batches)
        files += write_as_task(config, rows_of_file, replace(NAMES, attempt=attempt), batch_rows=1200)
    batch_of_files = Batch(StreamKey("q", sink.table_uri), 0, "0" * 64)
    table.commit(build_manifest(batch_of_files, planned.content.with_files(files)))
    return lake


# Filters ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter:
    column: str
    operator: str
    """=, <, <=, >, >=, `prefix`, `null`, `not null` or `nan`"""
    value: Any = None

    @property
    def type(self) -> pa.DataType:
        return ALL_COLUMNS[self.column][0]

    def __str__(self) -> str:
        return f"{self.column} {self.operator}" + (f" {self.value!r}" if self.value is not None else "")


def filters(columns: Mapping[str, tuple[pa.DataType, list[Any]]]) -> Iterator[Filter]:
    """Each value that a column has: equality, and one of the ranges that it begins or ends."""
    for name, (kind, values) in columns.items():
        yield Filter(name, "null")
        yield Filter(name, "not null")
        if pa.types.is_nested(kind):
            continue
        for number, value in enumerate(values):
            yield Filter(name, "=", value)
            if not pa.types.is_boolean(kind):
                yield Filter(name, ("<", ">", "<=", ">=")[(number + 1) % 4], value)
        if pa.types.is_floating(kind):
            yield Filter(name, "nan")
        if pa.types.is_string(kind):
            yield from [Filter(name, "prefix", text) for text in ("a", "ab", "a" * 39, "\u00e9")]
