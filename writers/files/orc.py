"""ORC files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.errors import SchemaMismatchError
from ..parquet.columns import leaf_arrays
from .counted import Counted

_GREGORIAN = (date(1582, 10, 15) - date(1970, 1, 1)).days
_STRIPE_BYTES = 8 * 1024 * 1024
_CODECS = {"none": "uncompressed"}


class Orc:
    """See `Encoder`. The rows of a stripe stay in memory until it is full."""

    def __init__(self, file: Counted, schema: pa.Schema, codec: str) -> None:
        from pyarrow.orc import ORCWriter

        self._writer: Any = ORCWriter(
            pa.PythonFile(file, mode="w"),
            compression=_CODECS.get(codec, codec),
            stripe_size=_STRIPE_BYTES,
        )
        self._arrow_bytes = 0

    @property
    def memory_bytes(self) -> int:
        return min(self._arrow_bytes, _STRIPE_BYTES)

    def write(self, rows: pa.RecordBatch) -> None:
        self._writer.write(pa.Table.from_batches([rows]))
        self._arrow_bytes += rows.nbytes

    def close(self) -> None:
        self._writer.close()


def problems(schema: pa.Schema) -> Iterator[str]:
    """Spark reads the type of Arrow's timestamps without zone as TIMESTAMP only."""
    for field in schema:
        if "timestamp[us]" in str(field.type):
            yield f"{field.name}: readers of ORC take TIMESTAMP_NTZ for TIMESTAMP. Cast it."


def check_values(rows: pa.RecordBatch) -> None:
    """
    Raises:
        SchemaMismatchError: a timestamp is before 1970: Arrow writes a negative fraction of a second, which
            other readers refuse. Or a date is before 1582-10-15: Spark takes it for one of another calendar.
    """
    for array, field in zip(rows.columns, rows.schema, strict=True):
        for leaf in leaf_arrays(array):
            if pa.types.is_timestamp(leaf.type):
                times, least, name = leaf.cast(pa.int64()), 0, "timestamp before 1970"
            elif pa.types.is_date32(leaf.type):
                times, least, name = leaf.cast(pa.int32()), _GREGORIAN, "date before 1582-10-15"
            else:
                continue
            if pc.any(pc.less(times, numeric_scalar(least))).as_py():
                raise SchemaMismatchError(
                    f"{field.name} has a {name}, which readers of ORC do not read back. Filter these "
                    "rows, or write another fileFormat."
                )


def stored_types(content: BinaryIO) -> dict[str, str]:
    from pyarrow.orc import ORCFile

    return {field.name: type_name(field.type) for field in ORCFile(content).schema}


def type_name(data_type: pa.DataType) -> str:
    """Return a type as text. Arrow reads all timestamps of ORC in nanoseconds, and names elements `item`."""
    text = str(data_type).replace(" not null", "").replace("timestamp[ns", "timestamp[us")
    return re.sub(r"list<\w+: ", "list<", text)
