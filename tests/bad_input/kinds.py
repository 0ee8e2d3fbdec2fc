"""Every Spark type that docs/types.md lists, nested at will, and values of each, the extreme ones often."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import types as spark_types
from tests.bad_input.values import NAN, Hidden

DEPTH_MAX = 6

SIMPLE = [
    spark_types.BooleanType(),
    spark_types.ByteType(),
    spark_types.ShortType(),
    spark_types.IntegerType(),
    spark_types.LongType(),
    spark_types.FloatType(),
    spark_types.DoubleType(),
    spark_types.StringType(),
    spark_types.BinaryType(),
    spark_types.DateType(),
    spark_types.TimestampType(),
    spark_types.TimestampNTZType(),
]

DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.builds(spark_types.DecimalType, st.just(precision), st.integers(0, precision))
)

PRIMITIVES: st.SearchStrategy[spark_types.DataType] = st.sampled_from(SIMPLE) | DECIMALS

FIELD_NAMES = st.sampled_from(
    ["a", "b", "c", "element", "key", "value", "list", "key_value", "item", "array"]
)
"""Those among them that Parquet and Iceberg use for the insides of lists and maps."""


@cache
def types(depth: int = DEPTH_MAX) -> st.SearchStrategy[spark_types.DataType]:
    """Types of at most so many levels."""
    if depth == 0:
        return PRIMITIVES
    below: st.SearchStrategy[spark_types.DataType] = st.deferred(lambda: types(depth - 1))
    return st.one_of(
        PRIMITIVES,
        st.builds(spark_types.ArrayType, below, st.booleans()),
        st.builds(spark_types.MapType, st.deferred(lambda: map_keys(depth - 1)), below, st.booleans()),
        structs(below),
    )


def structs(below: st.SearchStrategy[spark_types.DataType]) -> st.SearchStrategy[spark_types.DataType]:
    fields = st.lists(
        st.builds(spark_types.StructField, FIELD_NAMES, below, st.booleans()),
        min_size=1,
        max_size=3,
        unique_by=lambda field: str(field.name),
    )
    return st.builds(spark_types.StructType, fields)


def seen(value: Any, kind: spark_types.DataType) -> Any:
    """A value as others have to see it."""
    if value is None or isinstance(value, Hidden):
        return None
    if isinstance(kind, spark_types.StructType):
        return tuple(seen(part, field.dataType) for part, field in zip(value, kind.fields, strict=True))
    if isinstance(kind, spark_types.ArrayType):
        return tuple(seen(element, kind.elementType) for element in value)
    if isinstance(kind, spark_types.MapType):
        return tuple((seen(key, kind.keyType), seen(item, kind.valueType)) for key, item in value)
    if isinstance(kind, spark_types.FloatType | spark_types.DoubleType):
        exponent, rest = (
            (0x7F80 << 16, 0x7FFFFF) if isinstance(kind, spark_types.FloatType) else (0x7FF << 52, 2**52 - 1)
        )
        return NAN if value & exponent == exponent and value & rest else value
    return value


@cache
def map_keys(depth: int) -> st.SearchStrategy[spark_types.DataType]:
    """Spark has no maps as keys, however deep."""
    if depth == 0:
        return PRIMITIVES
    below: st.SearchStrategy[spark_types.DataType] = st.deferred(lambda: map_keys(depth - 1))
    return st.one_of(PRIMITIVES, st.builds(spark_types.ArrayType, below, st.booleans()), structs(below))


def as_nullable(kind: Any) -> Any:
    """The type with NULL allowed at every level."""
    return _declared(kind, nullable=True)


def as_required(kind: Any) -> Any:
    """The type with NULL at no level, whatever the values are."""
    return _declared(kind, nullable=False)


def _declared(kind: Any, *, nullable: bool) -> Any:
    if isinstance(kind, spark_types.StructType):
        return spark_types.StructType(
            [
                spark_types.StructField(field.name, _declared(field.dataType, nullable=nullable), nullable)
                for field in kind.fields
            ]
        )
    if isinstance(kind, spark_types.ArrayType):
        return spark_types.ArrayType(_declared(kind.elementType, nullable=nullable), nullable)
    if isinstance(kind, spark_types.MapType):
        key, value = (_declared(part, nullable=nullable) for part in (kind.keyType, kind.valueType))
        return spark_types.MapType(key, value, nullable)
    return kind


# Values ---------------------------------------------------------------------------------------------

_DAY = 24 * 60 * 60 * 10**6
YEAR_1 = -719162
YEAR_10000 = 2932897
"""Days since 1970."""

FLOATS = [
    0x00000000,  # 0.0
    0x80000000,  # -0.0
    0x00000001,  # the least denormal
    0x807FFFFF,  # the greatest negative denormal
    0x7F7FFFFF,  # the greatest number
    0x7F800000,  # inf
    0xFF800000,  # -inf
    0x7FC00000,  # NaN
    0xFFC00001,  # negative NaN with a payload
    0x7F800001,  # signalling NaN
]
DOUBLES = [
    0x0000000000000000,
    0x8000000000000000,
    0x0000000000000001,
    0x800FFFFFFFFFFFFF,
    0x7FEFFFFFFFFFFFFF,
    0x7FF0000000000000,
    0xFFF0000000000000,
    0x7FF8000000000000,
    0xFFF8000000000001,
    0x7FF0000000000001,
]

ODD_TEXTS = [
    "",
    " ",
    "\0",
    "a\0b",
    "\x01\x1f\x7f\x85\u2028",
    "e\u0301",
    "\u202eabc\u202c",
    "\u05d0\u0628",
    "\U0001f469\u200d\U0001f4bb",
    "\ud7ff\ue000\uffff\U00010000\U0010ffff",
    "\ufeff",
    "null",
    "NULL",
    "__HIVE_DEFAULT_PARTITION__",
    "'\"`\\",
    "\U0010ffff" * 40,
    "x" * 33,
]

TEXTS = st.sampled_from(ODD_TEXTS) | st.text(max_size=40)

MOMENTS = st.one_of(
    st.sampled_from(
        [
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
    ),
    st.integers(YEAR_1 * _DAY, YEAR_10000 * _DAY - 1),
    st.integers(-10, 10),
)
DAYS = st.one_of(
    st.sampled_from([YEAR_1, YEAR_10000 - 1, -1, 0, -141428, -141427]), st.integers(YEAR_1, YEAR_10000 - 1)
)

FAR_MOMENTS = st.sampled_from(
    [-(2**63), -(2**63) + 1, 2**63 - 2, 2**63 - 1, YEAR_1 * _DAY - 1, YEAR_10000 * _DAY]
)
FAR_DAYS = st.sampled_from([-(2**31), -(2**31) + 1, 2**31 - 2, 2**31 - 1, YEAR_1 - 1, YEAR_10000])
"""Outside of the years 1 to 9999."""


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
    "FloatType": st.sampled_from(FLOATS) | st.integers(0, 2**32 - 1),
    "DoubleType": st.sampled_from(DOUBLES) | st.integers(0, 2**64 - 1),
    "StringType": TEXTS,
    "BinaryType": st.binary(max_size=40) | st.sampled_from([b"", b"\0", b"\xff" * 40, b"\xc3\x28"]),
    "DateType": DAYS | FAR_DAYS,
    "TimestampType": MOMENTS | FAR_MOMENTS,
    "TimestampNTZType": MOMENTS | FAR_MOMENTS,
}


def values(kind: spark_types.DataType, *, nullable: bool = True) -> st.SearchStrategy[Any]:
    """As `values.arrow_array` takes them."""
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
    is_nested = isinstance(kind, spark_types.StructType | spark_types.ArrayType | spark_types.MapType)
    return st.one_of(st.none(), present, present.map(Hidden) if is_nested else present)
