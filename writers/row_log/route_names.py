"""Which route a row takes: the texts of its route columns, which become parts of names of tables.

The driver checks the columns, and the tasks each value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from ...committers.arrow_values import string_array
from ...committers.errors import SchemaMismatchError, shown

Route: TypeAlias = "tuple[str, ...]"
"""The texts of the route columns, in their order."""

NAME_BYTES_MAX = 200
"""A text is mostly not the whole name of a table or folder, for which most services have a limit of 255."""
_REFUSED = frozenset("/\\?#%*:<>|\"'`{}") | {chr(code) for code in (*range(32), 127)}


@dataclass(frozen=True, slots=True)
class RouteColumns:
    """The columns that `routeBy` names. Pickled to the executors."""

    names: tuple[str, ...]
    default: str | None = None
    """In place of NULL, and of texts that cannot be a name; None: such rows have no route."""

    def check_schema(self, rows: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: a column does not exist, or its values have no exact text.
        """
        missing = [name for name in self.names if name not in rows.names]
        if missing:
            raise SchemaMismatchError(
                f"routeBy names the column(s) {', '.join(missing)}, which the query does not have: "
                f"{', '.join(rows.names)}."
            )
        unfit = [name for name in self.names if not _has_text(rows.field(name).type)]
        if unfit:
            of_types = ", ".join(f"{name} ({rows.field(name).type})" for name in unfit)
            raise SchemaMismatchError(
                f"routeBy names {of_types}. Rows can be routed by strings, integers, dates and booleans: "
                "cast the column to STRING."
            )

    def texts(self, rows: pa.RecordBatch | pa.Table) -> list[pa.Array]:
        """Return the texts of each column.

        Raises:
            SchemaMismatchError: a row has no route.
        """
        return [self._texts(name, rows.column(name)) for name in self.names]

    def _texts(self, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        texts = column.cast(pa.string()).dictionary_encode()
        known = texts.dictionary.to_pylist()
        problems = [problem_of(text) for text in known]
        if not texts.null_count and not any(problems):
            return texts.cast(pa.string())
        if self.default is None:
            raise SchemaMismatchError(_no_route(name, known, problems, has_null=bool(texts.null_count)))
        names = [text if problem is None else None for text, problem in zip(known, problems, strict=True)]
        named = string_array(names).take(texts.indices)
        return pc.fill_null(named, self.default)


def problem_of(text: str) -> str | None:
    """Return why a text cannot be part of a name, as for the name of a folder; None if it can."""
    if not text:
        return "is empty"
    if text in (".", ".."):
        return "is a path"
    if text != text.strip():
        return "begins or ends with white space"
    if refused := sorted(_REFUSED.intersection(text)):
        return f"contains {shown(refused[0])}"
    if len(text.encode()) > NAME_BYTES_MAX:
        return f"has more than {NAME_BYTES_MAX} bytes"
    return None


def _has_text(data_type: pa.DataType) -> bool:
    return any(
        is_of(data_type)
        for is_of in (
            types.is_string,
            types.is_large_string,
            types.is_integer,
            types.is_date,
            types.is_boolean,
        )
    )


def _no_route(name: str, texts: Sequence[str], problems: Sequence[str | None], *, has_null: bool) -> str:
    what = "is NULL" if has_null else ""
    for text, problem in zip(texts, problems, strict=True):
        if problem is not None and not what:
            what = f"{problem}: {shown(text)}"
    return (
        f"A row has no route: its {name}, which routeBy names, {what}. Give these rows a value in the "
        "query; or a route with routeDefault; or keep them apart with badRows=deadLetter."
    )
