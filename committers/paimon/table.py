"""What the committer needs of a table's catalog: who decides which snapshot is the next one.

`TableFolder` is a table of Paimon's file-system catalog, `CatalogTable` one of a REST catalog. Each call
reads the current state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import TableChangedError
from ..file_tables import table_changes
from ..file_tables.table_changes import check_same_id

if TYPE_CHECKING:
    from ..errors import RetryableError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot, without what only readers of rows need.

    Format: https://paimon.apache.org/docs/master/concepts/spec/snapshot/
    """

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


class Head(NamedTuple):
    """The newest snapshot of a table."""

    snapshot_id: int = 0
    """0 if there is none."""
    uuid: str | None = None
    """None if the catalog compares ids only, or if the writer of the snapshot gave it none."""


@dataclass(frozen=True, slots=True)
class NextCommit:
    """A request to make a snapshot the newest one."""

    table_id: str
    base: Head
    """The newest snapshot that the committer has read."""
    snapshot: Any
    """pypaimon's `Snapshot`."""
    statistics: Sequence[Any]
    """pypaimon's `PartitionStatistics` of the added files."""


class PaimonTable(Protocol):
    """A table in a catalog. Runs on the driver and in the delivery process.

    Methods that read raise `RetryableError` if the table cannot be read now.
    """

    @property
    def place(self) -> str:
        """Its address, for messages: without secrets."""
        ...

    def table_id(self) -> str | None:
        """Return an id that differs if the table is created again; None if there is no table."""
        ...

    def location(self) -> str | None:
        """Return the absolute path of its folder on the local disk; None if a catalog has no table."""
        ...

    def head(self) -> Head: ...

    def snapshot_ids(self) -> list[int]:
        """Return the ids of the snapshots that have not expired, in ascending order."""
        ...

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """Return a snapshot; None if it has expired.

        Raises:
            TableChangedError: it is damaged.
        """
        ...

    def load(self) -> Any:
        """Load the table of pypaimon with its newest schema."""
        ...

    def create(self, schema: Any) -> None:
        """Create the table. If another process was faster, its table is used.

        Args:
            schema: pypaimon's `Schema`

        Raises:
            RetryableError: it cannot be created now.
        """
        ...

    def commit(self, commit: NextCommit) -> bool:
        """Make the snapshot the newest one, if the newest one is still the base; return False if not.

        Raises:
            Exception: of any type. `may_commit_later` tells about it.
        """
        ...

    def may_commit_later(self, error: BaseException) -> bool:
        """Return True if the request of a failed `commit` may be executed after this call."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the table; none if it does not exist."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file in the table's folder; None if it does not exist."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Write a small file in the table's folder, durably, in one step. Raises OSError."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file in the table's folder. Raises OSError."""
        ...

    def unreadable(self, error: Exception) -> RetryableError:
        """The error to raise if the table cannot be read."""
        ...

    def in_short(self, error: BaseException) -> str:
        """Return the messages of the error and of its causes, without secrets."""
        ...


def dropped(place: str) -> TableChangedError:
    return table_changes.dropped(f"Paimon table {place}")


def check_same_table(table: PaimonTable, table_id: str | None) -> str:
    """Return the id of the table.

    Raises:
        TableChangedError: it is another table, or there is none.
    """
    has = table.table_id()
    if has is None:
        raise dropped(table.place)
    check_same_id(f"Paimon table {table.place}", has, table_id)
    return has


def check_not_behind(table: PaimonTable, snapshot_id: int | None) -> None:
    """
    Raises:
        TableChangedError: the table was at a later snapshot before.
    """
    latest = table.head().snapshot_id
    table_changes.check_not_behind(f"Paimon table {table.place}", latest, snapshot_id, unit="snapshot")
