"""One snapshot of a DuckLake table that is read: its columns, and its files. Runs on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...committers.errors import RetryableError
from ..arrow_fields import spark_field
from ..predicates import Predicate
from ..scan import BATCH_ROWS_MAX, Scan, ScanFile
from ..streaming.change_feed import CHANGE_FIELDS
from .catalog import CatalogFiles
from .columns import LakeColumn, arrow_field
from .files import DuckLakeFiles, DuckLakeScan, Origins
from .table import SO, DuckLakeVersion, is_there


@dataclass(frozen=True)
class DuckLakeTableReader:
    """One snapshot of a DuckLake table. See `TableReader`."""

    version: DuckLakeVersion
    reads_changes: bool = False
    """It has the columns of a change feed."""

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def _columns(self) -> Mapping[str, LakeColumn]:
        return {column.name: column for column in self.version.columns}

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return (*self._columns, *self._change_fields)

    @cached_property
    def _change_fields(self) -> Mapping[str, pa.Field]:
        return {one.name: one for one in CHANGE_FIELDS} if self.reads_changes else {}

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`. The columns of the table have field ids.

        Raises:
            TableNotSupportedError: a column has a type that cannot be read.
        """
        added = self._change_fields
        return pa.schema([added.get(name) or arrow_field(self._columns[name], self.name) for name in names])

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> DuckLakeScan:
        """See `TableReader`."""
        storage = dict(self.version.server.storage)
        files = DuckLakeFiles(self.name, storage)
        return DuckLakeScan(Scan(self.name, self.schema(columns), schema, files))

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """See `TableReader`. Rows that the catalog has are files, too.

        Raises:
            RetryableError: the catalog cannot be reached now, or the snapshot has expired.
            TableNotSupportedError: the table has files that cannot be read.
        """
        snapshot, all_rows = self.version.snapshot, Origins(-1, self.version.snapshot)
        with self.version.server.attached(SO) as lake:
            if lake is not None:
                lake.begin()
            if lake is None or not is_there(lake, snapshot):
                raise RetryableError(
                    f"{self.name[0].upper()}{self.name[1:]} has expired since the query was planned. {SO}. "
                    "Read the table again."
                )
            catalog = CatalogFiles(lake, self.version, snapshot, snapshot, all_rows, where, types)
            files = catalog.data_files(snapshot, all_rows)
            inlined = catalog.inlined(snapshot, self.version.columns)
        yield from (found.file for found in files)
        yield from map(catalog.inlined_file, inlined.to_batches(BATCH_ROWS_MAX))
