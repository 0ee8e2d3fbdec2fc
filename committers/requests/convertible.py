"""Converts the rows of a delivery to entries, and separates those that cannot be converted.

A query with one target does this in its tasks. The targets of a fan-out share the rows of a row log, so there
each delivery does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import SchemaMismatchError

if TYPE_CHECKING:
    import pyarrow as pa

    from ..contract import Batch
    from .contract import Requests, RowPlace

OnRefused = Callable[["pa.RecordBatch", "RowPlace", SchemaMismatchError], None]
"""Called with a row that cannot be converted, and its place."""


def check_columns(requests: Requests, columns: pa.Schema, batch: Batch) -> None:
    """Check that the options of the newest start of the query fit the columns of rows from the row log.

    Raises:
        SchemaMismatchError: the options name a column that these rows do not have.
    """
    try:
        requests.check_schema(columns)
    except SchemaMismatchError as error:
        raise SchemaMismatchError(
            f"{error}\nRows of batch {batch.batch_id} of {batch.stream} wait in the row log. They have other "
            "columns, and were written with other options than those of the newest start of the query. Start "
            "the query with the earlier options until these rows are delivered, and run `penstock retry`; or "
            "give the batch up with `penstock skip`."
        ) from error


def convertible_entries(
    requests: Requests, rows: pa.RecordBatch, place: RowPlace, on_refused: OnRefused | None
) -> Sequence[Any]:
    """Return an entry for each row; None for a row that cannot be converted.

    Args:
        on_refused: None: a row that cannot be converted is an error

    Raises:
        SchemaMismatchError: a row cannot be converted.
    """
    try:
        return requests.entries(rows, place)
    except SchemaMismatchError as error:
        if on_refused is None:
            raise
        if rows.num_rows == 1:
            on_refused(rows, place, error)
            return [None]
        half = rows.num_rows // 2
        after = replace(place, row=place.row + half, position=place.position + half)
        first = convertible_entries(requests, rows.slice(0, half), place, on_refused)
        return [*first, *convertible_entries(requests, rows.slice(half), after, on_refused)]
