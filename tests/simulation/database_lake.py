"""A database table in a simulation: what `penstock.postgres` promises, in memory.

The rows of a batch are staged, and its commit is one transaction: it moves them into the table, keeps those
that the table refuses in a table of their own, sets the token and drops what was staged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from tests.simulation.lake import FileLake, TableContents
from tests.simulation.object_store import LocationFileSystem, ObjectStore
from tests.simulation.plan import Plan
from tests.simulation.refusals import LakeWriters
from tests.simulation.scheduler import DiskFullError, Scheduler, UnreachableError

from penstock.committers.cleaning.cleanup import ListedFile
from penstock.committers.contract import (
    AlreadyCommitted,
    Batch,
    Committed,
    Conflict,
    DataFiles,
    DeadLetter,
    DeadLetters,
    Manifest,
    Mode,
    Outcome,
    PlannedBatch,
    Token,
)
from penstock.committers.dead_letters import COMMITTING, dead_letter
from penstock.committers.errors import CommitStateUnknownError, RetryableError, TableChangedError
from penstock.committers.file_tables.file_manifests import FileManifests
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.protocol.decision import is_in_table
from penstock.committers.protocol.token_check import is_committed
from penstock.committers.target import CheckToken
from penstock.writers.parquet.file_names import parse_file_name

KIND = "database"
MANIFESTS = FileManifests(KIND)
NO_EVENTS = frozenset({"compact", "vacuum", "expire", "roll_back"})
"""What cannot happen to the table."""


class DatabaseSimLake(FileLake):
    """See `SimulatedLake`."""

    kind = KIND
    has_whole_history = False
    exists = True
    cannot = NO_EVENTS

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.objects = ObjectStore(scheduler, is_remote=is_remote)
        self.scheduler = scheduler
        self.table_uri = "postgresql://db/orders"
        self.data_location = "db://staging"
        self.rows: Counter[int] = Counter()
        self.tokens: dict[str, Token] = {}
        self.refused: dict[Batch, list[DeadLetter]] = {}
        """Rows that the commit of a batch has refused and that the store may not have yet."""
        self._history: list[tuple[str, int, int]] = []
        self._added: Counter[str] = Counter()
        self.is_remote = is_remote

    @staticmethod
    def plan(plan: Plan, scheduler: Scheduler) -> Plan:
        delivery = plan.delivery
        if delivery is not None:
            delivery = replace(delivery, options=replace(delivery.options, compact_with="none"))
        events = tuple([name for name in plan.events if name not in NO_EVENTS])
        return replace(plan, delivery=delivery, events=events, event_count=plan.event_count if events else 0)

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The fake is the target itself."""
        yield

    def open_table(self) -> DatabaseTarget:
        return DatabaseTarget(self)

    def cleanable_table(self, store: Any) -> CleanableStaging:
        return CleanableStaging(self)

    def maintain(self, store: Any, batch: Batch) -> None:
        """There is nothing to do."""

    def paths_of(self, manifest: Manifest) -> Iterator[str]:
        return (file.path for file in MANIFESTS.decode(manifest))

    @property
    def files(self) -> TableFiles:
        opened: Any = LocationFileSystem(self.objects, self.data_location)
        return TableFiles(self.data_location, "the options", lambda: opened)

    # The server ---------------------------------------------------------------------------------------

    def move(self, manifest: Manifest, seen: Token | None) -> Outcome:
        """The transaction of a commit.

        Args:
            seen: the token that was checked; the product holds the lock of its row meanwhile
        """
        batch = manifest.batch
        token = self.tokens.get(batch.stream.query_id)
        if is_committed(manifest, token, self.table_uri):
            return AlreadyCommitted(dead_letters=self.held(manifest))
        if token != seen:
            return Conflict("another process has committed")
        files = MANIFESTS.decode(manifest)
        places = [f"{self.data_location}/{file.path}" for file in files]
        if missing := [place for place in places if place not in self.objects.objects]:
            raise TableChangedError(f"staged rows are missing: {missing[0]}")
        letters: dict[int, list[DeadLetter]] = {}
        for file, place in zip(files, places, strict=True):
            name = parse_file_name(file.path)
            assert name is not None, file
            for number, row_id in enumerate(self.objects.objects.pop(place).content):
                if self.refusals.accepts(row_id):
                    self.rows[row_id] += 1
                else:
                    number += 2 * name.sequence
                    letters.setdefault(name.batch_id, []).append(self._letter(row_id, name.partition, number))
            self._added[file.path] += 1
        for one in manifest.batches:
            if one.batch_id in letters:
                self.refused[one] = letters[one.batch_id]
        self.tokens[batch.stream.query_id] = Token(batch.batch_id, batch.digest)
        self._history.append((batch.stream.query_id, batch.batch_id, len(self._history)))
        return Committed(len(self._history), dead_letters=letters)

    def _letter(self, row_id: int, partition: int, number: int) -> DeadLetter:
        row = pa.record_batch({"id": pa.array([row_id], pa.int64())})
        at = datetime.fromtimestamp(self.scheduler.now, timezone.utc)
        return dead_letter(row, COMMITTING, partition, number, "23514", "a CHECK refuses it", at=at)

    def held(self, manifest: Manifest) -> DeadLetters:
        return {one.batch_id: self.refused[one] for one in manifest.batches if one in self.refused}

    def drop_refused(self, manifest: Manifest) -> None:
        for one in manifest.batches:
            self.refused.pop(one, None)

    # Other writers ------------------------------------------------------------------------------------

    def append(self, row_id: int) -> None:
        self.rows[row_id] += 1

    def versions(self) -> Sequence[int]:
        return ()

    def _is_not_there(self, *_: Any) -> None:
        raise NotImplementedError("no other engine does this to a database table")

    compact = vacuum = expire = roll_back = _is_not_there

    # The end ------------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        return TableContents(
            rows=self.rows.copy(),
            added=self._added.copy(),
            missing=(),
            orphans=[path for path in self.objects.objects if path.startswith(self.data_location)],
            tokens=list(self._history),
            digests={(query_id, one.batch_id): one.digest for query_id, one in self.tokens.items()},
        )


class DatabaseTarget:
    """See `Target`, `Mergeable` and `HoldsRefusedRows`."""

    def __init__(self, lake: DatabaseSimLake) -> None:
        self._lake = lake

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[DataFiles, str]:
        return PlannedBatch(LakeWriters(self._lake), "rows", "")

    def manifest(self, batch: Batch, content: str, payloads: Sequence[DataFiles]) -> Manifest:
        return MANIFESTS.encode(batch, payloads)

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return list(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        files = [MANIFESTS.decode(manifest) for manifest in manifests]
        return MANIFESTS.encode(manifests[-1].batch, files).merging(manifests)

    def token(self, query_id: str) -> Token | None:
        return self._read("token", lambda: self._lake.tokens.get(query_id))

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """None if another process has just committed them, which drops them."""
        missing = self._lake.files.missing(list(self._lake.paths_of(manifest)))
        if missing and is_in_table(self.token(manifest.batch.stream.query_id), manifest.batch):
            return []
        return missing

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        lake, seen = self._lake, self.token(manifest.batch.stream.query_id)
        if not is_committed(manifest, seen, lake.table_uri):
            check_token(seen)
        try:
            return lake.scheduler.request(
                "database: commit",
                lambda: lake.move(manifest, seen),
                about=manifest.batch.batch_id,
                remote=lake.is_remote,
            )
        except DiskFullError as error:
            raise RetryableError(str(error)) from error
        except UnreachableError as error:
            is_sent = "no connection" not in str(error)
            raise (CommitStateUnknownError if is_sent else RetryableError)(str(error)) from error

    def refused_rows(self, manifest: Manifest) -> DeadLetters:
        return self._read("refused rows", lambda: self._lake.held(manifest))

    def delete_refused_rows(self, manifest: Manifest) -> None:
        lake = self._lake
        try:
            lake.scheduler.request("database: drop refused rows", lambda: lake.drop_refused(manifest))
        except (UnreachableError, DiskFullError):
            return  # clean-up does it

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        return self._lake.files.delete([file.path for files in payloads for file in files])

    def _read(self, what: str, read: Any) -> Any:
        try:
            return self._lake.scheduler.request(f"database: {what}", read, writes=False)
        except UnreachableError as error:
            raise RetryableError(str(error)) from error


class CleanableStaging:
    """See `CleanableTable`: the staged rows."""

    def __init__(self, lake: DatabaseSimLake) -> None:
        self._lake = lake

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        tokens = {query_id: DatabaseTarget(self._lake).token(query_id) for query_id in query_ids}
        return "", {query_id: token for query_id, token in tokens.items() if token is not None}

    def files(self) -> Iterator[ListedFile]:
        return (ListedFile(*file) for file in self._lake.files.walk())

    def names(self) -> Iterator[set[str]]:
        return iter(())

    def delete_files(self, paths: Iterable[str]) -> int:
        return self._lake.files.delete(paths)
