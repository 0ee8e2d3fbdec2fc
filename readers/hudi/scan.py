"""Plans the scan of a Hudi table: its columns, and the newest slice of each file group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...committers.delta.files import delta_files
from ...committers.errors import RetryableError
from ...committers.hudi.file_slices import newest_slices, replaced_groups
from ..arrow_fields import spark_field
from ..predicates import Predicate
from ..scan import Scan, ScanFile
from .files import HudiFiles
from .table import HudiVersion, unreadable

_LISTINGS_MAX = 3


@dataclass(frozen=True)
class HudiTableReader:
    """One version of a Hudi table. See `TableReader`."""

    version: HudiVersion
    storage_options: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return self.version.shown

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        return tuple(self.version.schema.names)

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """See `TableReader`."""
        return pa.schema([self.version.schema.field(name) for name in names])

    def spark_fields(self, names: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """See `TableReader`."""
        return [spark_field(one) for one in self.schema(names)]

    def scan(self, columns: Sequence[str], schema: pa.Schema) -> Scan:
        """See `TableReader`."""
        files = HudiFiles(self.version.table_uri, dict(self.storage_options))
        return Scan(self.name, self.schema(columns), schema, files)

    def files(self, where: Predicate | None, types: pa.Schema) -> Iterator[ScanFile]:
        """Yield the newest slices. No bounds of them are known: tasks skip their row groups.

        Raises:
            RetryableError: the table cannot be read now.
            TableNotSupportedError: a data file has no name of Hudi's form.
        """
        if not self.version.timeline.commits:
            return
        uri = self.version.table_uri
        try:
            slices = self._slices()
        except OSError as error:
            raise unreadable(uri, error) from error
        for one in slices.values():
            yield ScanFile(one.path, one.size_bytes)

    def _slices(self) -> Mapping[tuple[str, str], Any]:
        """List the files. A cleaner that runs meanwhile could delete a slice before it is listed."""
        version = self.version
        listed = delta_files(version.table_uri, dict(self.storage_options))
        before = self._cleans()
        for _ in range(_LISTINGS_MAX):
            files = [(path, size) for path, size, _ in listed.walk()]
            after = self._cleans()
            if after == before:
                replaced = replaced_groups(version.storage, version.timeline)
                return newest_slices(files, version.timeline, replaced, version.table_uri)
            before = after
        raise RetryableError(
            f"{self.name[0].upper()}{self.name[1:]} cannot be read: its cleaner deletes files all the time. "
            "Nothing was read. Read it again."
        )

    def _cleans(self) -> set[str]:
        folder = self.version.timeline.layout.folder
        return {name for name in self.version.storage.names(folder) if ".clean" in name}
