"""Commits to a Delta table since a given version: changes by other writers that a stream must check.

Reads only the commit infos of these versions. Usually there are none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from ..contract import Batch, Manifest
from ..error_causes import retryable
from ..errors import NEXT_TRY
from ..file_tables.merged_batches import note_fields, recorded_digest
from .library import in_short
from .log_files import entry_name
from .table_state import DeltaTableState

NOTE_KEY = "userMetadata"
"""Key of the user metadata of a commit, which `DESCRIBE HISTORY` shows."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit of the table's log."""

    version: int
    operation: str
    parameters: Mapping[str, Any]
    note: str
    at_ms: int | None = None
    """Milliseconds since 1970; None if the log does not say."""

    @property
    def is_restore(self) -> bool:
        return self.operation == "RESTORE"

    @property
    def is_vacuum(self) -> bool:
        return self.operation.startswith("VACUUM")

    def digest_of(self, batch: Batch) -> str | None:
        """Digest prefix of the batch with this query and id, as stored by Penstock; None if this is another
        commit.
        """
        try:
            fields = json.loads(self.note)["penstock"]
            if fields["query_id"] != batch.stream.query_id:
                return None
            if fields["batch_id"] == batch.batch_id:
                return str(fields["digest"])
            return recorded_digest(str(fields.get("merged", "")), batch.batch_id)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def restored_version(self, table: DeltaTableState, storage_options: Mapping[str, str]) -> int | None:
        """The version that a RESTORE went back to; None if it cannot be determined any more.

        Raises:
            RetryableError: the log cannot be read now.
        """
        wanted = self.parameters.get("version")
        if wanted not in (None, ""):
            return int(wanted)
        restored_to = _restored_to(self.parameters)
        if restored_to is None:
            return None
        with _log_errors(table.table_uri):
            try:
                past = DeltaTable(table.table_uri, storage_options=dict(storage_options))
                past.load_as_version(restored_to)
            except FileNotFoundError:  # the log no longer reaches back to that time
                return None
            # Otherwise the library returns the oldest version that is left. Its modification time is the
            # version's time.
            entry = open_log(table.table_uri, storage_options).get_file_info(entry_name(past.version()))
        was_there = entry.mtime is not None and entry.mtime <= restored_to
        return past.version() if was_there else None


def _restored_to(parameters: Mapping[str, Any]) -> datetime | None:
    """The time that a RESTORE by time went back to. delta-rs stores milliseconds, Spark a time without a
    zone.
    """
    milliseconds = str(parameters.get("datetime", ""))
    return datetime.fromtimestamp(int(milliseconds) / 1000, timezone.utc) if milliseconds.isdigit() else None


def commit_note(manifest: Manifest) -> str:
    """User metadata of Penstock's commits: for display, and for `CommitInfo.digest_of`."""
    batch = manifest.batch
    fields: dict[str, Any] = {
        "query_id": batch.stream.query_id,
        "batch_id": batch.batch_id,
        "digest": batch.digest,
        "files": manifest.files,
        "rows": manifest.rows,
    }
    return json.dumps({"penstock": {**fields, **note_fields(manifest)}})


def commits_since(
    table: DeltaTableState, storage_options: Mapping[str, str], version: int
) -> Sequence[CommitInfo]:
    """Commits after `version` up to the handle's own, oldest first.

    They are read from the log by file name. The library's `history` numbers commits wrongly if others have
    committed since the handle was loaded, and may leave out the requested ones. Commits whose log file is
    cleaned up, or that have no commit info, are left out.

    Raises:
        RetryableError: the log cannot be read now.
    """
    versions = range(version + 1, table.version() + 1)
    return list(_commits(table.table_uri, storage_options, versions)) if versions else ()


def _commits(
    table_uri: str, storage_options: Mapping[str, str], versions: Iterable[int]
) -> Iterator[CommitInfo]:
    with _log_errors(table_uri):
        log = open_log(table_uri, storage_options)
        for version in versions:
            with suppress(FileNotFoundError):
                with log.open_input_file(entry_name(version)) as entry:
                    yield from _infos(version, entry.read())


def newest_first(
    table_uri: str, storage_options: Mapping[str, str], versions: Iterable[int]
) -> Iterator[CommitInfo]:
    """Yield the commits of these versions, which are in descending order, until one whose log file is cleaned
    up. Those that have no commit info are left out.

    Raises:
        RetryableError: the log cannot be read now.
    """
    with _log_errors(table_uri):
        log = open_log(table_uri, storage_options)
        for version in versions:
            try:
                with log.open_input_file(entry_name(version)) as entry:
                    content = entry.read()
            except FileNotFoundError:
                return
            yield from _infos(version, content)


def open_log(table_uri: str, storage_options: Mapping[str, str]) -> pafs.FileSystem:
    return pafs.PyFileSystem(DeltaStorageHandler(table_uri, dict(storage_options)))


@contextmanager
def _log_errors(table_uri: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise retryable(error)(
            f"The log of the Delta table {table_uri} cannot be read: {in_short(error)}. Nothing was "
            f"committed. Check that the storage is reachable. {NEXT_TRY}"
        ) from error


def _infos(version: int, entry: bytes) -> Iterator[CommitInfo]:
    for line in entry.splitlines():
        if b'"commitInfo"' in line and (raw := _commit_info(line)) is not None:
            yield CommitInfo(
                version=version,
                operation=str(raw.get("operation", "")),
                parameters=raw.get("operationParameters") or {},
                note=str(raw.get(NOTE_KEY, "")),
                at_ms=raw["timestamp"] if isinstance(raw.get("timestamp"), int) else None,
            )


def _commit_info(line: bytes) -> dict[str, Any] | None:
    try:
        raw = json.loads(line).get("commitInfo")
        if raw is None or (isinstance(raw, dict) and isinstance(raw.get("operationParameters") or {}, dict)):
            return raw
    except (AttributeError, RecursionError):
        pass
    raise ValueError("an entry of the log has damaged commit information")
