"""Parses the options partitionSpec and sortOrder. Pure, and without heavy imports.

partitionSpec   day(ts), bucket(16, id), truncate(4, `a.b`), region, hour(event.at) as at_hour
sortOrder       day(ts) DESC NULLS LAST, id
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from ..contract import PartitionField, SortField
from ..errors import ConfigurationError, shown

_TRANSFORMS = {
    "identity": "identity",
    "year": "year",
    "years": "year",
    "month": "month",
    "months": "month",
    "day": "day",
    "days": "day",
    "date": "day",
    "hour": "hour",
    "hours": "hour",
    "date_hour": "hour",
}
"""Canonical transform names, by Iceberg's and by Spark's names."""
_PARAMETRISED = ("bucket", "truncate")

_KNOWN = (
    "Use a column's name, year(c), month(c), day(c), hour(c), bucket(n, c) or truncate(n, c). Write a "
    "nested column as a.b, and names with characters other than letters, digits and '_' in backquotes."
)

_TOKEN = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<mark>[(),.])|(?P<end>$))")

T = TypeVar("T")


def parse_partition_spec(text: str) -> tuple[PartitionField, ...]:
    """Parse partition fields. An empty `name` means Iceberg's default name.

    Raises:
        ConfigurationError: shows the position and the supported syntax.
    """
    return _Parser("partitionSpec", text).terms(_Parser.partition_field)


def parse_sort_order(text: str) -> tuple[SortField, ...]:
    """Parse sort fields. Without NULLS FIRST or LAST, NULLs are the smallest value, as in Iceberg.

    Raises:
        ConfigurationError: shows the position and the supported syntax.
    """
    return _Parser("sortOrder", text).terms(_Parser.sort_field)


class _Parser:
    """Parses a text from left to right."""

    def __init__(self, option: str, text: str) -> None:
        self._option = option
        self._text = text
        self._at = 0

    def terms(self, term: Callable[[_Parser], T]) -> tuple[T, ...]:
        if not self._text.strip():
            return ()
        terms = [term(self)]
        while not self._takes(""):
            if not self._takes(","):
                self._fail("a comma or the end")
            terms.append(term(self))
        return tuple(terms)

    def partition_field(self) -> PartitionField:
        transform, column = self._term()
        return PartitionField(self._name() if self._takes("as") else "", column, transform)

    def sort_field(self) -> SortField:
        transform, column = self._term()
        is_descending = self._takes("desc")
        if not is_descending:
            self._takes("asc")
        nulls_first = not is_descending
        if self._takes("nulls"):
            nulls_first = self._takes("first")
            if not nulls_first and not self._takes("last"):
                self._fail("FIRST or LAST")
        return SortField(column, transform, is_descending, nulls_first)

    def _term(self) -> tuple[str, tuple[str, ...]]:
        """(transform, path of the column)"""
        start = self._at
        is_quoted = self._peek()[0] == "quoted"
        name = self._name()
        if is_quoted or not self._takes("("):
            return "identity", self._path(name)
        function = name.lower()
        if function in _TRANSFORMS:
            transform = _TRANSFORMS[function]
        elif function in _PARAMETRISED:
            transform = f"{function}[{self._width()}]"
            self._expect(",")
        else:
            self._at = start
            near = difflib.get_close_matches(function, [*_TRANSFORMS, *_PARAMETRISED], n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            self._fail(f"a column or a transform{hint}")
        column = self._path(self._name())
        self._expect(")")
        return transform, column

    def _path(self, first: str) -> tuple[str, ...]:
        path = [first]
        while self._takes("."):
            path.append(self._name())
        return tuple(path)

    def _width(self) -> int:
        kind, token = self._peek()
        if kind != "word" or not token.isascii() or not token.isdecimal() or not 0 < int(token) < 2**31:
            self._fail("a whole number of at least 1")
        self._advance()
        return int(token)

    def _name(self) -> str:
        kind, token = self._peek()
        if kind not in ("word", "quoted"):
            self._fail("a name")
        self._advance()
        return token[1:-1].replace("``", "`") if kind == "quoted" else token

    def _expect(self, mark: str) -> None:
        if not self._takes(mark):
            self._fail(repr(mark))

    def _takes(self, wanted: str) -> bool:
        """Consume the next token if it is `wanted`, ignoring case; the empty string is the end of the
        text.
        """
        kind, token = self._peek()
        if kind == "quoted" or token.lower() != wanted:
            return False
        self._advance()
        return True

    def _peek(self) -> tuple[str, str]:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            self._fail("a name or one of ( ) , .")
        kind = match.lastgroup or "end"
        return kind, match.group(kind)

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        assert match is not None, "checked by the caller"
        self._at = match.end()

    def _fail(self, expected: str) -> NoReturn:
        rest = self._text[self._at :].strip()
        position = len(self._text) - len(self._text[self._at :].lstrip()) + 1
        found = f"there is {shown(rest)}" if rest else "the text ends"
        raise ConfigurationError(
            f"The option {self._option} cannot be parsed: {expected} is expected at position {position} of "
            f"{shown(self._text)}, where {found}. {_KNOWN}"
        )
