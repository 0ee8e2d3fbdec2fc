"""What the log of a Delta table says of the values in a file: partition values and bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..arrow_values import null_scalar, string_array
from ..changes.file_search import has_bounds
from ..contract import DataFile
from ..file_tables.manifest import LakeManifest


def partition_values_in(content: LakeManifest, file: DataFile) -> Mapping[str, pa.Scalar]:
    """Return the values of the columns that a new file does not store."""
    schema = pa.schema(Schema.from_json(content.schema_json).to_arrow())
    return values_of(schema.names, dict(file.partition_values), schema)


def values_of(
    names: Sequence[str], partition_values: Mapping[str, str | None], schema: pa.Schema
) -> dict[str, pa.Scalar]:
    """Return the values of partition columns, which files do not store."""
    return {
        name: string_array([partition_values[name]])[0].cast(schema.field(name).type)
        for name in names
        if name in partition_values
    }


def stored_value(text: str | None, data_type: pa.DataType) -> pa.Scalar | None:
    """Return a partition value; None if it cannot be converted, such as a timestamp without its zone."""
    if not text:  # the Delta protocol has '' for NULL
        return null_scalar(data_type)
    try:
        return string_array([text])[0].cast(data_type)
    except pa.ArrowInvalid:
        return None


def bounds_of(names: Sequence[str], stats: str, schema: pa.Schema) -> dict[str, tuple[Any, Any]]:
    """Return the bounds of columns in the statistics of a file, where they can be compared."""
    try:
        found = json.loads(stats or "{}")
        lowest, highest = found.get("minValues") or {}, found.get("maxValues") or {}
        return {
            name: (_bound(lowest[name], kind), _bound(highest[name], kind))
            for name in names
            for kind in (schema.field(name).type,)
            if name in lowest and name in highest and has_bounds(kind)
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _bound(value: Any, data_type: pa.DataType) -> Any:
    if pa.types.is_date32(data_type):
        return date.fromisoformat(value)
    if isinstance(value, int if pa.types.is_integer(data_type) else str):
        return value
    raise TypeError(value)
