"""The columns of a DuckLake table in one snapshot, from the catalog: names, types and field ids.

Source: https://ducklake.select/docs/stable/specification/tables/ducklake_column
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...committers.errors import TableNotSupportedError
from ..shapes import FIELD_ID, NamedField

_PLAIN = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "varchar": pa.string(),
    "json": pa.string(),
    "uuid": pa.string(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_s": pa.timestamp("s"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column, or a field inside of one."""

    number: int
    """Its id, which is the field id in data files."""
    name: str
    kind: str
    """Its type, as the catalog has it."""
    is_nullable: bool
    default: str | None
    """Value in rows of files that are older than the column; None: NULL."""
    children: tuple[LakeColumn, ...] = ()

    @property
    def required(self) -> bool:
        """See `StreamColumn`."""
        return not self.is_nullable

    def __str__(self) -> str:
        below = f"({', '.join(map(str, self.children))})" if self.children else ""
        return f"{self.name} {self.kind}{below}{' NOT NULL' if self.required else ''}"


def column_trees(rows: Iterable[Sequence[object]]) -> tuple[LakeColumn, ...]:
    """
    Args:
        rows: of `ducklake_column`, in the order of the columns: id, name, type, nullable, parent, default
    """
    below: Mapping[object, list[Sequence[object]]] = defaultdict(list)
    for row in rows:
        below[row[4]].append(row)

    def tree(row: Sequence[object]) -> LakeColumn:
        number, name, kind, is_nullable, _, default = row
        assert isinstance(number, int)
        known = None if default in (None, "NULL") else str(default)
        children = tuple(map(tree, below[number]))
        return LakeColumn(number, str(name), str(kind).lower(), bool(is_nullable), known, children)

    return tuple(map(tree, below[None]))


def arrow_field(column: LakeColumn, table: str) -> pa.Field:
    """Return the column as Arrow has it, with field ids.

    Args:
        table: for messages

    Raises:
        TableNotSupportedError: it has a type that cannot be read.
    """
    return _field(column, column.name, table)


def _field(column: LakeColumn, path: str, table: str) -> pa.Field:
    children = [_field(child, f"{path}.{child.name}", table) for child in column.children]
    data_type: pa.DataType | None
    if column.kind == "struct":
        data_type = pa.struct(children)
    elif column.kind == "list":
        (element,) = children
        data_type = pa.list_(element.with_name("element"))
    elif column.kind == "map":
        key, value = children
        data_type = pa.map_(key.with_name("key").with_nullable(False), value.with_name("value"))
    elif decimal := _DECIMAL.fullmatch(column.kind):
        data_type = pa.decimal128(int(decimal[1]), int(decimal[2]))
    else:
        data_type = _PLAIN.get(column.kind)
    if data_type is None:
        raise _refused(path, f"is {column.kind}, which Penstock does not read", table)
    if column.default is not None and "." in path:
        raise _refused(path, "has a default value, which only top-level columns may have", table)
    metadata = {FIELD_ID: str(column.number).encode()}
    return pa.field(column.name, data_type, column.is_nullable, metadata)


def _refused(path: str, problem: str, table: str) -> TableNotSupportedError:
    return TableNotSupportedError(
        f"{table[0].upper()}{table[1:]} cannot be read: the column {path!r} {problem}. Nothing was read. "
        "Give the other columns in the option columns."
    )


# Files that were added to the table -----------------------------------------------------------------------


def name_mappings(
    rows: Iterable[Sequence[object]], columns: Iterable[LakeColumn]
) -> dict[object, tuple[NamedField, ...]]:
    """Return what the names in files mean that DuckLake has not written, by the id of the mapping.

    Args:
        rows: of `ducklake_name_mapping`: mapping, id in the mapping, name, field id, parent in the mapping
        columns: of the table
    """
    elements = {column.number: column.name for column in _elements(columns)}
    below: dict[tuple[object, object], list[Sequence[object]]] = defaultdict(list)
    for row in rows:
        below[row[0], row[4]].append(row)

    def named(row: Sequence[object]) -> NamedField:
        mapping, number, name, field_id, _ = row
        assert isinstance(field_id, int)
        known = elements.get(field_id)  # elements have the same name in all of `shapes`
        names = (str(name),) if known is None else (str(name), known)
        return NamedField(names, field_id, tuple(map(named, below[mapping, number])))

    return {mapping: tuple(map(named, below[mapping, None])) for mapping in {row[0] for row in list(below)}}


def _elements(columns: Iterable[LakeColumn]) -> Iterable[LakeColumn]:
    for column in columns:
        if column.kind in ("list", "map"):
            yield from column.children
        yield from _elements(column.children)
