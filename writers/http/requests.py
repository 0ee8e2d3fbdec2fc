"""How rows become HTTP requests: `penstock.http`. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.requests.contract import RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import json_objects
from ..requests.row_ids import check_column, id_with_content, row_ids
from .templates import bodies_of, urls_of

if TYPE_CHECKING:
    from ..requests.http import AddressedRow, HttpClient, HttpTarget
    from ..requests.template import Template

_IN_HEADERS = "!#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""Characters that are not percent-encoded, in addition to letters and digits. No space: servers strip it."""


@dataclass(frozen=True, slots=True)
class HttpRequests(JsonRequests):
    """See `Requests`. The id of a row can be sent in a header."""

    target: HttpTarget
    url: Template | None = None
    """The URL of each row. None: that of the target."""
    body: Template | None = None
    """The body of each row. None: the row as a JSON object."""
    delete_method: str | None = None
    """Method of rows that delete. None: no row does."""

    def new_client(self) -> HttpClient:
        from ..requests.http import HttpClient

        return HttpClient(self.target, self.settings.limits.in_flight_requests_max)

    def check_connection(self) -> bool:
        """See `ChecksConnection`. Open a connection, and send nothing."""
        self.target.connect()
        return True

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        if self.url is not None:
            self.url.check(rows)
        if self.body is not None:
            for column in self.body.columns:
                check_column(rows, self.body.option, column)

    # Changes by key ------------------------------------------------------------------------------------

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        """All changes are taken."""

    def why_whole(self, rows: pa.Schema) -> str:
        if self.target.method == "PATCH" and self.body is None:
            return ""
        return "Partial rows need method=PATCH and format=row: other requests replace what is at the URL"

    def deletion_checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, None, self.url)

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[bytes | AddressedRow]]:
        if not any(kept):
            return self.entries(rows, place)
        return self._entries(json_objects(rows, kept), rows, place)

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[AddressedRow]]:
        """DELETE has no body, and other methods have the columns of the URL in theirs."""
        from ..requests.http import AddressedRow

        assert self.url is not None
        method = self.delete_method or "DELETE"
        urls, ids = urls_of(self.url, rows), place.ids(rows.num_rows)
        bodies = json_objects(rows.select(self.url.columns)) if method != "DELETE" else [None] * rows.num_rows
        made = []
        for url, body, row_id in zip(urls, bodies, ids, strict=True):
            content = (method.encode(), url.encode(), body or b"")
            entry_id = quote(id_with_content(row_id, *content), _IN_HEADERS)
            made.append(
                Entry(AddressedRow(url, body, method), sum(map(len, content)) + 1, entry_id, place.position)
            )
        return made

    # Rows ----------------------------------------------------------------------------------------------

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.url)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes | AddressedRow]]:
        bodies = json_objects(rows) if self.body is None else bodies_of(self.body, rows)
        return self._entries(bodies, rows, place)

    def _entries(
        self, bodies: Sequence[bytes], rows: pa.RecordBatch, place: RowPlace
    ) -> Sequence[Entry[bytes | AddressedRow]]:
        ids = row_ids(rows, place, self.id_column)
        urls = [None] * rows.num_rows if self.url is None else urls_of(self.url, rows)
        return [
            self._entry(body, url, row_id, place.position + number)
            for number, (body, url, row_id) in enumerate(zip(bodies, urls, ids, strict=True))
        ]

    def _entry(self, body: bytes, url: str | None, row_id: str, position: int) -> Entry[bytes | AddressedRow]:
        content = (body,) if url is None else (url.encode(), body)
        if self.id_column is None:
            row_id = id_with_content(row_id, *content)
        row_id = quote(row_id, _IN_HEADERS)
        size_bytes = sum(map(len, content)) + 1
        if url is None:
            return Entry(body, size_bytes, row_id, position)
        from ..requests.http import AddressedRow

        return Entry(AddressedRow(url, body), size_bytes, row_id, position)


def _check(id_column: str | None, url: Template | None, rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    if url is not None:
        urls_of(url, rows)
