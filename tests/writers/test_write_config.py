"""The plan that crosses to the executors, and the names of files."""

from __future__ import annotations

import pickle
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.plans import delta_plan

from penstock.committers.errors import ConfigurationError
from penstock.writers.parquet.data_file_config import COMPRESSIONS, ParquetOptions
from penstock.writers.parquet.file_names import FileName, FileNames, parse_file_name

SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("day", pa.date32())])

NUMBERS = st.integers(min_value=0, max_value=2**63)
QUERY_IDS = st.uuids().map(str) | st.from_regex(r"[0-9A-Za-z_-]+", fullmatch=True)


def test_plan_survives_pickling() -> None:
    plan = delta_plan("/t", SCHEMA, {"key": "value"}, partition_by=("day",), sort_within=("id",))
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_plan_never_shows_storage_options() -> None:
    assert "hunter2" not in repr(delta_plan("s3://b/t", SCHEMA, {"AWS_SECRET_ACCESS_KEY": "hunter2"}))


def test_delta_files_leave_partition_columns_out() -> None:
    assert delta_plan("/t", SCHEMA, partition_by=("day",)).file_schema.names == ["id", "tags"]


@pytest.mark.parametrize(
    ("options", "part_of_message"),
    [
        *[({bound: 0}, bound) for bound in ("row_group_rows", "target_file_bytes", "buffer_bytes_max")],
        *[({bound: 0}, bound) for bound in ("max_open_partitions", "row_group_bytes")],
        ({"parquet": ParquetOptions(page_bytes=0)}, "page_bytes"),
        ({"parquet": ParquetOptions(page_rows=0)}, "page_rows"),
        ({"parquet": ParquetOptions(dictionary_bytes=0)}, "dictionary_bytes"),
        ({"parquet": ParquetOptions(bloom_columns=(("nope",),))}, "nope"),
        ({"compression": "zip"}, "zip"),
        ({"compression_level": 99}, "from -?[0-9]+ to 22"),
        ({"partition_by": ("nope",)}, "nope"),
        ({"sort_within": ("nope",)}, "nope"),
        ({"sort_within": ("tags",)}, "tags"),
        ({"partition_by": ("day",), "sort_within": ("day",)}, "day"),
        ({"partition_by": ("id", "tags", "day")}, "not a partition column"),
    ],
)
def test_plan_refuses(options: dict[str, Any], part_of_message: str) -> None:
    with pytest.raises(ConfigurationError, match=part_of_message):
        delta_plan("/t", SCHEMA, **options)


def test_plan_names_all_problems_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)row_group_rows.*zip"):
        delta_plan("/t", SCHEMA, row_group_rows=0, compression="zip")


def test_a_table_without_columns_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one column"):
        delta_plan("/t", pa.schema([]))


@given(QUERY_IDS, st.text(), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(COMPRESSIONS))
def test_a_name_says_what_it_was_made_of(
    query_id: str, run_id: str, batch_id: int, partition: int, attempt: int, sequence: int, compression: str
) -> None:
    names = FileNames(query_id, run_id, batch_id, partition, attempt)
    name = names.name(sequence, compression)
    assert parse_file_name(f"day=2024-01-01/{name}") == name
    assert (name.query_id, name.batch_id, name.partition) == (query_id, batch_id, partition)
    assert (name.attempt, name.sequence, name.compression) == (attempt, sequence, compression)


@given(
    st.lists(
        st.tuples(QUERY_IDS, st.uuids().map(str), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_two_files_never_have_one_name(ids: list[tuple[str, str, int, int, int, int]]) -> None:
    first, second = (str(FileNames(*parts[:5]).name(parts[5], "zstd")) for parts in ids)
    assert first != second


@pytest.mark.parametrize(
    "path",
    [
        "part-00000-0e0d0c0b.zstd.parquet",
        "penstock.parquet",
        "penstock-query-0123abcd-00000001-00002-3-0004.zstd.parquet.crc",
        "penstock-query-0123abcd-1-00002-3-0004.zstd.parquet",
        "penstock-query-0123abcd-000000001-00002-3-0004.zstd.parquet",
        "penstock-query-0123ABCD-00000001-00002-3-0004.zstd.parquet",
        "penstock-query-0123abcd-00000001-00002-3-0004.zstd.parquet/",
        "penstock-query-0123abcd-00000001-00002-3-0004.zstd.parquet\n",
        "penstock-query-0123abcd-0000000\u0661-00002-3-0004.zstd.parquet",
    ],
)
def test_files_of_others_are_not_recognised(path: str) -> None:
    """Clean-up deletes what is recognised."""
    assert parse_file_name(path) is None


def test_a_known_name_stays_readable() -> None:
    """Files of earlier releases must still be found by clean-up."""
    query_id = str(uuid.UUID(int=1))
    path = f"a=1/penstock-{query_id}-0123abcd-00000001-00002-3-0004.zstd.parquet"
    assert parse_file_name(path) == FileName(query_id, "0123abcd", 1, 2, 3, 4, "zstd")


@pytest.mark.parametrize("query_id", ["", "a/b", "../x", "a b", "é"])
def test_a_query_id_that_is_no_file_name_is_refused(query_id: str) -> None:
    with pytest.raises(ConfigurationError, match="query id"):
        FileNames(query_id, "run", 0, 0, 0)
