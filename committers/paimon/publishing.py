"""Commits with pypaimon, and creates the snapshot itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .folder import TableFolder, sync

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
    """The snapshot after one that was read. Created once, by one process only.

    Implements pypaimon's `SnapshotCommit`.

    Args:
        table: of pypaimon
        base: id of the newest snapshot that was read; 0 if there is none
    """

    def __init__(self, folder: TableFolder, table: Any, base: int) -> None:
        self.base = base
        self._folder = folder
        self._table = table.copy(_ONE_ATTEMPT)
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

        self._committing = FileStoreCommit(_Handover(self), self._table, user)
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

    def create(self, snapshot: Any) -> bool:
        """Create the snapshot if it is the next one and does not exist."""
        from pypaimon.common.json_util import JSON

        self._snapshot = snapshot
        if snapshot.id != self.base + 1:
            return False
        self._sync_manifests(snapshot)
        created = self._folder.create(
            f"snapshot/snapshot-{snapshot.id}", JSON.to_json(snapshot, indent=2).encode()
        )
        if created:
            self._folder.replace("snapshot/LATEST", str(snapshot.id).encode())
        return created

    def _sync_manifests(self, snapshot: Any) -> None:
        manifests = Path(self._folder.path, "manifest")
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

    def commit(self, base_snapshot_uuid: str | None, snapshot: Any, statistics: object) -> bool:
        return self._next.create(snapshot)

    def close(self) -> None:
        """Nothing is open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
