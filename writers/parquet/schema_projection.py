"""Projects arriving rows to the table's schema, or rejects them: no value is changed silently.

Runs on executors for every batch; `check_fits` also runs on the driver, before any task starts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from ...committers.arrow_values import fixed_size_bytes
from ...committers.errors import SchemaMismatchError
from ...committers.file_tables.evolution import Narrowing
from ...committers.file_tables.schema_diff import (
    DifferenceKind,
    SchemaColumn,
    compare,
    described,
    problems_in,
    without_case,
)
from .columns import is_binary, is_list, is_string, is_uuid, over_elements, with_offsets
from .new_shapes import check_absent, exact_values
from .utf8 import check_utf8, has_strings


class SchemaProjector:
    """Projects columns by name to the table's order; missing ones become NULL, types are widened if that is
    exact.

    `where` names the task attempt in error messages. As `narrows` says, columns may also have types that only
    some of their values fit, and each value is checked. Everything that depends only on the schemas is
    computed once, because batches are small and there are many.
    """

    def __init__(self, target: pa.Schema, where: str, *, narrows: Narrowing = Narrowing.NONE) -> None:
        self._target = target
        self._narrows = narrows
        self._where = where
        self._fields = list(target)
        self._known_source: pa.Schema | None = None
        self._sources: list[int | None] = []
        self._unknown: list[int] = []
        """Columns of the source that the table does not have."""
        self._required = [number for number, field in enumerate(target) if _has_required(field)]
        self._string_columns = [number for number, field in enumerate(target) if has_strings(field.type)]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` in the target schema.

        Raises:
            SchemaMismatchError: the columns do not fit, a required one has a NULL, or a string is not valid
                UTF-8.
            NewShapeError: a column that the table does not have, or has with another type, has a value.
        """
        if self._known_source is None or not batch.schema.equals(self._known_source):
            check_fits(batch.schema, self._target, narrows=self._narrows)
            self._known_source = batch.schema
            self._sources = _sources(batch.schema.names, self._fields)
            self._unknown = _unknown(self._sources, len(batch.schema))
        for number in self._unknown:
            check_absent(batch.column(number), batch.schema.names[number])
        arrays = [with_offsets(array) for array in batch.columns]
        columns = _pick(self._sources, arrays, self._fields, batch.num_rows)
        fields = [self._fields[number] for number in self._string_columns]
        check_utf8([columns[number] for number in self._string_columns], fields, self._where)
        self._check_nulls(columns)
        for number in self._required:
            columns[number] = _fill_required(columns[number], self._fields[number])
        return pa.RecordBatch.from_arrays(columns, schema=self._target)

    def _check_nulls(self, columns: Sequence[pa.Array]) -> None:
        paths = [
            path
            for number in self._required
            for path in _null_paths(columns[number], self._fields[number], self._fields[number].name)
        ]
        if paths:
            raise SchemaMismatchError(
                f"NULL in {', '.join(paths)}, which the table declares NOT NULL ({self._where}). Filter "
                "these rows or replace NULL, e.g. with coalesce(), or make the column nullable."
            )


def check_fits(source: pa.Schema, target: pa.Schema, *, narrows: Narrowing = Narrowing.NONE) -> None:
    """Reject rows that cannot be written to `target` unchanged.

    Args:
        narrows: which columns are accepted of which only some values may fit

    Raises:
        SchemaMismatchError: lists every column that does not fit and shows both schemas.
    """
    given, wanted = _columns(source), _columns(target)
    holds = _may_fit if narrows else _is_exact
    by_value = _BY_VALUE if narrows is Narrowing.ANY else ()
    problems = [
        problem
        for one in compare(given, wanted, holds)
        if one.kind not in by_value
        for problem in problems_in([one], {**_WORDING, **_INSIDE} if one.parent else _WORDING)
    ]
    if problems:
        raise SchemaMismatchError(
            "The rows do not fit the table.\n- "
            + "\n- ".join(problems)
            + f"\nThe rows have:\n{described(given)}\nThe table has:\n{described(wanted)}"
        )


# Do the types fit? --------------------------------------------------------------------------------

_WORDING = {
    DifferenceKind.REQUIRED: "{columns}: the table declares it NOT NULL, and the rows lack it. Add it.",
    DifferenceKind.NEW: "{names}: the table does not have it. Drop it, or add it with the option "
    "schemaEvolution=addColumns.",
    DifferenceKind.TYPE: "{columns}: {given} does not convert to {table} without loss. Cast it in the query.",
    DifferenceKind.MERGED: "{columns}: the name is ambiguous ({names}). Rename or drop columns.",
    DifferenceKind.AMBIGUOUS: "{names}: the name is ambiguous ({columns}). Rename or drop columns.",
}

_BY_VALUE = (DifferenceKind.NEW, DifferenceKind.TYPE)
"""With `Narrowing.ANY`, these depend on the values."""

_INSIDE = {
    DifferenceKind.NEW: "{names}: the table does not have it. Drop it, or add it to the table: "
    "schemaEvolution=addColumns does not add it there."
}
"""Fields inside of columns. Where the option adds them, they are in the table's schema already."""


def _columns(fields: Iterable[pa.Field]) -> tuple[SchemaColumn[pa.DataType], ...]:
    return tuple(_column(field.name, field.type, not field.nullable) for field in fields)


def _column(name: str, data_type: pa.DataType, is_required: bool = False) -> SchemaColumn[pa.DataType]:
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_struct(data_type):
        return SchemaColumn(name, data_type, is_required, "struct", _columns(data_type))
    if pa.types.is_map(data_type):
        inside = _column("key", data_type.key_type), _column("value", data_type.item_type)
        return SchemaColumn(name, data_type, is_required, "map", inside)
    if is_list(data_type):
        return SchemaColumn(name, data_type, is_required, "list", (_column("element", data_type.value_type),))
    return SchemaColumn(name, data_type, is_required)


def _is_exact(source: pa.DataType, target: pa.DataType) -> bool:
    """True if every value of `source` can be represented exactly in `target`, or the cast raises an error."""
    types = pa.types
    if types.is_null(source) or source == target:
        return True
    exact = False
    if types.is_signed_integer(source):
        exact = _holds_integers(source, target)
    elif types.is_floating(source):
        exact = types.is_floating(target) and source.bit_width <= target.bit_width
    elif types.is_decimal(source):
        exact = types.is_decimal(target) and _holds_decimals(source, target)
    elif types.is_timestamp(source) and types.is_timestamp(target):
        exact = source.unit in ("s", "ms", "us") and (source.tz is None) == (target.tz is None)
    elif types.is_time(source):
        exact = types.is_time(target)
    elif is_string(source):
        exact = is_string(target) or is_uuid(target)
    elif is_binary(source) or types.is_fixed_size_binary(source):
        exact = is_binary(target) or types.is_fixed_size_binary(target) or is_uuid(target)
    return exact


def _may_fit(source: pa.DataType, target: pa.DataType) -> bool:
    """True if some values of `source` are exact in `target`, and the cast raises an error for the others."""
    types = pa.types
    both = (source, target)
    return (
        _is_exact(source, target)
        or all(map(types.is_signed_integer, both))
        or all(map(types.is_decimal, both))
    )


def _holds_integers(source: pa.DataType, target: pa.DataType) -> bool:
    if pa.types.is_signed_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if pa.types.is_decimal(target):
        digits = {8: 3, 16: 5, 32: 10, 64: 19}[source.bit_width]
        return bool(target.precision - target.scale >= digits)
    return bool(pa.types.is_floating(target) and source.bit_width < target.bit_width)


def _holds_decimals(source: pa.DataType, target: pa.DataType) -> bool:
    more_scale = target.scale - source.scale
    return bool(more_scale >= 0 and target.precision - source.precision >= more_scale)


# Conversion -----------------------------------------------------------------------------------------


def _sources(names: Sequence[str], target: Sequence[pa.Field]) -> list[int | None]:
    """The source column of each target column; None if there is none."""
    key = without_case(names, [field.name for field in target])
    places = {key(name): number for number, name in enumerate(names)}
    return [places.get(key(field.name)) for field in target]


def _unknown(sources: Sequence[int | None], count: int) -> list[int]:
    known = set(sources)
    return [number for number in range(count) if number not in known]


def _pick(
    sources: Sequence[int | None],
    arrays: Sequence[pa.Array],
    target: Sequence[pa.Field],
    rows: int,
    parent: str = "",
) -> list[pa.Array]:
    return [
        pa.nulls(rows, field.type)
        if source is None
        else _convert(arrays[source], field.type, f"{parent}{field.name}")
        for source, field in zip(sources, target, strict=True)
    ]


def _convert(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """Convert `array` to `target`. Only nested levels are rebuilt here, without copying values.

    Arrow's own cast does not fill missing struct fields or change nullability in every version.

    Args:
        path: dotted name of the column, for messages
    """
    if array.type.equals(target):
        return array
    if pa.types.is_dictionary(array.type):
        return _convert(array.dictionary_decode(), target, path)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if not _is_same_nesting(array.type, target) and not _may_fit(array.type, target):
        return exact_values(array, target, path)
    if pa.types.is_struct(target):
        fields, names = list(target), [field.name for field in array.type]
        sources = _sources(names, fields)
        # Values below a NULL are arbitrary and need not fit: flatten() makes them NULL.
        parts = (
            array.flatten() if array.null_count else [array.field(i) for i in range(array.type.num_fields)]
        )
        for number in _unknown(sources, len(names)):
            check_absent(parts[number], f"{path}.{names[number]}")
        children = _pick(sources, parts, fields, len(array), f"{path}.")
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(target):
        fields = [target.key_field, target.item_field]
        children = [
            _convert(array.keys, target.key_type, f"{path}.key"),
            _convert(array.items, target.item_type, f"{path}.value"),
        ]
        return over_elements(array, target, pa.StructArray.from_arrays(children, fields=fields))
    if pa.types.is_list(target):
        if pa.types.is_large_list(array.type):
            array = _cast(array, pa.list_(array.type.value_field), path)
        return over_elements(array, target, _convert(array.values, target.value_type, f"{path}.element"))
    if is_uuid(target):
        return _uuids(array, target, path)
    return _cast(array, target, path)


def _is_same_nesting(source: pa.DataType, target: pa.DataType) -> bool:
    kinds = pa.types.is_struct, pa.types.is_map, is_list
    return any(is_kind(source) and is_kind(target) for is_kind in kinds)


def _uuids(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    """From strings, which Spark uses for UUIDs, or from 16 bytes."""
    if is_string(array.type):
        try:
            values = [None if text is None else uuid.UUID(text).bytes for text in array.to_pylist()]
        except ValueError as error:
            raise SchemaMismatchError(
                f"Column {path}: a string cannot be written as uuid: {error}. Cast it in the query."
            ) from error
        array = fixed_size_bytes(values, target.storage_type.byte_width)
    return pa.ExtensionArray.from_storage(target, _cast(array, target.storage_type, path))


def _cast(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    try:
        return array.cast(target)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(
            f"Column {path}: a value of type {array.type} cannot be written as {target}: {error}. Cast it in "
            "the query."
        ) from error


# NULLs in required columns ------------------------------------------------------------------------


def _has_required(field: pa.Field) -> bool:
    data_type = field.type
    if not field.nullable:
        return True
    if pa.types.is_map(data_type):
        return _has_required(data_type.item_field) or any(map(_has_required, _fields_of(data_type.key_type)))
    return any(map(_has_required, _fields_of(data_type)))


def _fields_of(data_type: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(data_type):
        return list(data_type)
    if pa.types.is_list(data_type):
        return [data_type.value_field]
    if pa.types.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return []


def _null_paths(array: pa.Array, field: pa.Field, path: str) -> Iterator[str]:
    """Dotted paths of required fields with a NULL. A NULL struct has no fields, so none is missing in it."""
    if not field.nullable and array.null_count:
        yield path
    if not pa.types.is_nested(field.type) or not any(map(_has_required, _fields_of(field.type))):
        return
    if pa.types.is_struct(field.type):
        present = array.drop_null()
        for i, child in enumerate(field.type):
            yield from _null_paths(present.field(i), child, f"{path}.{child.name}")
    elif pa.types.is_list(field.type):
        yield from _null_paths(array.flatten(), field.type.value_field, f"{path}.element")
    else:
        present = array.drop_null()
        first, end = _span(present)
        keys, values = (part.slice(first, end - first) for part in (present.keys, present.items))
        yield from _null_paths(keys, field.type.key_field, f"{path}.key")
        yield from _null_paths(values, field.type.item_field, f"{path}.value")


def _fill_required(array: pa.Array, field: pa.Field) -> pa.Array:
    """Replace NULL in required fields by any value: after the check, this happens only inside NULL
    structs.

    The Parquet writer does not accept NULL there, although it writes none of these values.
    """
    data_type = field.type
    if not _has_required(field) or (array.null_count == 0 and not pa.types.is_nested(data_type)):
        return array
    own_buffers = array.buffers()
    if pa.types.is_struct(data_type):
        parts = [array.field(i) for i in range(data_type.num_fields)]
        children = [_fill_required(part, child) for part, child in zip(parts, data_type, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=array.is_null())
    if pa.types.is_map(data_type):
        fields = [data_type.key_field, data_type.item_field]
        children = [
            _fill_required(part, child) for part, child in zip((array.keys, array.items), fields, strict=True)
        ]
        return over_elements(array, data_type, pa.StructArray.from_arrays(children, fields=fields))
    if pa.types.is_list(data_type):
        return over_elements(array, data_type, _fill_required(array.values, data_type.value_field))
    if is_uuid(data_type):
        storage = pa.field(field.name, data_type.storage_type, nullable=False)
        return pa.ExtensionArray.from_storage(data_type, _fill_required(array.storage, storage))
    return pa.Array.from_buffers(data_type, len(array), [None, *own_buffers[1:]], 0, array.offset)


def _span(array: pa.MapArray) -> tuple[int, int]:
    offsets = array.offsets
    return (offsets[0].as_py(), offsets[-1].as_py()) if len(array) else (0, 0)
