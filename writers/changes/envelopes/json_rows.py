"""Rows that are JSON texts inside of messages: MongoDB's documents, in its extended JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.errors import SchemaMismatchError
from .conversion import UNKNOWN, Logical
from .json_columns import parse_columns, samples
from .messages import ArrowFields, Fields, FieldsWithRows, Messages, ObjectFields, Path
from .unavailable import booleans

_DATES = Logical("timestamp")
"""Dates have milliseconds."""
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_NUMBER = r'"?(-?[0-9][0-9.eE+-]*)"?'
_REPLACEMENTS: Sequence[tuple[str, str]] = (
    (rf'\{{\s*"\$number(?:Long|Int)"\s*:\s*{_NUMBER}\s*\}}', r"\1"),
    (rf'\{{\s*"\$(?:oid|numberDecimal|numberDouble|symbol)"\s*:\s*{_TEXT}\s*\}}', r'"\1"'),
    (r'\{\s*"\$date"\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9]+)\s*\}', r"\1"),
    (rf'\{{\s*"\$binary"\s*:\s*{_TEXT}\s*,\s*"\$type"\s*:\s*"[^"]*"\s*\}}', r'"\1"'),
    (
        r'\{\s*"\$binary"\s*:\s*\{\s*"base64"\s*:\s*"([^"]*)"\s*,\s*"subType"\s*:\s*"[^"]*"\s*\}\s*\}',
        r'"\1"',
    ),
)
"""An object of extended JSON, and its plain value. Quotes in texts are escaped, so that none matches."""
_TYPES = (
    "$oid",
    "$numberLong",
    "$numberInt",
    "$numberDouble",
    "$numberDecimal",
    "$date",
    "$binary",
    "$symbol",
)


def with_rows(fields: Fields, paths: Sequence[Path], columns: pa.Schema) -> Fields:
    """Parse the rows at these paths that are texts.

    Args:
        columns: of the rows

    Raises:
        SchemaMismatchError: a text is no JSON object, or a value does not have the type of its column.
    """
    rows = {}
    for path in paths:
        if len(path) == 1 and (texts := _texts_at(fields, path)) is not None:
            rows[path[0]] = _rows(texts, columns)
    return FieldsWithRows(fields, ArrowFields(rows, len(fields))) if rows else fields


def _texts_at(fields: Fields, path: Path) -> pa.Array | None:
    """Return the texts at a path; None if there are none."""
    if isinstance(fields, ArrowFields):
        values = fields.columns.get(path[0])
        return values if values is not None and pa.types.is_string(values.type) else None
    if isinstance(fields, ObjectFields) and any(isinstance(one.get(path[0]), str) for one in fields.objects):
        return fields.column(path, pa.string()).values
    return None


def _rows(texts: pa.Array, columns: pa.Schema) -> pa.StructArray:
    """Return structs with the columns; NULL for NULL."""
    numbers = pc.indices_nonzero(pc.is_valid(texts))
    present = texts.take(numbers)
    for pattern, value in _REPLACEMENTS:
        present = pc.replace_substring_regex(present, pattern, value)
    parsed = _parse(present, columns)
    messages = Messages(parsed, numbers)
    given = {
        one.name: _DATES if pa.types.is_timestamp(one.type) or pa.types.is_date(one.type) else UNKNOWN
        for one in columns
    }
    found = [column.values for column in messages.image((), columns, given)]
    place = pc.index_in(pc.indices_nonzero(booleans([True] * len(texts))), value_set=numbers)
    spread = [values.take(place) for values in found]
    return pa.StructArray.from_arrays(spread, fields=list(columns), mask=pc.is_null(texts))


def _parse(texts: pa.Array, columns: pa.Schema) -> Fields:
    wanted: dict[Path, pa.DataType] = {(one.name,): one.type for one in columns}
    sample = samples(texts) if len(texts) else None
    fast = parse_columns(texts, sample, wanted) if sample else None
    if fast is not None:
        return fast
    objects = []
    for text in texts.to_pylist():
        try:
            row = plain(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise SchemaMismatchError(f"A row in a message is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise SchemaMismatchError("A row in a message is JSON, but no object.")
        objects.append(row)
    return ObjectFields(objects)


def plain(value: Any) -> Any:
    """Return a value of extended JSON as a plain one."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    if kind not in _TYPES or len(value) > 2:
        return {name: plain(one) for name, one in value.items()}
    inner = value[kind]
    if kind in ("$numberLong", "$numberInt"):
        return int(inner)
    if isinstance(inner, dict):
        return inner.get("base64", plain(inner))
    return inner
