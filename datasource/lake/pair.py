"""The two tables of `penstock.lake`: what both can store, and whether they belong together. Driver only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import pyarrow as pa
from deltalake import Schema as DeltaSchema
from pyiceberg.schema import Schema as IcebergSchema

from ...committers.cleaning.deletion import DeletionGuard, local_root
from ...committers.delta import table as delta_table
from ...committers.delta.committer import DeltaTableCommitter
from ...committers.delta.schema import check_reserved, check_timestamps_in_maps, delta_fields
from ...committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ...committers.file_tables.shared_files import check_written_together
from ...committers.iceberg import table as iceberg_table
from ...committers.iceberg.arrow import arrow_schema, iceberg_struct
from ...committers.iceberg.committer import IcebergTableCommitter
from ...committers.iceberg.schema import RESERVED
from ...writers.delta.partitions import check_partition_columns
from ...writers.delta.table_format import DeltaFormat
from ...writers.iceberg.table_format import IcebergFormat
from ...writers.lake.table_format import LakeFormat
from ...writers.parquet.columns import with_small_offsets
from ...writers.parquet.write_config import WriteConfig
from ..delta.options import DeltaOptions
from ..file_table import CompactableFileTable, with_case_of
from ..iceberg.sink import IcebergSink


class DeltaOfPair(Protocol):
    """The sink of the Delta table. `DeltaSink` maintains the pair that its table belongs to."""

    @property
    def kind(self) -> str: ...

    @property
    def table_uri(self) -> str: ...

    @property
    def options(self) -> DeltaOptions: ...

    def open_shared(self, partner: str) -> CompactableFileTable:
        """Return the target of a table that shares its files with another one."""
        ...


@dataclass(frozen=True)
class TablePair:
    """A Delta table and an Iceberg table that share the data files in the location of the Delta table."""

    delta: DeltaOfPair
    iceberg: IcebergSink

    @cached_property
    def data_location(self) -> str:
        """The location of the files, as Iceberg writes it."""
        path = local_root(self.delta.table_uri)
        return self.delta.table_uri if path is None else f"file://{self.delta.table_uri}"

    @property
    def name_of_delta(self) -> str:
        """The Delta table, as the property of the Iceberg table names it."""
        return f"{self.delta.kind}:{self.delta.table_uri}"

    @property
    def name_of_iceberg(self) -> str:
        return f"{self.iceberg.kind}:{self.iceberg.table_uri}"

    def check(self, rows: pa.Schema) -> None:
        """Check that both tables exist and belong together, or that both can be created for these rows.

        Raises:
            ConfigurationError: only one of the tables exists, and it has rows.
            SchemaMismatchError: the formats store a column differently, or one cannot store it.
            TableNotSupportedError: a table was not created with the other one.
            RetryableError: a table cannot be read now.
        """
        storage = self.delta.options.storage_options
        delta = delta_table.load_if_there(self.delta.table_uri, storage)
        iceberg = iceberg_table.load_if_there(self.iceberg.catalog, self.iceberg.address)
        if delta is not None:
            properties = delta.metadata().configuration
            check_written_together(properties, self.delta.table_uri, self.name_of_iceberg)
        if iceberg is not None:
            check_written_together(iceberg.properties, self.iceberg.table_uri, self.name_of_delta)
            if _overlap(iceberg.location(), self.data_location):
                raise TableNotSupportedError(
                    f"The location {iceberg.location()} of the Iceberg table {self.iceberg.table_uri} and "
                    f"the Delta table {self.delta.table_uri} are not apart, so that clean-up cannot tell "
                    "whose files it finds. Give the Iceberg table another location, or the Delta table "
                    "another path."
                )
        if delta is None and iceberg is not None:
            self._check_empty(IcebergTableCommitter(self.iceberg.catalog, self.iceberg.address), "Delta")
        if delta is not None and iceberg is None:
            self._check_empty(DeltaTableCommitter(self.delta.table_uri, storage), "Iceberg")
        if delta is None or iceberg is None:
            self._check_can_create(rows)

    def _check_empty(self, other: DeltaTableCommitter | IcebergTableCommitter, missing: str) -> None:
        """
        Raises:
            ConfigurationError: the table that exists has rows, which would be missing in the new one.
        """
        if not other.has_rows():
            return  # a driver was killed after it has created the first of the two
        uris = {"Delta": self.delta.table_uri, "Iceberg": self.iceberg.table_uri}
        there = next(name for name in uris if name != missing)
        raise ConfigurationError(
            f"The {there} table {uris[there]} has rows, and there is no {missing} table {uris[missing]}. A "
            f"new one would not have these rows. Nothing was written. Restore the {missing} table; or drop "
            f"the {there} table, too, and start the query with a new checkpoint; or write only the {there} "
            f"table, with penstock.{there.lower()}, after you have removed its property "
            "penstock.shares-files-with."
        )

    def _check_can_create(self, rows: pa.Schema) -> None:
        partition_by = self.delta.options.partition_by or ()
        check_partition_columns(rows, with_case_of(partition_by, rows))
        fields = delta_fields(rows, self.delta.table_uri)
        check_timestamps_in_maps(fields, self.delta.table_uri)
        check_reserved(rows.names, self.delta.options.table_properties, self.delta.table_uri)
        RESERVED.check(rows.names, f"Iceberg table {self.iceberg.options.table}")
        of_delta = DeltaSchema.from_json(json.dumps({"type": "struct", "fields": fields})).to_arrow()
        struct = iceberg_struct(rows, self.iceberg.options.table)
        self._check_same(pa.schema(of_delta), arrow_schema(IcebergSchema(*struct.fields)))

    def _check_same(self, delta: pa.Schema, iceberg: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: lists the columns that the formats store differently.
        """
        delta = with_small_offsets(delta)
        problems = list(_differences(list(delta), list(iceberg)))
        if problems:
            raise SchemaMismatchError(
                f"The Delta table {self.delta.table_uri} and the Iceberg table {self.iceberg.table_uri} "
                "cannot share files with these columns:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
                + "\n"
                "Cast them in the query to a type that both store in the same way, such as INT instead of "
                "SMALLINT. Nothing was written."
            )

    # Files ------------------------------------------------------------------------------------------

    def write_config(self, delta: WriteConfig, iceberg: WriteConfig) -> WriteConfig:
        """Return how the tasks write files that both tables can commit.

        Raises:
            SchemaMismatchError: the tables store a column differently.
            TableNotSupportedError: the tables are partitioned differently, or the files would be elsewhere.
        """
        self._check_same(delta.schema, iceberg.schema)
        assert isinstance(delta.table_format, DeltaFormat), "the plan of a Delta table"
        assert isinstance(iceberg.table_format, IcebergFormat), "the plan of an Iceberg table"
        problems = [
            *self._location_problems(iceberg),
            *_partition_problems(delta.table_format, iceberg.table_format),
        ]
        if problems:
            raise TableNotSupportedError(
                f"The Delta table {self.delta.table_uri} and the Iceberg table {self.iceberg.table_uri} "
                f"cannot share files: {'; '.join(problems)}. Nothing was written."
            )
        options = self.delta.options
        return WriteConfig(
            location=delta.location,
            storage_options=delta.storage_options,
            schema=iceberg.schema,
            table_format=LakeFormat(delta.table_format, iceberg.table_format),
            target_file_bytes=iceberg.target_file_bytes,
            row_group_rows=iceberg.row_group_rows,
            row_group_bytes=iceberg.row_group_bytes,
            compression=iceberg.compression,
            compression_level=iceberg.compression_level,
            max_open_partitions=options.max_open_partitions,
            buffer_bytes_max=options.buffer_bytes_max,
            sort=iceberg.sort,
            parquet=iceberg.parquet,
            narrows=iceberg.narrows,
        )

    def _location_problems(self, iceberg: WriteConfig) -> Iterator[str]:
        if iceberg.location != self.data_location:
            yield (
                f"Iceberg's files are at {iceberg.location}, not at {self.data_location}: set the table "
                "property write.data.path to the latter"
            )
        if iceberg.table_format.is_object_storage_layout:  # type: ignore[attr-defined]
            yield "write.object-storage.enabled adds folders that Delta does not have: set it to false"


def _partition_problems(delta: DeltaFormat, iceberg: IcebergFormat) -> Iterator[str]:
    hidden = [part for part in iceberg.partitioning if part.transform != "identity" or len(part.column) > 1]
    for part in hidden:
        yield (
            f"the Iceberg table is partitioned by {part.transform} of {'.'.join(part.column)}, which Delta "
            "cannot express. Partition both by a column with this value"
        )
    columns = tuple(part.column[0] for part in iceberg.partitioning)
    if not hidden and columns != delta.partition_by:
        yield (
            f"the Delta table is partitioned by {', '.join(delta.partition_by) or 'nothing'}, the Iceberg "
            f"table by {', '.join(columns) or 'nothing'}"
        )


def _overlap(one: str, other: str) -> bool:
    return DeletionGuard([one]).allows(f"{other}/file") or DeletionGuard([other]).allows(f"{one}/file")


def _differences(delta: Sequence[pa.Field], iceberg: Sequence[pa.Field]) -> Iterator[str]:
    of_delta = {field.name: field for field in delta}
    of_iceberg = {field.name: field for field in iceberg}
    for name in of_delta.keys() ^ of_iceberg.keys():
        yield f"{name}: only in the {'Delta' if name in of_delta else 'Iceberg'} table"
    for name in of_delta.keys() & of_iceberg.keys():
        one, other = of_delta[name], of_iceberg[name]
        if not _is_same(one, other):
            yield f"{name}: {_shown(one)} in Delta, and {_shown(other)} in Iceberg"


def _is_same(one: pa.Field, other: pa.Field) -> bool:
    """Compare types and nullability at every level, without names of elements and field ids."""
    if one.nullable != other.nullable:
        return False
    a, b = one.type, other.type
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return [field.name for field in a] == [field.name for field in b] and all(map(_is_same, a, b))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return _is_same(a.value_field, b.value_field)
    if pa.types.is_map(a) and pa.types.is_map(b):
        return _is_same(a.key_field, b.key_field) and _is_same(a.item_field, b.item_field)
    return bool(a == b)


def _shown(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' NOT NULL'}"
