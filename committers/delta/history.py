"""What was committed to a Delta table since a version: what a stream must not ignore of other writers.

Reads the commit infos of the versions in question only; in the normal case there are none.
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
from ..file_tables.merged_batches import merged_note, recorded_digest
from .library import in_short
from .log_files import entry_name
from .table_state import DeltaTableState

NOTE_KEY = "userMetadata"
"""Where Delta keeps what users say of a commit; `DESCRIBE HISTORY` shows it."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit of the table's log."""

    version: int
    operation: str
    parameters: Mapping[str, Any]
    note: str

    @property
    def is_restore(self) -> bool:
        return self.operation == "RESTORE"

    @property
    def is_vacuum(self) -> bool:
        return self.operation.startswith("VACUUM")

    def digest_of(self, batch: Batch) -> str | None:
        """The beginning of the digest of the batch of this query and id that Penstock put here; None if it is
        another commit.
        """
        try:
            said = json.loads(self.note)["penstock"]
            if said["query_id"] != batch.stream.query_id:
                return None
            if said["batch_id"] == batch.batch_id:
                return str(said["digest"])
            return recorded_digest(str(said.get("merged", "")), batch.batch_id)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def restored_version(self, table: DeltaTableState, storage_options: Mapping[str, str]) -> int | None:
        """The version that a RESTORE went back to; None if nobody can tell any more.

        Raises:
            RetryableError: the log cannot be read now.
        """
        wanted = self.parameters.get("version")
        if wanted not in (None, ""):
            return int(wanted)
        moment = _moment(self.parameters)
        if moment is None:
            return None
        with _log_errors(table.table_uri):
            try:
                past = DeltaTable(table.table_uri, storage_options=dict(storage_options))
                past.load_as_version(moment)
            except FileNotFoundError:  # the log no longer reaches back to that time
                return None
            # Or the library gives the oldest version left.
            # Its time of modification is the version's time.
            entry = open_log(table.table_uri, storage_options).get_file_info(entry_name(past.version()))
        was_there = entry.mtime is not None and entry.mtime <= moment
        return past.version() if was_there else None


def _moment(parameters: Mapping[str, Any]) -> datetime | None:
    """When a RESTORE by time went back to. delta-rs notes milliseconds; Spark a time in an unnamed zone."""
    milliseconds = str(parameters.get("datetime", ""))
    return datetime.fromtimestamp(int(milliseconds) / 1000, timezone.utc) if milliseconds.isdigit() else None


def commit_note(manifest: Manifest) -> str:
    """What Penstock says of its commits, for people and for `CommitInfo.digest_of`."""
    batch = manifest.batch
    said = {
        "query_id": batch.stream.query_id,
        "batch_id": batch.batch_id,
        "digest": batch.digest,
        "files": manifest.files,
        "rows": manifest.rows,
    }
    if manifest.merged:
        said["merged"] = merged_note(manifest)
    return json.dumps({"penstock": said})


def commits_since(
    table: DeltaTableState, storage_options: Mapping[str, str], version: int
) -> Sequence[CommitInfo]:
    """Commits after `version` up to the handle's own, oldest first.

    Read by their names in the log: the library's `history` of a handle that others have overtaken numbers
    the commits wrongly, and may leave out the very ones that were asked for. Those whose log file is cleaned
    up, or that carry no commit info, are left out.

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
            )


def _commit_info(line: bytes) -> dict[str, Any] | None:
    try:
        raw = json.loads(line).get("commitInfo")
        if raw is None or (isinstance(raw, dict) and isinstance(raw.get("operationParameters") or {}, dict)):
            return raw
    except (AttributeError, RecursionError):
        pass
    raise ValueError("an entry of the log has damaged commit information")
