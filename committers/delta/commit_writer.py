"""Writes the commit of a batch to a Delta table: the version after the one whose token was checked.

An append is one new file in the log, and so are changes. They are written here if the log's files can be
reached (`log_files`), so the cost of an append does not depend on the size of the table. Everything else is
left to the Delta library: an overwrite has to list all files, and new columns are metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..contract import Changes, Manifest
from ..file_tables.manifest import LakeManifest
from .changes import FileActions
from .library_commit import commit_by_library, is_checkpoint_due
from .log_checkpoints import LogCheckpoints
from .log_entry import append_entry, changes_entry
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

    def write(
        self,
        table: TableSnapshot,
        manifest: Manifest,
        content: LakeManifest,
        changes: FileActions | None = None,
    ) -> None:
        """Write exactly the version after `table`, or fail.

        Args:
            changes: what the batch does with files, if it does more than to add its own

        Raises:
            Exception: raised by the storage or the library. The commit may have succeeded anyway.
        """
        app_versions = app_versions_of(manifest.batch, table.version() + 1, content.origins)
        if self._is_entry(table, content):
            if changes is None:
                entry = append_entry(manifest, content, app_versions, self._now_ms())
            else:
                assert isinstance(content.mode, Changes)
                keys = content.mode.keys
                entry = changes_entry(manifest, keys, app_versions, changes.actions, self._now_ms())
            self._snapshot_cache.append(self._uri, self._options, table, entry, app_versions)
        else:
            commit_by_library(table.handle(), manifest, content, app_versions, self._now_ms())

    def write_log_checkpoint(self, table: TableSnapshot, content: LakeManifest) -> None:
        """After `write`: write a log checkpoint if one is due. The library does so in its own commits."""
        if self._is_entry(table, content) and is_checkpoint_due(table, table.version() + 1):
            self._log_checkpoints.write(self._uri, self._options)

    def _is_entry(self, table: TableSnapshot, content: LakeManifest) -> bool:
        """Return True if the commit is written here."""
        return table.tail is not None and content.mode != "overwrite"
