"""Conversion of Spark types to the Arrow types of data files: lossless, or refused with a remedy.

Types are compared by the names of their classes, because not every supported Spark version has all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.arrow_values import VARIANT
from ...committers.errors import SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

ARROW_TYPES: dict[str, pa.DataType] = {
    "BooleanType": pa.bool_(),
    "ByteType": pa.int8(),
    "ShortType": pa.int16(),
    "IntegerType": pa.int32(),
    "LongType": pa.int64(),
    "FloatType": pa.float32(),
    "DoubleType": pa.float64(),
    "StringType": pa.string(),
    "BinaryType": pa.binary(),
    "DateType": pa.date32(),
    "TimestampType": pa.timestamp("us", "UTC"),
    "TimestampNTZType": pa.timestamp("us"),
}

REMEDIES = {
    "TimeType": "cast({0} AS STRING)",
    "DayTimeIntervalType": "cast({0} AS STRING)",
    "YearMonthIntervalType": "cast({0} AS STRING)",
    "CalendarIntervalType": "cast({0} AS STRING)",
    "VariantType": "to_json({0})",
    "NullType": "cast({0} AS STRING)",
    "CharType": "cast({0} AS STRING)",
    "VarcharType": "cast({0} AS STRING)",
    "GeometryType": "st_asbinary({0})",
    "GeographyType": "st_asbinary({0})",
    "UserDefinedType": "to_json(struct({0}))",
    "collated string": "collate({0}, 'UTF8_BINARY')",
    "empty struct": "to_json({0})",
}
"""A remedy for each refused type, as an expression in Spark SQL."""

CHAR_VARCHAR_KEY = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in the metadata of a string column with the declared type, char(n) or varchar(n)."""


def arrow_schema(spark_schema: StructType, *, variants: bool = False) -> pa.Schema:
    """Return the schema of data files for rows of `spark_schema`. Runs on the driver.

    Args:
        variants: columns at the top level may be VARIANT

    Raises:
        SchemaMismatchError: names every column that no table can store unchanged, with a remedy for each.
    """
    problems = list(_schema_problems(spark_schema, variants=variants))
    if problems:
        raise SchemaMismatchError(
            "These columns cannot be written without changing them:\n- " + "\n- ".join(problems)
        )
    return pa.schema([_arrow_field(field) for field in spark_schema.fields])


def _arrow_field(field: StructField) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), nullable=field.nullable)


def _arrow_type(kind: DataType) -> pa.DataType:
    name = _class_name(kind)
    if name == "StructType":
        return pa.struct([_arrow_field(field) for field in kind.fields])  # type: ignore[attr-defined]
    if name == "ArrayType":
        element = pa.field("element", _arrow_type(kind.elementType), nullable=kind.containsNull)  # type: ignore[attr-defined]
        return pa.list_(element)
    if name == "MapType":
        value = pa.field("value", _arrow_type(kind.valueType), nullable=kind.valueContainsNull)  # type: ignore[attr-defined]
        return pa.map_(pa.field("key", _arrow_type(kind.keyType), nullable=False), value)  # type: ignore[attr-defined]
    if name == "DecimalType":
        return pa.decimal128(kind.precision, kind.scale)  # type: ignore[attr-defined]
    return VARIANT if name == "VariantType" else ARROW_TYPES[name]


def _class_name(kind: DataType) -> str:
    """Return the class name of a Spark type; UserDefinedType for all user-defined types."""
    names = [cls.__name__ for cls in type(kind).__mro__]
    return "UserDefinedType" if "UserDefinedType" in names else names[0]


# Types that cannot be written ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a type: its full path for messages, and the expressions to read and replace it."""

    path: str
    expression: str
    wrap: Callable[[str], str]

    def field(self, name: str) -> _Place:
        quoted = name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name.replace('`', '``')}`"
        prefix = (f"{self.path}.", f"{self.expression}.") if self.path else ("", "")
        return _Place(prefix[0] + quoted, prefix[1] + quoted, self.wrap)

    def inside(self, part: str, function: str, parameters: str, variable: str) -> _Place:
        return _Place(
            f"{self.path}.{part}",
            variable,
            lambda inner: self.wrap(f"{function}({self.expression}, {parameters} -> {inner})"),
        )

    def refuse(self, what: str, remedy: str) -> str:
        expression = self.wrap(remedy.format(self.expression))
        return f"{self.path} ({what}). Write this instead: {expression}"


def _schema_problems(schema: StructType, *, variants: bool) -> Iterator[str]:
    if not schema.fields:
        yield "the query has no columns. Select at least one column."
    yield from _fields_problems(schema, _Place("", "", lambda inner: inner), variants=variants)


def _fields_problems(schema: StructType, place: _Place, *, variants: bool = False) -> Iterator[str]:
    yield from _name_problems(schema, place)
    for field in schema.fields:
        if variants and _class_name(field.dataType) == "VariantType":
            continue
        at = place.field(field.name)
        declared = field.metadata.get(CHAR_VARCHAR_KEY) if field.metadata else None
        if declared:
            yield at.refuse(f"{declared}: tables do not store the length", _char_remedy(field.dataType))
        else:
            yield from _type_problems(field.dataType, at)


def _name_problems(schema: StructType, place: _Place) -> Iterator[str]:
    """Compare names without case, as Spark and all lake tables do."""
    counts = Counter(name.lower() for name in schema.names)
    alike = [name for name in schema.names if counts[name.lower()] > 1]
    if alike:
        yield _refuse_names(schema, place, alike, "names that are equal or differ only in case")
    unusable = [name for name in schema.names if not name or "\0" in name]
    if unusable:
        yield _refuse_names(schema, place, unusable, "a name that is empty or contains a NUL character")


def _refuse_names(schema: StructType, place: _Place, refused: Sequence[str], what: str) -> str:
    new_names = [
        f"{name.replace(chr(0), '') or 'column'}_{position}" if name in refused else name
        for position, name in enumerate(schema.names, 1)
    ]
    if place.path:
        fields = zip(new_names, schema.fields, strict=True)
        struct = ", ".join(f"`{name}`: {field.dataType.simpleString()}" for name, field in fields)
        remedy = place.wrap(f"cast({place.expression} AS STRUCT<{struct}>)")
    else:
        remedy = f"df.toDF({', '.join(map(repr, new_names))})"
    paths = ", ".join(place.field(name).path for name in refused)
    return f"{paths} ({what}). Rename, for example: {remedy}"


def _char_remedy(kind: DataType) -> str:
    return f"cast({{0}} AS {kind.simpleString().upper()})"


def _type_problems(kind: DataType, place: _Place) -> Iterator[str]:
    name = _class_name(kind)
    if name == "StructType":
        if not kind.fields:  # type: ignore[attr-defined]
            yield place.refuse("a struct without fields", REMEDIES["empty struct"])
        yield from _fields_problems(kind, place)  # type: ignore[arg-type]
    elif name == "ArrayType":
        yield from _type_problems(kind.elementType, place.inside("element", "transform", "x", "x"))  # type: ignore[attr-defined]
    elif name == "MapType":
        key = place.inside("key", "transform_keys", "(k, v)", "k")
        yield from _type_problems(kind.keyType, key)  # type: ignore[attr-defined]
        value = place.inside("value", "transform_values", "(k, v)", "v")
        yield from _type_problems(kind.valueType, value)  # type: ignore[attr-defined]
    elif name == "DecimalType":
        if not 0 <= kind.scale <= kind.precision <= 38:  # type: ignore[attr-defined]
            yield place.refuse(kind.simpleString(), "cast({0} AS DECIMAL(38, 0))")
    elif kind.simpleString().startswith("string collate"):
        yield place.refuse(f"{kind.simpleString()}: tables compare by bytes", REMEDIES["collated string"])
    elif name not in ARROW_TYPES:
        yield place.refuse(kind.simpleString(), REMEDIES.get(name, "cast({0} AS STRING)"))
