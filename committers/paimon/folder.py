"""The folder of a Paimon table on a local disk: its identity, its snapshots, and commits without a catalog.

A snapshot is a file of JSON, `snapshot/snapshot-<id>`, with ids that ascend by one. Expired ones are deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cleaning.deletion import DeletionGuard
from ..cleaning.regular_files import read_file, sync
from ..error_causes import retryable
from ..errors import NEXT_TRY, RetryableError, TableChangedError
from .library import in_short, require_library
from .table import Head, NextCommit, Snapshot

KIND = "paimon"
_SNAPSHOT = re.compile(r"snapshot-(\d+)")


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A table of Paimon's file-system catalog, see `PaimonTable`. Only `load`, `create` and `commit` need
    pypaimon.

    Args:
        path: absolute
    """

    path: str

    @property
    def place(self) -> str:
        return self.path

    def location(self) -> str:
        return self.path

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

    def head(self) -> Head:
        return Head(max(self.snapshot_ids(), default=0))

    def load(self) -> Any:
        """Load the table of pypaimon with its newest schema.

        Raises:
            RetryableError: it cannot be read now.
        """
        require_library()
        from pypaimon.table.file_store_table import FileStoreTable

        try:
            return FileStoreTable.from_path(self.path)
        except Exception as error:
            raise self.unreadable(error) from error

    def create(self, schema: Any) -> None:
        """Create the file of the first schema."""
        from pypaimon.common.json_util import JSON
        from pypaimon.schema.table_schema import TableSchema

        first = TableSchema.from_schema(schema_id=0, schema=schema)
        try:
            self.create_file("schema/schema-0", JSON.to_json(first, indent=2).encode())
        except OSError as error:
            raise retryable(error)(
                f"The Paimon table {self.path} cannot be created: {in_short(error)}. Check the path and that "
                f"the disk is reachable. {NEXT_TRY}"
            ) from error

    def commit(self, commit: NextCommit) -> bool:
        """Create the file of the snapshot, unless another process has. Raises OSError."""
        from pypaimon.common.json_util import JSON

        content = JSON.to_json(commit.snapshot, indent=2).encode()
        created = self.create_file(f"snapshot/snapshot-{commit.snapshot.id}", content)
        if created:
            self.replace("snapshot/LATEST", str(commit.snapshot.id).encode())
        return created

    def may_commit_later(self, error: BaseException) -> bool:
        return False

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the table; none if it does not exist."""
        try:
            return [entry.name for entry in Path(self.path, folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self.unreadable(error) from error

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it does not exist.

        Raises:
            RetryableError: it cannot be read now.
        """
        try:
            return read_file(self._file(name))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.unreadable(error) from error

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file, durably, in one step. Raises OSError."""
        target = self._file(name)
        _temporary(target, content).replace(target)
        sync(target.parent)

    def create_file(self, name: str, content: bytes) -> bool:
        """Write a small file, durably, unless it exists; return False if it does. Raises OSError.

        A hard link is created by one process only, on NFS as well. A rename replaces a file that exists.
        """
        target = self._file(name)
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
        self._file(name).unlink()

    def _file(self, name: str) -> Path:
        """
        Raises:
            TableChangedError: it is not below the table.
        """
        DeletionGuard([self.path]).check_below(self.path, [name])
        return Path(self.path, name)

    def in_short(self, error: BaseException) -> str:
        return in_short(error)

    def unreadable(self, error: Exception) -> RetryableError:
        return retryable(error)(
            f"The Paimon table {self.path} cannot be read: {in_short(error)}. Nothing was committed. Check "
            f"the path and that the disk is reachable. {NEXT_TRY}"
        )


def _temporary(target: Path, content: bytes) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.with_name(f".{target.name}.{uuid.uuid4()}.tmp")
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return path
