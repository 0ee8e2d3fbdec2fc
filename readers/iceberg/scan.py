"""Plans the scan of an Iceberg table: its columns, and the files that may have matching rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DecimalType, FixedType, IcebergType, ListType, MapType, NestedField, StructType

from ...committers.error_causes import retryable
from ...committers.errors import TableNotSupportedError
from ...committers.iceberg.arrow import arrow_schema
from ...committers.iceberg.catalog import in_short, io_properties
from ...committers.iceberg.live_files import files_of
from ...committers.iceberg.position_deletes import DeleteFiles
from ..predicates import Predicate
from ..scan import Scan, ScanFile
from ..shapes import NamedField
from .files import IcebergFiles
from .partitions import PartitionRanges
from .ranges import FileRanges
from .table import IcebergVersion

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class IcebergTableReader:
    """One version of an Iceberg table. See `TableReader`."""

    version: IcebergVersion
    reads_changes: bool = False
    """The columns are also those of a changelog."""

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.version.schema.fields)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return columns as Arrow has them, with their field ids.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        fields = self._fields(names)
        for field in fields:
            _spark_type(field.field_type, field.name, self.name, allows_time=True)
        return arrow_schema(Schema(*fields))

    def _fields(self, names: Sequence[str]) -> list[NestedField]:
        by_name = {field.name: field for field in self.version.schema.fields}
        return [by_name[name] for name in names]

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`.

        Raises:
            TableNotSupportedError: Iceberg for Spark does not read a type, either.
        """
        return [_spark_field(field, field.name, self.name) for field in self._fields(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> Scan:
        """See `TableReader`."""
        mapping = self.version.table.name_mapping()
        named = () if mapping is None else tuple(map(_named, mapping.root))
        files = IcebergFiles(self.name, io_properties(self.version.table))
        return Scan(self.name, self.schema(columns), schema, files, mapping=named)

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """See `TableReader`.

        Raises:
            RetryableError: a manifest cannot be read now.
            TableNotSupportedError: the table has files or deletes that cannot be read.
        """
        select = self.selecting(where)
        for entry, deletes in self.entries(self.version.snapshot, where):
            if (found := select(entry, deletes)) is not None:
                yield found

    def entries(
        self, snapshot: Snapshot | None, where: Predicate | None = None
    ) -> Iterator[tuple[ManifestEntry, tuple[str, ...]]]:
        """Yield the data files of a snapshot, and the delete files that apply to each. Manifests in which no
        row can match are not read. Raises as `files`.
        """

        def may_match(manifest: ManifestFile) -> bool:
            is_of_data = manifest.content == ManifestContent.DATA
            return where is None or not is_of_data or self._partitions.may_match(manifest, where)

        live = self.reading(lambda: files_of(snapshot, self.version.table.io, needed=may_match))
        deletes = DeleteFiles(live.deletes, f"{self.name[0].upper()}{self.name[1:]}")
        for entry in live.data.values():
            if live.deletes:
                yield entry, tuple(one.data_file.file_path for one in deletes.applying_to(entry))
            else:
                yield entry, ()

    def selecting(
        self, where: Predicate | None
    ) -> Callable[[ManifestEntry, tuple[str, ...]], ScanFile | None]:
        """Return a function that returns what is read of a file with delete files, or None if no row can
        match.
        """
        ranges = FileRanges(self.version.schema, self._partitions)

        def select(entry: ManifestEntry, deletes: tuple[str, ...]) -> ScanFile | None:
            file = entry.data_file
            if where is not None and not where.may_match(ranges.of(file)):
                return None
            if file.file_format is not FileFormat.PARQUET:
                raise TableNotSupportedError(
                    f"{self.name[0].upper()}{self.name[1:]} has data files that are not Parquet, for example "
                    f"{file.file_path}. Nothing was read. Read it with Iceberg's own engine."
                )
            return ScanFile(file.file_path, file.file_size_in_bytes, self._values(file), deletes or None)

        return select

    def reading(self, read: Callable[[], ResultT]) -> ResultT:
        """Call a function that reads manifests.

        Raises:
            RetryableError: it cannot read them now.
        """
        try:
            return read()
        except Exception as error:  # noqa: BLE001  storages raise errors of any type
            raise retryable(error)(
                f"The manifests of {self.name} cannot be read: {in_short(error, self.version.config)}. Check "
                "that the storage is reachable, and read again."
            ) from None

    def _values(self, file: DataFile) -> tuple[tuple[str, Any], ...]:
        """Return the values of the partition, for columns that files of others may not store."""
        return tuple(
            (name, file.partition[number]) for number, name in self._identities.get(file.spec_id, ())
        )

    @cached_property
    def _partitions(self) -> PartitionRanges:
        return PartitionRanges(self.version.schema, self.version.table.specs())

    @cached_property
    def _identities(self) -> Mapping[int, Sequence[tuple[int, str]]]:
        """Return the place and the column of each value that partitions have unchanged, by partitioning."""
        names = {field.field_id: field.name for field in self.version.schema.fields}
        return {
            spec_id: [
                (number, names[part.source_id])
                for number, part in enumerate(spec.fields)
                if part.source_id in names and str(part.transform) == "identity"
            ]
            for spec_id, spec in self.version.table.specs().items()
        }


def _named(mapped: MappedField) -> NamedField:
    return NamedField(tuple(mapped.names), mapped.field_id, tuple(map(_named, mapped.fields)))


# Types in Spark -------------------------------------------------------------------------------------------

_SPARK_TYPES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    "uuid": "string",
    "binary": "binary",
}


def _spark_field(field: NestedField, path: str, table: str, *, allows_time: bool = False) -> dict[str, Any]:
    return {
        "name": field.name,
        "type": _spark_type(field.field_type, path, table, allows_time=allows_time),
        "nullable": not field.required,
        "metadata": {} if field.doc is None else {"comment": field.doc},
    }


def _spark_type(kind: IcebergType, path: str, table: str, *, allows_time: bool = False) -> Any:
    """Return the type in Spark's JSON.

    Raises:
        TableNotSupportedError: Spark or Penstock does not have the type.
    """
    if isinstance(kind, StructType):
        fields = [
            _spark_field(one, f"{path}.{one.name}", table, allows_time=allows_time) for one in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, ListType):
        element = _spark_type(kind.element_type, f"{path}.element", table, allows_time=allows_time)
        return {"type": "array", "elementType": element, "containsNull": not kind.element_required}
    if isinstance(kind, MapType):
        return {
            "type": "map",
            "keyType": _spark_type(kind.key_type, f"{path}.key", table, allows_time=allows_time),
            "valueType": _spark_type(kind.value_type, f"{path}.value", table, allows_time=allows_time),
            "valueContainsNull": not kind.value_required,
        }
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    if isinstance(kind, FixedType):
        return "binary"
    found = _SPARK_TYPES.get(str(kind)) or ("time" if allows_time and str(kind) == "time" else None)
    if found is None:
        raise TableNotSupportedError(
            f"{table[0].upper()}{table[1:]} cannot be read: the column {path!r} is {kind}, which "
            "Penstock does not read. Nothing was read. Give the other columns in the option columns."
        )
    return found
