"""Plans the scan of a Lance table, and reads its fragments with Lance's own reader.

A fragment is a file of the scan. Lance leaves out the rows that its deletion files delete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import PenstockError, RetryableError
from ...committers.lance.library import in_short
from ..arrow_fields import check_readable, readable_field, spark_field
from ..predicates import Predicate
from ..rows import converted, matching, types_of
from ..scan import BATCH_BYTES, BATCH_ROWS_MAX, ScanFile
from ..streaming.change_feed import CHANGE_FIELDS, ChangeValues
from .filters import lance_filter
from .table import open_version, unreadable
from .versions import ColumnIds, mark_of

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata, LanceFragment

_ADDRESS = "_rowaddr"
_BATCHES_AHEAD = 2
_IO_BUFFER_BYTES = 64 * 1024 * 1024
_ROW_BYTES = 64
"""Taken as the size of a row if a table does not say how large its files are."""


@dataclass(frozen=True, slots=True)
class FragmentRows:
    """Which fragment of which version a `ScanFile` is."""

    version: int
    fragment_id: int
    rows: int
    """Those that are not deleted."""
    columns: ColumnIds | None = None
    """Those that the version has; all others are NULL. None: it has all that are read."""
    mark: str | None = None
    """See `mark_of`. Only needed if the files of a scan are of several versions."""
    without: int | None = None
    """Only rows are read that this version has deleted."""


@dataclass(frozen=True)
class LanceTableReader:
    """One version of a Lance table. See `TableReader`."""

    table: LanceDataset
    storage_options: Mapping[str, str] = field(repr=False)
    reads_changes: bool = False
    """It has the columns of a change feed."""

    @property
    def name(self) -> str:
        return f"version {self.table.version} of the Lance table {self.table.uri}"

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._fields)

    @cached_property
    def _fields(self) -> pa.Schema:
        return pa.schema([*self.table.schema, *(CHANGE_FIELDS if self.reads_changes else ())])

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        fields = [self._fields.field(name) for name in names]
        check_readable(fields, self.name)
        return pa.schema([readable_field(one) for one in fields])

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`. Vectors are arrays, and half floats are floats."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> LanceScan:
        """See `TableReader`."""
        options = dict(self.storage_options)
        return LanceScan(self.name, self.table.uri, options, self.schema(columns), schema)

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the fragments. Lance knows no bounds of their columns: it skips rows when it reads them."""
        for fragment in self.table.get_fragments():
            metadata = fragment.metadata
            if metadata.num_rows:
                yield scan_file(metadata, self.table.version)


def scan_file(
    fragment: FragmentMetadata,
    version: int,
    columns: ColumnIds | None = None,
    values: ChangeValues = (),
    without: int | None = None,
) -> ScanFile:
    """Return a fragment, as a version has it, as a file of a scan.

    Args:
        columns: given if the scan is of several versions
        values: of the columns of the change feed
        without: see `FragmentRows`
    """
    rows = fragment.num_rows
    size = sum(file.file_size_bytes or 0 for file in fragment.files) or rows * _ROW_BYTES
    mark = None if columns is None else mark_of(fragment)
    only = FragmentRows(version, fragment.id, rows, columns, mark, without)
    return ScanFile(_path(fragment), size, values, only=only)


def _path(fragment: FragmentMetadata) -> str:
    """Return a file of the fragment, which no fragment of another table has."""
    return str(fragment.files[0].path)


@dataclass(frozen=True)
class LanceScan:
    """How the fragments of versions of a table are read. See `TableScanner`."""

    name: str
    """For messages."""
    table_uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    columns: pa.Schema
    """Those of the table that are read."""
    schema: pa.Schema
    """Of the rows that are returned."""
    where: Predicate | None = None

    def with_where(self, where: Predicate | None) -> LanceScan:
        return replace(self, where=where)

    def in_a_task(self) -> LanceScan:
        """See `TableScanner`. Lance's threads are those of the process in any case."""
        return self

    def named(self, table: str) -> LanceScan:
        """See `StreamScanner`."""
        return replace(self, name=table)

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """See `TableScanner`. Each version is opened once."""
        table: LanceDataset | None = None
        for file in sorted(files, key=_version):
            if table is None or table.version != _version(file):
                table = self._open(file, _version(file))
            yield from self._read(table, file)

    def _open(self, file: ScanFile, version: int) -> LanceDataset:
        table = open_version(self.table_uri, self.storage_options, version)
        if table is None:
            raise self._missing(file)
        return table

    def _read(self, table: LanceDataset, file: ScanFile) -> Iterator[pa.RecordBatch]:
        fragment = self._fragment(table, file)
        types = types_of(self.columns, self.schema)
        missing = self._missing_columns(file)
        own = pa.schema([one for one in types if one.name not in missing])
        try:
            kept = self._rows_of_other_version(file)
            for rows in fragment.to_batches(**self._arguments(file, missing)):
                if kept is not None:
                    rows = rows.filter(pc.invert(pc.is_in(rows.column(_ADDRESS), value_set=kept)))
                there = _completed(converted(rows, own), types, dict(file.values))
                found = matching(there, self.where, self.schema)
                if found.num_rows:
                    yield found
        except PenstockError:
            raise
        except Exception as error:
            raise self._failed(file, error) from error

    def _rows_of_other_version(self, file: ScanFile) -> pa.Array | None:
        """Return the addresses of rows that are left out: a number for each row of the fragment."""
        assert isinstance(file.only, FragmentRows)
        if file.only.without is None:
            return None
        fragment = self._open(file, file.only.without).get_fragment(file.only.fragment_id)
        if fragment is None:
            raise self._missing(file)
        rows = fragment.to_table(columns=[], with_row_address=True)
        return rows.column(_ADDRESS).combine_chunks()

    def _missing_columns(self, file: ScanFile) -> list[str]:
        """Return the columns that the version of a file does not have."""
        assert isinstance(file.only, FragmentRows)
        there = None if file.only.columns is None else dict(file.only.columns)
        return [] if there is None else [name for name in self.columns.names if name not in there]

    def _failed(self, file: ScanFile, error: Exception) -> PenstockError:
        if "not found" in str(error).lower():
            return self._missing(file)
        if not isinstance(error, pa.ArrowException):
            return unreadable(f"The file {file.path} of {self.name}", error)
        return PenstockError(
            f"The file {file.path} of {self.name} has values that cannot be read: {in_short(error)}. Give "
            "the other columns in the option columns."
        )

    def _fragment(self, table: LanceDataset, file: ScanFile) -> LanceFragment:
        """
        Raises:
            RetryableError: the version has other fragments now: the table was created again.
        """
        only = file.only
        assert isinstance(only, FragmentRows)
        fragment = table.get_fragment(only.fragment_id)
        found = None if fragment is None else fragment.metadata
        if fragment is None or found is None or (_path(found), found.num_rows) != (file.path, only.rows):
            raise self._missing(file)
        if only.mark not in (None, mark_of(found)):
            raise self._missing(file)
        return fragment

    def _arguments(self, file: ScanFile, missing: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of Lance's scan. With a filter, an offset would count matching rows."""
        assert isinstance(file.only, FragmentRows)
        names = [name for name in self.columns.names if name not in missing]
        arguments: dict[str, Any] = {
            "columns": names,
            "batch_size": BATCH_ROWS_MAX,
            "batch_size_bytes": BATCH_BYTES,
            "batch_readahead": _BATCHES_AHEAD,
            "io_buffer_size": _IO_BUFFER_BYTES,
            "with_row_address": not names or file.only.without is not None,
        }  # a scan without columns has no rows
        if file.start or file.end is not None:
            first, last = (
                file.only.rows * place // file.size_bytes
                for place in (file.start, file.start + file.part_bytes)
            )
            return {**arguments, "offset": first, "limit": last - first}
        condition = None if self.where is None or missing else lance_filter(self.where, self.columns)
        return {**arguments, "filter": condition, "use_scalar_index": False}

    def _missing(self, file: ScanFile) -> RetryableError:
        return RetryableError(
            f"The data file {file.path} of version {_version(file)} of the Lance table {self.table_uri} is "
            "missing: the version was cleaned up, or the table was created again, while it was read. Read it "
            "again."
        )


def _completed(rows: pa.RecordBatch, types: pa.Schema, values: Mapping[str, Any]) -> pa.RecordBatch:
    """Return all columns.

    Args:
        values: of columns that the rows do not have; all others are NULL
    """
    there = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns = [
        there[one.name]
        if one.name in there
        else pa.repeat(pa.scalar(values.get(one.name), one.type), rows.num_rows)
        for one in types
    ]
    return pa.RecordBatch.from_arrays(columns, schema=types) if columns else rows


def _version(file: ScanFile) -> int:
    assert isinstance(file.only, FragmentRows)
    return file.only.version
