"""Changes by key in OpenSearch and Elasticsearch: the `_id`, the version and the actions of a row.

With `lateRows=ignore` the column of `orderBy` is the version of a document (`version_type` `external_gte`):
the service refuses a row with a smaller one. A row with the same version is taken, so a replay is.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types

from ...committers.contract import Changes
from ...committers.errors import ConfigurationError, SchemaMismatchError
from ..requests.json_rows import json_objects
from ..requests.row_ids import check_text_column, texts_of

ID_BYTES_MAX = 512
_LARGEST = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SearchChanges:
    """Pickled to tasks, for their check."""

    keys: tuple[str, ...]
    version: str | None = None
    """The column with the version of a document. None: documents have no versions of their own."""
    routing: str | None = None

    @classmethod
    def of(cls, changes: Changes, routing: str | None) -> SearchChanges:
        """
        Raises:
            ConfigurationError: `lateRows=ignore` does not have one column of `orderBy`.
        """
        if changes.late_rows != "ignore":
            return cls(changes.keys, None, routing)
        if len(changes.order_by) != 1:
            raise ConfigurationError(
                f"lateRows=ignore: the version of a document is one number, and orderBy names "
                f"{', '.join(changes.order_by)}. Make one column of them in the query, or remove lateRows."
            )
        return cls(changes.keys, changes.order_by[0], routing)

    def check_schema(self, rows: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: a column cannot be part of an `_id`, or a version.
        """
        for key in _as_in(rows, self.keys):
            check_text_column(rows, "keys", key)
        if self.version is None:
            return
        data_type = rows.field(*_as_in(rows, [self.version])).type
        if not (_is_number(data_type) or types.is_timestamp(data_type) or types.is_date(data_type)):
            raise SchemaMismatchError(
                f"lateRows=ignore: orderBy names the column {self.version!r} of type {data_type}, "
                "and the version of a document is an integer from 0 on. Cast it to BIGINT in the query, or "
                "remove lateRows."
            )

    def places(self, rows: pa.RecordBatch) -> list[dict[str, object]]:
        """Return `_id`, version and routing of the document of each row.

        Raises:
            SchemaMismatchError: one of them is refused by the service.
        """
        ids = self._ids(rows)
        check_ids(ids, "keys")
        places: list[dict[str, object]] = [{"_id": one} for one in ids]
        if self.routing is not None:
            for place, routing in zip(places, routings(rows, self.routing), strict=True):
                place["routing"] = routing
        if self.version is not None:
            for place, version in zip(places, self._versions(rows, self.version), strict=True):
                place |= {"version": version, "version_type": "external_gte"}
        return places

    def _ids(self, rows: pa.RecordBatch) -> Sequence[str]:
        """Of one column, its text; of several, a JSON array of their texts."""
        columns = [texts_of(rows, "keys", key) for key in _as_in(rows.schema, self.keys)]
        if len(columns) == 1:
            return columns[0]
        encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        return [encode(values) for values in zip(*columns, strict=True)]

    def _versions(self, rows: pa.RecordBatch, name: str) -> list[int]:
        column = rows.column(*_as_in(rows.schema, [name]))
        if types.is_timestamp(column.type):
            column = column.cast(pa.int64())  # microseconds
        elif types.is_date(column.type):
            column = column.cast(pa.date32()).cast(pa.int32())
        versions = [int(value) for value in column.to_pylist()]
        if wrong := [version for version in versions if not 0 <= version <= _LARGEST]:
            raise SchemaMismatchError(
                f"A row has the version {wrong[0]} in the column {name!r}, which orderBy names. With "
                f"lateRows=ignore, versions are from 0 to {_LARGEST}. Filter these rows, or remove lateRows."
            )
        return versions


def _as_in(rows: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the names in the case of the rows, as `Changes` compares them."""
    of_rows = {name.lower(): name for name in rows.names}
    return [of_rows.get(name.lower(), name) for name in names]


def check_ids(ids: Sequence[str], option: str) -> None:
    """
    Args:
        option: that names their columns
    """
    for one in ids:
        length = len(one.encode())
        if not 0 < length <= ID_BYTES_MAX:
            raise SchemaMismatchError(
                f"The id of a row has {length} bytes, and an _id has 1 to {ID_BYTES_MAX}. Give {option} a "
                "column with shorter values, for example sha2(id, 256)."
            )


def routings(rows: pa.RecordBatch, column: str) -> Sequence[str]:
    values = texts_of(rows, "routing", column)
    if "" in values:
        raise SchemaMismatchError(
            f"A row has an empty text in the column {column!r}, which routing names. Give it a value."
        )
    return values


def upsert_actions(
    rows: pa.RecordBatch, places: Sequence[Mapping[str, object]], kept: Sequence[Collection[str]]
) -> list[bytes]:
    """Return two lines for each row: `index` for whole rows, `update` for those that keep values."""
    documents = json_objects(rows, kept)
    return [
        _lines("update", place, b'{"doc":%s,"doc_as_upsert":true}' % document)
        if some
        else _lines("index", place, document)
        for place, document, some in zip(places, documents, kept, strict=True)
    ]


def deletion_actions(places: Sequence[Mapping[str, object]]) -> list[bytes]:
    return [_lines("delete", place) for place in places]


def operation_of(action: bytes) -> str:
    """Return the operation of lines that this module, or `requests`, has made."""
    return action[2 : action.index(b'"', 2)].decode()


def _lines(operation: str, place: Mapping[str, object], *document: bytes) -> bytes:
    return b"".join([b"%s\n" % line for line in (json.dumps({operation: place}).encode(), *document)])


def _is_number(data_type: pa.DataType) -> bool:
    return bool(types.is_integer(data_type) or (types.is_decimal(data_type) and data_type.scale == 0))
