"""Chooses the reader of streams that this version of Spark can use."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType


def stream_reader_of(name: str, options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the reader. Opens nothing."""
    try:
        from .bounded_stream_reader import BoundedStreamReader
    except ImportError:  # before Spark 4.2
        from .stream_reader import TableStreamReader

        return TableStreamReader(name, options, schema)
    return BoundedStreamReader(name, options, schema)
