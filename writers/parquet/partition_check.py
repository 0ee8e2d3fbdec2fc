"""Partition values that a commit would refuse are refused while rows are split. Executors only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.cleaning.deletion import is_relative, local_root
from ...committers.errors import SchemaMismatchError
from .table_format import PartitionSlice, PartitionValues

if TYPE_CHECKING:
    from .data_file_config import DataFileConfig

_FILE_NAME = "file.none.parquet"

KEY_BYTES_MAX = 1024
"""Limit of object stores for the path of an object, which includes the table's location."""
PATH_BYTES_MAX = 4095
"""The same for local disks."""
_RESERVED_BYTES = 256
"""For the name of the file, and for longer paths that a commit derives from the path, such as Hudi's
markers.
"""


def bad_partition_value(name: str, problem: str, where: str) -> SchemaMismatchError:
    """Return the error for a value that cannot be a partition value.

    Args:
        problem: completes the sentence "A value of the partition column … "
        where: names the task attempt
    """
    return SchemaMismatchError(
        f"A value of the partition column '{name}' {problem} ({where}). Filter these rows, or partition by "
        "another column."
    )


def split_rows(config: DataFileConfig, rows: pa.Table, where: str) -> Iterator[PartitionSlice]:
    """Split the rows by table partition, as `TableFormat.split` does. Check the paths of their files by the
    rule by which a commit reads them from the manifest.

    Raises:
        SchemaMismatchError: a value is not allowed as a partition value.
    """
    is_local = local_root(config.location) is not None
    limit = (PATH_BYTES_MAX if is_local else KEY_BYTES_MAX) - len(config.location.encode()) - _RESERVED_BYTES
    for part in config.table_format.split(rows, where):
        path = config.table_format.data_path(part.values, _FILE_NAME)
        if not is_relative(path):
            raise _bad_path(part.values, "leads out of the table's folder when the path is decoded", where)
        if len(path.encode()) > limit:
            raise _bad_path(part.values, "makes the path of the files too long for the storage", where)
        yield part


def _bad_path(values: PartitionValues, problem: str, where: str) -> SchemaMismatchError:
    names = "', '".join(name for name, _ in values)
    shown = ", ".join(repr(value) for _, value in values)[:200]
    return bad_partition_value(names, f"({shown}) {problem}", where)
