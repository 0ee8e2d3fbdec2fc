"""The option `valueColumns`: columns as in SQL, such as `id BIGINT, amount DECIMAL(10,2)`. Needs no JVM."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pyarrow as pa
import pyparsing as pp

from ...committers.errors import ConfigurationError, shown
from ...writers.changes.envelopes.conversion import UNKNOWN, Logical

_TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Names of types in Spark's SQL."""
_DEPTH_MAX = 20
_LENGTH_MAX = 200_000
_COMMENT = b"comment"


def value_columns(text: str) -> pa.Schema:
    """Parse columns. A comment of a column names a logical type, see `logical_types`.

    Raises:
        ConfigurationError: the text has no columns, or one twice.
    """
    opened = deepest = 0
    for character in text:
        opened += {"<": 1, ">": -1}.get(character, 0)
        deepest = max(deepest, opened)
    if deepest > _DEPTH_MAX or len(text) > _LENGTH_MAX:
        raise _wrong(text, "it is too long or too deep")
    try:
        fields = list(_grammar().parse_string(text, parse_all=True))
    except pp.ParseBaseException as error:
        raise _wrong(text, f"at character {error.loc + 1} it is no column with its type") from None
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    names = [one.name.lower() for one in fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise _wrong(text, f"{', '.join(twice)} comes twice")
    return pa.schema(fields)


def logical_types(columns: pa.Schema) -> dict[str, Logical]:
    """Return the logical types that comments name, by column."""
    found = {
        one.name: Logical.of(one.metadata[_COMMENT].decode()) for one in columns if one.metadata is not None
    }
    return {name: logical for name, logical in found.items() if logical != UNKNOWN}


def _wrong(text: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"valueColumns={shown(text)}: {problem}. Give the columns of the table as in SQL, such as "
        "id BIGINT, name STRING, amount DECIMAL(10,2)."
    )


@cache
def _grammar() -> pp.ParserElement:
    word = pp.Regex(r"[^\W\d]\w*")
    quoted = pp.Regex(r"`(?:[^`]|``)+`").set_parse_action(lambda found: found[0][1:-1].replace("``", "`"))
    name = quoted | word
    comma, opening, closing = (pp.Suppress(one) for one in ",<>")
    number = pp.Regex(r"\d{1,4}").set_parse_action(lambda found: int(found[0]))
    kind = pp.Forward()
    not_null = pp.Optional(pp.CaselessKeyword("NOT") + pp.CaselessKeyword("NULL")).suppress()
    comment = pp.Optional(pp.Suppress(pp.CaselessKeyword("COMMENT")) + pp.Regex(r"'(?:[^'\\]|\\.|'')*'"))

    decimal_name = pp.CaselessKeyword("DECIMAL") | pp.CaselessKeyword("DEC") | pp.CaselessKeyword("NUMERIC")
    digits = pp.Suppress("(") + number + pp.Optional(comma + number) + pp.Suppress(")")
    decimal = (decimal_name.suppress() + pp.Optional(digits)).set_parse_action(_decimal)
    simple = pp.Regex("|".join(rf"{one}\b" for one in _TYPES), flags=re.IGNORECASE)
    simple.set_parse_action(lambda found: _TYPES[found[0].lower()])
    array = pp.Suppress(pp.CaselessKeyword("ARRAY")) + opening + kind + closing
    array.set_parse_action(lambda found: pa.list_(pa.field("element", found[0])))
    of_map = pp.Suppress(pp.CaselessKeyword("MAP")) + opening + kind + comma + kind + closing
    of_map.set_parse_action(
        lambda found: pa.map_(pa.field("key", found[0], nullable=False), pa.field("value", found[1]))
    )
    inner = (name + pp.Suppress(pp.Optional(":")) + kind + not_null + comment.suppress()).set_parse_action(
        lambda found: pa.field(found[0], found[1])
    )
    struct = pp.Suppress(pp.CaselessKeyword("STRUCT")) + opening + pp.DelimitedList(inner) + closing
    struct.set_parse_action(lambda found: pa.struct(list(found)))
    kind <<= decimal | array | of_map | struct | simple
    column = (name + pp.Suppress(pp.Optional(":")) + kind + not_null + comment).set_parse_action(_column)
    return pp.DelimitedList(column)


def _decimal(found: Any) -> pa.DataType:
    precision, scale = (*found, 10, 0)[:2] if len(found) != 1 else (found[0], 0)
    if not 1 <= precision <= 38 or scale > precision:
        raise ValueError(f"DECIMAL({precision},{scale}) is no type of Spark")
    return pa.decimal128(precision, scale)


def _column(found: Any) -> pa.Field:
    name, kind, *comment = found
    metadata = {_COMMENT: comment[0][1:-1].encode()} if comment else None
    return pa.field(name, kind, metadata=metadata)
