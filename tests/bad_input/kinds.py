"""Every Spark type of docs/types.md, nested at will, and values of each, often extreme ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from tests.bad_input.texts import TEXTS
from tests.bad_input.values import NAN, Hidden

DEPTH_MAX = 6

Type = spark_types.DataType
Types = st.SearchStrategy[Type]

SIMPLE = [
    getattr(spark_types, f"{name}Type")()
    for name in ("Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "String", "Binary", "Date")
] + [spark_types.TimestampType(), spark_types.TimestampNTZType()]

DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(spark_types.DecimalType, st.just(precision), st.integers(0, precision))
)

PRIMITIVES: Types = st.sampled_from(SIMPLE) | DECIMALS

FIELD_NAMES = st.sampled_from(
    ["a", "b", "c", "element", "key", "value", "list", "key_value", "item", "array"]
)
"""Some are the names that Parquet and Iceberg use inside lists and maps."""


@cache
def types(depth: int = DEPTH_MAX, *, maps: bool = True) -> Types:
    """Types of at most so many levels. In the keys of a map, Spark has no maps."""
    if depth == 0:
        return PRIMITIVES
    below: Types = st.deferred(lambda: types(depth - 1, maps=maps))
    found = [PRIMITIVES, st.builds(spark_types.ArrayType, below, st.booleans()), structs(below)]
    if maps:
        keys: Types = st.deferred(lambda: types(depth - 1, maps=False))
        found.append(st.builds(spark_types.MapType, keys, below, st.booleans()))
    return st.one_of(found)


def structs(below: Types) -> Types:
    fields = st.lists(
        st.builds(spark_types.StructField, FIELD_NAMES, below, st.booleans()),
        min_size=1,
        max_size=3,
        unique_by=lambda field: str(field.name),
    )
    return st.builds(spark_types.StructType, fields)


def parts(kind: Type) -> list[tuple[str, Type]]:
    """The types that a type is made of, with their names."""
    if isinstance(kind, spark_types.StructType):
        return [(field.name, field.dataType) for field in kind.fields]
    if isinstance(kind, spark_types.ArrayType):
        return [("element", kind.elementType)]
    if isinstance(kind, spark_types.MapType):
        return [("key", kind.keyType), ("value", kind.valueType)]
    return []


def walk(kind: Type, *, into_maps: bool = True) -> Iterator[Type]:
    """The type and all types inside it."""
    yield kind
    if into_maps or not isinstance(kind, spark_types.MapType):
        for _, part in parts(kind):
            yield from walk(part, into_maps=into_maps)


def with_nulls(kind: Any, *, allowed: bool) -> Any:
    """The type with NULL allowed at every level, or at none."""
    if isinstance(kind, spark_types.StructType):
        fields = [(name, with_nulls(part, allowed=allowed), allowed) for name, part in parts(kind)]
        return spark_types.StructType([spark_types.StructField(*field) for field in fields])
    if isinstance(kind, spark_types.ArrayType):
        return spark_types.ArrayType(with_nulls(kind.elementType, allowed=allowed), allowed)
    if isinstance(kind, spark_types.MapType):
        key, value = (with_nulls(part, allowed=allowed) for _, part in parts(kind))
        return spark_types.MapType(key, value, allowed)
    return kind


# Values ---------------------------------------------------------------------------------------------

_DAY = 24 * 60 * 60 * 10**6
YEAR_1 = -719162
YEAR_10000 = 2932897
"""Days since 1970."""


def floats(bits: int, fraction_bits: int) -> st.SearchStrategy[int]:
    """The bits of floating point numbers, often extreme ones."""
    sign, quiet, infinity = 1 << bits - 1, 1 << fraction_bits - 1, (1 << bits - 1) - (1 << fraction_bits)
    least, greatest_denormal, greatest = 1, (1 << fraction_bits) - 1, infinity - 1
    numbers = [0, sign, least, sign | greatest_denormal, greatest, infinity, sign | infinity]
    payload, signalling = sign | infinity | quiet | 1, infinity | 1
    return st.sampled_from([*numbers, infinity | quiet, payload, signalling]) | st.integers(0, 2**bits - 1)


MOMENTS = [
    YEAR_1 * _DAY,
    YEAR_10000 * _DAY - 1,
    -1,
    0,
    -_DAY + 1,
    1_710_054_000_000_000,  # New York sets its clocks forward
    1_730_610_000_000_001,  # and back
    -2_208_988_800_000_001,  # before 1900, when Spark's old calendar was another
    -12_219_292_800_000_001,  # before the Gregorian calendar
]
FAR_MOMENTS = [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1, YEAR_1 * _DAY - 1, YEAR_10000 * _DAY]
DAYS = [YEAR_1, YEAR_10000 - 1, -1, 0, -141428, -141427]
FAR_DAYS = [-(2**31), -(2**31) + 1, 2**31 - 2, 2**31 - 1, YEAR_1 - 1, YEAR_10000]
"""Outside of the years 1 to 9999."""

TIMES = st.one_of(
    st.sampled_from(MOMENTS),
    st.sampled_from(FAR_MOMENTS),
    st.integers(YEAR_1 * _DAY, YEAR_10000 * _DAY - 1),
    st.integers(-10, 10),
)


def integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.integers(low, high) | st.sampled_from([low, low + 1, -1, 0, 1, high - 1, high])


def decimals(precision: int) -> st.SearchStrategy[int]:
    most = 10**precision - 1
    digits = st.integers(0, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    return st.sampled_from([-most, -most + 1, -1, 0, 1, most - 1, most]) | digits


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BooleanType": st.booleans(),
    "ByteType": integers(8),
    "ShortType": integers(16),
    "IntegerType": integers(32),
    "LongType": integers(64),
    "FloatType": floats(32, fraction_bits=23),
    "DoubleType": floats(64, fraction_bits=52),
    "StringType": TEXTS,
    "BinaryType": st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"\xff" * 40, b"\xc3\x28"]),
    "DateType": st.sampled_from(DAYS) | st.sampled_from(FAR_DAYS) | st.integers(YEAR_1, YEAR_10000 - 1),
    "TimestampType": TIMES,
    "TimestampNTZType": TIMES,
}


def values(kind: Type, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """Values of a type, as `values.arrow_array` takes them."""
    if isinstance(kind, spark_types.StructType):
        present: st.SearchStrategy[Any] = st.tuples(
            *[values(field.dataType, nullable=field.nullable) for field in kind.fields]
        )
    elif isinstance(kind, spark_types.ArrayType):
        elements = values(kind.elementType, nullable=kind.containsNull)
        present = st.lists(elements, max_size=3).map(tuple)
    elif isinstance(kind, spark_types.MapType):
        pairs = st.tuples(
            values(kind.keyType, nullable=False), values(kind.valueType, nullable=kind.valueContainsNull)
        )
        present = st.lists(pairs, max_size=3, unique_by=lambda pair: repr(pair[0])).map(tuple)
    elif isinstance(kind, spark_types.DecimalType):
        present = decimals(kind.precision)
    else:
        present = _VALUES[type(kind).__name__]
    if not nullable:
        return present
    return st.one_of(st.none(), present, present.map(Hidden) if parts(kind) else present)


def leaves(value: Any, kind: Type) -> Iterator[tuple[Any, Type]]:
    """All values without parts inside a value, with their types."""
    if value is None or isinstance(value, Hidden):
        return
    if isinstance(kind, spark_types.ArrayType):
        for element in value:
            yield from leaves(element, kind.elementType)
    elif isinstance(kind, spark_types.MapType):
        for key, item in value:
            yield from leaves(key, kind.keyType)
            yield from leaves(item, kind.valueType)
    elif isinstance(kind, spark_types.StructType):
        for part, field in zip(value, kind.fields, strict=True):
            yield from leaves(part, field.dataType)
    else:
        yield value, kind


def as_read(value: Any, kind: Type) -> Any:
    """The value that readers have to find: NULL hides what is below it, and all NaN are one."""
    if value is None or isinstance(value, Hidden):
        return None
    if isinstance(kind, spark_types.StructType):
        return tuple(as_read(part, field.dataType) for part, field in zip(value, kind.fields, strict=True))
    if isinstance(kind, spark_types.ArrayType):
        return tuple(as_read(element, kind.elementType) for element in value)
    if isinstance(kind, spark_types.MapType):
        return tuple((as_read(key, kind.keyType), as_read(item, kind.valueType)) for key, item in value)
    if isinstance(kind, spark_types.FloatType | spark_types.DoubleType):
        is_double = isinstance(kind, spark_types.DoubleType)
        exponent, rest = (0x7FF << 52, 2**52 - 1) if is_double else (0xFF << 23, 2**23 - 1)
        return NAN if value & exponent == exponent and value & rest else value
    return value


def is_far(value: Any, kind: Type, margin_days: int = 0) -> bool:
    """Return True if a date or timestamp is outside of the years 1 to 9999, or so near to their ends."""
    if value is None or not isinstance(
        kind, spark_types.DateType | spark_types.TimestampType | spark_types.TimestampNTZType
    ):
        return False
    day = value if isinstance(kind, spark_types.DateType) else value // _DAY
    return not YEAR_1 + margin_days <= day < YEAR_10000 - margin_days
