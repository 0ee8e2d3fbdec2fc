"""Arrow types and the DuckDB types that store them without loss.

A DuckDB type is a text as `duckdb_columns()` lists it, such as `STRUCT(a INTEGER, "b c" VARCHAR[])`.
"""

from __future__ import annotations

import re
from contextlib import suppress

import pyarrow as pa

_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
    pa.timestamp("us"): "TIMESTAMP",
}
_ARROW_TYPES = {kind: data_type for data_type, kind in _SQL_TYPES.items()}

_ALSO_READ_BY = {"VARCHAR": {"UUID", "JSON"}}
"""Types that parse the text form, or reject it."""
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INTEGER": 10, "BIGINT": 19, "HUGEINT": 38}
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT")
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s?(\d+)\)")
_PLAIN_NAME = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(
    r"TIMESTAMP WITH TIME ZONE|DECIMAL\(\d+,\s?\d+\)|STRUCT\(|MAP\(|\[\]|\[|\]|\)|,|"
    r'"(?:[^"]|"")*"|[^\s",()\[\]]+'
)


def sql_type(data_type: pa.DataType) -> str | None:
    """The type of a new column; None if DuckDB has no type that stores it without loss."""
    if pa.types.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})" if data_type.scale >= 0 else None
    if pa.types.is_list(data_type):
        element = sql_type(data_type.value_type)
        return f"{element}[]" if element else None
    if pa.types.is_map(data_type):
        key, item = sql_type(data_type.key_type), sql_type(data_type.item_type)
        return f"MAP({key}, {item})" if key and item else None
    if pa.types.is_struct(data_type):
        return _struct_type(data_type)
    return _SQL_TYPES.get(data_type)


def _struct_type(data_type: pa.StructType) -> str | None:
    names = {field.name.lower() for field in data_type}
    kinds = [sql_type(field.type) for field in data_type]
    if not kinds or None in kinds or "" in names or len(names) < len(kinds):
        return None  # names of fields ignore case
    fields = ", ".join(f"{_quoted(field.name)} {kind}" for field, kind in zip(data_type, kinds, strict=True))
    return f"STRUCT({fields})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def arrow_type(column: str) -> pa.DataType:
    """The Arrow type that has every value of a staged column, or its text."""
    with suppress(ValueError, IndexError):
        return _parsed(column)
    return pa.string()


def _parsed(column: str) -> pa.DataType:
    """
    Raises:
        ValueError, IndexError: it is no type that Penstock writes.
    """
    tokens = _TOKEN.findall(column)
    if re.sub(r"\s", "", "".join(tokens)) != re.sub(r"\s", "", column):
        raise ValueError("it has other characters")
    data_type, end = _type_at(tokens, 0)
    if end != len(tokens):
        raise ValueError("it goes on after its end")
    return data_type


def _type_at(tokens: list[str], place: int) -> tuple[pa.DataType, int]:
    word, place = tokens[place], place + 1
    if word == "STRUCT(":
        fields = []
        while word != ")":
            name, (field, place) = tokens[place], _type_at(tokens, place + 1)
            if not (name.startswith('"') or _PLAIN_NAME.fullmatch(name)):
                raise ValueError("a name that must be quoted")
            plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
            fields.append(pa.field(plain, field))
            word, place = _one_of(tokens, place, (",", ")")), place + 1
        data_type = pa.struct(fields)
    elif word == "MAP(":
        key, place = _type_at(tokens, place)
        _one_of(tokens, place, (",",))
        item, place = _type_at(tokens, place + 1)
        _one_of(tokens, place, (")",))
        data_type, place = pa.map_(key, item), place + 1
    elif match := _DECIMAL.fullmatch(word):
        data_type = pa.decimal128(int(match[1]), int(match[2]))
    elif word in _ARROW_TYPES:
        data_type = _ARROW_TYPES[word]
    else:
        raise ValueError("an unknown type")
    while place < len(tokens) and tokens[place] == "[]":
        data_type, place = pa.list_(data_type), place + 1
    return data_type, place


def _one_of(tokens: list[str], place: int, expected: tuple[str, ...]) -> str:
    if tokens[place] not in expected:
        raise ValueError("a misplaced character")
    return tokens[place]


def holds(column: str, data_type: pa.DataType) -> bool:
    """True if a column of the SQL type stores every value of the Arrow type unchanged, or rejects it."""
    own = sql_type(data_type)
    return own is not None and (takes(column, own) or column in _ALSO_READ_BY.get(own, ()))


def may_hold(column: str, data_type: pa.DataType) -> bool:
    """True if `holds`, or if some values fit and the writer can tell which."""
    if holds(column, data_type):
        return True
    is_decimal = pa.types.is_decimal128(data_type) and column.startswith("DECIMAL(")
    return is_decimal or (pa.types.is_signed_integer(data_type) and column in _INTEGERS)


def widened(column: str, data_type: pa.DataType) -> str | None:
    """The SQL type that a column gets so that it `holds` the Arrow type, without loss of what it has; None if
    there is none.
    """
    own = sql_type(data_type)
    if own is None or own == column or not takes(own, column):
        return None
    given, wanted = _decimal(column), _decimal(own)
    if given and wanted:
        return own if given[1] == wanted[1] else None
    is_wider = (column in _INTEGERS and own in _INTEGERS) or (column, own) == ("FLOAT", "DOUBLE")
    return own if is_wider else None


def can_widen(column: str, staged: str) -> bool:
    """True if `widened` can have chosen the second type for a column of the first one."""
    return is_staged_as(staged) and widened(column, arrow_type(staged)) == staged


def takes(column: str, staged: str) -> bool:
    """True if DuckDB stores every value of the second SQL type unchanged in a column of the first one."""
    if staged == column or (staged, column) == ("FLOAT", "DOUBLE"):
        return True
    if staged in _INTEGERS and column in _INTEGERS:
        return _DIGITS[column] >= _DIGITS[staged]
    given, wanted = _number(staged), _decimal(column)
    if given and wanted:
        return wanted[1] >= given[1] and wanted[0] - wanted[1] >= given[0] - given[1]
    try:
        one, other = _parsed(staged), _parsed(column)
    except (ValueError, IndexError):
        return False
    return bool(pa.types.is_nested(one) and one.equals(other))


def widest(column: str) -> str:
    """The SQL type that stores the values of this one, and those after a column of it was widened."""
    if column in _INTEGERS:
        return "HUGEINT"
    if (size := _decimal(column)) is not None:
        return f"DECIMAL(38,{size[1]})"
    return "VARCHAR" if column in _ALSO_READ_BY["VARCHAR"] else column


def is_staged_as(column: str) -> bool:
    """True if `may_hold` can have accepted the SQL type. It is inserted in statements."""
    if column == "HUGEINT" or column in _ALSO_READ_BY["VARCHAR"]:
        return True
    try:
        _parsed(column)
    except (ValueError, IndexError):
        return False
    return True


def text_type(column: str, data_type: pa.DataType) -> pa.DataType:
    """The Arrow type in which the writer stages values of a column."""
    if holds(column, data_type):
        return data_type
    if column in _INTEGERS:
        return pa.int64() if column == "HUGEINT" else _ARROW_TYPES[column]
    if (size := _decimal(column)) is not None and pa.types.is_decimal(data_type):
        return pa.decimal128(*size)
    return data_type if may_hold(column, data_type) else arrow_type(column)


def _number(column: str) -> tuple[int, int] | None:
    """(precision, scale) of a number without binary fractions."""
    return (_DIGITS[column], 0) if column in _DIGITS else _decimal(column)


def _decimal(column: str) -> tuple[int, int] | None:
    match = _DECIMAL.fullmatch(column)
    return None if match is None else (int(match[1]), int(match[2]))
