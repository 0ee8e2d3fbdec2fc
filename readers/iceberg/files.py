"""The data files of an Iceberg table: opening them, and their position deletes."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import null_scalar, numeric_array, string_array
from ...committers.cleaning.regular_files import open_input
from ...committers.errors import TableNotSupportedError
from ...writers.iceberg.filesystem import open_iceberg_filesystem
from ..scan import ScanFile

_DELETE_FILES_KEPT = 8


@dataclass(frozen=True, slots=True)
class DeleteDifference:
    """The rows that some delete files delete, and others do not. Both are locations."""

    deletes: tuple[str, ...]
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """See `DataFiles`."""

    table: str
    """For messages."""
    properties: Mapping[str, str] = field(repr=False)
    """For file I/O."""
    _read: dict[str, Mapping[str, pa.Array]] = field(default_factory=dict, repr=False, compare=False)
    """Delete files read last: several data files may have the same."""

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """
        Args:
            path: location of the file
        """
        folder, name = posixpath.split(path)
        filesystem, root = open_iceberg_filesystem(folder, dict(self.properties))
        opened: AbstractContextManager[pa.NativeFile] = open_input(filesystem, posixpath.join(root, name))
        return opened

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        rows = self._deleted(file.path, file.deletes or ())
        return rows if len(rows) else None

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        if file.only is None:
            return None
        assert isinstance(file.only, DeleteDifference)
        rows = self._deleted(file.path, file.only.deletes)
        known = self._deleted(file.path, file.only.without)
        return rows.filter(pc.invert(pc.is_in(rows, value_set=known)))

    def _deleted(self, path: str, deletes: Sequence[str]) -> pa.Array:
        """Return the numbers of the rows of a data file that some delete files delete."""
        from ...committers.iceberg.position_deletes import union

        parts = [self._deletes(one).get(path) for one in deletes]
        return union([part for part in parts if part is not None])

    def _deletes(self, path: str) -> Mapping[str, pa.Array]:
        from ...committers.iceberg.position_deletes import read_deletes

        found = self._read.get(path)
        if found is None:
            if len(self._read) >= _DELETE_FILES_KEPT:
                self._read.clear()
            found = self._read[path] = read_deletes(path, self.open)
        return found

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        """See `DataFiles`.

        Raises:
            TableNotSupportedError: it cannot be converted.
        """
        if value is None:
            return null_scalar(data_type)
        if isinstance(value, str) and pa.types.is_string(data_type):
            return string_array([value])[0]
        if isinstance(value, Decimal):
            return string_array([format(value, "f")])[0].cast(data_type)
        if isinstance(value, int) and pa.types.is_date32(data_type):
            return numeric_array([value], pa.int32())[0].cast(data_type)
        if isinstance(value, int) and not pa.types.is_floating(data_type):
            return numeric_array([value])[0].cast(data_type)
        raise TableNotSupportedError(
            f"A data file of {self.table} does not store the column {name!r}, and its partition has a value "
            f"of {data_type}, which the Iceberg library does not read exactly. Nothing more was read. "
            "Rewrite the file, or read without the column."
        )
