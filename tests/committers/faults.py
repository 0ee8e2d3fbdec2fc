"""What the tests of the commit protocol share: one query's table and store, and ways for a step to fail.

Everything is real, the data files, the table and the store, but for the places where something breaks.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
from tests.committers.lakes import LakeTable

from penstock.committers import crash_points
from penstock.committers.commit_runner import Retry
from penstock.committers.contract import (
    AttemptId,
    Batch,
    CheckToken,
    Committable,
    Conflict,
    DataFile,
    DataFiles,
    Manifest,
    ManifestStore,
    Mode,
    Outcome,
    PayloadCommitter,
    PlannedBatch,
    StreamKey,
    Token,
)
from penstock.committers.errors import CommitStateUnknownError
from penstock.committers.file_tables.manifest import LakeManifest, PlannedFiles, build_manifest
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.two_phase import TwoPhaseCommitter
from penstock.datasource.batch_plan import CommittableMessage
from penstock.datasource.committing import abort_batch
from penstock.datasource.file_table import FileTable as SinkTable
from penstock.datasource.planning import plan_batch
from penstock.testing.faults import Crash

SCHEMA = pa.schema([("id", pa.int64())])

Ids = Sequence[int]


# The query -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Query:
    """One query that writes ids into one table, and what Spark and the sink do for a batch of it.

    The steps are those of the data source's planner and commit processes: each looks at the table anew.
    """

    lake: LakeTable
    query_id: str = "q1"
    mode: Mode = "append"
    schema: pa.Schema = SCHEMA
    """Beginning with `id`; all other columns are NULL."""

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.query_id, self.lake.sink().table_uri)

    def batch(self, batch_id: int, offsets: object = "") -> Batch:
        """The same batch id with other `offsets` is a batch with another digest."""
        digest = hashlib.sha256(f"{batch_id} {offsets}".encode()).hexdigest()
        return Batch(self.stream, batch_id, digest)

    def committer(
        self, store: ManifestStore, table: PayloadCommitter[DataFiles] | None = None, attempts_max: int = 20
    ) -> TwoPhaseCommitter[DataFiles]:
        """As a new process has it; it never waits."""
        return TwoPhaseCommitter(
            store, table or self.open_table(), Retry(attempts_max=attempts_max), sleep=lambda _seconds: None
        )

    def open_table(self) -> SinkTable:
        table: SinkTable = self.lake.sink().open_table()
        return table

    def plan(self, store: SqlManifestStore, batch: Batch, *, evolve: bool = False) -> PlannedFiles | None:
        """What the planner does before any task runs; None if the tasks are to skip the batch."""
        sink = self.lake.sink(evolve=evolve)
        plan = plan_batch(sink, store, batch, self.schema, self.mode == "overwrite")
        if plan.writers is None or plan.content is None:
            return None
        return PlannedBatch(plan.writers, plan.content, plan.content.table_id)

    def sink_plan(self, batch_id: int) -> PlannedFiles:
        """How the batch is to be written, without a look at what is pending."""
        sink = self.lake.sink()
        return sink.open_table().plan_batch(self.schema, self.mode, batch_id)

    def write(self, planned: PlannedFiles | None, batch: Batch, run_id: str, parts: Iterable[Ids]) -> Written:
        """What the tasks do, one for each of `parts`."""
        committables = [
            Committable(
                batch=batch,
                run_id=run_id,
                partition=partition,
                attempt=0,
                payload=None if planned is None else self._write_task(planned, batch, run_id, partition, ids),
            )
            for partition, ids in enumerate(parts)
        ]
        return Written(planned, tuple(committables))

    def _write_task(
        self, planned: PlannedFiles, batch: Batch, run_id: str, partition: int, ids: Ids
    ) -> tuple[DataFile, ...]:
        writer = planned.writers.open(AttemptId(self.query_id, run_id, batch.batch_id, partition, attempt=0))
        others = [pa.nulls(len(ids), field.type) for field in self.schema if field.name != "id"]
        try:
            writer.write(pa.record_batch([pa.array(ids, pa.int64()), *others], schema=self.schema))
            return writer.finish()
        except Exception:
            writer.abort()
            raise

    def run(
        self,
        store: SqlManifestStore,
        batch: Batch,
        parts: Iterable[Ids],
        run_id: str,
        *,
        evolve: bool = False,
    ) -> Written:
        """One batch from its plan to its mark, with the abort that follows when its commit fails."""
        planned = self.plan(store, batch, evolve=evolve)
        written = self.write(planned, batch, run_id, parts)
        self.commit_or_abort(store, written)
        return written

    def commit_or_abort(
        self, store: SqlManifestStore, written: Written, table: PayloadCommitter[DataFiles] | None = None
    ) -> None:
        """Spark's side of phase two: a commit that raises is followed by an abort with all messages."""
        try:
            self.commit(store, written, table)
        except Exception:
            self.abort(written.committables)
            raise

    def abort(self, committables: Sequence[Committable[DataFiles] | None]) -> None:
        """As Spark asks for it: None stands for a task that has failed."""
        messages: list[CommittableMessage[DataFiles, LakeManifest] | None] = [
            None if one is None else CommittableMessage(one, None) for one in committables
        ]
        abort_batch(self.lake.sink(), messages)

    def commit(
        self, store: ManifestStore, written: Written, table: PayloadCommitter[DataFiles] | None = None
    ) -> None:
        committer = self.committer(store, table)
        if written.planned is None:
            committer.confirm_skipped(written.batch)
        else:
            committer.commit(written.manifest, written.committables)


@dataclass(frozen=True)
class Written:
    """What the tasks of one batch have handed back."""

    planned: PlannedFiles | None
    committables: tuple[Committable[DataFiles], ...]

    @property
    def batch(self) -> Batch:
        return self.committables[0].batch

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(file for committable in self.committables for file in committable.payload or ())

    @property
    def paths(self) -> set[str]:
        return {file.path for file in self.files}

    @property
    def manifest(self) -> Manifest:
        assert self.planned is not None, "skipped batches have no manifest"
        return build_manifest(self.batch, self.planned.content.with_files(self.files))


# What breaks -----------------------------------------------------------------------------------------


class Fault(Enum):
    """How the request that commits to the table goes wrong."""

    NONE = "none"
    NOT_SENT = "not sent"
    """It never arrives, and the caller cannot know."""
    RESPONSE_LOST = "response lost"
    """It lands, and the caller cannot know."""
    LATE = "late"
    """The caller gives up waiting while the request is still on its way. It may yet land."""


class FaultyTable:
    """A table committer whose `commit` goes wrong; all else reaches the real one."""

    def __init__(
        self,
        table: SinkTable,
        fault: Fault,
        in_flight: Callable[[Strand], None] | None = None,
    ) -> None:
        """`in_flight` takes what is still on its way, for the test to let it arrive."""
        self._table = table
        self._fault = fault
        self._in_flight = in_flight
        self.commits = 0

    def token(self, query_id: str) -> Token | None:
        return self._table.token(query_id)

    def missing(self, manifest: Manifest) -> Sequence[str]:
        return self._table.missing(manifest)

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        return self._table.discard(payloads)

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return self._table.mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        return self._table.merge(manifests, verified_version)

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        self.commits += 1
        if self._fault is Fault.NOT_SENT:
            raise CommitStateUnknownError("the request got lost")
        if self._fault is Fault.LATE:
            return self._commit_late(manifest, check_token)
        outcome = self._table.commit(manifest, check_token)
        if self._fault is Fault.RESPONSE_LOST:
            raise CommitStateUnknownError("the response got lost")
        return outcome

    def _commit_late(self, manifest: Manifest, check_token: CheckToken) -> Outcome:
        outcomes: list[Outcome] = []
        request = Strand("request", lambda: outcomes.append(self._table.commit(manifest, check_token)))
        request.resume({"commit.start"})
        if not request.ended:
            assert self._in_flight is not None
            self._in_flight(request)
            raise CommitStateUnknownError("no response in time")
        if request.error is not None:
            raise request.error
        return outcomes[0]


class ForgetfulStore:
    """A manifest store that does what it is asked, and whose answer to one method is lost."""

    def __init__(self, store: SqlManifestStore, method: str) -> None:
        self._store = store
        self._method = method

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._without_answer(method) if name == self._method else method

    def _without_answer(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            method(*args, **kwargs)
            raise CommitStateUnknownError(f"the answer to {self._method} got lost")

        return call


class BusyTable(FaultyTable):
    """Another writer takes the version, the first `conflicts` times."""

    def __init__(self, table: SinkTable, conflicts: int) -> None:
        super().__init__(table, Fault.NONE)
        self._conflicts = conflicts

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        if self.commits < self._conflicts:
            self.commits += 1
            return Conflict("taken")
        return super().commit(manifest, check_token)


# Several processes, one at a time ---------------------------------------------------------------------


class Strand:
    """A process that runs only when it is told to, from one crash point to another.

    It is a thread, but while it runs whoever resumed it waits: what happens is the same every time.
    """

    def __init__(self, name: str, body: Callable[[], object]) -> None:
        self.name = name
        self.at = ""
        """The point that it waits at; empty before it started."""
        self.ended = False
        self.error: BaseException | None = None
        self._body = body
        self._stops: frozenset[str] = frozenset()
        self._killed = False
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self._thread = _StrandThread(self)
        self._thread.start()

    def resume(self, stops: Iterable[str] = ()) -> None:
        """Run up to the next of these points, or to the end."""
        assert not self.ended
        self._stops = frozenset(stops)
        self._go.release()
        self._back.acquire()

    def kill(self) -> None:
        """Die where it waits."""
        if not self.ended:
            self._killed = True
            self.resume()

    def reach(self, point: str) -> None:
        if self._killed:
            raise Crash(point)
        if point in self._stops:
            self.at = point
            self._back.release()
            self._go.acquire()
            if self._killed:
                raise Crash(point)

    def main(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._body()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever resumed it looks at it
            self.error = error
        finally:
            self.ended = True
            self._back.release()


class _StrandThread(threading.Thread):
    def __init__(self, strand: Strand) -> None:
        super().__init__(target=strand.main, daemon=True)
        self.strand = strand


def reach(point: str, _batch_id: int = 0) -> None:
    """The handler of crash points while strands run."""
    thread = threading.current_thread()
    if isinstance(thread, _StrandThread):
        thread.strand.reach(point)


@contextmanager
def strands() -> Iterator[None]:
    """Inside, strands stop at crash points."""
    crash_points.install(reach)
    try:
        yield
    finally:
        crash_points.install(None)
