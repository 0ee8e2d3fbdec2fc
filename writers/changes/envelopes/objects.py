"""Arrow arrays of Python values, as `json` and fastavro return them.

The values of a column may have several types, such as numbers and texts of numbers.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_array, string_array, validity
from ...parquet.columns import is_list, is_string
from .conversion import UNKNOWN, Logical, binary_array, convert


def from_objects(values: Sequence[Any], target: pa.DataType, logical: Logical = UNKNOWN) -> pa.Array:
    """Return values of messages in the type of a column.

    Raises:
        ValueError: a value does not fit.
    """
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values), target)
    parts = []
    for kind in sorted(kinds, key=str):
        own = values if len(kinds) == 1 else [one if type(one) is kind else None for one in values]
        parts.append(_of_one_kind(own, kind, target, logical))
    return parts[0] if len(parts) == 1 else pc.coalesce(*parts)


def _of_one_kind(values: Sequence[Any], kind: type, target: pa.DataType, logical: Logical) -> pa.Array:
    if kind in (dict, list):
        if is_string(target):
            return string_array([None if one is None else _json(one) for one in values], target)
        if pa.types.is_decimal(target) and kind is dict:
            return _variable_scale(values, target)
        return _nested(values, kind, target)
    if pa.types.is_nested(target):
        raise ValueError(f"a {kind.__name__} cannot become {target}")
    return convert(_flat(values, kind), target, logical)


def _flat(values: Sequence[Any], kind: type) -> pa.Array:
    if kind is int and any(one is not None and not -(2**63) <= one < 2**63 for one in values):
        kind, values = str, [None if one is None else str(one) for one in values]
    if kind is str:
        return string_array(values)
    if kind is bytes:
        return binary_array(values)
    if kind is bool:
        return pc.not_equal(_numbers(values, pa.int64()), numeric_array([0])[0])
    if kind in (int, float):
        return _numbers(values, pa.int64() if kind is int else pa.float64())
    raise ValueError(f"a {kind.__name__} cannot be a value of a column")


def _numbers(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    numbers = numeric_array([one or 0 for one in values], data_type)
    return pa.Array.from_buffers(data_type, len(values), [validity(values), numbers.buffers()[1]])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _variable_scale(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    """Debezium's `VariableScaleDecimal`."""
    texts: list[str | None] = []
    for one in values:
        if one is None:
            texts.append(None)
            continue
        try:
            unscaled, scale = one["value"], int(one["scale"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("an object without scale and value is no decimal") from None
        number = from_objects([unscaled], pa.decimal128(38, 0), Logical("decimal", 0))[0].as_py()
        texts.append(str(Decimal(number).scaleb(-scale)))
    return string_array(texts).cast(target)


def _nested(values: Sequence[Any], kind: type, target: pa.DataType) -> pa.Array:
    if pa.types.is_struct(target) and kind is dict:
        children = [
            from_objects([None if one is None else one.get(field.name) for one in values], field.type)
            for field in target
        ]
        is_null = pc.is_null(string_array([None if one is None else "" for one in values]))
        return pa.StructArray.from_arrays(children, fields=list(target), mask=is_null)
    if is_list(target) and kind is list:
        items = from_objects([item for one in values if one for item in one], target.value_type)
        return pa.Array.from_buffers(
            target, len(values), [validity(values), _offsets(values, target)], children=[items]
        )
    if pa.types.is_map(target) and kind is dict:
        pairs = [pair for one in values if one for pair in one.items()]
        keys = from_objects([key for key, _ in pairs], target.key_type)
        items = from_objects([item for _, item in pairs], target.item_type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        return pa.Array.from_buffers(
            target, len(values), [validity(values), _offsets(values, target)], children=[entries]
        )
    raise ValueError(f"a {kind.__name__} cannot become {target}")


def _offsets(values: Sequence[Any], target: pa.DataType) -> pa.Buffer:
    ends = [0]
    for one in values:
        ends.append(ends[-1] + len(one or ()))
    return pa.py_buffer(array("q" if pa.types.is_large_list(target) else "i", ends))
