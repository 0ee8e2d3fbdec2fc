"""What the author of a destination tells the conformance suite about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..faults import Lost

if TYPE_CHECKING:
    from ...datasource.base_source import PenstockDataSource
    from ...datasource.destinations import DestinationType

SECRET = "geheim-4711"  # noqa: S105 - what must not show
"""The secret in `DestinationHarness.secret_options`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """What a destination promises. Where it promises less, the suite checks the weaker promise.

    The texts are for docs/destinations.md.
    """

    name: str
    """Of the destination, in the plural: `Delta tables`."""
    payload: str
    """What the tasks of a batch write, before anybody sees it."""
    commit: str
    """The one step that makes a batch visible."""
    token: str
    """Where the destination keeps the last batch of a query."""
    is_exactly_once: bool = True
    """False: each row is there at least once."""
    is_atomic: bool = True
    """Rows appear batch by batch. False: as soon as a task has written them."""
    overwrites: bool = True
    """Takes batches that replace all rows: `complete` mode, and batch writes that overwrite."""
    adds_columns: bool = True
    """`schemaEvolution=addColumns` adds columns that the destination does not have."""
    checks_schema: bool = True
    """Rows of another type than the destination has are refused before any row moves."""
    shows_secrets_to_tasks: bool = False
    """What is sent to executors holds the secrets that tasks connect with."""
    crash_points: tuple[str, ...] = ()
    """Those of `committers.crash_points` that its own code reaches."""


class DestinationHarness(ABC):
    """One empty destination for a test: its options, its rows as others see them, and how it breaks.

    Rows have a column `id` (`bigint`); some have more. Nothing here may use the code under test.
    """

    promises: ClassVar[Promises]
    data_source: ClassVar[type[PenstockDataSource]]
    destination: ClassVar[DestinationType]

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """What a query sets to write here, the checkpoint left out."""

    @property
    @abstractmethod
    def secret_options(self) -> dict[str, str]:
        """As `options`, with `SECRET` in them; empty if the destination has no secrets."""

    @property
    def unreachable_options(self) -> dict[str, str]:
        """As `secret_options`, for a server that does not answer; empty if there is no server."""
        return {}

    # What others see ------------------------------------------------------------------------------

    @abstractmethod
    def ids(self) -> list[int]:
        """The ids that readers see, in any order; read by an engine that did not write them."""

    @abstractmethod
    def uncommitted(self) -> Collection[str]:
        """Names of what tasks have left here and no reader sees: data files, staging tables."""

    def problems(self) -> list[str]:
        """What is wrong beside the rows that readers see, such as a file that is named twice."""
        return []

    # What breaks ----------------------------------------------------------------------------------

    @abstractmethod
    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        """Inside the block the next request to commit gets lost, or only its response.

        At the lowest boundary there is: a connection, a client, a file system.
        """

    @abstractmethod
    def delete_uncommitted(self) -> None:
        """Delete all that `uncommitted` names, as a vacuum or an operator does."""

    # What others do -------------------------------------------------------------------------------

    @abstractmethod
    def append(self, row_id: int) -> None:
        """Another writer adds a row. All other columns are NULL."""

    @abstractmethod
    def drop(self) -> None:
        """Somebody drops the table, and what its queries know of it with it."""

    def recreate(self) -> None:
        """Somebody drops the table and creates an empty one like it. Needed with `SupportsTableIdentity`."""
        raise NotImplementedError

    def roll_back(self) -> None:
        """Somebody puts the table back to before its last batch. Needed with `SupportsTableIdentity`."""
        raise NotImplementedError

    # What tasks are given -------------------------------------------------------------------------

    @property
    def small_buffer(self) -> Mapping[str, str]:
        """Options by which a task holds few rows in memory."""
        return {}

    @property
    def task_bytes_max(self) -> int:
        """What one task may hold in memory with `small_buffer`, in bytes."""
        return 24 * 1024 * 1024
