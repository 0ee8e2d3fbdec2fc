"""How large the files of a Delta table are, and how many of their rows are deleted."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable

from .active_files import active_files
from .snapshot_cache import SnapshotCache


def sizes_and_rows(table: DeltaTable, options: Mapping[str, str]) -> tuple[list[int], int | None, int]:
    """Return the bytes of each file, the rows of all files, None if a file does not tell, and the rows that
    deletion vectors delete.

    Raises:
        RetryableError: the log cannot be read now.
    """
    actions = pa.table(table.get_add_actions())
    rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None]
    total = None if None in rows else sum(rows)
    return actions.column("size_bytes").to_pylist(), total, _deleted(table, options)


def _deleted(table: DeltaTable, options: Mapping[str, str]) -> int:
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return 0
    snapshot = SnapshotCache().load(table.table_uri, dict(options))
    files = () if snapshot is None else active_files(snapshot, options)
    return sum(file.vector.rows for file in files if file.vector is not None)
