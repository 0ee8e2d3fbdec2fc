"""The folder of a Paimon table on a local disk: its identity and its snapshots.

A snapshot is a file of JSON, `snapshot/snapshot-<id>`, with ids that ascend by one. Expired ones are deleted.
Format: https://paimon.apache.org/docs/master/concepts/spec/snapshot/
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import TableChangedError
from .library import unreadable

KIND = "paimon"
_SNAPSHOT = re.compile(r"snapshot-(\d+)")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, without what only readers of rows need."""

    snapshot_id: int
    commit_user: str
    commit_identifier: int
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: bytes) -> Snapshot:
        """Raises ValueError, KeyError or TypeError for other content."""
        fields: dict[str, Any] = json.loads(content)
        properties = {str(key): str(value) for key, value in (fields.get("properties") or {}).items()}
        return cls(int(fields["id"]), str(fields["commitUser"]), int(fields["commitIdentifier"]), properties)


@dataclass(frozen=True, slots=True)
class TableFolder:
    """Each call reads the current state. Does not need pypaimon.

    Args:
        path: absolute
    """

    path: str

    def table_id(self) -> str | None:
        """Return an id that differs if the table is created again; None if there is no table.

        Paimon gives none to tables of a file-system catalog. Their first schema has the time of creation,
        and is kept as long as the table exists.
        """
        content = self.read("schema/schema-0")
        return None if content is None else hashlib.sha256(content).hexdigest()[:32]

    def snapshot_ids(self) -> list[int]:
        """Return the ids of the snapshots that have not expired, in ascending order."""
        return sorted(int(found[1]) for found in map(_SNAPSHOT.fullmatch, self.names("snapshot")) if found)

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """Return a snapshot; None if it has expired.

        Raises:
            TableChangedError: the file is damaged.
        """
        content = self.read(f"snapshot/snapshot-{snapshot_id}")
        if content is None:
            return None
        try:
            return Snapshot.parse(content)
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The file snapshot/snapshot-{snapshot_id} of the Paimon table {self.path} is damaged "
                f"({error!r}). Nothing was committed. Restore it from a backup."
            ) from error

    def latest(self) -> int:
        """Return the id of the newest snapshot; 0 if there is none."""
        return max(self.snapshot_ids(), default=0)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the table; none if it does not exist."""
        try:
            return [entry.name for entry in Path(self.path, folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable(self.path, error) from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist.

        Raises:
            RetryableError: it cannot be read now.
        """
        try:
            return Path(self.path, name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(self.path, error) from error

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, durably, in one step. Raises OSError."""
        target = Path(self.path, name)
        _temporary(target, content).replace(target)
        sync(target.parent)

    def create(self, name: str, content: bytes) -> bool:
        """Write a small file, durably, unless it exists; return False if it does. Raises OSError.

        A hard link is created by one process only, on NFS as well. A rename replaces a file that exists.
        """
        target = Path(self.path, name)
        temporary = _temporary(target, content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync(target.parent)
        return True

    def delete(self, name: str) -> None:
        """Delete a file. Raises OSError."""
        Path(self.path, name).unlink()


def _temporary(target: Path, content: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{uuid.uuid4()}.tmp")
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path


def sync(path: Path) -> None:
    """Make a file or the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def dropped(path: str) -> TableChangedError:
    return TableChangedError(
        f"The Paimon table {path} no longer exists: it was dropped or moved while the stream used it. "
        "Nothing was committed. Restore the table, or start the query with a new checkpoint to write a new "
        "table from the beginning."
    )


def check_same_table(folder: TableFolder, table_id: str | None) -> None:
    """
    Raises:
        TableChangedError: it is another table, or there is none.
    """
    has = folder.table_id()
    if has is None:
        raise dropped(folder.path)
    if table_id not in (None, has):
        raise TableChangedError(
            f"The Paimon table {folder.path} was dropped and re-created: its first schema is not the one "
            "that the stream wrote to. Nothing was committed. Start the query with a new checkpoint to write "
            "the new table from the beginning, or restore the old table."
        )


def check_not_behind(folder: TableFolder, snapshot_id: int | None) -> None:
    """
    Raises:
        TableChangedError: the table was at a later snapshot before.
    """
    latest = folder.latest()
    if snapshot_id is not None and latest < snapshot_id:
        raise TableChangedError(
            f"The Paimon table {folder.path} is at snapshot {latest}, but the stream has already used "
            f"snapshot {snapshot_id}: the table was rolled back or restored from a backup. Nothing was "
            "committed. Restore the newest snapshot, or start the query with a new checkpoint to write the "
            "table from the beginning."
        )
