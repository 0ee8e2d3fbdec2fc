"""Parses JSON texts to columns with Arrow's parser, which needs to know the types beforehand.

A sample of the texts tells them. If it does not hold for all, or a column may have several types, nothing is
returned: then the slow parser of Python reads the texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from ....committers.arrow_values import numeric_array, numeric_scalar
from .messages import ArrowFields, Path

Wanted: TypeAlias = Mapping[Path, pa.DataType]
"""Fields by path, with the types that they become later."""

_SAMPLES = 16
_EXACT_MAX = numeric_scalar(2.0**53, pa.float64())


def samples(texts: pa.Array) -> list[dict[str, Any]] | None:
    """Return some of the messages; None if one is no JSON object."""
    step = max(len(texts) // _SAMPLES, 1)
    try:
        found = [json.loads(texts[number].as_py()) for number in range(0, len(texts), step)]
    except (ValueError, RecursionError):
        return None
    return found if all(isinstance(one, dict) for one in found) else None


def parse_columns(texts: pa.Array, sample: Sequence[Mapping[str, Any]], wanted: Wanted) -> ArrowFields | None:
    """Return the fields of messages.

    Args:
        texts: not empty, without NULL
        sample: some of them, parsed
    """
    if any(pa.types.is_nested(target) for target in wanted.values()):
        return None
    kinds = {path: _kind(list(_values(sample, path)), target) for path, target in wanted.items()}
    if any(kind is None for kind in kinds.values()):
        return None
    schema = _schema({path: kind for path, kind in kinds.items() if kind is not None})
    table = _parsed(texts, schema)
    if table is None:
        return None
    (batch,) = table.combine_chunks().to_batches() or [None]
    if batch is None:
        return None
    fields = ArrowFields.of(batch)
    for path, target in wanted.items():
        if kinds[path] == pa.float64() and pa.types.is_decimal(target):
            numbers = fields.column(path, pa.float64()).values
            if pc.any(pc.greater_equal(pc.abs(numbers), _EXACT_MAX)).as_py():
                return None  # a whole number may have had more digits
    return fields


def _values(sample: Iterable[Mapping[str, Any]], path: Path) -> Iterable[Any]:
    for one in sample:
        value: Any = one
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        yield value


def _kind(values: Sequence[Any], target: pa.DataType) -> pa.DataType | None:
    """Return the type that JSON has for the values; None if Arrow's parser cannot read them without loss."""
    found = {type(value) for value in values if value is not None}
    if not found:
        return _usual(target)
    if found == {str}:
        return pa.string()
    if found == {bool}:
        return pa.bool_()
    if found == {int}:
        return pa.float64() if pa.types.is_floating(target) else pa.int64()
    if found <= {int, float} and (pa.types.is_floating(target) or pa.types.is_decimal(target)):
        return pa.float64()
    return None


def _usual(target: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(target) or pa.types.is_date(target) or pa.types.is_timestamp(target):
        return pa.int64()
    if pa.types.is_floating(target):
        return pa.float64()
    return pa.bool_() if pa.types.is_boolean(target) else pa.string()


def _schema(kinds: Wanted) -> pa.Schema:
    below: dict[str, dict[Path, pa.DataType]] = {}
    for path, kind in kinds.items():
        below.setdefault(path[0], {})[path[1:]] = kind
    return pa.schema(
        [
            pa.field(name, inner[()] if () in inner else pa.struct(list(_schema(inner))))
            for name, inner in below.items()
        ]
    )


def _parsed(texts: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """Return a row for each text; None if the parser refuses one, or a text is not exactly one object."""
    one_object = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    if not pc.all(one_object).as_py():
        return None
    if pc.any(pc.match_substring_regex(texts, "[\r\n]")).as_py():
        texts = pc.replace_substring_regex(texts, "[\r\n]", " ")
    ends = numeric_array([0, len(texts)], pa.int32())
    try:
        joined = pc.binary_join(pa.ListArray.from_arrays(ends, texts), "\n")[0].as_buffer()
        table = pj.read_json(
            pa.BufferReader(joined),
            read_options=pj.ReadOptions(use_threads=False, block_size=min(joined.size + 1, 2**31 - 1)),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException:
        return None
    return table if table.num_rows == len(texts) else None
