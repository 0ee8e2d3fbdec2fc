"""Ids of entries: derived from the place of the row, or a column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import RowPlace
from ..parquet.columns import is_list
from .json_rows import json_values


def check_id_column(rows: pa.Schema, column: str | None) -> None:
    """
    Raises:
        SchemaMismatchError: the column does not exist, or its values are no ids.
    """
    if column is None:
        return
    if column not in rows.names:
        raise SchemaMismatchError(
            f"idColumn names the column {column!r}, which the query does not have: {', '.join(rows.names)}."
        )
    data_type = rows.field(column).type
    if types.is_nested(data_type) or is_list(data_type) or types.is_floating(data_type):
        raise SchemaMismatchError(
            f"idColumn names the column {column!r} of type {data_type}: cast it to STRING."
        )


def row_ids(rows: pa.RecordBatch, place: RowPlace, column: str | None) -> Sequence[str]:
    """One id for each row. Derived ids are `<query>-<batch>-<partition>-<row>`.

    Raises:
        SchemaMismatchError: an id is NULL.
    """
    if column is None:
        prefix = f"{place.query_id}-{place.batch_id}-{place.partition}-"
        return [f"{prefix}{place.row + number}" for number in range(rows.num_rows)]
    values = rows.column(column)
    if values.null_count:
        raise SchemaMismatchError(
            f"The id of a row is NULL: idColumn names the column {column!r}. Filter these rows, or give "
            "them an id."
        )
    return list(map(str, json_values(values, column)))
