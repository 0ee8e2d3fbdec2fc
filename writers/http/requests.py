"""How rows become HTTP requests: `penstock.http`. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from ...committers.requests.contract import RowPlace
from ..requests.entry import Entry
from ..requests.json_rows import check_json_schema, check_values, json_objects
from ..requests.opening import RowWriter, WriterSettings, open_writer
from ..requests.row_ids import check_id_column, row_ids

if TYPE_CHECKING:
    from ..requests.http import HttpTarget

_IN_HEADERS = "!#$&'()*+,-./:;<=>?@[]^_`{|}~ "
"""Characters that are not percent-encoded, in addition to letters and digits."""


@dataclass(frozen=True, slots=True)
class HttpRequests:
    """See `Requests`. Each row is a JSON object."""

    target: HttpTarget
    settings: WriterSettings
    id_column: str | None

    def check_schema(self, rows: pa.Schema) -> None:
        check_json_schema(rows, self.target.url)
        check_id_column(rows, self.id_column)

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        ids, position = row_ids(rows, place, self.id_column), place.position
        return [
            Entry(row, len(row) + 1, quote(row_id, _IN_HEADERS), position + number)
            for number, (row, row_id) in enumerate(zip(json_objects(rows), ids, strict=True))
        ]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> RowWriter[bytes]:
        from ..requests.http import HttpClient

        client = HttpClient(self.target, self.settings.limits.in_flight_requests_max)
        return open_writer(client, self.settings, on_acknowledged)


def _check(id_column: str | None, rows: pa.RecordBatch) -> None:
    check_values(rows)
    row_ids(rows, _NOWHERE, id_column)


_NOWHERE = RowPlace("", 0, 0, 0, 0)
