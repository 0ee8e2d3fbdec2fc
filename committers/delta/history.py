"""What was committed to a Delta table since a version: what a stream must not ignore of other writers.

Reads the commit infos of the versions in question only; in the normal case there are none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ..contract import Batch
from ..errors import RetryableError

NOTE_KEY = "userMetadata"
"""Where Delta keeps what users say of a commit; `DESCRIBE HISTORY` shows it."""


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One commit of the table's log."""

    version: int
    operation: str
    parameters: Mapping[str, Any]

    @property
    def is_restore(self) -> bool:
        return self.operation == "RESTORE"

    @property
    def is_vacuum(self) -> bool:
        return self.operation.startswith("VACUUM")

    def restored_version(self, table: DeltaTable, storage_options: Mapping[str, str]) -> int | None:
        """The version that a RESTORE went back to; None if the log does not tell."""
        wanted = self.parameters.get("version")
        if wanted not in (None, ""):
            return int(wanted)
        moment = _moment(self.parameters)
        if moment is None:
            return None
        try:
            past = DeltaTable(table.table_uri, storage_options=dict(storage_options))
            past.load_as_version(moment)
        except (DeltaError, OSError):
            return None
        return past.version()


def _moment(parameters: Mapping[str, Any]) -> datetime | None:
    """When a RESTORE by time went back to. delta-rs notes milliseconds; Spark a time in an unnamed zone."""
    milliseconds = str(parameters.get("datetime", ""))
    return datetime.fromtimestamp(int(milliseconds) / 1000, timezone.utc) if milliseconds.isdigit() else None


def commit_note(batch: Batch, files: int, rows: int) -> str:
    """What Penstock says of its commits, for people."""
    said = {
        "query_id": batch.stream.query_id,
        "batch_id": batch.batch_id,
        "digest": batch.digest,
        "files": files,
        "rows": rows,
    }
    return json.dumps({"penstock": said})


def commits_since(table: DeltaTable, version: int) -> Sequence[CommitInfo]:
    """Commits after `version` up to the handle's own, oldest first.

    Those whose log file is cleaned up, or that carry no commit info, are left out.

    Raises:
        RetryableError: the log cannot be read now.
    """
    count = table.version() - version
    if count <= 0:
        return ()
    try:
        infos = [_info(raw) for raw in table.history(count)]
    except Exception as error:
        raise RetryableError(
            f"The log of the Delta table {table.table_uri} cannot be read: {in_short(error)}. Nothing was "
            "committed. Check that the storage is reachable, then start again."
        ) from error
    return sorted((info for info in infos if info.version > version), key=lambda info: info.version)


def _info(raw: Mapping[str, Any]) -> CommitInfo:
    return CommitInfo(
        version=int(raw["version"]),
        operation=str(raw.get("operation", "")),
        parameters=raw.get("operationParameters") or {},
    )


def in_short(error: BaseException) -> str:
    """The library's message without its backtrace and colours."""
    lines = [line.strip() for line in str(error).replace("\x1b[31m↳\x1b[0m", "").splitlines()]
    kept = []
    for line in lines:
        if line.startswith("0: ") or not line:
            break
        kept.append(line)
    return "; ".join(kept)[:500] or type(error).__name__
