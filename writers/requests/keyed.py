"""Gives entries the key of their row, so that the rows of a key are sent in their order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ...committers.requests.contract import EntryWriter, Requests, RowPlace
from .python_values import python_values
from .row_ids import check_text_column


@dataclass(frozen=True, slots=True)
class KeyedRequests:
    """See `Requests`: those of a destination, with keys. Its writers must be asked to order by key."""

    requests: Requests
    columns: tuple[str, ...]
    """Their values are the key."""
    option: str
    """The option that names them, for messages."""

    def check_schema(self, rows: pa.Schema) -> None:
        self.requests.check_schema(rows)
        check_key_columns(rows, self.columns, self.option)

    def checker(self) -> Callable[[pa.RecordBatch], object]:
        return self.requests.checker()

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Any]:
        entries = self.requests.entries(rows, place)
        keys = row_keys(rows, self.columns)
        # A destination whose entries have keys needs the order of these, such as that of a table's key.
        return [
            entry if entry.key is not None else replace(entry, key=key)
            for entry, key in zip(entries, keys, strict=True)
        ]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> EntryWriter:
        return self.requests.open_writer(on_acknowledged)


def check_key_columns(rows: pa.Schema, columns: Sequence[str], option: str) -> None:
    """
    Raises:
        SchemaMismatchError: a column does not exist, or its values cannot be compared.
    """
    for column in columns:
        check_text_column(rows, option, column)


def row_keys(rows: pa.RecordBatch, columns: Sequence[str]) -> list[Hashable]:
    """One key for each row; None for a row with a NULL in one of the columns, which has no key."""
    values = zip(*(python_values(rows.column(column)) for column in columns), strict=True)
    return [None if None in key else key for key in values]
