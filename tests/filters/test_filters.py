"""A filter finds what a scan of all rows finds, whichever reader skips files, row groups and pages by it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from servers.maven import MavenUnreachableError
from tests.filters.faults import KNOWN_FAULTS
from tests.filters.lakes import write_lake
from tests.filters.readers import LIBRARIES, Counts, Reader, spark_counts
from tests.filters.rows import TRIED, Filter, filters
from tests.support.lakes import LakeTable

Lakes: TypeAlias = Mapping[str, tuple[LakeTable, list[Filter]]]

LAYOUTS = tuple(TRIED)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    return {
        f"{kind}_{layout}": (
            write_lake(kind, tmp_path_factory.mktemp("lake"), partitioned=layout == "partitioned"),
            list(filters(TRIED[layout])),
        )
        for kind in ("delta", "iceberg")
        for layout in LAYOUTS
    }


def check(reader: str, table: str, wanted: list[Filter], pushed: Counts, on_all: Counts) -> None:
    """Wrong are exactly the filters that are known to be."""
    for one, count in zip(wanted, on_all, strict=True):
        is_nan = isinstance(one.value, float) and math.isnan(one.value)
        assert isinstance(count, int), f"{one}: {count}"
        assert count > 0 or one.operator != "=" or is_nan, f"{one} is in no row: a test that says nothing"
    wrong = {
        str(one): f"finds {found} rows of {count}"
        for one, found, count in zip(wanted, pushed, on_all, strict=True)
        if found != count
    }
    known = KNOWN_FAULTS.get((reader, table), frozenset())
    assert {one: how for one, how in wrong.items() if one not in known} == {}
    assert known - wrong.keys() == frozenset(), "these faults are gone: take them out of faults.py"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        pytest.param(reader, kind, id=f"{reader.name}-{kind}")
        for reader in LIBRARIES
        for kind in reader.formats
    ],
)
def test_a_filter_finds_what_a_scan_finds(reader: Reader, kind: str, layout: str, lakes: Lakes) -> None:
    lake, wanted = lakes[f"{kind}_{layout}"]
    pushed, on_all = reader.read(lake, wanted)
    check(reader.name, f"{kind}_{layout}", wanted, pushed, on_all)


@pytest.mark.spark
def test_a_filter_finds_what_a_scan_finds_in_spark(lakes: Lakes, tmp_path: Path) -> None:
    """By Delta's and Iceberg's own connectors, which have a release for Spark 4.0."""
    pyspark = pytest.importorskip("pyspark")
    if not pyspark.__version__.startswith("4.0."):
        pytest.skip("needs Spark 4.0, for which Delta and Iceberg have connectors")
    try:
        for reader, table, pushed, on_all in spark_counts(lakes, tmp_path):
            check(f"spark {pyspark.__version__}, {reader}", table, lakes[table][1], pushed, on_all)
    except MavenUnreachableError as error:
        pytest.skip(str(error))


@pytest.mark.xfail(reason="deltalake 1.6.6 spells -12.34 as -12.-34", raises=DeltaError)
def test_a_dataset_is_opened_with_negative_decimals_as_partitions(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "p": pa.array([Decimal("-12.34")], pa.decimal128(9, 2))})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    assert DeltaTable(tmp_path).to_pyarrow_dataset().to_table().num_rows == 1
