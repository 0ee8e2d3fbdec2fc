"""Checks that a Postgres server accepts texts for a column. Executors only."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError
from ...committers.postgres.types import length_max

_UUID = r"([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}"
_JSON = {"json", "jsonb"}
_ESCAPED_NUL = re.compile(r"(?<!\\)(\\\\)*\\u0000")
_DIGITS_MAX = 131_072
"""Of a `numeric`, before the decimal point. `jsonb` stores numbers as such."""


def has_limits(kind: str) -> bool:
    """True if a column of the SQL type does not take every text."""
    return kind == "uuid" or kind in _JSON or length_max(kind) is not None


def check_texts(texts: pa.Array, column: str, kind: str) -> None:
    """Check that the server accepts the texts for a column of the SQL type, and stores them unchanged.

    Raises:
        SchemaMismatchError: it does not.
    """
    if kind == "uuid":
        is_uuid = pc.match_substring_regex(texts, rf"^({_UUID}|\{{{_UUID}\}})$")
        if pc.all(is_uuid).as_py() is False:
            raise SchemaMismatchError(
                f"A text in the column {column} is not a UUID. Correct it in the query."
            )
    elif kind in _JSON:
        if not all(_is_json(text, kind) for text in texts.to_pylist() if text is not None):
            raise SchemaMismatchError(
                f"A text in the column {column} is no JSON that {kind} can store. Correct it in the query, "
                "for example with to_json."
            )
    elif (most := length_max(kind)) is not None:
        longest = pc.max(pc.utf8_length(texts)).as_py()
        if longest is not None and longest > most:
            raise SchemaMismatchError(
                f"A text of {longest:,} characters does not fit the column {column}, which is {kind}. Make "
                "the column longer, or shorten the text in the query."
            )


def _is_json(text: str, kind: str) -> bool:
    """`json` keeps the text, while `jsonb` decodes strings and numbers."""
    number = _number if kind == "jsonb" else str
    try:
        value = json.loads(text, parse_int=number, parse_float=number, parse_constant=_refuse)
        if kind == "json" or "\\u" not in text:
            return True
        json.dumps(value, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError):
        return False
    return _ESCAPED_NUL.search(text) is None


def _number(text: str) -> str:
    """Not as a Python number, whose integers and exponents have other limits."""
    if Decimal(text).adjusted() >= _DIGITS_MAX:
        raise ValueError(text)
    return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)  # NaN and Infinity
