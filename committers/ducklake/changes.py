"""Applies the changes of a batch to a DuckLake table: SQL in the transaction of the commit.

The rows of the table that have one of the keys are deleted first. Then the files of the batch are added, and
of them the rows that lose against another task's or a later batch's. DuckLake keeps that to one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from ..changes.key_files import Keys, WrittenKeys, key_files, read_keys
from ..changes.last_changes import last_changes
from ..contract import Changes, Manifest
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from ..postgres.address import quoted
from .connection import Lake

_KEYS = "penstock_keys"
_FILE = "file"


class DuckLakeChanges:
    """The changes of one manifest.

    Args:
        table: the table in SQL
        files: of the table, as tasks have written them
    """

    def __init__(
        self, lake: Lake, table: str, manifest: Manifest, content: LakeManifest, files: TableFiles
    ) -> None:
        assert isinstance(content.mode, Changes)
        self._lake = lake
        self._table = table
        self._changes = content.mode
        self._written = read_keys(manifest.batch, key_files(content.files), files.opened)
        self._last = last_changes(self._written, content.mode) if self._written else None

    def delete_replaced(self) -> None:
        """Delete the rows of the table that the batch replaces or deletes. Before its files are added."""
        if self._last is not None:
            self._delete(_key_table(self._last.keys))

    def delete_losing(self) -> None:
        """Delete the rows of the files of the batch that are not the last ones of their keys."""
        if self._last is None:
            return
        losing = [
            _key_table(lost, path)
            for part, keys in zip(self._written, self._last.losing, strict=True)
            for path, lost in _rows_in_files(part, keys)
        ]
        if losing:
            self._delete(pa.concat_tables(losing))

    def _delete(self, keys: pa.Table) -> None:
        is_row = [f't.{quoted(name)} = k."{number}"' for number, name in enumerate(self._changes.keys)]
        if _FILE in keys.column_names:  # a column of DuckLake, with the full path
            is_row.append(f"ends_with(t.filename, k.{_FILE})")
        with self._registered(keys):
            self._lake.rows(f"DELETE FROM {self._table} AS t USING {_KEYS} AS k WHERE {' AND '.join(is_row)}")

    @contextmanager
    def _registered(self, keys: pa.Table) -> Iterator[None]:
        self._lake.cursor.register(_KEYS, keys)
        try:
            yield
        finally:
            self._lake.cursor.unregister(_KEYS)


def _rows_in_files(part: WrittenKeys, lost: Keys) -> Sequence[tuple[str, Keys]]:
    """Return for each file of a part the rows that it may have. Deleted keys have no row."""
    return [(path, lost) for path in part.files] if len(lost) else []


def _key_table(keys: Keys, path: str = "") -> pa.Table:
    """Return a table with the columns `0`, `1` and so on of the keys, and with the file if one is given."""
    table = pa.table(list(keys.columns), [str(number) for number in range(len(keys.columns))])
    if path:
        table = table.append_column(_FILE, pa.repeat(pa.scalar(f"/{path}"), len(keys)))
    return table
