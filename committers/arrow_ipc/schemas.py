"""Reads the schema in an Arrow message. The numbers are from Arrow's Schema.fbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from .flatbuffers import Table

T = TypeVar("T")

FIELDS_MAX = 100_000
"""Limit for the fields of a schema on all levels, and for its metadata: entries may share their bytes, so the
size of the message does not bound their number.
"""
DEPTH_MAX = 64
"""Limit for nested types, as in Arrow's own reader."""

_UNITS = ("s", "ms", "us", "ns")


def schema_in(header: Table) -> pa.Schema:
    """
    Raises:
        ValueError, IndexError, struct.error: it is damaged, or has a type that Penstock does not write.
    """
    if header.number(0, "<h") != 0:
        raise ValueError("it is big-endian")
    left = iter(range(FIELDS_MAX))
    return pa.schema(_fields(header.tables(1), left, 1), metadata=_metadata(header, 2, left))


def _fields(tables: Iterator[Table], left: Iterator[int], depth: int) -> list[pa.Field]:
    return [_field(table, left, depth) for table in _counted(tables, left)]


def _counted(tables: Iterator[Table], left: Iterator[int]) -> Iterator[Table]:
    for table in tables:
        if next(left, None) is None:
            raise ValueError("its schema is larger than any that Penstock writes")
        yield table


def _field(table: Table, left: Iterator[int], depth: int) -> pa.Field:
    if depth > DEPTH_MAX:
        raise ValueError("its types are nested too deeply")
    kind = table.number(2, "<B")
    if table.has(4) or kind not in _TYPES:
        raise ValueError(f"a column has a type that Penstock does not write ({kind})")
    children = _fields(table.tables(5), left, depth + 1)
    data_type = _TYPES[kind](table.table(3), children)
    return pa.field(table.text(0), data_type, bool(table.number(1, "<B")), _metadata(table, 6, left))


def _metadata(table: Table, field: int, left: Iterator[int]) -> dict[bytes, bytes] | None:
    entries = _counted(table.tables(field), left)
    return {entry.bytes(0).tobytes(): entry.bytes(1).tobytes() for entry in entries} or None


# Types: each gets the table with its parameters, and the fields below it ---------------------------------


def _integer(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    name = f"{'' if table.number(1, '<B') else 'u'}int{table.number(0, '<i')}"
    return _one_of({str(one): one for one in _INTEGERS}, name)


def _floating(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    return _one_of(dict(enumerate((pa.float16(), pa.float32(), pa.float64()))), table.number(0, "<h"))


def _decimal(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    make = _one_of({128: pa.decimal128, 256: pa.decimal256}, table.number(2, "<i", 128))
    return make(table.number(0, "<i"), table.number(1, "<i"))


def _date(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    return _one_of({0: pa.date32(), 1: pa.date64()}, table.number(0, "<h", 1))


def _time(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    make = _one_of({32: pa.time32, 64: pa.time64}, table.number(1, "<i", 32))
    return make(_unit(table, 1))


def _timestamp(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    return pa.timestamp(_unit(table, 0), table.text(1) or None)


def _duration(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    return pa.duration(_unit(table, 1))


def _unit(table: Table, default: int) -> str:
    return _one_of(dict(enumerate(_UNITS)), table.number(0, "<h", default))


def _fixed_size_binary(table: Table, _: Sequence[pa.Field]) -> pa.DataType:
    return pa.binary(_positive(table.number(0, "<i")))


def _list(_: Table, children: Sequence[pa.Field]) -> pa.DataType:
    return pa.list_(*_some(children, 1))


def _large_list(_: Table, children: Sequence[pa.Field]) -> pa.DataType:
    return pa.large_list(*_some(children, 1))


def _fixed_size_list(table: Table, children: Sequence[pa.Field]) -> pa.DataType:
    return pa.list_(*_some(children, 1), _positive(table.number(0, "<i")))


def _struct(_: Table, children: Sequence[pa.Field]) -> pa.DataType:
    return pa.struct(_some(children))


def _map(table: Table, children: Sequence[pa.Field]) -> pa.DataType:
    (entries,) = _some(children, 1)
    if not pa.types.is_struct(entries.type):
        raise ValueError("a map has no keys and values")
    key, value = _some(list(entries.type), 2)
    return pa.map_(key.with_nullable(False), value, bool(table.number(0, "<B")))


def _one_of(known: Mapping[Any, T], given: object) -> T:
    if given not in known:
        raise ValueError(f"a column has a type with the unknown parameter {given}")
    return known[given]


def _some(children: Sequence[pa.Field], count: int | None = None) -> Sequence[pa.Field]:
    if len(children) != (count or max(len(children), 1)):
        raise ValueError("a nested type does not have its fields")
    return children


def _positive(length: int) -> int:
    """Without a length, a few bytes could stand for any number of values."""
    if length < 1:
        raise ValueError("a type has a length below 1")
    return length


def _plain(data_type: pa.DataType) -> Callable[[Table, Sequence[pa.Field]], pa.DataType]:
    return lambda _table, _children: data_type


_INTEGERS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
)
_TYPES: dict[int, Callable[[Table, Sequence[pa.Field]], pa.DataType]] = {
    2: _integer,
    3: _floating,
    4: _plain(pa.binary()),
    5: _plain(pa.string()),
    6: _plain(pa.bool_()),
    7: _decimal,
    8: _date,
    9: _time,
    10: _timestamp,
    12: _list,
    13: _struct,
    15: _fixed_size_binary,
    16: _fixed_size_list,
    17: _map,
    18: _duration,
    19: _plain(pa.large_binary()),
    20: _plain(pa.large_string()),
    21: _large_list,
}
