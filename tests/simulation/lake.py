"""What a simulation needs of the table that it writes: one protocol, a fake of each format behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.object_store import ObjectStore
from tests.simulation.plan import Plan
from tests.simulation.scheduler import Scheduler

from penstock.committers.cleanup import CleanableTable, ParsedName
from penstock.committers.contract import AttemptId, Batch, Committer, DataFile, DataFiles, Manifest
from penstock.committers.file_tables.manifest import decode
from penstock.writers.parquet.write_config import FileNames, parse_file_name


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
    problems: Sequence[str] = ()
    """What else the fake has seen that must not be."""


class FileLake:
    """What lakes have in common whose tasks write data files. A mix-in of `SimulatedLake`."""

    objects: ObjectStore
    open_table: Callable[[], Committer]

    @staticmethod
    def plan(plan: Plan, scheduler: Scheduler) -> Plan:
        return plan

    @property
    def data_location(self) -> str:
        raise NotImplementedError

    def open_committer(self) -> Committer:
        return self.open_table()

    def write(self, attempt: AttemptId, ids: Sequence[int]) -> DataFiles:
        """Two files at most. Those of a failed attempt are deleted."""
        names, files = FileNames.of(attempt), list[DataFile]()
        location = self.data_location.rstrip("/")
        try:
            for sequence, some in enumerate(filter(None, (ids[:2], ids[2:]))):
                name = str(names.name(sequence, "zstd"))
                files.append(DataFile(name, len(some), len(some)))
                self.objects.put(f"{location}/{name}", tuple(some), size_bytes=len(some))
        except Exception:
            for file in files:
                self.objects.delete(f"{location}/{file.path}")
            raise
        return tuple(files)

    def paths_of(self, manifest: Manifest) -> Iterator[str]:
        return (file.path for file in decode(manifest).files)

    parse_file_name = staticmethod(parse_file_name)


class SimulatedLake(Protocol):
    """One table of one format, or one other destination.

    The content of a data file in the object store is the tuple of its ids. Product code above the table
    library is the real one; each call of the library that would leave the process crosses a `step` or a
    `request`, and errors come as the library's own.
    """

    objects: ObjectStore

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None: ...

    @property
    def kind(self) -> str:
        """Of its manifests."""

    @property
    def has_whole_history(self) -> bool:
        """Does it tell of every data file that was ever added?"""

    @staticmethod
    def plan(plan: Plan, scheduler: Scheduler) -> Plan:
        """What can happen of a plan with such a destination."""

    def installed(self) -> AbstractContextManager[None]:
        """Inside, the product's modules use the fakes of this lake instead of the library."""

    @property
    def table_uri(self) -> str: ...

    @property
    def data_location(self) -> str:
        """What the paths of data files are relative to."""

    def open_table(self) -> Any:
        """The product's target, as a new process has it.

        Its plans have the columns that the simulation writes, whatever rows are given; `rewrite_config`
        has no more than compaction asks for.
        """

    def write(self, attempt: AttemptId, ids: Sequence[int]) -> DataFiles:
        """Write the rows of a task attempt.

        Raises:
            UnreachableError, DiskFullError: of the object store.
        """

    def paths_of(self, manifest: Manifest) -> Iterator[str]:
        """Of the files in a manifest."""

    def parse_file_name(self, name: str) -> ParsedName | None: ...

    def open_committer(self) -> Committer:
        """As commands open it."""

    def cleanable_table(self, store: Any) -> CleanableTable:
        """The product's view for clean-up."""

    def maintain(self, store: Any, batch: Batch) -> None:
        """The product's maintenance after a batch."""

    # Foreign writers: each loads the table, works, and commits as another engine does. ---------------------

    @property
    def exists(self) -> bool:
        """Without a step."""

    def append(self, row_id: int) -> None:
        """Write a file with this id and add it."""

    def compact(self) -> None:
        """All rows into one file."""

    def vacuum(self, older_than_s: float) -> None:
        """Delete data files older than this that the table's newest version does not name."""

    def expire(self) -> None:
        """Drop old versions: snapshots of Iceberg, log entries behind a checkpoint of Delta."""

    def versions(self) -> Sequence[int]:
        """That one could go back to, oldest first, without a step."""

    def roll_back(self, version: int) -> None:
        """RESTORE in Delta, a rollback in Iceberg."""

    def contents(self) -> TableContents:
        """Without a step."""
