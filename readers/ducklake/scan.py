"""Plans the scan of a DuckLake table: its columns, its files, and the rows that the catalog has.

Runs on the driver.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ...committers.ducklake.connection import DatabaseError, Lake, literal
from ...committers.errors import RetryableError, TableNotSupportedError
from ...committers.postgres.address import quoted
from ..arrow_fields import spark_field
from ..predicates import Predicate
from ..scan import BATCH_ROWS_MAX, Scan, ScanFile
from ..shapes import NamedField, without_metadata
from .columns import LakeColumn, arrow_field, name_mappings
from .files import DeletedRows, DuckLakeFiles, DuckLakeScan, InlinedRows
from .ranges import file_ranges
from .table import SO, DuckLakeVersion, in_snapshot, is_there

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class DuckLakeTableReader:
    """One snapshot of a DuckLake table. See `TableReader`."""

    version: DuckLakeVersion

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def _columns(self) -> Mapping[str, LakeColumn]:
        return {column.name: column for column in self.version.columns}

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`. The columns have field ids.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        return pa.schema([arrow_field(self._columns[name], self.name) for name in names])

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> DuckLakeScan:
        """See `TableReader`."""
        storage = dict(self.version.server.storage)
        files = DuckLakeFiles(self.name, self.version.snapshot, storage)
        return DuckLakeScan(Scan(self.name, self.schema(columns), schema, files))

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """See `TableReader`. Rows that the catalog has are files, too.

        Raises:
            RetryableError: the catalog cannot be reached now, or the snapshot has expired.
            TableNotSupportedError: the table has files that cannot be read.
        """
        with self.version.server.attached(SO) as lake:
            if lake is not None:
                lake.begin()
            if lake is None or not is_there(lake, self.version.snapshot):
                raise RetryableError(
                    f"{self.name[0].upper()}{self.name[1:]} has expired since the query was planned. {SO}. "
                    "Read the table again."
                )
            catalog = SnapshotFiles(lake, self.version)
            compared = () if where is None else tuple(where.columns())
            found = list(self._selected(catalog, where, types, compared))
            found += _inlined(catalog.inlined(types))
        yield from found

    def _selected(
        self, catalog: SnapshotFiles, where: Predicate | None, types: pa.Schema, compared: Sequence[str]
    ) -> Iterator[ScanFile]:
        stats = catalog.stats([self._columns[name] for name in compared])
        deletes, mappings = catalog.deletes(), catalog.mappings()
        defaults = tuple(
            (column.name, column.default) for column in self.version.columns if column.default is not None
        )
        for number, path, size, rows, mapping, has_newer in catalog.data_files():
            if where is not None and not where.may_match(file_ranges(stats[number], rows, types)):
                continue
            named, folders = mappings.get(mapping, ((), ()))
            deleted = replace(deletes.get(number, _NOTHING), has_newer=has_newer)
            yield ScanFile(
                path,
                size,
                values=(*defaults, *_values_of_folders(path, folders)),
                deletes=None if deleted == _NOTHING else deleted,
                mapping=named,
            )


_NOTHING = DeletedRows()


def _inlined(rows: pa.Table | None) -> list[ScanFile]:
    batches = [] if rows is None else rows.combine_chunks().to_batches(BATCH_ROWS_MAX)
    return [
        ScanFile("rows of the catalog", max(batch.nbytes, 1), only=InlinedRows(batch)) for batch in batches
    ]


def _values_of_folders(path: str, folders: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str | None]]:
    """Yield the values of columns that are in the path of a file.

    Args:
        folders: names of the folders, and of the columns
    """
    parts = dict(part.partition("=")[::2] for part in path.split("/") if "=" in part)
    for folder, column in folders:
        value = unquote(parts.get(folder, _NULL_FOLDER))
        yield column, None if value == _NULL_FOLDER else value


@dataclass(frozen=True)
class SnapshotFiles:
    """What the catalog has of a table in one snapshot."""

    lake: Lake
    version: DuckLakeVersion

    def _rows(self, select: str, table: str, condition: str = "") -> list[tuple[Any, ...]]:
        snapshot = self.version.snapshot
        return self.lake.rows(
            f"SELECT {select} FROM {self.lake.metadata(table)} f WHERE f.table_id = ? "
            f"AND {in_snapshot('f')} {condition}",
            self.version.table_id,
            snapshot,
            snapshot,
        )

    def _path(self, path: str, is_relative: object) -> str:
        return posixpath.join(self.version.folder, path) if is_relative else path

    def data_files(self) -> Iterator[tuple[int, str, int, int, object, bool]]:
        """Yield id, path, size in bytes, number of rows, id of the mapping of names, and whether the file has
        rows of later snapshots.
        """
        found = self._rows(
            "data_file_id, path, path_is_relative, file_size_bytes, record_count, mapping_id, partial_max, "
            "file_format, encryption_key",
            "ducklake_data_file",
            "ORDER BY data_file_id",
        )
        for number, path, is_relative, size, rows, mapping, newest, kind, key in found:
            self._check(path, kind, key)
            has_newer = newest is not None and newest > self.version.snapshot
            yield number, self._path(path, is_relative), size, rows, mapping, has_newer

    def _check(self, path: str, kind: object, key: object) -> None:
        if str(kind).lower() != "parquet" or key is not None:
            problem = "is encrypted" if key is not None else f"is {kind}, and Penstock reads Parquet"
            name = self.version.shown
            raise TableNotSupportedError(
                f"{name[0].upper()}{name[1:]} cannot be read: the file {path} {problem}. {SO}."
            )

    def deletes(self) -> dict[int, DeletedRows]:
        """Return the deleted rows of data files, by the id of the file."""
        files: dict[int, list[str]] = defaultdict(list)
        for number, path, is_relative, kind, key in self._rows(
            "data_file_id, path, path_is_relative, format, encryption_key", "ducklake_delete_file"
        ):
            self._check(path, kind, key)
            files[number].append(self._path(path, is_relative))
        inlined = self._inlined_deletes()
        return {
            number: DeletedRows(tuple(files.get(number, ())), inlined.get(number))
            for number in files.keys() | inlined.keys()
        }

    def _inlined_deletes(self) -> dict[int, pa.Array]:
        table = self.lake.metadata(f"ducklake_inlined_delete_{self.version.table_id}")
        try:
            self.lake.cursor.execute(
                f"SELECT file_id, row_id FROM {table} WHERE begin_snapshot <= ? ORDER BY ALL",
                [self.version.snapshot],
            )
        except DatabaseError as error:
            if "does not exist" in str(error):
                return {}
            raise
        found = self.lake.cursor.to_arrow_table().combine_chunks()
        groups = found.group_by("file_id").aggregate([("row_id", "list")])
        return {row["file_id"]: pa.array(row["row_id_list"], pa.int64()) for row in groups.to_pylist()}

    def stats(self, columns: Sequence[LakeColumn]) -> Mapping[int, Mapping[str, Sequence[Any]]]:
        """Return what is known of columns in files, by the id of the file: see `file_ranges`."""
        found: dict[int, dict[str, Sequence[Any]]] = defaultdict(dict)
        names = {column.number: column.name for column in columns}
        if names:
            rows = self.lake.rows(
                "SELECT data_file_id, column_id, null_count, min_value, max_value "
                f"FROM {self.lake.metadata('ducklake_file_column_stats')} "
                f"WHERE table_id = ? AND column_id IN ({', '.join(map(str, names))})",
                self.version.table_id,
            )
            for number, column, *stats in rows:
                found[number][names[column]] = stats
        return found

    def mappings(self) -> dict[object, tuple[tuple[NamedField, ...], Sequence[tuple[str, str]]]]:
        """Return what the names of columns and of folders mean in files that DuckLake has not written, by the
        id of the mapping.
        """
        rows = self.lake.rows(
            "SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.parent_column, "
            f"n.is_partition FROM {self.lake.metadata('ducklake_name_mapping')} n "
            f"JOIN {self.lake.metadata('ducklake_column_mapping')} m ON m.mapping_id = n.mapping_id "
            "WHERE m.table_id = ? ORDER BY n.mapping_id, n.column_id",
            self.version.table_id,
        )
        names = {column.number: column.name for column in self.version.columns}
        folders: dict[object, list[tuple[str, str]]] = defaultdict(list)
        for mapping, _, name, field_id, _, is_folder in rows:
            if is_folder and field_id in names:
                folders[mapping].append((name, names[field_id]))
        of_columns = name_mappings((row[:5] for row in rows), self.version.columns)
        return {mapping: (named, folders[mapping]) for mapping, named in of_columns.items()}

    def inlined(self, columns: pa.Schema) -> pa.Table | None:
        """Return the rows that the catalog has; None if there are none."""
        tables = self.lake.rows(
            f"SELECT table_name FROM {self.lake.metadata('ducklake_inlined_data_tables')} WHERE table_id = ?",
            self.version.table_id,
        )
        if not any(self._has_rows(table) for (table,) in tables):
            return None
        if any(column.name.lower() == "filename" for column in self.version.columns):
            name = self.version.shown
            raise TableNotSupportedError(
                f"{name[0].upper()}{name[1:]} cannot be read: it has a column 'filename', and rows that are "
                f"inlined into the catalog, which cannot be told from others then. {SO}. Call "
                "ducklake_flush_inlined_data."
            )
        address = self.version.server.address
        names = ", ".join(literal(table) for (table,) in tables)
        listed = [_selected_column(field) for field in columns] or ["NULL AS nothing"]
        found = self.lake.cursor.execute(
            f"SELECT {', '.join(listed)} FROM {self.lake.table(address.schema, address.table)} "
            f"AT (VERSION => {self.version.snapshot}) WHERE filename IN ({names})"
        )
        return found.to_arrow_table()

    def _has_rows(self, table: str) -> bool:
        snapshot = self.version.snapshot
        return bool(
            self.lake.rows(
                f"SELECT 1 FROM {self.lake.metadata(table)} f WHERE {in_snapshot('f')} LIMIT 1",
                snapshot,
                snapshot,
            )
        )


def _selected_column(field: pa.Field) -> str:
    """Return the column for a SELECT, as the type in which it is read."""
    name = quoted(field.name)
    return f"CAST({name} AS VARCHAR) AS {name}" if without_metadata(field.type) == pa.string() else name
