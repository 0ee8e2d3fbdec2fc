"""How columns are stored: what is chosen, and that every value comes back from it."""

from __future__ import annotations

import math
import random
import string
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.plans import delta_plan, iceberg_plan
from tests.writers.task import write_as_task

from penstock.writers.parquet.encodings import SAMPLE_ROWS
from penstock.writers.parquet.write_config import WriteConfig

ROWS = 50_000
DIFFERENCES, DICTIONARY, PLAIN = "DELTA_BINARY_PACKED", "RLE_DICTIONARY", "PLAIN"


def written(plan: WriteConfig, rows: pa.Table, batch_rows: int = 10_000) -> list[pq.FileMetaData]:
    files = write_as_task(plan, rows, batch_rows=batch_rows)
    return [pq.read_metadata(Path(plan.location) / file.path) for file in files]


def columns(footer: pq.FileMetaData) -> dict[str, pq.ColumnChunkMetaData]:
    group = footer.row_group(0)
    return {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}


def mixed(number: int) -> int:
    """Every number once, without order."""
    return number * 2654435761 % 2**32


CASES: dict[str, tuple[pa.Array, str]] = {
    "sequence": (pa.array(range(ROWS)), DIFFERENCES),
    "byte": (pa.array([i % 5 for i in range(ROWS)], pa.int8()), DICTIONARY),
    "without order": (pa.array([mixed(i) for i in range(ROWS)]), DIFFERENCES),
    "alike neighbours": (pa.array([i // 5 for i in range(ROWS)]), DIFFERENCES),
    "few": (pa.array([mixed(i) % 50 for i in range(ROWS)]), DICTIONARY),
    "time": (pa.array([i * 1_000_003 for i in range(ROWS)], pa.timestamp("us", "UTC")), DIFFERENCES),
    "date": (pa.array([mixed(i) % 40_000 for i in range(ROWS)], pa.int32()).cast(pa.date32()), DIFFERENCES),
    "price": (
        pa.array([Decimal(mixed(i)).scaleb(-2) for i in range(ROWS)], pa.decimal128(15, 2)),
        DIFFERENCES,
    ),
    "wide price": (pa.array([Decimal(mixed(i)) for i in range(ROWS)], pa.decimal128(38, 0)), PLAIN),
    "number": (pa.array([mixed(i) / 7 for i in range(ROWS)]), PLAIN),
    "few numbers": (pa.array([mixed(i) % 50 / 7 for i in range(ROWS)]), DICTIONARY),
    "text": (pa.array([str(mixed(i)) for i in range(ROWS)]), PLAIN),
    "few texts": (pa.array([str(mixed(i) % 50) for i in range(ROWS)]), DICTIONARY),
    "binary": (pa.array([str(mixed(i)).encode() for i in range(ROWS)]), PLAIN),
}


def test_encodings_follow_the_values(tmp_path: Path) -> None:
    rows = pa.table({name: values for name, (values, _) in CASES.items()})
    (footer,) = written(delta_plan(tmp_path, rows.schema), rows)
    chosen = {name: column.encodings for name, column in columns(footer).items()}
    for name, (_, expected) in CASES.items():
        others = {DIFFERENCES, DICTIONARY} - {expected}
        assert expected in chosen[name], name
        assert not others & set(chosen[name]), name


def test_small_row_groups_have_no_large_dictionaries(tmp_path: Path) -> None:
    """Each would have one of its own: of 5,000 rows with 500 values it is as large as the rows."""
    rows = pa.table(
        {
            "p": [i % 10 for i in range(ROWS)],
            "500": [mixed(i) % 500 for i in range(ROWS)],
            "50": [mixed(i) % 50 for i in range(ROWS)],
        }
    )
    plan = delta_plan(tmp_path / "split", rows.schema, partition_by=("p",))
    for footer in written(plan, rows):
        assert DIFFERENCES in columns(footer)["500"].encodings
        assert DICTIONARY in columns(footer)["50"].encodings
    (footer,) = written(delta_plan(tmp_path / "whole", rows.schema), rows)
    assert DICTIONARY in columns(footer)["500"].encodings


def test_iceberg_files_have_only_what_its_own_older_readers_know(tmp_path: Path) -> None:
    """Its vectorised reader for Spark refused differences until 2025."""
    rows = pa.table({name: values for name, (values, _) in CASES.items()})
    (footer,) = written(iceberg_plan(tmp_path, rows.schema), rows)
    encodings = {encoding for column in columns(footer).values() for encoding in column.encodings}
    assert encodings == {PLAIN, DICTIONARY, "RLE"}


@pytest.mark.parametrize("is_iceberg", [False, True])
def test_every_value_comes_back(is_iceberg: bool, tmp_path: Path) -> None:
    """Signs of zero too, and NULLs; by two readers that are not Arrow."""
    rows = pa.table({name.replace(" ", "_"): _with_nulls(values) for name, (values, _) in CASES.items()})
    zeros = pa.array([(-0.0, 0.0, math.inf, -math.inf)[i % 4] for i in range(ROWS)])
    rows = rows.append_column("zeros", zeros)
    plan = iceberg_plan(tmp_path, rows.schema) if is_iceberg else delta_plan(tmp_path, rows.schema)
    written(plan, rows)
    by_polars = pl.read_parquet(tmp_path)
    by_duckdb = duckdb.sql(f"SET TimeZone = 'UTC'; SELECT * FROM read_parquet('{tmp_path}/*.parquet')").pl()
    for found in (by_polars, by_duckdb):
        assert found.rows() == list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        assert [math.copysign(1, zero) for zero in found["zeros"][:2]] == [-1, 1]


def _with_nulls(values: pa.Array) -> pa.Array:
    some = pa.array([None if i % 11 == 3 else i for i in range(len(values))], pa.int64())
    return values.take(some)


# Compression --------------------------------------------------------------------------------------


def test_only_what_shrinks_is_compressed(tmp_path: Path) -> None:
    words = random.Random(1)
    texts = ["".join(words.choices("abc", k=30)) for _ in range(ROWS)]
    rows = pa.table(
        {
            "sparse": [i * 1000 for i in range(ROWS)],
            "text": texts,
            "noise": [words.random() for _ in range(ROWS)],
        }
    )
    (footer,) = written(delta_plan(tmp_path, rows.schema), rows)
    codecs = {name: column.compression for name, column in columns(footer).items()}
    assert codecs == {"sparse": "ZSTD", "text": "ZSTD", "noise": "UNCOMPRESSED"}


def test_small_row_groups_compress_only_what_is_large_in_them(tmp_path: Path) -> None:
    """Each page costs a codec a fresh start: with hundreds of partitions, more than all encoding."""
    rows = pa.table(
        {
            "p": [i % 100 for i in range(ROWS)],
            "text": ["".join(random.Random(i).choices("abc", k=30)) for i in range(ROWS)],
            "flag": ["yes" if i % 7 else "no" for i in range(ROWS)],
        }
    )
    plan = delta_plan(tmp_path, rows.schema, partition_by=("p",), max_open_partitions=100)
    for footer in written(plan, rows):
        codecs = {name: column.compression for name, column in columns(footer).items()}
        assert codecs == {"text": "ZSTD", "flag": "UNCOMPRESSED"}


def test_few_rows_are_plain_and_compressed(tmp_path: Path) -> None:
    """There is nothing to learn from them, and a dictionary would be one more page for each column."""
    rows = pa.table({"noise": [random.Random(i).random() for i in range(100)], "flag": ["yes"] * 100})
    (footer,) = written(delta_plan(tmp_path, rows.schema, compression="gzip"), rows)
    assert {column.compression for column in columns(footer).values()} == {"GZIP"}
    assert all(DICTIONARY not in column.encodings for column in columns(footer).values())


def test_without_compression_nothing_is_compressed(tmp_path: Path) -> None:
    rows = pa.table({"text": ["a" * 30] * ROWS})
    (footer,) = written(delta_plan(tmp_path, rows.schema, compression="none"), rows)
    assert columns(footer)["text"].compression == "UNCOMPRESSED"


# From which rows ----------------------------------------------------------------------------------


def test_small_partitions_are_encoded_by_what_is_known_of_all(tmp_path: Path) -> None:
    """Of one alone, hardly anything is known: each has far fewer rows than a sample."""
    rows = pa.table({"p": [i % 100 for i in range(ROWS)], "v": [mixed(i) for i in range(ROWS)]})
    plan = delta_plan(tmp_path, rows.schema, partition_by=("p",), max_open_partitions=100)
    footers = written(plan, rows)
    assert len(footers) == 100
    assert footers[0].num_rows < SAMPLE_ROWS
    assert all(DIFFERENCES in columns(footer)["v"].encodings for footer in footers)


def test_large_row_groups_after_small_ones_are_looked_at_anew(tmp_path: Path) -> None:
    """The first rows are too few to go by."""
    few = pa.table({"p": [0] * 10, "v": [7] * 10})
    many = pa.table({"p": [1] * ROWS, "v": list(range(ROWS))})
    plan = delta_plan(tmp_path, few.schema, partition_by=("p",), buffer_bytes_max=1)
    first, second = written(plan, pa.concat_tables([few, many]), ROWS)
    assert DIFFERENCES not in columns(first)["v"].encodings
    assert DIFFERENCES in columns(second)["v"].encodings


def test_columns_inside_others_have_a_dictionary(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("x", pa.int64())]))
    letters: list[Any] = [[{"x": i % 3}] for i in range(ROWS)]
    rows = pa.table({"l": pa.array(letters, kind), "a": list(string.ascii_letters[:50]) * (ROWS // 50)})
    (footer,) = written(delta_plan(tmp_path, rows.schema), rows)
    assert DICTIONARY in columns(footer)["l.list.element.x"].encodings
    assert pl.read_parquet(tmp_path)["l"].to_list() == letters
