"""Hypothesis against the commit protocol: whatever crashes, sleeps or writes beside it, no row is lost.

A history is a list of steps: drivers start, stop at any point of a batch, wake up late or die; requests
lose their answers or arrive late; other writers append, compact and vacuum; the store is lost or restored;
the checkpoint is rewound or copied. Store, table and data files are real, only Spark is a model. At the end
the query is restarted until its source is exhausted, everything that still sleeps wakes up, the query is
restarted again, and then every source row must be in the table once.

`PENSTOCK_MODEL_EXAMPLES=2000 pytest -k protocol_model` plays that many histories, others each time.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from tests.committers.faults import (
    Fault,
    FaultyTable,
    ForgetfulStore,
    Ids,
    Query,
    Strand,
    reach,
    strands,
)
from tests.committers.lakes import LAKES, LakeTable
from tests.spark_logs import Checkpoint, SparkError

from penstock import testing
from penstock.committers.contract import Batch, ManifestStore
from penstock.committers.crash_points import STREAM_POINTS
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
)
from penstock.committers.store.sql import SqlManifestStore, open_store

SPARK_POINTS = (
    "spark.offsets_logged",
    "spark.planned",
    "spark.tasks_done",
    "spark.committed",
    "spark.logged",
)
POINTS = (*STREAM_POINTS, *SPARK_POINTS)

RESTARTS_MAX = 8
"""More restarts than any history can need."""

HEALED_BY_RESTART = (RetryableError, CommitStateUnknownError, FencedError)


# Spark ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """How one start of the query goes."""

    partitions: int = 1
    batch_rows: int = 2
    """Rows of each new batch; the first one is empty if this is 0."""
    fault: Fault = Fault.NONE
    """Of the first commit to the table."""
    forgets: str = ""
    """The store's method whose answer to the first commit is lost."""
    task_fails: bool = False
    """The last task of the first batch fails after the others have written."""


class Driver:
    """One run of the query, in the order in which Spark does things."""

    def __init__(self, world: World, checkpoint: Checkpoint, start: Start, run_id: str) -> None:
        self._world = world
        self._checkpoint = checkpoint
        self._start = start
        self._run_id = run_id

    def main(self) -> None:
        batch_id = self._checkpoint.next_batch()
        is_replay = batch_id in self._checkpoint.offsets
        while is_replay or self._construct(batch_id):
            reach("spark.offsets_logged")
            self._run(batch_id)
            self._checkpoint.log_commit(batch_id)
            reach("spark.logged")
            batch_id, is_replay = batch_id + 1, False

    def _construct(self, batch_id: int) -> bool:
        """Log the offsets of a new batch; False if there is nothing to read."""
        start, end = self._checkpoint.offsets.get(batch_id - 1, 0), self._world.source_rows
        is_empty = self._start.batch_rows == 0
        if start == end and not is_empty:
            return False
        self._checkpoint.log_offsets(
            batch_id, start if is_empty else min(end, start + self._start.batch_rows)
        )
        self._start = replace(self._start, batch_rows=self._start.batch_rows or 2)
        return True

    def _run(self, batch_id: int) -> None:
        world, query = self._world, self._world.query
        batch, ids = self._batch(batch_id), self._checkpoint.ids(batch_id)
        # The planner knows no batch id: it takes the newest of the log, which may be a twin's.
        planned = self._batch(self._checkpoint.newest)
        target = query.plan(world.store, planned)
        reach("spark.planned")
        if planned.batch_id != batch_id:
            raise SparkError(f"planned batch {planned.batch_id} instead of {batch_id}")
        first, self._start = self._start, replace(self._start, fault=Fault.NONE, forgets="", task_fails=False)
        try:
            written = query.write(target, batch, self._run_id, split(ids, first.partitions))
        except OSError as error:
            raise SparkError(f"a task failed: {error}") from error
        if first.task_fails:
            query.abort([*written.committables[:-1], None])
            raise SparkError("a task failed")
        reach("spark.tasks_done")
        try:
            query.commit(world.store_with(first.forgets), written, world.table_with(first.fault))
        except Exception:
            query.abort(written.committables)
            raise
        reach("spark.committed")

    def _batch(self, batch_id: int) -> Batch:
        return self._world.query.batch(batch_id, self._checkpoint.offsets[batch_id])


def split(ids: Ids, partitions: int) -> Iterable[Ids]:
    return [ids[partition::partitions] for partition in range(partitions)]


# Everything there is ----------------------------------------------------------------------------------


class World:
    """One table, one query, its store, its checkpoints and its drivers, awake, asleep or dead."""

    def __init__(self, lake: Callable[[Path], LakeTable]) -> None:
        memory = Path("/dev/shm")
        self._folder = tempfile.TemporaryDirectory(
            prefix="penstock-model-", dir=memory if memory.is_dir() else None
        )
        self.root = Path(self._folder.name)
        self.lake = lake(self.root)
        self.query = Query(self.lake)
        self.source_rows = 0
        self.foreign_rows = 0
        self.checkpoints = [Checkpoint("checkpoint")]
        self.refused: set[str] = set()
        """Checkpoints, by name, whose last start ended in the error that asks for an operator."""
        self.sleepers: list[Strand] = []
        self.on_their_way: list[Strand] = []
        self.is_diverged = False
        """A checkpoint was rewound or copied: then it may be refused, loudly."""
        self.rows_to_keep = 0
        """Rows that were in the table when the checkpoint was rewound."""
        self.story: list[str] = []
        self.backup: Path | None = None
        self._runs = 0
        self._stores: list[SqlManifestStore] = []
        self.open_store(new_store)

    @property
    def store(self) -> SqlManifestStore:
        return self._stores[-1]

    @property
    def has_table(self) -> bool:
        return self.lake.exists

    @property
    def is_busy(self) -> bool:
        """Somebody may commit yet what was written before."""
        return any(not strand.ended for strand in [*self.sleepers, *self.on_their_way])

    def open_store(self, put: Callable[[Path], object]) -> None:
        """The store from now on. Who has the old one open goes on with that, as with a deleted file."""
        path = self.store_path(len(self._stores))
        put(path)
        self._stores.append(open_store(f"sqlite:///{path}"))

    def store_path(self, number: int) -> Path:
        return self.root / f"store-{number}.db"

    def back_up_store(self) -> None:
        self.backup = self.root / "backup.db"
        self.backup.unlink(missing_ok=True)
        with sqlite3.connect(self.store_path(len(self._stores) - 1)) as source:
            with sqlite3.connect(self.backup) as target:
                source.backup(target)

    def store_with(self, forgets: str) -> ManifestStore:
        store: ManifestStore = ForgetfulStore(self.store, forgets) if forgets else self.store
        return store

    def table_with(self, fault: Fault) -> FaultyTable:
        return FaultyTable(self.query.open_table(), fault, self.on_their_way.append)

    # Drivers

    def start(self, checkpoint: Checkpoint, start: Start) -> Strand:
        self._runs += 1
        driver = Driver(self, checkpoint, start, f"r{self._runs}")
        strand = Strand(f"r{self._runs} on {checkpoint.name}", driver.main)
        self.tell(f"{strand.name} starts: {start}")
        return strand

    def resume(self, strand: Strand, stop: str) -> None:
        with strands():
            strand.resume({stop})
        if not strand.ended:
            self.tell(f"{strand.name} sleeps at {strand.at}")
            return
        self.tell(f"{strand.name} ends: {strand.error!r}")
        if strand.error is not None and not self._is_expected(strand.error):
            raise strand.error

    def _is_expected(self, error: BaseException) -> bool:
        if isinstance(error, CheckpointMismatchError):
            return self.is_diverged
        return isinstance(error, (*HEALED_BY_RESTART, SparkError))

    def kill(self, strand: Strand) -> None:
        self.tell(f"{strand.name} dies at {strand.at}")
        strand.kill()

    def tell(self, what: str) -> None:
        logs = ", ".join(
            f"{c.name}: offsets {c.offsets}, commits {sorted(c.commits)}" for c in self.checkpoints
        )
        self.story.append(f"{what}   [{logs}]")

    # The end

    def heal(self) -> None:
        """Restart alone has to do, and at most one batch more: a restored store may name an older one."""
        self.source_rows += 1
        for checkpoint in self.checkpoints:
            self._heal(checkpoint)

    def _heal(self, checkpoint: Checkpoint) -> None:
        self.refused.discard(checkpoint.name)
        for _ in range(RESTARTS_MAX):
            strand = self.start(checkpoint, Start())
            self.resume(strand, stop="")
            if strand.error is None:
                return
            if isinstance(strand.error, CheckpointMismatchError):
                self.refused.add(checkpoint.name)
                return
        raise AssertionError(f"{RESTARTS_MAX} restarts do not heal it")

    def wake_everybody(self) -> None:
        for strand in [*self.sleepers, *self.on_their_way]:
            if not strand.ended:
                self.resume(strand, stop="")

    def check(self) -> None:
        """The invariant. A checkpoint that was refused may leave rows unread, never doubled or taken away."""
        if not self.has_table:
            assert self.source_rows == 0
            return
        foreign = f"SELECT -1 - range AS id FROM range({self.foreign_rows})"
        source = f"(SELECT range AS id FROM range({self.source_rows}) UNION ALL {foreign})"
        is_refused = all(checkpoint.name in self.refused for checkpoint in self.checkpoints)
        store = None if self.is_diverged else str(self.store.engine.url)
        found = testing.check(self.lake.on_disk, source, store=store)
        if is_refused:
            assert found.doubled == 0, found
            assert found.rows >= self.rows_to_keep, found
        else:
            assert found.problems == [], found

    def close(self) -> None:
        for strand in [*self.sleepers, *self.on_their_way]:
            strand.kill()
        for store in self._stores:
            store.close()
        self._folder.cleanup()


def new_store(path: Path) -> None:
    """A copy, because making one takes as long as ten histories."""
    shutil.copy(_template(), path)


@cache
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="penstock-model-"))
    atexit.register(shutil.rmtree, folder)
    open_store(f"sqlite:///{folder}/store.db").close()
    return folder / "store.db"


# Histories --------------------------------------------------------------------------------------------

points = st.sampled_from(POINTS)
numbers = st.integers(0, 5)
starts = st.builds(
    Start,
    partitions=st.integers(1, 3),
    batch_rows=st.integers(0, 3),
    fault=st.sampled_from([Fault.NONE, Fault.NONE, *Fault]),
    forgets=st.sampled_from(["", "", "", "prepare", "finish"]),
    task_fails=st.sampled_from([False, False, False, True]),
)


class Protocol(RuleBasedStateMachine):
    """The steps of a history."""

    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.world = World(LAKES[self.kind])
        self.world.source_rows = 3

    def teardown(self) -> None:
        try:
            self.world.heal()
            self.world.wake_everybody()
            self.world.heal()
            self.world.check()
        finally:
            note("\n".join(self.world.story))
            self.world.close()

    @rule(rows=st.integers(1, 3))
    def more_rows_arrive(self, rows: int) -> None:
        self.world.source_rows += rows

    # Drivers

    @rule(start=starts, stop=points, number=numbers)
    def a_driver_starts_and_dies(self, start: Start, stop: str, number: int) -> None:
        strand = self._start(start, stop, number)
        if not strand.ended:
            self.world.kill(strand)

    @precondition(lambda self: len(self.world.sleepers) < 3)
    @rule(start=starts, stop=points, number=numbers)
    def a_driver_starts_and_falls_asleep(self, start: Start, stop: str, number: int) -> None:
        strand = self._start(start, stop, number)
        if not strand.ended:
            self.world.sleepers.append(strand)

    def _start(self, start: Start, stop: str, number: int) -> Strand:
        checkpoints = self.world.checkpoints
        if len(checkpoints) > 1:
            start = replace(start, batch_rows=start.batch_rows or 1)
        strand = self.world.start(checkpoints[number % len(checkpoints)], start)
        self.world.resume(strand, stop)
        return strand

    @precondition(lambda self: self.world.sleepers)
    @rule(number=numbers, stop=points)
    def a_driver_wakes_up(self, number: int, stop: str) -> None:
        sleepers = self.world.sleepers
        strand = sleepers.pop(number % len(sleepers))
        self.world.resume(strand, stop)
        if not strand.ended:
            sleepers.append(strand)

    @precondition(lambda self: self.world.sleepers)
    @rule(number=numbers)
    def a_driver_dies(self, number: int) -> None:
        sleepers = self.world.sleepers
        self.world.kill(sleepers.pop(number % len(sleepers)))

    @precondition(lambda self: self.world.on_their_way)
    @rule(number=numbers)
    def a_request_arrives_late(self, number: int) -> None:
        requests = self.world.on_their_way
        self.world.resume(requests.pop(number % len(requests)), stop="")

    # Others

    @precondition(lambda self: self.world.has_table)
    @rule()
    def somebody_appends(self) -> None:
        self.world.foreign_rows += 1
        self.world.tell("somebody appends")
        self.world.lake.append(-self.world.foreign_rows)

    @precondition(lambda self: self.world.has_table)
    @rule()
    def somebody_compacts(self) -> None:
        self.world.tell("somebody compacts")
        self.world.lake.compact()

    @precondition(lambda self: self.world.has_table)
    @rule()
    def somebody_vacuums(self) -> None:
        """Uncommitted files go too, as far as the table's format can bear it; in Iceberg old snapshots do."""
        self.world.tell("somebody vacuums")
        self.world.lake.vacuum(orphans=self.world.lake.notices_vacuums or not self.world.is_busy)

    @rule()
    def an_operator_recovers(self) -> None:
        self.world.tell("an operator recovers")
        try:
            self.world.query.committer(self.world.store).recovery.recover(self.world.query.stream)
        except PenstockError as error:
            self.world.tell(f"recovery: {error!r}")

    # The store

    @rule()
    def the_store_is_lost(self) -> None:
        self.world.tell("the store is lost")
        self.world.open_store(new_store)

    @rule()
    def the_store_is_backed_up(self) -> None:
        self.world.tell("the store is backed up")
        self.world.back_up_store()

    @precondition(lambda self: self.world.backup is not None)
    @rule()
    def the_store_is_restored(self) -> None:
        self.world.tell("the store is restored")
        backup = self.world.backup
        assert backup is not None
        self.world.open_store(lambda path: shutil.copy(backup, path))

    # The checkpoint

    @precondition(lambda self: not self.world.is_diverged and self.world.checkpoints[0].newest >= 0)
    @rule(number=numbers, rows=numbers)
    def the_checkpoint_is_rewound(self, number: int, rows: int) -> None:
        """An operator stops all drivers and sets the newest batches back, with other offsets or the same."""
        world, checkpoint = self.world, self.world.checkpoints[0]
        while world.sleepers:
            world.kill(world.sleepers.pop())
        first = max(checkpoint.newest - number, 0)
        end = min(checkpoint.offsets.get(first - 1, 0) + rows, world.source_rows)
        for batch_id in range(first, checkpoint.newest + 1):
            del checkpoint.offsets[batch_id]
            checkpoint.commits.discard(batch_id)
        checkpoint.offsets[first] = end
        world.is_diverged = True
        world.rows_to_keep = world.lake.count() if world.has_table else 0
        world.tell("the checkpoint is rewound")

    @precondition(lambda self: not self.world.is_diverged and self._has_rows_in_every_batch())
    @rule()
    def the_checkpoint_is_copied(self) -> None:
        original = self.world.checkpoints[0]
        copy = Checkpoint("copy", offsets=dict(original.offsets), commits=set(original.commits))
        self.world.checkpoints.append(copy)
        self.world.is_diverged = True
        self.world.tell("the checkpoint is copied")

    def _has_rows_in_every_batch(self) -> bool:
        """An empty batch leaves no token: of two checkpoints that part at one, a lost store knows nothing."""
        checkpoint = self.world.checkpoints[0]
        return all(checkpoint.ids(batch_id) for batch_id in checkpoint.offsets)


EXAMPLES = {"delta": 30, "iceberg": 20}
"""A history of Iceberg takes twice as long as one of Delta."""


@pytest.mark.parametrize("kind", LAKES)
def test_protocol(kind: str) -> None:
    more = os.environ.get("PENSTOCK_MODEL_EXAMPLES")
    machine = type(f"Protocol_{kind}", (Protocol,), {"kind": kind})
    run_state_machine_as_test(
        machine, settings=_settings(int(more) if more else EXAMPLES[kind], more is None)
    )


def _settings(examples: int, is_repeatable: bool) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        derandomize=is_repeatable,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
