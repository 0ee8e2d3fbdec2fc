"""The data files of a Hudi table. A file has all rows of its slice, so nothing is deleted in it."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from ...committers.arrow_values import null_scalar
from ...committers.cleaning.regular_files import open_input
from ...writers.delta.filesystem import open_filesystem
from ..scan import ScanFile


@dataclass(frozen=True, slots=True)
class HudiFiles:
    """See `DataFiles`."""

    table_uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """
        Args:
            path: below the table
        """
        filesystem, folder = open_filesystem(self.table_uri, dict(self.storage_options))
        opened: AbstractContextManager[pa.NativeFile] = open_input(filesystem, posixpath.join(folder, path))
        return opened

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        return None

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        return None

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        """See `DataFiles`. Files have all values."""
        return null_scalar(data_type)
