"""Plans the scan of a Delta table: its columns, and the files that may have matching rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...committers.delta.active_files import files_at
from ...committers.delta.log_entry import ActiveFile
from ...committers.delta.schema import arrow_columns
from ...committers.errors import TableNotSupportedError
from ..predicates import Predicate
from ..scan import Scan, ScanFile
from .files import DeltaFiles
from .ranges import PartitionRanges, file_ranges
from .table import DeltaVersion


@dataclass(frozen=True)
class DeltaTableReader:
    """One version of a Delta table. See `TableReader`."""

    version: DeltaVersion
    storage_options: Mapping[str, str] = field(repr=False)
    reads_changes: bool = False
    """The columns are also those of a change feed."""

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(str(one["name"]) for one in self.version.fields)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return columns as Arrow has them.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        by_name = {str(one["name"]): one for one in self.version.fields}
        fields = [by_name[name] for name in names]
        for one in fields:
            if "variant" in _types(one["type"]):
                raise TableNotSupportedError(
                    f"{self.version.shown[0].upper()}{self.version.shown[1:]} cannot be read: the column "
                    f"{one['name']!r} is or contains VARIANT. Nothing was read. Give the other columns in "
                    "the option columns."
                )
        return arrow_columns(json.dumps({"type": "struct", "fields": fields}))

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`. Delta stores the schema in Spark's JSON, with metadata of its own."""
        by_name = {str(one["name"]): one for one in self.version.fields}
        return [_without_metadata(by_name[name]) for name in names]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> Scan:
        """Return the scan.

        Args:
            columns: those that are read
            schema: of the rows that are returned
        """
        files = DeltaFiles(self.version.table_uri, dict(self.storage_options))
        return Scan(self.name, self.schema(columns), schema, files)

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the files that may have matching rows.

        Args:
            types: of the columns in the condition

        Raises:
            RetryableError: the log cannot be read now.
            TableNotSupportedError: an entry of the log is damaged.
        """
        select = self.selecting(where, types)
        for file in files_at(self.version.table_uri, self.storage_options, self.version.version):
            if (found := select(file)) is not None:
                yield found

    def selecting(self, where: Predicate | None, types: pa.Schema) -> Callable[[ActiveFile], ScanFile | None]:
        """Return a function that returns what is read of a file; None if no row can match.

        Args:
            types: of the columns in the condition
        """
        partitions = PartitionRanges(types, self.version.table_uri)

        def select(file: ActiveFile) -> ScanFile | None:
            if where is not None and not where.may_match(file_ranges(file, types, partitions)):
                return None
            return ScanFile(file.path, file.size_bytes, tuple(file.partition_values.items()), file.vector)

        return select


def _without_metadata(data_type: Any) -> Any:
    """Return a field or type in Delta's JSON, of the metadata only with comments."""
    if isinstance(data_type, list):
        return [_without_metadata(one) for one in data_type]
    if not isinstance(data_type, dict):
        return data_type
    kept = {key: _without_metadata(value) for key, value in data_type.items() if key != "metadata"}
    if "metadata" not in data_type:
        return kept
    comment = (data_type["metadata"] or {}).get("comment")
    return {**kept, "metadata": {} if comment is None else {"comment": comment}}


def _types(data_type: object) -> Iterator[str]:
    """Yield the names of all types in a type of Delta's JSON."""
    if isinstance(data_type, str):
        yield data_type
    elif isinstance(data_type, dict):
        for child in data_type.get("fields", ()):
            yield from _types(child["type"])
        for part in ("elementType", "keyType", "valueType"):
            yield from _types(data_type.get(part))
