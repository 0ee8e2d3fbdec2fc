"""How rows become HTTP requests: `penstock.http`. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

import pyarrow as pa

from ...committers.requests.contract import RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests
from ..requests.row_ids import id_with_content

if TYPE_CHECKING:
    from ..requests.http import HttpClient, HttpTarget

_IN_HEADERS = "!#$&'()*+,-./:;<=>?@[]^_`{|}~ "
"""Characters that are not percent-encoded, in addition to letters and digits."""


@dataclass(frozen=True, slots=True)
class HttpRequests(JsonRequests):
    """See `Requests`. The id of a row can be sent in a header."""

    target: HttpTarget

    def new_client(self) -> HttpClient:
        from ..requests.http import HttpClient

        return HttpClient(self.target, self.settings.limits.in_flight_requests_max)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        entries: Sequence[Entry[bytes]] = JsonRequests.entries(self, rows, place)
        if self.id_column is None:
            entries = [replace(entry, id=id_with_content(entry.id, entry.payload)) for entry in entries]
        return [replace(entry, id=quote(entry.id, _IN_HEADERS)) for entry in entries]
