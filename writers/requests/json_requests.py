"""How rows become requests whose entries are JSON objects. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...committers.requests.contract import NOWHERE, RowPlace
from .entry import Entry
from .json_rows import check_json_schema, check_values, json_objects
from .row_ids import check_id_column, row_ids
from .row_requests import RowRequests


@dataclass(frozen=True, slots=True)
class JsonRequests(RowRequests):
    """See `Requests`. Each row is a JSON object."""

    def check_schema(self, rows: pa.Schema) -> None:
        check_json_schema(rows, self.address)
        check_id_column(rows, self.id_column)

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(check_rows, self.id_column)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Any]]:
        ids, position = row_ids(rows, place, self.id_column), place.position
        return [
            Entry(row, len(row) + 1, row_id, position + number)
            for number, (row, row_id) in enumerate(zip(json_objects(rows), ids, strict=True))
        ]


def check_rows(id_column: str | None, rows: pa.RecordBatch) -> None:
    """
    Raises:
        SchemaMismatchError: a value cannot be converted, or an id is NULL.
    """
    check_values(rows)
    row_ids(rows, NOWHERE, id_column)
