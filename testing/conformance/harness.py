"""The description of a destination for the conformance suite, written by its author."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from ..faults import Lost

if TYPE_CHECKING:
    from ...datasource.destinations import DestinationType

ChangedRow: TypeAlias = "tuple[int, int | None, str | None]"
"""id, n and text of a row."""

VersionRow: TypeAlias = "tuple[int, int, int | None, bool, str | None]"
"""id, valid_from, valid_to, is_current and text of a row."""

SECRET = "geheim-4711"  # noqa: S105  must not be shown anywhere
"""The secret in `DestinationHarness.secret_options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The promises of a destination. Where it promises less, the suite checks the weaker promise.

    docs/destinations.md shows the texts.
    """

    name: str
    """Name of the destination, in the plural: `Delta tables`."""
    payload: str
    """What the tasks of a batch write, invisible to readers."""
    commit: str
    """The one step that makes a batch visible."""
    token: str
    """Where the destination stores the last batch of a query."""
    is_exactly_once: bool = True
    """False: each row is written at least once."""
    is_atomic: bool = True
    """True: rows become visible batch by batch. False: as soon as a task has written them."""
    shows_whole_batches: bool = True
    """With `is_atomic`. False: after its commit, a batch appears in parts, such as partitions."""
    stages_rows: bool = True
    """True: what the tasks of a coupled query write waits for the commit, and can be discarded. False: it is
    sent at once.
    """
    undoes_attempts: bool = False
    """True: what attempts of earlier runs have left is undone before the tasks of a batch start."""
    discards: bool = True
    """True: staged payloads can be deleted. False: the destination deletes them by itself after a while."""
    overwrites: bool = True
    """True: supports batches that replace all rows, in `complete` mode and batch writes with overwrite."""
    changes: str = ""
    """What a commit does with the rows that changes by key (`writeMode=upsert`) replace and delete; empty:
    the destination takes no changes.
    """
    moves_keys: bool = True
    """With `changes`. False: what decides the place of a row is its key, or a part of it."""
    ignores_late_rows: bool = True
    """With `changes`. False: `lateRows=ignore` is refused."""
    computes_rows: bool = False
    """True: a commit reads the rows that it replaces: `updateColumns` and `history`."""
    updates_fields: bool = False
    """Without `computes_rows`. True: it takes `updateColumns`: the service leaves fields as they are."""
    adds_columns: bool = True
    """True: `schemaEvolution=addColumns` adds missing columns."""
    checks_schema: bool = True
    """True: rows of other types than the destination's are refused before any row is written."""
    narrows: bool = False
    """True: with `badRows=deadLetter` or `drop`, the integers and decimals of a query may have larger types
    than the columns, and numbers that overflow are bad rows.
    """
    evolves: bool = False
    """True: `schemaEvolution=evolve` widens types and makes columns nullable."""
    quarantines: bool = False
    """True: with `schemaEvolution=quarantine`, rows with values in columns that the table does not have, or
    has with another type, are dead letters.
    """
    reserved_columns: tuple[str, ...] = ()
    """Names that readers of the format use for columns of their own. A query that would add a column with
    one of them is refused.
    """
    shows_secrets_to_tasks: bool = False
    """True: executors get the secrets with which tasks connect."""
    crash_points: tuple[str, ...] = ()
    """The points of `committers.crash_points` that its own code reaches."""

    @property
    def takes_changes(self) -> bool:
        return bool(self.changes)


class DestinationHarness(ABC):
    """One empty destination for a test: its options, its visible rows, and its faults.

    Rows have a column `id` (`bigint`); some have more. The harness must not use the code under test.
    """

    promises: ClassVar[Promises]
    destination: ClassVar[DestinationType]
    secrets: ClassVar[Mapping[str, str]] = {}
    """Options whose values are `SECRET`, for a destination that takes secrets."""
    sees_all_names: ClassVar[bool] = False
    """True: `ids` has the rows of all destinations of this kind, whatever their name is."""
    unreachable_port: int = 1
    """A port of 127.0.0.1 at which no server answers, for `unreachable_options`. The suite sets it."""

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """Return the options of a query that writes here, without the checkpoint."""

    @property
    def options_of_changes(self) -> dict[str, str]:
        """Return the options of a query that changes rows here by the key `id`, for `changes`."""
        return self.options

    @property
    def read_options(self) -> dict[str, str]:
        """Return the options of `penstock.reader` for the table; empty if Penstock does not read it."""
        return {}

    @property
    def secret_options(self) -> dict[str, str]:
        """Return options with `SECRET` in them; empty if the destination has no secrets."""
        return {**self.options, **self.secrets} if self.secrets else {}

    @property
    def unreachable_options(self) -> dict[str, str]:
        """Return `secret_options` for a server at `unreachable_port`; empty if there is no server."""
        return {}

    # What others see ------------------------------------------------------------------------------

    @abstractmethod
    def ids(self) -> list[int]:
        """Return the ids that readers see, in any order, read by another engine than the writer."""

    @abstractmethod
    def uncommitted(self) -> Collection[str]:
        """Return the names of what tasks have left and no reader sees: data files, staging tables."""

    def changed_rows(self) -> Sequence[ChangedRow]:
        """Return the visible rows with the columns id, n and text, in any order. Required for
        `takes_changes`.
        """
        raise NotImplementedError

    def version_rows(self) -> Sequence[VersionRow]:
        """Return the visible rows of a table with history, in any order. Required for `computes_rows`."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Return problems other than the visible rows, such as a file that is referenced twice."""
        return []

    # What breaks ----------------------------------------------------------------------------------

    @abstractmethod
    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        """Lose the next commit request within the block, or only its response.

        At the lowest boundary possible: a connection, a client, a file system.
        """

    def losing_requests(self, lost: Lost, times: int) -> AbstractContextManager[None] | None:
        """Lose the next requests with rows within the block, or only their responses, between the client and
        a real server, for example in a proxy. Check at the end that all of them were lost.

        None: the destination does not receive rows in requests, or nothing can lose them.
        """
        return None

    def without_acknowledgements(self) -> AbstractContextManager[None] | None:
        """Answer all requests with rows within the block with a success that acknowledges no row, such as an
        empty answer or the log-in page of a proxy. The server does not receive them.

        None: the destination does not receive rows in requests, or nothing can answer in its place.
        """
        return None

    @abstractmethod
    def delete_uncommitted(self) -> None:
        """Delete everything in `uncommitted`, as a vacuum or an operator would."""

    # What others do -------------------------------------------------------------------------------

    @abstractmethod
    def append(self, row_id: int) -> None:
        """Add a row as another writer. All other columns are NULL."""

    @abstractmethod
    def drop(self) -> None:
        """Drop the table, with what its queries have recorded in it."""

    def recreate(self) -> None:
        """Drop the table and create an empty one like it. Required for `SupportsTableIdentity`."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Restore the table to before its last batch. Required for `SupportsTableIdentity`."""
        raise NotImplementedError

    @property
    def evolving(self) -> Mapping[str, str]:
        """Return what a query sets in addition to `schemaEvolution=evolve`, to widen types."""
        return {}

    # What tasks are given -------------------------------------------------------------------------

    @property
    def small_buffer(self) -> Mapping[str, str]:
        """Return options with which a task buffers few rows in memory."""
        return {}

    def options_by(self, column: str) -> Mapping[str, str]:
        """Return options with which the values of a column decide the place of a row: its partition, key or
        subject. Empty if no column can.
        """
        return {}

    def options_of_keys(self, keys: Sequence[str]) -> Mapping[str, str] | None:
        """Return options with which these columns are the key of a row in the destination, for `changes`.
        None: they cannot be.
        """
        return {}

    @property
    def row_bytes(self) -> int:
        """Return the size of large rows, if the destination does not accept 1 MiB."""
        return 1024 * 1024

    @property
    def task_bytes_max(self) -> int:
        """Return the maximum memory of one task with `small_buffer`, in bytes."""
        return 24 * 1024 * 1024
