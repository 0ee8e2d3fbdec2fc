"""Finds the rows of an Iceberg table that a commit changes. See `masked_rows`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import FileFormat, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ..arrow_values import null_scalar, numeric_array, string_array
from ..changes.file_search import Search, SearchedFile, has_bounds
from ..changes.key_files import Keys, OpenFile, WrittenKeys, data_files, key_files, read_keys
from ..changes.masked_rows import KeySearch, MaskedRows
from ..changes.rewriting import TableRows
from ..changes.tombstones import Tombstones
from ..contract import Changes, Manifest
from ..errors import SchemaMismatchError, TableNotSupportedError
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from .arrow import arrow_type
from .live_files import LiveFiles
from .position_deletes import DeletedRows, DeleteFiles


class IcebergSearch:
    """Finds the rows of one manifest. Attempts to commit it share what they have read.

    Args:
        table_name: for messages
        files: of the table
        open_file: opens a file by its location
        search: searches the files of the table
        tombstones: of the table, if late rows are ignored
    """

    def __init__(
        self,
        manifest: Manifest,
        content: LakeManifest,
        table_name: str,
        files: TableFiles,
        open_file: OpenFile,
        search: Search,
        tombstones: Tombstones | None,
    ) -> None:
        assert isinstance(content.mode, Changes)
        self._manifest = manifest
        self._content = content
        self._changes = content.mode
        self._table_name = table_name
        self._files = files
        self._open = open_file
        self._search_files = search
        self._tombstones = tombstones
        self._new = [file.path for file in data_files(content.files)]
        self._planned = Schema.model_validate_json(content.schema_json)
        self._columns = {name: self._planned.find_field(name) for name in _compared(self._changes)}
        self._written: list[WrittenKeys] | None = None
        self._types: dict[str, pa.DataType] = {}
        self._search: KeySearch | None = None
        self.deleted_rows = DeletedRows(open_file)
        """What the delete files of the table delete."""

    def masked_rows(
        self,
        table: Table,
        live: LiveFiles,
        deletes: DeleteFiles,
        open_rows: Callable[[], TableRows],
    ) -> MaskedRows:
        """Find the rows in a version of the table.

        Args:
            live: the files of this version
            open_rows: called if rows may have to be computed

        Raises:
            TableNotSupportedError: the table has files that cannot be read.
            SchemaMismatchError: the table has lost a column that finds rows.
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged.
        """
        _check_parquet(live, self._table_name)
        search, written = self._search_in(table)
        schema = table.schema()
        searched = [
            SearchedFile(
                path,
                self._values(table, entry),
                self._bounds(schema, entry.data_file),
                size_bytes=entry.data_file.file_size_in_bytes,
            )
            for path, entry in live.data.items()
        ]
        new = {path: SearchedFile(f"{self._content.location}/{path}") for path in self._new}

        def read_masked(paths: Sequence[str]) -> Mapping[str, pa.Array]:
            applying = {path: deletes.applying_to(live.data[path]) for path in paths}
            self.deleted_rows.load(one for some in applying.values() for one in some)
            return {
                path: self.deleted_rows.of(live.data[path].data_file, some)
                for path, some in applying.items()
                if some
            }

        parts = [[new[path] for path in one.files] for one in written]
        return search.masked_rows(searched, parts, read_masked, open_rows)

    def _search_in(self, table: Table) -> tuple[KeySearch, list[WrittenKeys]]:
        """Return the search, a new one if the table's columns were widened since the last attempt."""
        types = {
            name: arrow_type(_current(table.schema(), column, self._table_name).field_type)
            for name, column in self._columns.items()
        }
        if self._search is None or self._written is None or types != self._types:
            batch = self._manifest.batch
            read = read_keys(batch, key_files(self._content.files), self._files.opened)
            self._types, self._written = types, [self._widened(one, types) for one in read]
            self._search = KeySearch(
                self._changes,
                self._written,
                [column.name for column in self._planned.fields],
                self._open,
                self._search_files,
                {name: column.field_id for name, column in self._columns.items()},
                _mapped_names(table, self._columns),
                self._tombstones,
            )
        return self._search, self._written

    def _widened(self, written: WrittenKeys, types: Mapping[str, pa.DataType]) -> WrittenKeys:
        """Return the keys with the types of the table, in which later files of others have them."""
        names = [*self._changes.identity, *self._changes.order_by]

        def widened(keys: Keys) -> Keys:
            columns = [
                column.cast(types[name]) if name in types else column
                for name, column in zip(names, (*keys.columns, *keys.order), strict=True)
            ]
            count = len(keys.columns)
            return replace(keys, columns=tuple(columns[:count]), order=tuple(columns[count:]))

        older = None if written.older is None else widened(written.older)
        return replace(written, keys=widened(written.keys), older=older)

    def _values(self, table: Table, entry: ManifestEntry) -> dict[str, pa.Scalar]:
        columns = {column.field_id: name for name, column in self._columns.items()}
        values = partition_values(table, entry.data_file, columns)
        return {name: value for name, value in values.items() if value is not None}

    def _bounds(self, schema: Schema, file: IcebergDataFile) -> dict[str, tuple[Any, Any]]:
        found, lower, upper = {}, file.lower_bounds or {}, file.upper_bounds or {}
        for name in self._changes.keys:
            number = self._columns[name].field_id
            kind = schema.find_field(number).field_type
            if not isinstance(kind, PrimitiveType) or not has_bounds(self._types[name]):
                continue
            if number in lower and number in upper:
                with suppress(ValueError):
                    found[name] = (_bound(kind, lower[number]), _bound(kind, upper[number]))
        return found


def partition_values(
    table: Table, file: IcebergDataFile, names: Mapping[int, str]
) -> dict[str, pa.Scalar | None]:
    """Return the values of columns that are the same in all rows of a file: in files that others have added,
    the columns of the partition may be missing. None: the value cannot be converted.

    Args:
        names: of columns, by their id
    """
    found = {}
    for number, part in enumerate(table.specs()[file.spec_id].fields):
        if part.source_id in names and str(part.transform) == "identity":
            kind = table.schema().find_field(part.source_id).field_type
            found[names[part.source_id]] = _scalar(file.partition[number], kind, arrow_type(kind))
    return found


def _compared(changes: Changes) -> list[str]:
    """Return the columns that find rows."""
    order = changes.order_by if changes.late_rows == "ignore" else ()
    return list(dict.fromkeys([*changes.identity, *changes.ends[:1], *order]))


def _current(schema: Schema, column: NestedField, table_name: str) -> NestedField:
    """
    Raises:
        SchemaMismatchError: the table does not have the column any more.
    """
    try:
        return schema.find_field(column.field_id)
    except ValueError:
        raise SchemaMismatchError(
            f"{table_name} has lost the column {column.name!r}, which keys or orderBy of the query name. The "
            "batch was not committed. Undo the change of the table."
        ) from None


def _mapped_names(table: Table, columns: Mapping[str, NestedField]) -> dict[str, Collection[str]]:
    """Names of columns in files without field ids, from the table's name mapping."""
    mapping = table.name_mapping()
    by_id = {} if mapping is None else {one.field_id: one.names for one in mapping.root}
    return {name: by_id[column.field_id] for name, column in columns.items() if column.field_id in by_id}


def _scalar(value: Any, kind: IcebergType, data_type: pa.DataType) -> pa.Scalar | None:
    """Return a partition value as a scalar; None if that is not possible."""
    if value is None:
        return null_scalar(data_type)
    if isinstance(kind, StringType) and isinstance(value, str):
        return string_array([value])[0]
    if isinstance(kind, DecimalType):
        return string_array([format(value, "f")])[0].cast(data_type)
    if isinstance(kind, DateType) and isinstance(value, int):
        return numeric_array([value], pa.int32())[0].cast(data_type)
    is_number = isinstance(kind, IntegerType | LongType | TimestampType | TimestamptzType)
    return numeric_array([value])[0].cast(data_type) if is_number and isinstance(value, int) else None


def _bound(kind: PrimitiveType, value: bytes) -> Any:
    """
    Raises:
        ValueError: the value has another type.
    """
    try:
        bound = from_bytes(kind, value)
        return date(1970, 1, 1) + timedelta(int(bound)) if isinstance(kind, DateType) else bound
    except (struct.error, OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None


def _check_parquet(live: LiveFiles, table_name: str) -> None:
    """
    Raises:
        TableNotSupportedError: rows cannot be found in the files of the table.
    """
    for path, entry in live.data.items():
        if entry.data_file.file_format is not FileFormat.PARQUET:
            raise TableNotSupportedError(
                f"{table_name} has data files that are not Parquet, for example {path}, in which rows cannot "
                "be found by key. Nothing was committed. Rewrite them: CALL ... rewrite_data_files(table => "
                "'...', options => map('rewrite-all', 'true'))."
            )
