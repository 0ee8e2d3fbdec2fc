"""External events: foreign writers, operators, clean-up, and what happens to store and checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from tests.simulation.changed_files import ChangedFiles
from tests.simulation.deliveries import DeliveryProcess
from tests.simulation.lake import TableContents
from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.query import HEALED_BY_RESTART, Query
from tests.simulation.refusals import letters_of
from tests.simulation.request_lake import RequestSimLake
from tests.simulation.routes import routes_cleanable
from tests.simulation.scheduler import DAY_S, HOUR_S
from tests.simulation.store_connection import clock_of
from tests.spark_logs import Checkpoint

from penstock.committers.cleaning.cleanup import Cleanup
from penstock.committers.contract import ManifestRecord, ManifestState
from penstock.committers.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    PenstockError,
    TableChangedError,
)
from penstock.committers.progress import with_store
from penstock.committers.protocol.commit_runner import CommitRunner
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.sink import check_same_table
from penstock.operating.admin import abort, check_skippable, undelivered

if TYPE_CHECKING:
    from tests.simulation.lakes import SimulatedLake
    from tests.simulation.targets import SimulatedTarget, Stream
    from tests.simulation.world import World

    from penstock.datasource.stored.table_access import TableAccess

ENGINES = ("append", "compact", "delete_key", "vacuum", "expire", "roll_back")
"""Of these, what other engines do to the table."""


RECENT_BATCHES = 1000

LOOKS_MAX, LOOK_S = 20, 3.0
"""For a batch that can be aborted."""


@dataclass
class ExternalEvents:
    """What happens to one table, and to the store and the checkpoint, beside the query. Each event is a
    method.
    """

    world: World
    target: SimulatedTarget
    appended: list[int] = field(default_factory=list)
    """Ids that other writers have added for sure."""
    rolled_back: set[int] = field(default_factory=set)
    """Ids that a rollback of the table has taken back."""
    was_rolled_back: bool = False
    noticed: bool = False
    """A query or an operator has got an error about it."""
    has_deleted_files: bool = False
    """Files that no version of the table names were deleted, such as those of prepared batches."""
    abandoned: set[int] = field(default_factory=set)
    """Ids of batches that an operator has given up, or whose loss a query has reported."""
    _ids: int = 0

    @property
    def lake(self) -> SimulatedLake:
        return self.target.lake

    @property
    def streams(self) -> list[Stream]:
        """Of all queries, into this table."""
        return [one for one in self.world.streams if one.target is self.target]

    def act(self, name: str) -> None:
        """Other engines deal with lost requests in ways of their own: here none of theirs gets lost."""
        with self.world.scheduler.reliable() if name in ENGINES else nullcontext():
            try:
                getattr(self, name)()
            except PenstockError as error:
                self.judge(error, name)

    def judge(self, error: PenstockError, name: str) -> None:
        """Which errors an operator may see."""
        self.world.scheduler.log(f"  {name}: {type(error).__name__}: {str(error)[:300]}")
        is_diverged = any(query.is_diverged for query in self.world.queries)
        if isinstance(error, TableChangedError) and self.was_rolled_back:
            self.noticed = True
        elif (isinstance(error, TableChangedError) and self.has_deleted_files) or (
            isinstance(error, CheckpointMismatchError) and is_diverged
        ):
            pass
        elif isinstance(error, ConfigurationError) and "penstock deliver --once" in str(error):
            pass  # what waits is not sent by this command
        elif not isinstance(error, HEALED_BY_RESTART):
            self.world.problems.append(f"{name}: {error!r}")

    # Other writers

    def append(self) -> None:
        """Of two tables with the same files, not before both are there: the second would lack the row."""
        targets = self.world.targets if self.world.shares_files else [self.target]
        if not all(target.lake.exists for target in targets):
            return
        self._ids += 1
        self.lake.append(-self._ids)
        if self.lake.contents().rows[-self._ids]:
            self.appended.append(-self._ids)

    def compact(self) -> None:
        if self.lake.exists:
            self.lake.compact()

    def delete_key(self) -> None:
        """DELETE of the rows with one key."""
        if isinstance(self.lake, ChangedFiles) and self.lake.exists:
            self.lake.delete_key()

    def maintain_table(self) -> None:
        """Files of the table are rewritten as a delivery process does it."""
        stream = self._some_stream()
        if isinstance(self.lake, ChangedFiles):
            query_id, store = stream.key.query_id, stream.store
            summary = self.lake.maintain_table(query_id, lambda: store.history(stream.key, RECENT_BATCHES))
            self.world.scheduler.log(f"  maintenance: {summary}")

    def vacuum(self) -> None:
        """Beside drivers only where the format's commits notice it: see docs/protocol.md, Limits."""
        lake, scheduler = self.lake, self.world.scheduler
        while lake.kind == "iceberg" and not self._is_quiet():
            scheduler.wait(self._is_quiet)
        if lake.exists:
            # At once: one that has looked at the table before a batch landed would take that for orphans.
            with scheduler.undisturbed():
                lake.vacuum(scheduler.rng.choice((0.0, 0.0, HOUR_S, 7 * DAY_S)))
            self.has_deleted_files = self.world.plan.delivery is not None

    def _is_quiet(self) -> bool:
        """No driver runs, nobody delivers, and nothing is on its way to table and files; the database may be
        slow.
        """
        drivers = [driver for query in self.world.queries for driver in query.drivers]
        actors = [*drivers, *self.world.delivery_processes]
        requests = self.world.scheduler.in_flight
        return all(actor.has_ended for actor in actors) and all(one.is_to_store for one in requests)

    def expire(self) -> None:
        """Not after a rollback, which could then not be noticed: see docs/protocol.md, Limits."""
        if self.lake.exists and not self.was_rolled_back:
            self.lake.expire()

    def roll_back(self) -> None:
        lake, rng = self.lake, self.world.scheduler.rng
        versions = lake.versions() if lake.exists else ()
        if not versions or self.was_rolled_back:
            return
        before = lake.contents().rows
        with self.world.scheduler.undisturbed():
            lake.roll_back(rng.choice(versions))
        gone = set(before - lake.contents().rows)
        self.rolled_back |= gone
        # Of a time that the cleaned up log no longer has, nobody knows what a RESTORE to it took back.
        self.was_rolled_back |= bool(gone) or (lake.kind == "delta" and "expire" in self.world.plan.events)
        self.world.scheduler.log(f"  rows gone: {sorted(gone)}")

    # Operators

    def recover(self) -> None:
        """`penstock recover`."""
        for stream in self.streams:
            stream.is_reported = False
            try:
                self._recover(stream)
            except PenstockError as error:
                stream.is_reported = isinstance(error, CheckpointMismatchError)
                self.judge(error, "recover")

    def _recover(self, stream: Stream) -> None:
        world, store = self.world, stream.connect()
        stream.query.is_unharmed = False  # what was pending is committed, whatever its checkpoint says by now
        table = with_store(self.lake.open_committer(), cast(SqlManifestStore, store))
        check_same_table(table, stream.key, store.written_table(stream.key))
        commit_runner = CommitRunner(store, table, sleep=world.scheduler.sleep, rng=world.scheduler.rng)
        for recovered in Recovery(store, table, commit_runner).recover_each(stream.key):
            batch_id, state = recovered.record.batch.batch_id, recovered.state
            if stream.is_diverged and state is ManifestState.COMMITTED:
                stream.taken_from_table.add(batch_id)
            world.scheduler.log(f"  recovered batch {batch_id}: {state.value}, {recovered.reason}")

    def accept_table(self, stream: Stream) -> None:
        """`penstock recover --accept-table`."""
        lake = self.lake
        self.world.scheduler.log("accepts the table as it is")
        stream.is_accepted = True
        now: Any = lake.open_table().plan_batch(pa.schema([]), "append", 0).content
        stream.store.accept_table(stream.key, now.table_id, now.table_version)
        cast("Any", lake.open_table()).accept(stream.checkpoint.query_id)
        Recovery(stream.store, lake.open_table()).accept_pending(stream.key)

    def collect_garbage(self) -> None:
        """`penstock gc --delete`, with whatever grace period."""
        world = self.world
        if not self.lake.exists:
            return
        now, rng = clock_of(world.scheduler)(), world.scheduler.rng
        grace = timedelta(seconds=rng.choice((0.0, HOUR_S, 7 * DAY_S)))
        for query in {id(query.store): query for query in world.queries}.values():
            lake, store = self.lake, query.connect()
            table, address = lake.cleanable_table(store), lake.table_uri
            if query.anchor is not None and rng.random() < 0.5:
                table, address = routes_cleanable(store, cast(RequestSimLake, lake)), query.anchor.table_uri
            streams = [one for one in query.store.stream_keys() if one.table_uri == address]
            cleanup = Cleanup(store, table, streams, lake.parse_file_name, world.paths_of)
            found = cleanup.find(now, grace)
            if any(file.modified_at >= now - grace for file in found.unneeded):
                world.problems.append("gc takes files that are younger than its grace period")
            deleted = sum(cleanup.delete(found))
            world.scheduler.log(f"  {deleted} files deleted")

    def skip(self) -> None:
        """`penstock skip` of some batch."""
        stream, rng = self._some_stream(), self.world.scheduler.rng
        waiting = stream.store.pending(stream.key)
        if waiting and not stream.is_retired:
            record = rng.choice(waiting)
            status: Any = SimpleNamespace(key=stream.key, settings=stream.store.settings(stream.key))
            store: Any = stream.connect()
            record = check_skippable(store, status, record.batch.batch_id, cast("TableAccess", None))
            self.give_up(stream, [record])
            store.deliveries.skip(
                stream.key, record.batch.batch_id, "operator", "why not", expected=record.batch
            )

    def deliver(self) -> None:
        """`penstock deliver --once`, and at once the removal of what was replaced."""
        process = DeliveryProcess(self.world, "drain")
        for stream in self.streams:
            if not stream.is_retired:
                process.turn(stream, "drain")
                process.remove_sources(stream, 0.0)

    def park(self) -> None:
        """`penstock park`, and `penstock retry` if it is parked."""
        stream = self._some_stream()
        deliveries = stream.connect().deliveries
        is_parked = stream.store.deliveries.state(stream.key).parked_at is not None
        (deliveries.retry if is_parked else deliveries.park)(stream.key, "operator", "why not")

    def abort(self) -> None:
        """`penstock abort`, once a checkpoint was deleted."""
        for stream in self.streams:
            if stream.is_retired and stream.store.settings(stream.key):
                # Another copy of the checkpoint may be there, with a store that names the same files.
                self.has_deleted_files |= any(
                    one.key == stream.key for one in self.streams if one is not stream
                )
                status: Any = SimpleNamespace(key=stream.key, settings=stream.store.settings(stream.key))
                store: Any = stream.connect()
                access = cast("TableAccess", None)
                _, waiting = undelivered(store, status, access)
                self.give_up(stream, waiting)
                seen = [record.batch for record in waiting]
                aborted = abort(store, status, access, "operator", "the checkpoint is gone", seen)
                self.world.scheduler.log(f"  {len(aborted.records)} batches, {aborted.deleted} files deleted")

    def give_up(self, stream: Stream, records: Sequence[ManifestRecord]) -> None:
        """From now on it is no loss if the rows of these batches are not in the table."""
        for record in records:
            self.abandoned |= self.lake.with_replaced(self.ids_of(stream, record))

    def ids_of(self, stream: Stream, record: ManifestRecord) -> set[int]:
        """Whether its files are still there or not."""
        ids = self.lake.ids_of(record.batch, self._paths_of(stream, record))
        return ids | set(letters_of(stream.store, record.batch))

    def skip_refused(self, stream: Stream) -> bool:
        """Give up the first batch that waits, if its files are gone, or it was planned before the table went
        back: such a batch the table does not take, though it was accepted as it is.
        """
        record = next(iter(stream.store.pending(stream.key)), None)
        if record is None or record.delivery_id is not None:
            return False
        if not self.was_rolled_back and all(map(self._is_there, self._paths_of(stream, record))):
            return False
        if isinstance(self.lake, RequestSimLake) and not self.has_deleted_files:
            return False  # nobody but the product deletes files of a row log
        self.give_up(stream, [record])
        return stream.store.deliveries.skip(stream.key, record.batch.batch_id, "operator", "it is refused")

    def _paths_of(self, stream: Stream, record: ManifestRecord) -> list[str]:
        manifest = stream.store.manifest(stream.key, record.batch.batch_id)
        return [] if manifest is None else list(self.lake.paths_of(manifest))

    def _is_there(self, path: str) -> bool:
        return f"{self.lake.data_location.rstrip('/')}/{path}" in self.lake.objects.objects

    # The store

    def lose_store(self) -> None:
        store = self._some_query().store
        if self.world.rows.places and any(query.checkpoint.next_batch() == 0 for query in self.world.queries):
            return  # a first batch is written as if nothing had been there
        store.lose()
        self._cut_off(store)

    def _cut_off(self, store: SimulatedStore) -> None:
        """Of a decoupled query: what is on its way to a store does not get to the one in its place."""
        if self.world.plan.delivery is not None:
            scheduler = self.world.scheduler
            scheduler.in_flight = [one for one in scheduler.in_flight if not one.is_to_store]

    def back_up_store(self) -> None:
        query = self._some_query()
        self.world.backups[id(query.store)] = query.store.back_up()

    def restore_store(self) -> None:
        store = self._some_query().store
        if id(store) in self.world.backups:
            if self.world.plan.delivery is not None:
                self._stop_drivers()
            store.restore(self.world.backups[id(store)])
            self._cut_off(store)

    def lose_record(self) -> None:
        """The newest batch of one target is aborted while no driver runs: its replay writes it for that
        target alone.
        """
        stream, scheduler = self._some_stream(), self.world.scheduler
        for _ in range(LOOKS_MAX):
            record = self._abortable(stream)
            if record is not None:
                break
            scheduler.sleep(LOOK_S)
        else:
            return
        self._stop_drivers()
        checkpoint, batch_id = stream.checkpoint, record.batch.batch_id
        checkpoint.commits.discard(batch_id)
        if checkpoint.newest > batch_id:
            del checkpoint.offsets[checkpoint.newest]
        is_aborted = stream.store.finish(record.batch, ManifestState.ABORTED, reason="lost", expected=record)
        assert is_aborted, f"{record} is what the store has"
        scheduler.log(f"  batch {batch_id} of target {self.target.name} is aborted")

    def _abortable(self, stream: Stream) -> ManifestRecord | None:
        """The stream's newest batch if Spark can run it again and it is prepared, without a step.

        The product aborts nothing that is in the table, or may come into it. No target has a later batch.
        """
        record = next(iter(stream.store.history(stream.key, 1)), None)
        if record is None or record.state is not ManifestState.PREPARED or record.delivery_id is not None:
            return None
        batch_id, newest = record.batch.batch_id, stream.checkpoint.newest
        if stream.is_retired or newest - batch_id not in (0, 1) or self.world.scheduler.in_flight:
            return None
        if any(one.store.record(one.key, batch_id + 1) for one in stream.query.streams):
            return None
        if isinstance(self.lake, RequestSimLake) and self.world.may_send_in_commit:
            return None  # a part of it may be sent
        tokens = self.lake.contents().tokens if self.lake.exists else ()
        landed = {batch_id for query_id, batch_id, _ in tokens if query_id == stream.key.query_id}
        return None if batch_id in landed else record

    def _some_query(self) -> Query:
        return self.world.scheduler.rng.choice(self.world.queries)

    def _some_stream(self) -> Stream:
        return self.world.scheduler.rng.choice(self.streams)

    # The checkpoint

    def rewind_checkpoint(self) -> None:
        """An operator stops all drivers and takes the newest batches out of both logs."""
        query, rng = self._some_query(), self.world.scheduler.rng
        checkpoint = query.checkpoint
        if checkpoint.newest < 0 or query.is_retired:
            return
        self._stop_drivers()
        first = rng.randint(0, checkpoint.newest)
        query.is_unharmed = query.is_unharmed and self._has_committed_nothing(query, first)
        for batch_id in range(first, checkpoint.newest + 1):
            del checkpoint.offsets[batch_id]
            checkpoint.commits.discard(batch_id)
        self._diverge()
        self.world.scheduler.log(f"  {checkpoint.name} begins again at batch {first}")
        if self.world.plan.delivery is not None:
            query.start(self.world.random_start(query))

    def _has_committed_nothing(self, query: Query, first: int) -> bool:
        """Of the batches from this one on, and nothing is on its way that could."""
        batch_ids = []
        for stream in query.streams:
            seen = stream.lake.contents().tokens if stream.lake.exists else ()
            batch_ids += [batch_id for query_id, batch_id, _ in seen if query_id == query.checkpoint.query_id]
            batch_ids += [  # empty ones leave no token
                record.batch.batch_id
                for record in query.store.history(stream.key, 100)
                if record.state is ManifestState.COMMITTED
            ]
            if self.world.plan.delivery is not None:  # any of them may be delivered before its replay comes
                batch_ids += [record.batch.batch_id for record in query.store.pending(stream.key)]
        if query.anchor is not None:
            batch_ids += [one.batch.batch_id for one in query.store.history(query.anchor, 100)]
        is_decoupled, processes = self.world.plan.delivery is not None, self.world.delivery_processes
        if is_decoupled and self.world.plan.loses_store and not all(one.has_ended for one in processes):
            return False  # one that sleeps may land what the store knows no more
        return max(batch_ids, default=-1) < first and not self.world.scheduler.in_flight

    def copy_checkpoint(self) -> None:
        """A copy takes the store with it where that is a file in the checkpoint. A query is started on it."""
        query, plan = self._some_query(), self.world.plan
        if len(self.world.queries) > 1 or query.is_retired:
            return
        original = query.checkpoint
        checkpoint = replace(
            original, name="copy", offsets=dict(original.offsets), commits=set(original.commits)
        )
        store = query.store
        if not plan.has_shared_store:
            store = self.world.new_store()
            store.restore(query.store.back_up())
        self.world.queries.append(Query(self.world, checkpoint, store))
        self._diverge()
        for one in self.world.queries:
            one.is_unharmed = False
            one.start(self.world.random_start(one))

    def reset_checkpoint(self) -> None:
        """An operator deletes the checkpoint: a new query writes the source again, as rows of its own."""
        query = self._some_query()
        if query.is_retired:
            return
        self._stop_drivers()
        query.is_retired = True
        number = len(self.world.queries) + 1
        checkpoint = Checkpoint(f"checkpoint {number}", f"q{number}", first_id=1000 * number)
        plan, store = self.world.plan, query.store
        if not plan.has_shared_store:
            store = self.world.new_store()
        self.world.queries.append(Query(self.world, checkpoint, store))

    # The targets

    def new_target(self) -> None:
        """The query is started anew, with this target."""
        query = self.world.queries[0]
        self._stop_drivers()
        self.target.first_batch = query.checkpoint.next_batch()
        query.start(self.world.random_start(query))

    def left_target(self) -> None:
        """The query is started anew, without this target."""
        query = self.world.queries[0]
        self._stop_drivers()
        self.target.end_batch = query.checkpoint.next_batch()
        query.start(self.world.random_start(query))

    def _stop_drivers(self) -> None:
        for query in self.world.queries:
            for driver in query.drivers:
                self.world.scheduler.kill(driver)

    def _diverge(self) -> None:
        for query in self.world.queries:
            query.is_diverged = True

    # At the end

    def _is_read_by_a_query(self, row_id: int) -> bool:
        """By one whose checkpoint is still there."""
        sources = [query.checkpoint.first_id for query in self.world.queries if not query.is_retired]
        return any(first <= row_id < first + self.world.source_rows for first in sources)

    def check(self, seen: TableContents) -> Iterator[str]:
        gone = [i for i in self.appended if seen.rows[i] != 1 and i not in self.rolled_back]
        if gone:
            yield f"rows {gone} of other writers are gone or doubled"
        ours = {i for i in self.rolled_back if not seen.rows[i] and self._is_read_by_a_query(i)}
        # Another stream may have written further and expired what is older: see docs/protocol.md, Limits.
        streams = {stream.key for stream in self.streams}
        may_be_hidden = self.lake.kind == "iceberg" and len(streams) > 1
        if ours and not self.noticed and not may_be_hidden:
            yield f"the table was rolled back, rows {sorted(ours)} are gone, and no query said so"
