"""Arrow arrays from bits and back, so that no conversion can make two values equal.

A value is what it is stored as: floating point numbers are their bits, decimals their unscaled digits, dates
days and timestamps microseconds since 1970. Lists are tuples, maps are tuples of pairs, structs are tuples of
their fields' values; NULL is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

WIDE = Context(prec=76)

NAN = "NaN"
"""All NaN are one value: engines and the Parquet format ignore their payloads."""


@dataclass(frozen=True)
class Hidden:
    """NULL with a value below it: Arrow allows any value there, and no reader may return it."""

    value: Any


# To Arrow -------------------------------------------------------------------------------------------


def arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        return _structs(values, kind)
    if pa.types.is_map(kind):
        return _maps(values, kind)
    if pa.types.is_list(kind):
        stored = [_stored(value) or () for value in values]
        below = arrow_array([element for value in stored for element in value], kind.value_type)
        return pa.ListArray.from_arrays(_offsets(stored), below, type=kind, mask=_mask(values))
    if pa.types.is_floating(kind):
        bits = pa.uint64() if kind == pa.float64() else pa.uint32()
        return pa.array(values, bits).view(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if value is None else decimal(value, kind.scale) for value in values], kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(kind)
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(kind)
    return pa.array(values, kind)


def decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, WIDE)


def _structs(values: Sequence[Any], kind: pa.StructType) -> pa.Array:
    stored = [_stored(value) for value in values]
    children = [
        arrow_array([None if value is None else value[i] for value in stored], field.type)
        for i, field in enumerate(kind)
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_mask(values))


def _maps(values: Sequence[Any], kind: pa.MapType) -> pa.Array:
    stored = [_stored(value) or () for value in values]
    keys = arrow_array([key for value in stored for key, _ in value], kind.key_type)
    items = arrow_array([item for value in stored for _, item in value], kind.item_type)
    return pa.MapArray.from_arrays(_offsets(stored), keys, items, type=kind, mask=_mask(values))


def _stored(value: Any) -> Any:
    """Return the value that Arrow stores, even below a NULL."""
    return value.value if isinstance(value, Hidden) else value


def _mask(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None or isinstance(value, Hidden) for value in values], pa.bool_())


def _offsets(values: Sequence[Sequence[Any]]) -> pa.Array:
    return pa.array(accumulate(map(len, values), initial=0), pa.int32())


# From Arrow -----------------------------------------------------------------------------------------


def values_of(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_struct(kind):
        children = [values_of(child) for child in array.flatten()]
        rows = zip(*children, strict=True) if children else [()] * len(array)
        validity = array.is_valid().to_pylist()
        return [row if valid else None for row, valid in zip(rows, validity, strict=True)]
    if pa.types.is_map(kind):
        return values_of(_as_pairs(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = iter(values_of(array.flatten()))
        lengths = pc.list_value_length(array).to_pylist()
        return [None if n is None else tuple(next(elements) for _ in range(n)) for n in lengths]
    if pa.types.is_floating(kind):
        bits = array.view(pa.uint64() if kind == pa.float64() else pa.uint32()).to_pylist()
        is_nan = pc.is_nan(array).to_pylist()
        return [NAN if nan else number for number, nan in zip(bits, is_nan, strict=True)]
    if pa.types.is_decimal(kind):
        scaled = array.to_pylist()
        return [None if value is None else int(value.scaleb(kind.scale, WIDE)) for value in scaled]
    if pa.types.is_timestamp(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_date(kind):
        return list(array.cast(pa.int32()).to_pylist())
    return list(array.to_pylist())


def _as_pairs(maps: pa.MapArray) -> pa.ListArray:
    pairs = pa.StructArray.from_arrays([maps.keys, maps.items], names=["key", "value"])
    buffers = maps.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(pairs.type), len(maps), buffers, maps.null_count, maps.offset, [pairs]
    )


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows, in no order; columns by name."""
    columns = [values_of(_one_chunk(table.column(name))) for name in sorted(table.column_names)]
    return Counter(zip(*columns, strict=True))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


# Types ----------------------------------------------------------------------------------------------


def plain(kind: pa.DataType) -> Any:
    """Return a type without offset widths, NULL flags, names inside lists and zones other than UTC."""
    if pa.types.is_struct(kind):
        return ("struct", tuple((field.name, plain(field.type)) for field in kind))
    if pa.types.is_map(kind):
        return ("map", plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ("list", plain(kind.value_type))
    if pa.types.is_timestamp(kind):
        return (f"timestamp[{kind.unit}]", kind.tz is not None)
    return str(kind).removeprefix("large_").removesuffix("_view")


def types_of(schema: Iterable[pa.Field]) -> list[tuple[str, Any]]:
    """In the order of the columns."""
    return [(field.name, plain(field.type)) for field in schema]
