"""What the lakes of a simulation have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.object_store import ObjectStore
from tests.simulation.plan import Plan
from tests.simulation.refusals import Refusals
from tests.simulation.scheduler import Scheduler

from penstock.committers.contract import AttemptId, Batch, DataFile, DataFiles, Manifest
from penstock.committers.file_tables.manifest import decode
from penstock.committers.target import Committer
from penstock.writers.parquet.file_names import FileNames, parse_file_name


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


class WrittenIds:
    """Of files that are nothing but ids. A mix-in."""

    objects: ObjectStore
    data_location: str
    """What the paths of data files are relative to."""

    def ids_of(self, batch: Batch, paths: Iterable[str]) -> set[int]:
        """The rows of a batch with these files, whether they are still there or not."""
        ever, place = self.objects.ever, self.data_location.rstrip("/")
        places = [f"{place}/{path}" for path in paths]
        return {row_id for path in places if path in ever for row_id in ever[path].content}


class FileLake(WrittenIds):
    """What lakes have in common whose tasks write data files. A mix-in; see `SimulatedLake`."""

    refusals = Refusals()
    cannot: frozenset[str] = frozenset()
    """Events that cannot happen to it."""
    open_table: Callable[[], Committer]

    @staticmethod
    def plan(plan: Plan, scheduler: Scheduler) -> Plan:
        """What can happen of a plan with such a destination."""
        return plan

    def open_committer(self) -> Committer:
        """As commands open it."""
        return self.open_table()

    def write(self, attempt: AttemptId, ids: Sequence[int]) -> DataFiles:
        """Write the rows of a task attempt: two files at most. Those of a failed attempt are deleted.

        Raises:
            UnreachableError, DiskFullError: of the object store.
        """
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
        """Of the files in a manifest."""
        return (file.path for file in decode(manifest).files)

    @staticmethod
    def with_replaced(ids: set[int]) -> set[int]:
        """These and the rows that they replace."""
        return ids

    parse_file_name = staticmethod(parse_file_name)
