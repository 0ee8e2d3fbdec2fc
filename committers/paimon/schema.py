"""The columns of a Paimon table: types, and names that Paimon reserves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.reserved_names import ReservedNames

_RESERVED = ReservedNames(
    "Paimon and its connector for Spark have columns of their own with these names",
    frozenset({"_sequence_number", "_value_kind", "_level", "_row_id", "rowkind"}),
    prefixes=("_KEY_", "__paimon_"),
)


def arrow_schema(table: Any) -> pa.Schema:
    """Return the columns of a table of pypaimon as Arrow writes them.

    Raises:
        TableNotSupportedError: lists the columns that Penstock cannot write without loss.
    """
    from pypaimon.schema.data_types import PyarrowFieldParser

    problems = [problem for field in table.fields for problem in _type_problems(field.type, field.name)]
    problems += [
        f"{name}: partitions by {table.field_dict[name].type} are named differently by Paimon's writers."
        for name in table.partition_keys
        if not _is_partition_type(PyarrowFieldParser.from_paimon_type(table.field_dict[name].type))
    ]
    if problems:
        raise TableNotSupportedError(
            f"The Paimon table {table.table_path} has columns that Penstock cannot write:\n- "
            + "\n- ".join(problems)
        )
    return PyarrowFieldParser.from_paimon_schema(table.fields)


def _type_problems(data_type: Any, path: str) -> Iterator[str]:
    """Problems with a type of pypaimon."""
    name = type(data_type).__name__
    text = str(getattr(data_type, "type", "")).upper()
    if name == "RowType":
        for field in data_type.fields:
            yield from _type_problems(field.type, f"{path}.{field.name}")
    elif name == "ArrayType":
        yield from _type_problems(data_type.element, f"{path}.element")
    elif name == "MapType":
        yield from _type_problems(data_type.key, f"{path}.key")
        yield from _type_problems(data_type.value, f"{path}.value")
    elif name != "AtomicType":
        yield f"{path}: it is a {name.removesuffix('Type').lower()}."
    elif text.startswith(("BLOB", "VARIANT", "CHAR", "BINARY")) or text.partition("(")[0] == "TIME":
        yield f"{path}: it has the type {text}."
    elif text.startswith(("VARCHAR", "VARBINARY")):
        yield f"{path}: it has the type {text}, whose length pypaimon does not check."


def check_new(columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Check the columns of a new table.

    Raises:
        SchemaMismatchError: lists all problems.
    """
    problems = [problem for field in columns for problem in _new_problems(field.type, field.name)]
    problems += [f"{name}: {_RESERVED.reason}. Rename it." for name in columns.names if name in _RESERVED]
    problems += [
        f"{name}: {names} differ only by case. Rename one of them." for name, names in _same(columns.names)
    ]
    for name in partition_by:
        if name not in columns.names:
            problems.append(f"{name}: partitionBy names it, and the columns are {', '.join(columns.names)}.")
        elif not _is_partition_type(columns.field(name).type):
            problems.append(
                f"{name}: a partition column must be a string, an integer, a boolean or a date, not "
                f"{columns.field(name).type}. Cast it in the query."
            )
    if len(columns) == len(set(partition_by)):
        problems.append("A table needs a column that is not a partition column.")
    if problems:
        raise SchemaMismatchError(
            "A Paimon table cannot be created for these rows. Nothing was written.\n- "
            + "\n- ".join(problems)
        )


def check_new_key(keys: Sequence[str], partition_by: Sequence[str], place: str) -> None:
    """Check the primary key of a new table. Partition columns are a part of it.

    Raises:
        ConfigurationError: a partition column is not, or the key has no other column.
    """
    if others := [name for name in partition_by if name not in keys]:
        raise ConfigurationError(
            f"partitionBy names {', '.join(others)}, which keys does not. The partition columns of a Paimon "
            "table are a part of its primary key: readers look for the rows of a key in one partition, so a "
            f"row cannot move to another one. {place} was not created. Add {', '.join(others)} to keys, or "
            "leave partitionBy out."
        )
    if not set(keys).difference(partition_by):
        raise ConfigurationError(
            f"keys and partitionBy name the same columns, {', '.join(keys)}: each partition of the Paimon "
            f"table would have one row. {place} was not created. Leave partitionBy out."
        )


def required_values(table: Any) -> list[str]:
    """Return the columns of a table of pypaimon that are NOT NULL and not in its primary key."""
    return [one.name for one in table.fields if not one.type.nullable and one.name not in table.primary_keys]


def _same(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    by_lower: dict[str, list[str]] = {}
    for name in names:
        by_lower.setdefault(name.lower(), []).append(name)
    return ((same[0], " and ".join(same)) for same in by_lower.values() if len(same) > 1)


def _new_problems(data_type: pa.DataType, path: str) -> Iterator[str]:
    types = pa.types
    if types.is_struct(data_type):
        if not data_type.num_fields:
            yield f"{path}: Paimon has no structs without fields."
        for child in data_type:
            yield from _new_problems(child.type, f"{path}.{child.name}")
    elif types.is_map(data_type):
        yield from _new_problems(data_type.key_type, f"{path}.key")
        yield from _new_problems(data_type.item_type, f"{path}.value")
    elif types.is_list(data_type):
        yield from _new_problems(data_type.value_type, f"{path}.element")
    elif not _is_known(data_type):
        yield f"{path}: Paimon has no type for {data_type}. Cast it in the query."


def _is_known(data_type: pa.DataType) -> bool:
    types = pa.types
    if types.is_timestamp(data_type):
        return bool(data_type.unit == "us")
    known = (
        types.is_signed_integer,
        types.is_floating,
        types.is_boolean,
        types.is_string,
        types.is_binary,
        types.is_decimal,
        types.is_date32,
    )
    return any(is_known(data_type) for is_known in known)


def _is_partition_type(data_type: pa.DataType) -> bool:
    types = pa.types
    known = (types.is_string, types.is_signed_integer, types.is_boolean, types.is_date32)
    return any(is_known(data_type) for is_known in known)


def nullable(field: pa.Field) -> pa.Field:
    """Return the field as a column of a new table, nullable on each level: Spark's NOT NULL may change."""
    return pa.field(field.name, _nullable_type(field.type))


def _nullable_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp(data_type.unit, "UTC")
    if types.is_large_string(data_type):
        return pa.string()
    if types.is_large_binary(data_type):
        return pa.binary()
    if types.is_struct(data_type):
        return pa.struct([nullable(child) for child in data_type])
    if types.is_map(data_type):
        return pa.map_(_nullable_type(data_type.key_type), _nullable_type(data_type.item_type))
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pa.list_(_nullable_type(data_type.value_type))
    return data_type
