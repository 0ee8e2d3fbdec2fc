"""Ids of entries: derived from the place of the row, or a column."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import RowPlace
from ..parquet.columns import is_list
from .json_rows import json_values


def check_id_column(rows: pa.Schema, column: str | None) -> None:
    """Raises as `check_text_column`."""
    check_text_column(rows, "idColumn", column)


def check_text_column(rows: pa.Schema, option: str, column: str | None) -> None:
    """Check a column that an option names. None: the option is not given.

    Raises:
        SchemaMismatchError: the column does not exist, or its values have no exact text.
    """
    if column is None:
        return
    check_column(rows, option, column)
    data_type = rows.field(column).type
    if types.is_nested(data_type) or is_list(data_type) or types.is_floating(data_type):
        raise SchemaMismatchError(
            f"{option} names the column {column!r} of type {data_type}: cast it to STRING."
        )


def check_column(rows: pa.Schema, option: str, column: str) -> None:
    """
    Raises:
        SchemaMismatchError: the column, which an option names, does not exist.
    """
    if column not in rows.names:
        raise SchemaMismatchError(
            f"{option} names the column {column!r}, which the query does not have: {', '.join(rows.names)}."
        )


def row_ids(rows: pa.RecordBatch, place: RowPlace, column: str | None) -> Sequence[str]:
    """One id for each row. Derived ids are `<query>-<batch>-<partition>-<row>`.

    Raises:
        SchemaMismatchError: an id is NULL or empty.
    """
    if column is None:
        return place.ids(rows.num_rows)
    ids = texts_of(rows, "idColumn", column)
    if "" in ids:
        raise SchemaMismatchError(
            f"A row has an empty text in the column {column!r}, which idColumn names: rows without an id "
            "could be taken for one another. Filter these rows, or give them an id."
        )
    return ids


def id_with_content(row_id: str, *content: bytes) -> str:
    """Return a derived id for destinations that recognize ids, and drop or replace what they have.

    A batch that runs again may have another row at the same place, which must not be taken for the one that
    has arrived.
    """
    digest = hashlib.blake2b(b"\0".join(content), digest_size=8).hexdigest()
    return f"{row_id}-{digest}"


def texts_of(rows: pa.RecordBatch, option: str, column: str) -> Sequence[str]:
    """The values of a column that an option names: their JSON, without the quotes of strings.

    Raises:
        SchemaMismatchError: one is NULL.
    """
    values = rows.column(column)
    if values.null_count:
        raise SchemaMismatchError(
            f"A row has NULL in the column {column!r}, which {option} names. Filter these rows, or give them "
            "a value."
        )
    texts = map(str, json_values(values, column))
    return [text.lower() for text in texts] if types.is_boolean(values.type) else list(texts)
