"""Data files of a Hudi table: Hudi's own columns, partitions, names."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import string_array
from ...committers.errors import SchemaMismatchError
from ...committers.hudi.names import META_COLUMNS, hudi_name, staged_path
from ..delta.filesystem import StorageFormat
from ..delta.partitions import serialize
from ..parquet.file_names import parse_file_name
from ..parquet.partition_check import bad_partition_value
from ..parquet.splitting import split_by
from ..parquet.table_format import FileStatistics, NoStatistics, PartitionSlice, PartitionValues
from .names import parse_name

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Also the partition of empty strings. The files have all columns, so no value is lost."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(32)}
_NAME_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class HudiFormat(StorageFormat):
    """Files have all columns of the rows, after Hudi's own. See `TableFormat` and `StoresFileNames`."""

    instant: str
    partition_by: tuple[str, ...] = ()
    record_key: tuple[str, ...] = ()
    """Empty: keys are generated, as Hudi does."""
    is_hive_style: bool = True
    encodes_paths: bool = True
    is_rewriting: bool = False
    """The files are written at the commit of a batch that has other files with the same instant."""

    @property
    def reads_delta_encoding(self) -> bool:
        return False

    def problems(self, schema: pa.Schema) -> list[str]:
        return [
            f"The column '{name}' of partitions or record key is not in the table."
            for name in (*self.partition_by, *self.record_key)
            if name not in schema.names
        ]

    def file_schema(self, schema: pa.Schema) -> pa.Schema:
        own = [pa.field(name, pa.string()) for name in META_COLUMNS]
        return pa.schema([*own, *(column.with_nullable(True) for column in schema)])

    def split(self, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
        keys = [rows.column(name).combine_chunks() for name in self.partition_by]
        for row, own in split_by(keys, rows):
            values = tuple(
                (name, self._value(name, key, row, where))
                for name, key in zip(self.partition_by, keys, strict=True)
            )
            yield PartitionSlice(values, own)

    def _value(self, name: str, key: pa.Array, row: int, where: str) -> str | None:
        try:
            text = serialize(key[row].as_py(), key.type) or None
            problem = None if text is None else self._problem(name, text)
        except (ValueError, OverflowError):
            text, problem = None, "is outside the years 1 to 9999"
        if problem:
            raise bad_partition_value(name, problem, where)
        return text

    def _problem(self, name: str, text: str) -> str | None:
        if text == NULL_PARTITION:
            return f"is '{text}', which readers interpret as NULL"
        if not self.encodes_paths and not _ESCAPED.isdisjoint(text):
            return f"is {text!r}: this table does not encode special characters in paths"
        if text.startswith((".", "_")) and not self.is_hive_style:
            return f"is {text!r}: readers skip folders whose names start like this"
        if len(self._folder(name, text).encode()) > _NAME_BYTES_MAX:
            return f"is longer than a directory name can be ({_NAME_BYTES_MAX} bytes, escaped)"
        return None

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return staged_path(self.partition_path(values), hudi_name(file_name, self.instant))

    def partition_path(self, values: PartitionValues) -> str:
        return "/".join(self._folder(name, value) for name, value in values)

    def _folder(self, name: str, value: str | None) -> str:
        text = NULL_PARTITION if value is None else self._escape(value)
        return f"{name}={text}" if self.is_hive_style else text

    def _escape(self, text: str) -> str:
        if not self.encodes_paths:
            return text
        return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)

    def file_statistics(self, schema: pa.Schema) -> Callable[[], FileStatistics]:
        return NoStatistics

    def stored_rows(self, rows: pa.Table, path: str, first: int) -> pa.Table:
        """Put Hudi's own columns first, in place of those that rows of a rewritten file have."""
        rows = rows.drop_columns([column for column in META_COLUMNS if column in rows.column_names])
        name = posixpath.basename(path)
        folder = posixpath.dirname(path)
        partition = folder.removeprefix(staged_path("", "").rstrip("/")).lstrip("/")
        sequence = self._sequence(name, rows.num_rows, first)
        columns = [
            _constant(self.instant, rows.num_rows),
            sequence,
            self._keys(rows) if self.record_key else sequence,
            _constant(partition, rows.num_rows),
            _constant(name, rows.num_rows),
        ]
        return pa.table([*columns, *rows.columns], schema=self.file_schema(rows.schema))

    def _sequence(self, name: str, rows: int, first: int) -> pa.Array:
        """`<instant>_<task>_<file and row>`: unique in the commit."""
        parsed = parse_name(name) or parse_file_name(name)
        run = f"{parsed.run}_" if parsed and self.is_rewriting else ""
        numbered = f"{parsed.partition}_{parsed.sequence}" if parsed else "0_0"
        task = f"{self.instant}_{run}{numbered}-"
        numbers = pc.cast(pa.array(range(first, first + rows), pa.int64()), pa.string())
        return pc.binary_join_element_wise(pa.scalar(task), numbers, "")

    def _keys(self, rows: pa.Table) -> pa.Array:
        """The values of the record key, in the form of Hudi's key generators."""
        parts = []
        for name in self.record_key:
            values = pc.cast(rows.column(name), pa.string()).combine_chunks()
            if values.null_count or pc.any(pc.equal(values, "")).as_py():
                raise SchemaMismatchError(
                    f"The record key '{name}' is NULL or empty in a row. Filter these rows, or give them a "
                    "value."
                )
            parts.append(values)
        if len(parts) == 1:
            return parts[0]
        return _joined(
            [
                pc.binary_join_element_wise(pa.scalar(f"{name}:"), values, "")
                for name, values in zip(self.record_key, parts, strict=True)
            ]
        )


def _joined(columns: Sequence[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*columns, ",")


def _constant(text: str, rows: int) -> pa.Array:
    return pa.repeat(string_array([text])[0], rows)
