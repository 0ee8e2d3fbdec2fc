"""A filter finds the rows that a scan of all rows finds, in every reader that skips files and row groups."""

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
from tests.filters.readers import LIBRARIES, Counts, Reader, spark_counts
from tests.filters.rows import TRIED, Filter, filters, write_lake
from tests.support.lakes import LakeTable
from tests.support.unreachable import skipped_if_unreachable

Lakes: TypeAlias = Mapping[str, tuple[LakeTable, list[Filter]]]

LAYOUTS = tuple(TRIED)

_MONTH_AFTER_THE_LAST = {"p_month > datetime.date(9999, 12, 31)"}
"""pyiceberg fails on the day after the last one; polars plans its scans of Iceberg tables with pyiceberg."""
_SPARK_ZEROS = {"f8 = 0.0", "f8 = -0.0"}
"""0.0 and -0.0 are equal, but Spark searches dictionaries of data files for one of them …"""
_SPARK_MORE_ZEROS = _SPARK_ZEROS | {"f4 = -0.0", "st.f = 0.0", "st.f = -0.0"}
_SPARK_PARTITIONS = _SPARK_ZEROS | {"p_f4 = 0.0", "p_f4 = -0.0"}
"""… and the values of partitions."""

KNOWN_FAULTS: Mapping[tuple[str, str], set[str]] = {
    ("duckdb 1.5.5", "iceberg_partitioned"): {
        # Skips manifests by the bounds of a partition field, which leave NaN out.
        *("p_f4 = nan", "p_f4 > inf", "p_f4 >= nan"),
        # Fails: it parses a negative decimal as a number without a sign before it truncates it.
        *("p_cut = Decimal('-12.34')", "p_cut = Decimal('-99999.99')"),
        *("p_cut <= Decimal('-12.34')", "p_cut > Decimal('-99999.99')"),
    },
    ("polars 2.1.0", "iceberg_partitioned"): _MONTH_AFTER_THE_LAST,
    ("pyiceberg 0.12.0", "iceberg_plain"): {
        # Regards infinity as a number that a float cannot hold.
        *("f4 = inf", "f4 = -inf", "f4 > -inf", "f4 >= inf"),
        # Fails: it cannot project columns of lists and maps.
        *("l null", "l not null", "m null", "m not null"),
    },
    ("pyiceberg 0.12.0", "iceberg_tiny"): {"f4 = inf", "f4 = -inf", "f4 > -inf", "f4 >= inf"},
    ("pyiceberg 0.12.0", "iceberg_partitioned"): _MONTH_AFTER_THE_LAST | {"p_f4 = inf"},
    # Takes the one number of a file for less than NaN.
    ("deltalake 1.6.6 to_pyarrow_dataset", "delta_tiny"): {"f4 < nan", "f8 < nan"},
    ("spark 4.0.0, delta-spark 4.0.1", "delta_plain"): _SPARK_MORE_ZEROS,
    ("spark 4.0.0, delta-spark 4.0.1", "delta_partitioned"): _SPARK_PARTITIONS,
    ("spark 4.0.0, iceberg-spark-runtime 1.11.0", "iceberg_plain"): _SPARK_MORE_ZEROS,
    # The bounds of a partition field leave NaN out here, too.
    ("spark 4.0.0, iceberg-spark-runtime 1.11.0", "iceberg_partitioned"): _SPARK_PARTITIONS | {"p_f4 > inf"},
}
"""By reader with its version, and table: filters that find other rows than a scan of all rows, or fail."""


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Lakes:
    return {
        f"{kind}_{layout}": (
            write_lake(kind, tmp_path_factory.mktemp("lake"), layout),
            list(filters(TRIED[layout])),
        )
        for kind in ("delta", "iceberg")
        for layout in LAYOUTS
    }


def check(reader: str, table: str, wanted: list[Filter], pushed: Counts, on_all: Counts) -> None:
    """Check that exactly the filters with known faults are wrong."""
    for one, count in zip(wanted, on_all, strict=True):
        is_nan = isinstance(one.value, float) and math.isnan(one.value)
        assert isinstance(count, int), f"{one}: {count}"
        assert count > 0 or one.operator != "=" or is_nan, f"{one} is in no row: the filter tests nothing"
    wrong = {
        str(one): f"finds {found} rows of {count}"
        for one, found, count in zip(wanted, pushed, on_all, strict=True)
        if found != count
    }
    known = KNOWN_FAULTS.get((reader, table), set())
    assert {one: how for one, how in wrong.items() if one not in known} == {}
    assert known - wrong.keys() == set(), "these faults are fixed: remove them from KNOWN_FAULTS"


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
    with skipped_if_unreachable():
        for reader, table, pushed, on_all in spark_counts(lakes, tmp_path):
            check(f"spark {pyspark.__version__}, {reader}", table, lakes[table][1], pushed, on_all)


@pytest.mark.xfail(reason="deltalake 1.6.6 spells -12.34 as -12.-34", raises=DeltaError)
def test_a_dataset_is_opened_with_negative_decimals_as_partitions(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "p": pa.array([Decimal("-12.34")], pa.decimal128(9, 2))})
    write_deltalake(tmp_path, rows, partition_by=["p"])
    assert DeltaTable(tmp_path).to_pyarrow_dataset().to_table().num_rows == 1
