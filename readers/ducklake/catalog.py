"""What the catalog of a DuckLake has of the files of a table, and of rows that it stores itself. Driver only.

Rows are known by the snapshot that has added them, here their origin. Merging files and flushing rows of the
catalog put rows of several origins into one file, which is then in all these snapshots, and has the origins
in a column. So only origins say for good which rows were added when.

Source: https://ducklake.select/docs/stable/specification/introduction
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.ducklake.connection import DatabaseError, Lake, literal
from ...committers.errors import TableNotSupportedError
from ...committers.postgres.address import quoted
from ..predicates import Predicate
from ..scan import ScanFile
from ..shapes import NamedField, conform
from .columns import LakeColumn, arrow_field, name_mappings
from .files import DeletedRows, InlinedRows, NewlyDeleted, Origins
from .ranges import file_ranges
from .table import SO, DuckLakeVersion

_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
ORIGIN = "_ducklake_internal_snapshot_id"
_NO_NUMBERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class DataFile:
    number: int
    path: str
    size_bytes: int
    rows: int
    mapping: object
    first: int
    """Origin of its first rows."""
    newest: int
    """That of its last ones."""
    end: int | None
    """First snapshot without it; None: the newest one has it."""
    is_partial: bool
    """It was made from rows of several snapshots."""

    @property
    def origins(self) -> Origins:
        return Origins(self.first - 1, self.newest)


@dataclass(frozen=True, slots=True)
class DeleteFile:
    path: str
    begin: int
    end: int | None
    newest: int | None
    """Newest snapshot of which it has deletions; None: not known."""

    def is_in(self, snapshot: int) -> bool:
        return self.begin <= snapshot and (self.end is None or self.end > snapshot)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """Rows of a snapshot, and their origins."""

    file: ScanFile
    origins: Origins


@dataclass(frozen=True)
class CatalogFiles:
    """The files of snapshots, read from the catalog at once.

    Args:
        lake: in a transaction
        version: the table, with the columns that are read
        first: first of the snapshots
        last: last of them
        origins: rows with other ones are not needed
        where: files without matching rows are not needed
        types: of all columns that are read: also those that only the condition compares
    """

    lake: Lake
    version: DuckLakeVersion
    first: int
    last: int
    origins: Origins
    where: Predicate | None
    types: pa.Schema

    def data_files(self, snapshot: int, origins: Origins) -> list[FoundFile]:
        """Return the data files with rows of a snapshot that have these origins.

        Raises:
            TableNotSupportedError: they cannot be read.
        """
        return [FoundFile(*found) for found in self._data_files_of(snapshot, origins)]

    # Data files -----------------------------------------------------------------------------------------

    def _data_files_of(self, snapshot: int, origins: Origins) -> Iterator[tuple[ScanFile, Origins]]:
        for file in self._data_files:
            if origins.overlap(file.origins) and self._may_match(file):
                yield self._scan_file(file, self._deleted_rows(file, snapshot, origins)), file.origins

    def _may_match(self, file: DataFile) -> bool:
        """Return False if no row matches the condition."""
        return self.where is None or self.where.may_match(
            file_ranges(self._stats[file.number], file.rows, self.types)
        )

    def _deleted_rows(self, file: DataFile, snapshot: int, origins: Origins) -> DeletedRows:
        return DeletedRows(
            snapshot,
            tuple(one.path for one in self._delete_files.get(file.number, ()) if one.is_in(snapshot)),
            self._inlined_deletes_of(file.number, snapshot),
            () if origins.contain(file.origins) else (origins,),
        )

    def _scan_file(
        self, file: DataFile, deleted: DeletedRows | None, only: NewlyDeleted | None = None
    ) -> ScanFile:
        named, folders = self._mappings.get(file.mapping, ((), ()))
        return ScanFile(
            file.path,
            file.size_bytes,
            values=(*self._defaults, *_values_of_folders(file.path, folders)),
            deletes=None if deleted is None or deleted.are_none else deleted,
            only=only,
            mapping=named,
        )

    @cached_property
    def _defaults(self) -> tuple[tuple[str, str], ...]:
        return tuple((one.name, one.default) for one in self.version.columns if one.default is not None)

    @property
    def _is_needed(self) -> str:
        """The condition for data files `f`."""
        return (
            f"f.table_id = {self.version.table_id} AND f.begin_snapshot <= {self.origins.until} "
            f"AND coalesce(f.partial_max, f.begin_snapshot) > {self.origins.after} "
            f"AND {self._is_there('f')}"
        )

    def _is_there(self, table: str) -> str:
        """The condition for rows of the catalog that are in one of the snapshots."""
        return (
            f"{table}.begin_snapshot <= {self.last} "
            f"AND ({table}.end_snapshot IS NULL OR {table}.end_snapshot > {self.first})"
        )

    def _of_files(self, table: str, number: str = "data_file_id") -> str:
        """FROM and WHERE for rows of the catalog `d` that are about needed data files."""
        files = self.lake.metadata("ducklake_data_file")
        needed = f"SELECT f.data_file_id FROM {files} f WHERE {self._is_needed}"
        return f"FROM {self.lake.metadata(table)} d WHERE d.{number} IN ({needed})"

    @cached_property
    def _data_files(self) -> list[DataFile]:
        rows = self.lake.rows(
            "SELECT data_file_id, path, path_is_relative, file_size_bytes, record_count, mapping_id, "
            "begin_snapshot, coalesce(partial_max, begin_snapshot), end_snapshot, partial_max IS NOT NULL, "
            f"file_format, encryption_key FROM {self.lake.metadata('ducklake_data_file')} f "
            f"WHERE {self._is_needed} ORDER BY data_file_id"
        )
        found = []
        for number, path, is_relative, *known, kind, key in rows:
            self._check(path, kind, key)
            found.append(DataFile(number, self._path(path, is_relative), *known))
        return found

    def _path(self, path: str, is_relative: object) -> str:
        return posixpath.join(self.version.folder, path) if is_relative else path

    def _check(self, path: str, kind: object, key: object) -> None:
        if str(kind).lower() != "parquet" or key is not None:
            problem = "is encrypted" if key is not None else f"is {kind}, and Penstock reads Parquet"
            raise self._unreadable(f"the file {path} {problem}. {SO}.")

    def _unreadable(self, problem: str) -> TableNotSupportedError:
        name = self.version.shown
        return TableNotSupportedError(f"{name[0].upper()}{name[1:]} cannot be read: {problem}")

    @cached_property
    def _delete_files(self) -> Mapping[int, Sequence[DeleteFile]]:
        """By the id of the data file."""
        found: dict[int, list[DeleteFile]] = defaultdict(list)
        rows = self.lake.rows(
            "SELECT d.data_file_id, d.path, d.path_is_relative, d.begin_snapshot, d.end_snapshot, "
            "d.partial_max, d.format, d.encryption_key "
            f"{self._of_files('ducklake_delete_file')} AND {self._is_there('d')}"
        )
        for number, path, is_relative, *snapshots, kind, key in rows:
            self._check(path, kind, key)
            found[number].append(DeleteFile(self._path(path, is_relative), *snapshots))
        return found

    @cached_property
    def _inlined_deletes(self) -> Mapping[int, tuple[pa.Array, pa.Array]]:
        """Numbers of rows, and the snapshots that have deleted them, by the id of the data file."""
        table = f"ducklake_inlined_delete_{self.version.table_id}"
        try:
            self.lake.cursor.execute(
                f"SELECT d.file_id, d.row_id, d.begin_snapshot {self._of_files(table, 'file_id')} "
                f"AND d.begin_snapshot <= {self.last} ORDER BY ALL"
            )
        except DatabaseError as error:
            if "does not exist" in str(error):
                return {}
            raise
        rows = self.lake.cursor.to_arrow_table().combine_chunks()
        groups = rows.group_by("file_id").aggregate([("row_id", "list"), ("begin_snapshot", "list")])
        return {
            row["file_id"]: (
                pa.array(row["row_id_list"], pa.int64()),
                pa.array(row["begin_snapshot_list"], pa.int64()),
            )
            for row in groups.to_pylist()
        }

    def _inlined_deletes_of(self, number: int, snapshot: int) -> pa.Array | None:
        if number not in self._inlined_deletes:
            return None
        rows, begins = self._inlined_deletes[number]
        found = rows.filter(pc.less_equal(begins, numeric_scalar(snapshot)))
        return found if len(found) else None

    @cached_property
    def _stats(self) -> Mapping[int, Mapping[str, Sequence[Any]]]:
        """What is known of compared columns in files, by the id of the file: see `file_ranges`."""
        found: dict[int, dict[str, Sequence[Any]]] = defaultdict(dict)
        compared = set() if self.where is None else set(self.where.columns())
        names = {column.number: column.name for column in self.version.columns if column.name in compared}
        if names:
            rows = self.lake.rows(
                "SELECT d.data_file_id, d.column_id, d.null_count, d.min_value, d.max_value "
                f"{self._of_files('ducklake_file_column_stats')} "
                f"AND d.column_id IN ({', '.join(map(str, names))})"
            )
            for number, column, *stats in rows:
                found[number][names[column]] = stats
        return found

    @cached_property
    def _mappings(self) -> Mapping[object, tuple[tuple[NamedField, ...], Sequence[tuple[str, str]]]]:
        """What the names of columns and of folders mean in files that DuckLake has not written, by the id of
        the mapping.
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

    # Rows of the catalog --------------------------------------------------------------------------------

    def inlined(
        self, snapshot: int, columns: Sequence[LakeColumn], origins: Origins | None = None
    ) -> pa.Table:
        """Return the rows of a snapshot that the catalog has.

        Args:
            columns: of the table in the snapshot
            origins: only rows with these, in their order, and in one more column; None: all rows

        Returns:
            Columns of the table have field ids.

        Raises:
            TableNotSupportedError: they cannot be read.
        """
        tables = [
            table
            for table, found in self._inlined_origins.items()
            if any(origins is None or origins.has(one) for one in found)
        ]
        if origins is None:
            return self._inlined(snapshot, columns, tables)
        more = f"AND snapshot_id BETWEEN {origins.after + 1} AND {origins.until}"
        rows = self._inlined(snapshot, columns, tables, {"snapshot_id": ORIGIN}, more)
        # Arrow sorts: with ORDER BY, duckdb gives wrong values where its statistics lack those of the catalog
        return rows.take(pc.sort_indices(rows[ORIGIN]))

    def _inlined(
        self,
        snapshot: int,
        columns: Sequence[LakeColumn],
        tables: Sequence[str],
        numbers: Mapping[str, str] = _NO_NUMBERS,
        condition: str = "",
    ) -> pa.Table:
        """Return rows of tables of the catalog.

        Args:
            numbers: columns that duckdb adds to the rows, which are returned as int64 after the others, and
                their names there
            condition: more of the WHERE
        """
        wanted = {one.number for one in self.version.columns if one.name in self.types.names}
        fields = [arrow_field(one, self.version.shown) for one in columns if one.number in wanted]
        listed = ["0", *map(_selected_column, fields), *numbers]
        added = [pa.field(name, pa.int64()) for name in numbers.values()]
        schema = pa.schema([pa.field("nothing", pa.int32()), *fields, *added])
        if not tables:
            return schema.empty_table()
        self._check_virtual([column.name.lower() for column in columns], ("filename", *numbers))
        address = self.version.server.address
        names = ", ".join(map(literal, tables))
        found = self.lake.cursor.execute(
            f"SELECT {', '.join(listed)} FROM {self.lake.table(address.schema, address.table)} "
            f"AT (VERSION => {snapshot}) WHERE filename IN ({names}) {condition}"
        ).to_arrow_table()
        arrays = [one.combine_chunks() for one in found.columns]
        typed = [conform(one, field.type) for one, field in zip(arrays, schema, strict=True)]
        return pa.Table.from_arrays(typed, schema=schema)

    def _check_virtual(self, names: Sequence[str], added: Iterable[str]) -> None:
        """
        Args:
            names: of the table's columns
            added: columns that duckdb adds to the rows of a table, unless the table has them
        """
        for name in added:
            if name in names:
                raise self._unreadable(
                    f"it has a column {name!r}, and rows that are inlined into the catalog, which cannot be "
                    f"told from others then. {SO}. Call ducklake_flush_inlined_data."
                )

    def inlined_file(self, rows: pa.RecordBatch) -> ScanFile:
        """Return rows of `inlined` as a file."""
        size = sum(column.nbytes for column in rows.columns)
        return ScanFile("rows of the catalog", max(size, 1), self._defaults, only=InlinedRows(rows))

    @cached_property
    def _inlined_origins(self) -> Mapping[str, Mapping[int, bool]]:
        """Tables of the catalog with rows that may be needed, and their origins: True if the last snapshot
        no longer has some of the rows.
        """
        return {
            table: dict(
                self.lake.rows(
                    f"SELECT f.begin_snapshot, bool_or(coalesce(f.end_snapshot <= {self.last}, false)) "
                    f"FROM {self.lake.metadata(table)} f WHERE f.begin_snapshot > {self.origins.after} "
                    f"AND f.begin_snapshot <= {self.origins.until} AND {self._is_there('f')} GROUP BY ALL"
                )
            )
            for table in self._inlined_tables  # not in one statement: duckdb reads one table for all of them
        }

    def has_inlined(self, origin: int) -> bool:
        return any(origin in found for found in self._inlined_origins.values())

    def has_lost_inlined(self, origin: int) -> bool:
        """Return whether the last snapshot no longer has some of the rows with this origin."""
        return any(found.get(origin, False) for found in self._inlined_origins.values())

    @cached_property
    def _inlined_tables(self) -> list[str]:
        rows = self.lake.rows(
            f"SELECT table_name FROM {self.lake.metadata('ducklake_inlined_data_tables')} WHERE table_id = ?",
            self.version.table_id,
        )
        return [str(table) for (table,) in rows]

    # Deletions ------------------------------------------------------------------------------------------

    @cached_property
    def deletions(self) -> frozenset[int]:
        """Those of the snapshots in which rows were deleted, unless the deletions were flushed since."""
        of_table = f"table_id = {self.version.table_id} AND"
        places = [
            ("begin_snapshot", "ducklake_delete_file", of_table),
            ("end_snapshot", "ducklake_data_file", of_table),
            *[("end_snapshot", table, "") for table in self._inlined_tables],
        ]
        if self._inlined_deletes:
            places.append(("begin_snapshot", f"ducklake_inlined_delete_{self.version.table_id}", ""))
        found: set[int] = set()
        for column, table, condition in places:
            found.update(
                number
                for (number,) in self.lake.rows(
                    f"SELECT {column} FROM {self.lake.metadata(table)} "
                    f"WHERE {condition} {column} BETWEEN {self.first} AND {self.last}"
                )
            )
        return frozenset(found)


def _values_of_folders(path: str, folders: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str | None]]:
    """Yield the values of columns that are in the path of a file.

    Args:
        folders: names of the folders, and of the columns
    """
    parts = dict(part.partition("=")[::2] for part in path.split("/") if "=" in part)
    for folder, column in folders:
        value = unquote(parts.get(folder, _NULL_FOLDER))
        yield column, None if value == _NULL_FOLDER else value


def _selected_column(field: pa.Field) -> str:
    """Return the column for a SELECT, as the type in which it is read."""
    name = quoted(field.name)
    return f"CAST({name} AS VARCHAR) AS {name}" if field.type == pa.string() else name
