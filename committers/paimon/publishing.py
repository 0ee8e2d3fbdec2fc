"""Commits with pypaimon, and hands the snapshot over to the table's catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..cleaning.regular_files import sync
from .table import Head, NextCommit, PaimonTable

if TYPE_CHECKING:
    from typing_extensions import Self

_ONE_ATTEMPT = {
    "commit.max-retries": "0",
    "commit.min-retry-wait": "0ms",
    "commit.max-retry-wait": "0ms",
    "dynamic-partition-overwrite": "false",
    "write.native.enabled": "false",
    "commit.native.enabled": "false",
}


class NextSnapshot:
    """The snapshot after one that was read. Committed once, by one process only.

    Implements pypaimon's `SnapshotCommit`.

    Args:
        loaded: the table of pypaimon
        base: the newest snapshot that was read
    """

    def __init__(self, table: PaimonTable, loaded: Any, table_id: str, base: Head) -> None:
        self.base = base
        self.may_commit_later = False
        """True if the request has failed and may still be executed."""
        self._table = table
        self._loaded = loaded.copy(_ONE_ATTEMPT)
        self._table_id = table_id
        self._committing: Any = None
        self._snapshot: Any = None

    # Called by the committer -------------------------------------------------------------------------

    def commit(
        self,
        messages: Sequence[Any],
        *,
        user: str,
        identifier: int,
        properties: Mapping[str, str],
        overwrites: bool,
    ) -> None:
        """Add the files, or replace all rows by them. Raises an error also if another writer was faster."""
        from pypaimon.write.file_store_commit import FileStoreCommit

        self._committing = FileStoreCommit(_Handover(self), self._loaded, user)
        if overwrites:
            self._committing.overwrite({}, list(messages), identifier, dict(properties))
        else:
            self._committing.commit(list(messages), identifier, dict(properties))

    def clean_up(self) -> None:
        """Delete the manifests of a snapshot that was certainly not created."""
        if self._snapshot is not None:
            self._committing._clean_up_tmp_manifests(
                self._snapshot.base_manifest_list, self._snapshot.delta_manifest_list, None
            )

    # Called by pypaimon ------------------------------------------------------------------------------

    def create(self, snapshot: Any, statistics: Sequence[Any]) -> bool:
        """Commit the snapshot if it is the next one after the base, and the base is still the newest one."""
        self._snapshot = snapshot
        if snapshot.id != self.base.snapshot_id + 1:
            return False
        self._sync_manifests(snapshot)
        try:
            return self._table.commit(NextCommit(self._table_id, self.base, snapshot, statistics))
        except Exception as error:
            self.may_commit_later = self._table.may_commit_later(error)
            raise

    def _sync_manifests(self, snapshot: Any) -> None:
        location = self._table.location()
        assert location is not None, "the manifests were just written"
        manifests = Path(location, "manifest")
        added = self._committing.manifest_list_manager.read(snapshot.delta_manifest_list)
        for name in (
            *(manifest.file_name for manifest in added),
            snapshot.delta_manifest_list,
            snapshot.base_manifest_list,
        ):
            sync(manifests / name)
        sync(manifests)


class _Handover:
    """pypaimon's `SnapshotCommit`: hands the snapshot over."""

    def __init__(self, next_snapshot: NextSnapshot) -> None:
        self._next = next_snapshot

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: Sequence[Any]) -> bool:
        return self._next.create(snapshot, statistics)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
