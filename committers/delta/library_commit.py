"""Commits through the Delta library: overwrites, which list all files, and logs that only the library can
reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.transaction import AddAction

from ..contract import DataFile, Manifest
from ..file_tables.manifest import LakeManifest
from .history import NOTE_KEY, commit_note
from .intervals import library_keeps_log
from .library import CHECKPOINT_INTERVAL
from .table_state import DeltaTableState

if TYPE_CHECKING:
    from deltalake.transaction import RemoveAction


def commit_by_library(
    table: DeltaTable,
    manifest: Manifest,
    content: LakeManifest,
    app_versions: Mapping[str, int],
    now_ms: int,
) -> None:
    """Add all files of the manifest in the version after the handle's, or fail.

    Raises:
        Exception: raised by the library. The commit may have succeeded anyway.
    """
    actions: list[AddAction | RemoveAction] = [*add_actions(content.files, now_ms, data_change=True)]
    table.create_write_transaction(
        actions,
        mode="overwrite" if content.mode == "overwrite" else "append",
        schema=table.schema(),
        partition_by=list(content.partition_by),
        commit_properties=CommitProperties(
            custom_metadata={NOTE_KEY: commit_note(manifest), "isBlindAppend": content.mode == "append"},
            max_commit_retries=0,
            app_transactions=[Transaction(app_id, number) for app_id, number in app_versions.items()],
        ),
        post_commithook_properties=post_commit(table),
    )


def add_actions(files: Sequence[DataFile], now_ms: int, *, data_change: bool) -> list[AddAction]:
    return [
        AddAction(
            path=file.path,
            size=file.size_bytes,
            partition_values=dict(file.partition_values),
            modification_time=now_ms,
            data_change=data_change,
            stats=file.statistics or "{}",
        )
        for file in files
    ]


def post_commit(table: DeltaTableState) -> PostCommitHookProperties:
    """Expired log files are searched only when a log checkpoint is written: listing a long log is slow."""
    cleans_up = is_checkpoint_due(table, table.version() + 1) and library_keeps_log(
        table.table_uri, table.metadata().configuration
    )
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=None if cleans_up else False)


def is_checkpoint_due(table: DeltaTableState, version: int) -> bool:
    """Counts in the same way as the library."""
    interval = int(table.metadata().configuration.get("delta.checkpointInterval", CHECKPOINT_INTERVAL))
    return (version + 1) % max(interval, 1) == 0
