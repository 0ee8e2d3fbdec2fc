"""The data files of a Delta table: opening them, their deletion vectors, and values of partition columns."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import null_scalar
from ...committers.cleaning.regular_files import open_input
from ...committers.delta.deletion_vectors import DeletionVector, read_vector
from ...committers.delta.file_values import stored_value
from ...committers.errors import TableNotSupportedError
from ...writers.delta.filesystem import open_filesystem
from ...writers.local_path import local_path
from ..scan import ScanFile


@dataclass(frozen=True, slots=True)
class VectorDifference:
    """The rows of one deletion vector that another one does not have."""

    vector: DeletionVector
    without: DeletionVector | None


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """See `DataFiles`."""

    table_uri: str
    storage_options: Mapping[str, str] = field(repr=False)

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """
        Args:
            path: below the table, an absolute path, or a URL; not encoded
        """
        root, name = self._place(path)
        filesystem, folder = open_filesystem(root, dict(self.storage_options))
        opened: AbstractContextManager[pa.NativeFile] = open_input(filesystem, posixpath.join(folder, name))
        return opened

    def _place(self, path: str) -> tuple[str, str]:
        """Return the root of the file system, and the path of a file below it. Files of a shallow clone are
        elsewhere.
        """
        if "://" not in path and not path.startswith("/"):
            return self.table_uri, path
        local = local_path(path) if urlsplit(path).scheme != "file" else unquote(urlsplit(path).path)
        return ("/", local.lstrip("/")) if local is not None else posixpath.split(path)

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        if file.deletes is None:
            return None
        assert isinstance(file.deletes, DeletionVector)
        return read_vector(file.deletes, self._read, self.table_uri)

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        if file.only is None:
            return None
        assert isinstance(file.only, VectorDifference)
        rows = read_vector(file.only.vector, self._read, self.table_uri)
        if file.only.without is None:
            return rows
        known = read_vector(file.only.without, self._read, self.table_uri)
        return rows.filter(pc.invert(pc.is_in(rows, value_set=known)))

    def _read(self, path: str) -> bytes:
        with self.open(path) as stream:
            content: bytes = stream.read()
            return content

    def value(self, name: str, value: str | None, data_type: pa.DataType) -> pa.Scalar:
        """See `DataFiles`.

        Raises:
            TableNotSupportedError: it cannot be converted.
        """
        return partition_value(name, value, data_type, self.table_uri)


def partition_value(name: str, value: str | None, data_type: pa.DataType, table_uri: str) -> pa.Scalar:
    """Return the value of a partition column.

    Raises:
        TableNotSupportedError: it cannot be converted.
    """
    if pa.types.is_binary(data_type) and value:
        found = stored_value(value, pa.string())
        return null_scalar(data_type) if found is None else found.cast(data_type)
    found = stored_value(value, data_type)
    if found is None:
        raise TableNotSupportedError(
            f"The Delta table {table_uri} has the value {value!r} of the partition column {name!r}, which is "
            f"not a {data_type}. A timestamp needs a time zone, as in 2026-11-29T10:00:00.000000Z: without "
            "one, each engine takes its own. Read without the column, or write the table again with "
            "spark.databricks.delta.write.utcTimestampPartitionValues=true."
        )
    return found
