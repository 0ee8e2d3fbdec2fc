"""Plans the scan of a Hudi table: its columns, and the newest slice of each file group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...committers.errors import RetryableError
from ..arrow_fields import spark_field
from ..predicates import Predicate
from ..scan import Scan, ScanFile
from ..streaming.change_feed import CHANGE_FIELDS
from .changed_rows import HudiChangesScan
from .files import HudiFiles
from .partitions import FolderRanges
from .slices import slices_at
from .table import HudiVersion, unreadable


@dataclass(frozen=True)
class HudiTableReader:
    """One version of a Hudi table. See `TableReader`."""

    version: HudiVersion
    storage_options: Mapping[str, str] = field(repr=False)
    reads_changes: bool = False
    """It has the columns of a change feed."""

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self._fields.names)

    @cached_property
    def _fields(self) -> pa.Schema:
        return pa.schema([*self.version.schema, *(CHANGE_FIELDS if self.reads_changes else ())])

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`."""
        return pa.schema([self._fields.field(name) for name in names])

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> Scan | HudiChangesScan:
        """See `TableReader`."""
        files = HudiFiles(self.version.table_uri, dict(self.storage_options))
        rows = Scan(self.name, self.schema(columns), schema, files)
        return HudiChangesScan(rows) if self.reads_changes else rows

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the newest slices in whose partitions rows may match. No bounds of them are known: tasks skip
        their row groups.

        Raises:
            RetryableError: the table cannot be read now, or files of the version were deleted.
            TableNotSupportedError: a data file has no name of Hudi's form.
        """
        version = self.version
        if not version.timeline.commits:
            return
        known = {name.partition(".")[0].partition("_")[0] for name in version.state.names if ".clean" in name}
        try:
            slices, gone = slices_at(
                version.table_uri,
                version.storage,
                self.storage_options,
                version.timeline,
                lambda instant: instant not in known,
            )
        except OSError as error:
            raise unreadable(version.table_uri, error) from error
        if gone:
            raise RetryableError(
                f"{self.name[0].upper()}{self.name[1:]} cannot be read: its cleaner has deleted "
                f"{len(gone):,} files of it meanwhile, such as {gone[0]}. Nothing was read. Load the table "
                "again."
            )
        folders = FolderRanges(version.state.properties, version.schema)
        for one in slices:
            if where is None or where.may_match(folders.of(one.path)):
                yield ScanFile(one.path, one.size_bytes)
