"""What a simulation needs of the table that it writes: one protocol, a fake of each format behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.object_store import ObjectStore
from tests.simulation.scheduler import Scheduler

from penstock.committers.cleanup import CleanableTable
from penstock.committers.contract import Batch
from penstock.datasource.file_table import FileTable


@dataclass(frozen=True)
class RewritePlan:
    """What compaction asks of a `WriteConfig`: all files of a simulation are small."""

    target_file_bytes: int = 1000


@dataclass(frozen=True)
class TableContents:
    """The table at the end, as a reader finds it."""

    rows: Counter[int]
    """The ids in the newest version."""
    added: Counter[str]
    """How often the table's history adds each data file, by path."""
    missing: Sequence[str]
    """Files that are not in the object store, and that the newest version names; in Iceberg, any snapshot."""
    orphans: Sequence[str]
    """Data files in the object store that no readable version names."""
    tokens: Sequence[tuple[str, int, int]]
    """(query id, batch id, version), in the order of the history."""
    digests: Mapping[tuple[str, int], str]
    """Of the batches, by query id and batch id, whose commits the history still has."""
    deleted_early: Sequence[str] = ()
    """Files that the product has deleted although a reader could still have needed them."""


class SimulatedLake(Protocol):
    """One table of one format.

    The content of a data file in the object store is the tuple of its ids. Product code above the table
    library is the real one; each call of the library that would leave the process crosses a `step` or a
    `request`, and errors come as the library's own.
    """

    objects: ObjectStore

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None: ...

    @property
    def kind(self) -> str:
        """Of its manifests."""
        ...

    def installed(self) -> AbstractContextManager[None]:
        """Inside, the product's modules use the fakes of this lake instead of the library."""
        ...

    @property
    def table_uri(self) -> str: ...

    @property
    def data_location(self) -> str:
        """What the paths of data files are relative to."""
        ...

    def open_table(self) -> FileTable:
        """The product's target, as a new process has it.

        Its plans have the columns that the simulation writes, whatever rows are given; `rewrite_config`
        has no more than compaction asks for.
        """
        ...

    def cleanable_table(self, store: Any) -> CleanableTable:
        """The product's view for clean-up."""
        ...

    def maintain(self, store: Any, batch: Batch) -> None:
        """The product's maintenance after a batch."""
        ...

    # Foreign writers: each loads the table, works, and commits as another engine does. ---------------------

    @property
    def exists(self) -> bool:
        """Without a step."""
        ...

    def append(self, row_id: int) -> None:
        """Write a file with this id and add it."""
        ...

    def compact(self) -> None:
        """All rows into one file."""
        ...

    def vacuum(self, older_than_s: float) -> None:
        """Delete data files older than this that the table's newest version does not name."""
        ...

    def expire(self) -> None:
        """Drop old versions: snapshots of Iceberg, log entries behind a checkpoint of Delta."""
        ...

    def versions(self) -> Sequence[int]:
        """That one could go back to, oldest first, without a step."""
        ...

    def roll_back(self, version: int) -> None:
        """RESTORE in Delta, a rollback in Iceberg."""
        ...

    def contents(self) -> TableContents:
        """Without a step."""
        ...
