"""Writes the commit of a batch to a Delta table: the version after the one whose token was checked.

An append is one new file in the log. It is written here if the log's files can be reached (`log_files`), so
its cost does not depend on the size of the table. Everything else is left to the Delta library: an overwrite
has to list all files, and new columns are metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..contract import Manifest
from ..file_tables.manifest import LakeManifest
from .library_commit import commit_by_library, is_checkpoint_due
from .log_checkpoints import LogCheckpoints
from .log_entry import append_entry
from .snapshot_cache import SnapshotCache, TableSnapshot
from .table import app_versions_of


class CommitWriter:
    """Writes commits to one table.

    Args:
        table_uri: location of the table, in the Delta library's form
        storage_options: for the Delta library's object store
        snapshot_cache: gets the snapshot after each append
        log_checkpoints: decides when log checkpoints are written
        now_ms: clock, milliseconds since 1970; used as `modificationTime` of the files in the log
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str],
        snapshot_cache: SnapshotCache,
        log_checkpoints: LogCheckpoints,
        now_ms: Callable[[], int],
    ) -> None:
        self._uri = table_uri
        self._options = storage_options
        self._snapshot_cache = snapshot_cache
        self._log_checkpoints = log_checkpoints
        self._now_ms = now_ms

    def write(self, table: TableSnapshot, manifest: Manifest, content: LakeManifest) -> None:
        """Write exactly the version after `table`, or fail.

        Raises:
            Exception: raised by the storage or the library. The commit may have succeeded anyway.
        """
        app_versions = app_versions_of(manifest.batch, table.version() + 1, content.origins)
        if self._is_append(table, content):
            entry = append_entry(manifest, content, app_versions, self._now_ms())
            self._snapshot_cache.append(self._uri, self._options, table, entry, app_versions)
        else:
            commit_by_library(table.handle(), manifest, content, app_versions, self._now_ms())

    def write_log_checkpoint(self, table: TableSnapshot, content: LakeManifest) -> None:
        """After `write`: write a log checkpoint if one is due. The library does so in its own commits."""
        if self._is_append(table, content) and is_checkpoint_due(table, table.version() + 1):
            self._log_checkpoints.write(self._uri, self._options)

    def _is_append(self, table: TableSnapshot, content: LakeManifest) -> bool:
        return table.tail is not None and content.mode == "append"
