"""How rows become documents of OpenSearch and Elasticsearch.

Runs on executors and in the delivery process.
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.errors import PenstockError, SchemaMismatchError
from ...committers.requests.contract import NOWHERE, RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import check_values
from ..requests.results import Failure
from ..requests.row_ids import check_text_column, id_with_content, row_ids
from .changes import SearchChanges, check_ids, deletion_actions, routings, upsert_actions
from .checks import refused
from .client import SearchClient
from .target import SearchTarget

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
    changes: SearchChanges | None = None
    """None: rows are appended."""

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

    # Changes by key ------------------------------------------------------------------------------------

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        self._changes.check_schema(rows)

    def why_whole(self, rows: pa.Schema) -> str:
        if self._changes.version is not None:
            return "With lateRows=ignore: the services do not take external versions for updates"
        if self.target.pipeline is not None:
            return "With a pipeline: the services run none for updates with doc_as_upsert"
        maps = [column.name for column in rows if _has_map(column.type)]
        return (
            f"The MAP column {maps[0]}: an update merges objects, and keeps keys of the old map"
            if maps
            else ""
        )

    def deletion_checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check_changes, self._changes)

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[bytes]]:
        return _entries(upsert_actions(rows, self._changes.places(rows), kept), place)

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        return _entries(deletion_actions(self._changes.places(rows)), place)

    @property
    def _changes(self) -> SearchChanges:
        assert self.changes is not None
        return self.changes

    # Rows ----------------------------------------------------------------------------------------------

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        if self.changes is not None:
            return partial(_check_changes, self.changes)
        return partial(_check, self.id_column, self.routing)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        """Rows with the same id are sent in their order."""
        entries: Sequence[Entry[bytes]] = JsonRequests.entries(self, rows, place)
        if self.id_column is None and not place.is_fixed:
            entries = [replace(entry, id=id_with_content(entry.id, entry.payload)) for entry in entries]
        check_ids([one.id for one in entries], "idColumn")
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


def _entries(actions: Sequence[bytes], place: RowPlace) -> list[Entry[bytes]]:
    ids = place.ids(len(actions))
    return [Entry(one, len(one), row_id, place.position) for one, row_id in zip(actions, ids, strict=True)]


def _has_map(data_type: pa.DataType) -> bool:
    inner = (data_type.field(number).type for number in range(data_type.num_fields))
    return pa.types.is_map(data_type) or any(map(_has_map, inner))


def _check(id_column: str | None, routing: str | None, rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    if id_column is not None:
        check_ids(row_ids(rows, NOWHERE, id_column), "idColumn")
    _routings(rows, routing)


def _routings(rows: pa.RecordBatch, column: str | None) -> Sequence[str | None]:
    return [None] * rows.num_rows if column is None else routings(rows, column)


def _check_changes(changes: SearchChanges, rows: pa.RecordBatch) -> None:
    check_values(rows)
    changes.places(rows)


def _check_names(names: Sequence[str]) -> None:
    """Refuse names that the service would refuse in each row."""
    for name in names:
        if name in _METADATA or not all(part.strip() for part in name.split(".")):
            raise SchemaMismatchError(
                f"The column {name!r} cannot be a field of a document: names are not empty, have no empty "
                "part between dots, and are none of the metadata fields such as _id. Rename it in the query."
            )
