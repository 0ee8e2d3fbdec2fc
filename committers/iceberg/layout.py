"""Partitioning and sort order of an Iceberg table: for a new table, and compared with an existing one."""

from __future__ import annotations

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.table.sorting import SortField as IcebergSortField
from pyiceberg.transforms import BucketTransform, Transform, TruncateTransform, VoidTransform, parse_transform
from pyiceberg.types import DoubleType, NestedField, StructType

from ..contract import PartitionField, SortField
from ..errors import ConfigurationError
from .address import IcebergAddress
from .checks import ALIKE_PROBLEM, alike_partitions
from .plan import partitioning, sort_order
from .schema import paths_of

# New table ------------------------------------------------------------------------------------------


def partition_spec(
    address: IcebergAddress, asked: tuple[PartitionField, ...], schema: Schema
) -> PartitionSpec:
    fields: list[IcebergPartitionField] = []
    for number, part in enumerate(asked):
        column, transform = _column_of(address, "partitionSpec", part.column, part.transform, schema)
        name = part.name or _default_name(_dotted(schema, column), transform)
        _check_partition_name(address, name, column, transform, schema)
        _check_redundant(address, part, column, transform, fields)
        if name in [other.name for other in fields]:
            raise _impossible(
                address, "partitionSpec", f"two fields are named {name!r}; rename one with `as`"
            )
        fields.append(
            IcebergPartitionField(column.field_id, PARTITION_FIELD_ID_START + number, transform, name)
        )
    spec = PartitionSpec(*fields)
    for parts in alike_partitions(spec, schema):
        columns = ", ".join(repr(schema.find_column_name(part.source_id)) for part in parts)
        what = f"the partitions by {columns} have the same type, and {ALIKE_PROBLEM}"
        raise _impossible(address, "partitionSpec", f"{what}. Cast one of the columns to another precision")
    return spec


def iceberg_sort_order(address: IcebergAddress, asked: tuple[SortField, ...], schema: Schema) -> SortOrder:
    fields = []
    for part in asked:
        column, transform = _column_of(address, "sortOrder", part.column, part.transform, schema)
        fields.append(
            IcebergSortField(
                column.field_id,
                transform,
                SortDirection.DESC if part.is_descending else SortDirection.ASC,
                NullOrder.NULLS_FIRST if part.nulls_first else NullOrder.NULLS_LAST,
            )
        )
    return SortOrder(*fields) if fields else SortOrder(order_id=0)


def _column_of(
    address: IcebergAddress, option: str, path: tuple[str, ...], transform_name: str, schema: Schema
) -> tuple[NestedField, Transform[object, object]]:
    """
    Raises:
        ConfigurationError: the column does not exist, or the transform is not defined for its type.
    """
    column = _find(path, schema)
    if column is None:
        names = ", ".join(repr(".".join(known)) for known in paths_of(schema).values())
        raise _impossible(address, option, f"there is no column {'.'.join(path)!r}. The query has {names}")
    transform: Transform[object, object] = parse_transform(transform_name)
    if not column.field_type.is_primitive or not transform.can_transform(column.field_type):
        what = f"{transform_name} is not defined for {'.'.join(path)!r}, which is {column.field_type}"
        raise _impossible(address, option, what)
    return column, transform


def _find(path: tuple[str, ...], schema: Schema) -> NestedField | None:
    """Find a column by name, ignoring case, through structs only: fields in lists and maps cannot be
    partition sources.
    """
    struct: object = schema.as_struct()
    column = None
    for name in path:
        if not isinstance(struct, StructType):
            return None
        column = next((inner for inner in struct.fields if inner.name.lower() == name.lower()), None)
        if column is None:
            return None
        struct = column.field_type
    return column


def _dotted(schema: Schema, column: NestedField) -> str:
    return schema.find_column_name(column.field_id) or column.name


def _default_name(column_name: str, transform: Transform[object, object]) -> str:
    """Iceberg's default name of a field."""
    if isinstance(transform, BucketTransform):
        return f"{column_name}_bucket_{transform.num_buckets}"
    if isinstance(transform, TruncateTransform):
        return f"{column_name}_trunc_{transform.width}"
    return column_name if str(transform) == "identity" else f"{column_name}_{transform}"


def _check_partition_name(
    address: IcebergAddress,
    name: str,
    column: NestedField,
    transform: Transform[object, object],
    schema: Schema,
) -> None:
    if isinstance(column.field_type, DoubleType):
        raise _impossible(
            address,
            "partitionSpec",
            f"{_dotted(schema, column)!r} is double, which pyiceberg reads from manifests with single "
            "precision and so misses rows. Partition by a column such as cast(... AS DECIMAL(18, 4))",
        )
    if not name.isascii():
        raise _impossible(
            address,
            "partitionSpec",
            f"the name of the field {name!r} has non-ASCII letters, which some engines cannot read; rename "
            "the column, or the field with `as` in partitionSpec",
        )
    taken = next((other for other in schema.column_names if other.lower() == name.lower()), None)
    if taken is not None and not (str(transform) == "identity" and _dotted(schema, column) == taken):
        raise _impossible(
            address,
            "partitionSpec",
            f"the field {name!r} would have the name of a column; rename it with `as`",
        )


_TIMES = ("year", "month", "day", "hour")


def _check_redundant(
    address: IcebergAddress,
    part: PartitionField,
    column: NestedField,
    transform: Transform[object, object],
    earlier: list[IcebergPartitionField],
) -> None:
    """Iceberg's engines reject redundant fields of the same column."""
    for other in earlier:
        both_times = part.transform in _TIMES and str(other.transform) in _TIMES
        if other.source_id == column.field_id and (both_times or other.transform == transform):
            what = f"{part.transform} of {'.'.join(part.column)!r} is redundant with {other.transform}"
            raise _impossible(address, "partitionSpec", what)


def _impossible(address: IcebergAddress, option: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"The Iceberg table {address.uri} cannot be created with this {option}: {what}. Fix the option."
    )


# Existing table -------------------------------------------------------------------------------------


def layout_problems(
    table: Table,
    spec: tuple[PartitionField, ...] | None,
    order: tuple[SortField, ...] | None,
) -> list[str]:
    """Differences between the table and the requested partitioning and sort order. None requests nothing."""
    problems = []
    parts = [part for part in table.spec().fields if not isinstance(part.transform, VoidTransform)]
    has_parts = partitioning(PartitionSpec(*parts), table.schema())
    if spec is not None and not _same_parts(has_parts, spec):
        problems.append(
            f"partitionSpec asks for {_parts(spec)}, but it is partitioned by {_parts(has_parts)}"
        )
    has_order = sort_order(table.sort_order(), table.schema())
    if order is not None and not _same_order(has_order, order):
        problems.append(f"sortOrder asks for {_sorts(order)}, but it is sorted by {_sorts(has_order)}")
    return problems


def _same_parts(has: tuple[PartitionField, ...], asked: tuple[PartitionField, ...]) -> bool:
    return len(has) == len(asked) and all(
        (_lower(one.column), one.transform) == (_lower(other.column), other.transform)
        and other.name.lower() in ("", one.name.lower())
        for one, other in zip(has, asked, strict=True)
    )


def _same_order(has: tuple[SortField, ...], asked: tuple[SortField, ...]) -> bool:
    def key(part: SortField) -> tuple[object, ...]:
        return _lower(part.column), part.transform, part.is_descending, part.nulls_first

    return [key(part) for part in has] == [key(part) for part in asked]


def _lower(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower() for name in path)


def _parts(parts: tuple[PartitionField, ...]) -> str:
    return ", ".join(_term(part.column, part.transform) for part in parts) or "nothing"


def _sorts(parts: tuple[SortField, ...]) -> str:
    return (
        ", ".join(
            f"{_term(part.column, part.transform)} {'DESC' if part.is_descending else 'ASC'} "
            f"NULLS {'FIRST' if part.nulls_first else 'LAST'}"
            for part in parts
        )
        or "nothing"
    )


def _term(column: tuple[str, ...], transform: str) -> str:
    """In the options' notation."""
    name, _, width = transform.rstrip("]").partition("[")
    inner = ".".join(
        part if part.replace("_", "").isalnum() else f"`{part.replace('`', '``')}`" for part in column
    )
    if transform == "identity":
        return inner
    return f"{name}({width}, {inner})" if width else f"{name}({inner})"
