"""How rows become documents of OpenSearch and Elasticsearch.

Runs on executors and in the delivery process.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from ...committers.errors import PenstockError, SchemaMismatchError
from ...committers.requests.contract import NOWHERE, RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.results import Failure
from ..requests.row_ids import check_text_column, id_with_content, row_ids, texts_of
from .checks import refused
from .client import SearchClient
from .target import SearchTarget

ID_BYTES_MAX = 512
_METADATA = frozenset(
    (
        "_doc_count",
        "_field_names",
        "_id",
        "_ignored",
        "_index",
        "_nested_path",
        "_routing",
        "_seq_no",
        "_source",
        "_tier",
        "_type",
        "_version",
    )
)
"""Names that fields of a document cannot have."""


@dataclass(frozen=True, slots=True)
class SearchRequests(JsonRequests):
    """See `Requests` and `ChecksDestination`. Each row is a document, with its id as `_id`."""

    target: SearchTarget
    routing: str | None
    """The column with the routing of each document."""

    @abstractmethod
    def new_client(self) -> SearchClient: ...

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """Return what an exception of the library means for a check."""

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        check_text_column(rows, "routing", self.routing)
        _check_names(rows.names)

    def check_destination(self, rows: pa.Schema) -> None:
        try:
            asyncio.run(self.new_client().check())
        except PenstockError:
            raise
        except Exception as error:
            raise refused(self.target, self.classify(error)) from error

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.routing)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        """Rows with the same id are sent in their order."""
        entries: Sequence[Entry[bytes]] = JsonRequests.entries(self, rows, place)
        if self.id_column is None and not place.is_fixed:
            entries = [replace(entry, id=id_with_content(entry.id, entry.payload)) for entry in entries]
        _check_ids([one.id for one in entries])
        routings = _routings(rows, self.routing)
        operation = self.target.operation
        made = []
        for entry, routing in zip(entries, routings, strict=True):
            action = {
                operation: {"_id": entry.id} if routing is None else {"_id": entry.id, "routing": routing}
            }
            payload = b"%s\n%s\n" % (json.dumps(action).encode(), entry.payload)
            key = None if self.id_column is None else entry.id
            made.append(Entry(payload, len(payload), entry.id, entry.position, key))
        return made


def _check(id_column: str | None, routing: str | None, rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    if id_column is not None:
        _check_ids(row_ids(rows, NOWHERE, id_column))
    _routings(rows, routing)


def _routings(rows: pa.RecordBatch, column: str | None) -> Sequence[str | None]:
    if column is None:
        return [None] * rows.num_rows
    values = texts_of(rows, "routing", column)
    if "" in values:
        raise SchemaMismatchError(
            f"A row has an empty text in the column {column!r}, which routing names. Give it a value."
        )
    return values


def _check_ids(ids: Sequence[str]) -> None:
    for one in ids:
        length = len(one.encode())
        if not 0 < length <= ID_BYTES_MAX:
            raise SchemaMismatchError(
                f"The id of a row has {length} bytes, and an _id has 1 to {ID_BYTES_MAX}. Give idColumn a "
                "column with shorter values, for example sha2(id, 256)."
            )


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that the service would refuse in each row."""
    for name in names:
        if name in _METADATA or not all(part.strip() for part in name.split(".")):
            raise SchemaMismatchError(
                f"The column {name!r} cannot be a field of a document: names are not empty, have no empty "
                "part between dots, and are none of the metadata fields such as _id. Rename it in the query."
            )
