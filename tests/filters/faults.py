"""Faults of readers that are known. A filter that finds what it should again must be taken out here."""

from __future__ import annotations

from collections.abc import Mapping

_MONTH_AFTER_THE_LAST = frozenset({"p_month > datetime.date(9999, 12, 31)"})
"""pyiceberg fails on the day after the last one; polars plans its scans of Iceberg tables with pyiceberg."""

_DUCKDB_PARTITIONS = frozenset(
    {
        # Skips manifests by the bounds of a partition field, which leave NaN out.
        "p_f4 = nan",
        "p_f4 > inf",
        "p_f4 >= nan",
        # Fails: it takes a negative decimal for a number without a sign before it truncates it.
        "p_cut = Decimal('-12.34')",
        "p_cut = Decimal('-99999.99')",
        "p_cut <= Decimal('-12.34')",
        "p_cut > Decimal('-99999.99')",
    }
)
_PYICEBERG_FLOATS = frozenset(
    {
        # Takes infinity for a number that a float cannot hold.
        "f4 = inf",
        "f4 = -inf",
        "f4 > -inf",
        "f4 >= inf",
        # Fails: it cannot project columns of lists and maps.
        "l null",
        "l not null",
        "m null",
        "m not null",
    }
)

_SPARK_ZEROS = frozenset({"f8 = 0.0", "f8 = -0.0"})
_SPARK_MORE_ZEROS = _SPARK_ZEROS | {"f4 = -0.0", "st.f = 0.0", "st.f = -0.0"}
"""0.0 and -0.0 are equal, but dictionaries of data files are searched for the very one."""

_SPARK_PARTITIONS = frozenset(
    {
        # The same with the values of partitions …
        "p_f4 = 0.0",
        "p_f4 = -0.0",
        # … and the bounds of a partition field leave NaN out.
        "p_f4 > inf",
    }
)

KNOWN_FAULTS: Mapping[tuple[str, str], frozenset[str]] = {
    ("duckdb 1.5.5", "iceberg_partitioned"): _DUCKDB_PARTITIONS,
    ("polars 2.1.0", "iceberg_partitioned"): _MONTH_AFTER_THE_LAST,
    ("pyiceberg 0.12.0", "iceberg_plain"): _PYICEBERG_FLOATS,
    ("spark 4.0.0, delta-spark 4.0.1", "delta_plain"): _SPARK_MORE_ZEROS,
    ("spark 4.0.0, delta-spark 4.0.1", "delta_partitioned"): _SPARK_ZEROS | {"p_f4 = 0.0", "p_f4 = -0.0"},
    ("spark 4.0.0, iceberg-spark-runtime 1.11.0", "iceberg_plain"): _SPARK_MORE_ZEROS,
    ("spark 4.0.0, iceberg-spark-runtime 1.11.0", "iceberg_partitioned"): _SPARK_ZEROS | _SPARK_PARTITIONS,
    ("pyiceberg 0.12.0", "iceberg_partitioned"): _MONTH_AFTER_THE_LAST | {"p_f4 = inf"},
}
"""(reader with its version, table) → filters that find other rows than a scan of all rows, or fail."""
