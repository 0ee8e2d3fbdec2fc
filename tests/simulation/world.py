"""One history: a query and its table, external events, faults, healing, and the invariant.

First drivers, other writers of the table, operators and clean-up act side by side while processes die, pause
and lose requests. Then nothing goes wrong any more: what is still on its way arrives or is lost, who sleeps
wakes up, the query is started until its source is exhausted, clean-up runs. At last the invariant must hold.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, cast

import pytest
from tests.simulation.deliveries import DeliveryProcess
from tests.simulation.external_events import ExternalEvents
from tests.simulation.features import CHANGES, SEED_CHOOSES, Chosen, features_in
from tests.simulation.lake import TableContents
from tests.simulation.lakes import SimulatedLake
from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.memory_store import Clock, MemoryStore
from tests.simulation.plan import Plan
from tests.simulation.query import STEPS_MAX, Query, has_ended
from tests.simulation.refusals import letters_in
from tests.simulation.request_lake import RequestSimLake
from tests.simulation.routed_rows import SourceRows
from tests.simulation.routes import (
    places_of,
    plan_with_routes,
    query_with_routes,
    routed_lakes,
    routed_targets,
    routes_installed,
    torn_batches,
)
from tests.simulation.scheduler import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    Actor,
    DiskFullError,
    Scheduler,
    StuckError,
    UnreachableError,
)
from tests.simulation.spark import Start
from tests.simulation.store_connection import clock_of
from tests.simulation.targets import (
    SimulatedTarget,
    Stream,
    can,
    kinds_of,
    lakes_of,
    query_of,
    targets_in,
    targets_of,
    with_upserts,
)
from tests.spark_logs import Checkpoint, SparkError

from penstock.committers import crash_points
from penstock.committers.cleaning.cleanup import CleanableTable, NameParser
from penstock.committers.contract import Manifest, ManifestState, StreamKey
from penstock.committers.dead_letters import BadRows
from penstock.committers.errors import PenstockError
from penstock.committers.file_tables import manifest as lake_manifest
from penstock.committers.progress import with_store
from penstock.committers.protocol import decoupled
from penstock.committers.protocol.commit_runner import CommitRunner
from penstock.committers.protocol.two_phase import TwoPhaseCommitter
from penstock.committers.store.delivery_queries import DeliveryPhase
from penstock.committers.target import Committer
from penstock.datasource import committing
from penstock.datasource.file_table import CleanableFiles
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.options.stream import NewTarget
from penstock.datasource.planning import decoupled_planning, new_target
from penstock.datasource.planning import plan as planning
from penstock.datasource.planning.backlog import wait_for_delivery
from penstock.datasource.planning.decoupled_planning import with_retry
from penstock.datasource.query import Query as ProductQuery
from penstock.datasource.routing.sink import KIND as ROUTES
from penstock.operating import admin
from penstock.testing.invariant import Observation, find_problems

LOOKS_MAX = 20
"""For batches, before the targets change."""

HISTORY_MAX = 100
"""Batches: more than any history has."""

DECOUPLED = FileTableOptions(commit_attempts_max=6, is_decoupled=True, compact_with="none")
"""Of a target with a row log in a coupled query."""

LEASE_S = 60.0
"""Of operators."""

_decode_body_once = lru_cache(maxsize=100)(lake_manifest._decode_body)
"""A history reads each of its manifests many times; decoding them again takes a tenth of its time."""


@dataclass(frozen=True)
class SimulatedStoredTable(CleanableFiles):
    """See `StoredTable`; what the commands of a simulation ask of one."""

    lake: SimulatedLake

    def committer(self) -> Committer:
        return self.lake.open_committer()

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        return self.lake.parse_file_name

    def cleanable(self, store: Any) -> CleanableTable:
        return self.lake.cleanable_table(store)


class World:
    """Everything there is, and what is known to have happened.

    Args:
        make_lake: the table's format
        make_store: a manifest store, empty, with this clock
        chosen: what it has in place of what the seed says
        is_recorded: is the timeline kept?
    """

    def __init__(
        self,
        seed: int,
        make_lake: type[SimulatedLake],
        make_store: Callable[[Clock], SimulatedStore] = MemoryStore,
        *,
        chosen: Chosen = SEED_CHOOSES,
        is_recorded: bool = False,
    ) -> None:
        self._make_store = make_store
        has_upserts = "upserts" in (chosen.features or ())
        make_lake = with_upserts(make_lake) if has_upserts else make_lake
        self.scheduler = Scheduler(seed, is_recorded=is_recorded)
        plan = Plan.of(self.scheduler.rng)
        plan = plan.only(chosen.events) if chosen.events else plan
        count = 1 if has_upserts else targets_in(seed) if chosen.targets is None else chosen.targets
        if count > 1 and not chosen.events:
            plan = plan.with_targets(self.scheduler.rng)
        if has_upserts and not chosen.events:
            plan = plan.with_changes(self.scheduler.rng)
        self.plan = make_lake.plan(plan, self.scheduler)
        kinds = kinds_of(make_lake.kind, count)
        features = features_in(seed, kinds) if chosen.features is None else chosen.features
        if "requests" in kinds[1:] or "routes" in features:
            self.plan = self.plan.keeping_store()
        if "letters" in features:
            self.plan = self.plan.keeping_letters()
        self.shares_files = "shared_files" in features
        if self.shares_files:
            self.plan = self.plan.keeping_store().sharing_files()
        self.change = next((name for name in CHANGES if name in features), None)
        if self.change is not None:
            self.plan = self.plan.keeping_batches()
        self.rows = SourceRows(places_of(count) if "routes" in features else ())
        if self.rows.places:
            self.plan = plan_with_routes(self.plan, self.scheduler)
        self.scheduler.stickiness = self.plan.stickiness
        # After a lost store, a table without rows cannot be told from one that is new to the query.
        may_be_new = (self.plan.loses_store and not self.rows.places) or "new_target" in features
        new_target = NewTarget.ALLOW if may_be_new else NewTarget.REFUSE
        bad_rows = BadRows.DEAD_LETTER if "letters" in features else BadRows.FAIL
        options = FileTableOptions(commit_attempts_max=6, new_target=new_target, bad_rows=bad_rows)
        of_delivery = self.plan.delivery.options if self.plan.delivery is not None else DECOUPLED
        of_delivery = replace(of_delivery, bad_rows=bad_rows)
        of_delivery = replace(of_delivery, new_target=new_target)
        self.targets = self._targets(make_lake, count, features, options, of_delivery)
        for target in self.targets:
            target.events = ExternalEvents(self, target)
        if "new_target" in features:
            self.targets[-1].first_batch = None
        self.backups: dict[int, Any] = {}
        """Of the stores, by their ids."""
        self.delivery_processes: list[Actor] = []
        self.source_rows = self.plan.source_rows
        self.queries = [Query(self, Checkpoint("checkpoint", "q1"), self.new_store())]
        self.problems: list[str] = []
        self.is_healing = False
        self._runs = 0

    def _targets(
        self,
        make_lake: type[SimulatedLake],
        count: int,
        features: Collection[str],
        options: FileTableOptions,
        of_delivery: FileTableOptions,
    ) -> list[SimulatedTarget]:
        if self.rows.places:
            routed = routed_lakes(self.plan, self.scheduler, self.rows.places)
            return routed_targets(routed, self.rows, of_delivery)
        lakes = lakes_of(make_lake, self.plan, self.scheduler, count, features)
        return targets_of(lakes, options, of_delivery)

    def product_query(self, start: Start) -> ProductQuery:
        """As one start of the query has it."""
        if self.rows.places:
            return query_with_routes(self.targets)
        targets = [one for one in self.targets if one.is_in_query]
        return query_of(targets, is_decoupled=start.is_decoupled)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Product code runs over the fakes, and sleeps by their clock."""
        committer = partial(TwoPhaseCommitter, sleep=self.scheduler.sleep, rng=self.scheduler.rng)
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            for target in self.targets:
                stack.enter_context(target.lake.installed())
            if self.rows.places:
                stack.enter_context(routes_installed(cast(RequestSimLake, self.targets[0].lake)))
            for module in (planning, committing):
                patch.setattr(module, "TwoPhaseCommitter", committer)
            runner = partial(CommitRunner, sleep=self.scheduler.sleep, rng=self.scheduler.rng)
            patch.setattr(decoupled, "CommitRunner", runner)
            patch.setattr(new_target, "_asked", set())  # or a history depends on those before it
            patch.setattr(lake_manifest, "_decode_body", _decode_body_once)
            if self.plan.delivery is not None:
                self._install_delivery(patch)
            logger = logging.getLogger("penstock")
            level = logger.level
            logger.setLevel(logging.CRITICAL)  # what is put off to the next batch is no news here
            crash_points.install(self._reach)
            try:
                yield
            finally:
                crash_points.install(None)
                logger.setLevel(level)

    def _install_delivery(self, patch: pytest.MonkeyPatch) -> None:
        """What waits does so by the clock of the simulation; operators have no options to parse."""
        scheduler, now = self.scheduler, clock_of(self.scheduler)

        @contextmanager
        def held_lease(store: Any, stream: Any) -> Iterator[None]:
            """In the place of the product's, whose thread renews the lease."""
            while (lease := store.deliveries.acquire(stream, "operator", LEASE_S)) is None:
                scheduler.sleep(1.0)
            try:
                yield
            finally:
                store.deliveries.release(lease)

        retry = partial(with_retry, clock=lambda: scheduler.now, sleep=scheduler.sleep)
        patch.setattr(decoupled_planning, "with_retry", retry)
        wait = partial(wait_for_delivery, now=now, sleep=scheduler.sleep)
        patch.setattr(decoupled_planning, "wait_for_delivery", wait)
        patch.setattr(admin, "held_lease", held_lease)

        def lake_of(status: Any) -> SimulatedLake:
            return self.lake_at(status.key.table_uri)

        def open_committer(status: Any, access: Any, store: Any) -> Committer:
            return with_store(lake_of(status).open_committer(), store)

        patch.setattr(admin, "stored_table", lambda *given: SimulatedStoredTable(lake_of(given[0])))
        patch.setattr(admin, "open_committer", open_committer)
        patch.setattr(admin, "paths_of", self.paths_of)

    def _reach(self, point: str, batch_id: int) -> None:
        """A crash point is a step like any other."""
        self.scheduler.step(f"point: {point}", batch_id)
        if self.is_healing:
            return
        chance = self.plan.dies_prepared if point == "prepare.done" else 0.0
        if point in ("compact.done", "deliver.prepared", "commit.landed") and self.plan.delivery is not None:
            chance = self.plan.delivery.dies_prepared
        if chance and self.scheduler.rng.random() < chance:
            self.scheduler.die()

    def play(self) -> list[str]:
        """Play the whole history; returns what is wrong at its end."""
        scheduler = self.scheduler
        with self.installed():
            try:
                organizers = self._begin()
                if scheduler.rng.random() < 0.5:
                    scheduler.run(STEPS_MAX)
                else:
                    scheduler.run(STEPS_MAX, until=lambda: all(map(has_ended, organizers)))
                self._heal()
                self._check()
            except StuckError as error:
                self.problems.append(str(error))
            finally:
                scheduler.end()
        return self.problems

    # While things go wrong

    def _begin(self) -> list[Actor]:
        scheduler = self.scheduler
        scheduler.hazards = replace(self.plan.hazards)
        scheduler.log(f"{', '.join(target.lake.kind for target in self.targets)}, {self.plan}")
        organizers = [scheduler.spawn("spark", self._start_drivers, is_mortal=False)]
        if self.plan.delivery is not None:
            organizers.append(scheduler.spawn("delivering", self._start_delivering, is_mortal=False))
        if self.plan.events:
            organizers.append(scheduler.spawn("events", self._cause_events, is_mortal=False))
        if self.change is not None:
            organizers.append(scheduler.spawn("targets", self._change_targets, is_mortal=False))
        return organizers

    def _start_drivers(self) -> None:
        rng, scheduler = self.scheduler.rng, self.scheduler
        for _ in range(self.plan.drivers):
            scheduler.sleep(rng.choice((0.0, 1.0, MINUTE_S)))
            query = rng.choice([query for query in self.queries if not query.is_retired])
            driver = query.start(self.random_start(query))
            if not (self.plan.concurrent_drivers and rng.random() < 0.5):
                scheduler.wait(partial(has_ended, driver))
            if rng.random() < 0.5:
                self.source_rows += rng.randint(1, 3)

    def lake_at(self, table_uri: str) -> SimulatedLake:
        """The target's with this address."""
        return next(target.lake for target in self.targets if target.lake.table_uri == table_uri)

    def paths_of(self, manifest: Manifest) -> Iterator[str]:
        """Of the files in a manifest of any target."""
        if manifest.kind == ROUTES:
            return iter(())
        return self.lake_at(manifest.batch.stream.table_uri).paths_of(manifest)

    def random_start(self, query: Query) -> Start:
        rng = self.scheduler.rng
        return Start(
            batch_rows=rng.randint(0 if self.plan.empty_batches else 1, 4),
            partitions=rng.randint(1, 3),
            speculation=self.plan.speculation,
            is_decoupled=self._is_decoupled(query, rng.random()),
        )

    def healing_start(self, query: Query) -> Start:
        chance = self.scheduler.rng.random() if self.plan.is_mixed else 0.0
        return Start(is_decoupled=not query.has_lost_batches and self._is_decoupled(query, chance))

    @property
    def streams(self) -> list[Stream]:
        """Of all queries and their targets."""
        return [stream for query in self.queries for stream in query.streams]

    def _is_decoupled(self, query: Query, chance: float) -> bool:
        """One that has lost batches with its store may be started coupled, which accepts the loss."""
        delivery = self.plan.delivery
        if delivery is None:
            return False
        return chance < (0.5 if query.has_lost_batches else delivery.decoupled)

    def _start_delivering(self) -> None:
        rng, scheduler = self.scheduler.rng, self.scheduler
        assert self.plan.delivery is not None
        for number in range(1, self.plan.delivery.processes + 1):
            scheduler.sleep(rng.choice((1.0, 10.0, MINUTE_S)))
            process = DeliveryProcess(self, f"d{number}")
            actor = scheduler.spawn(f"d{number}", process.main)
            self.delivery_processes.append(actor)
            if rng.random() < 0.5:
                scheduler.wait(partial(has_ended, actor))

    def _cause_events(self) -> None:
        rng = self.scheduler.rng
        for _ in range(self.plan.event_count):
            self.scheduler.sleep(rng.choice((1.0, 10.0, 30.0, MINUTE_S, HOUR_S, DAY_S)) * rng.random())
            name = rng.choice(self.plan.events)
            self.scheduler.step("event:", name)
            able = [target for target in self.targets if can(target.lake, name)]
            target = rng.choice(able) if len(self.targets) > 1 else able[0]
            target.events.act(name)

    def _change_targets(self) -> None:
        """Of a query that has some batches. One that sends in its commits is not left: nobody delivers."""
        scheduler, checkpoint = self.scheduler, self.queries[0].checkpoint
        scheduler.sleep(scheduler.rng.choice((1.0, 10.0, MINUTE_S)))
        for _ in range(LOOKS_MAX):
            if len(checkpoint.commits) > scheduler.rng.randint(0, 2):
                break
            scheduler.sleep(3.0)
        target = self.targets[-1]
        is_sent_in_commit = target.is_decoupled_always and self.may_send_in_commit
        if self.change is not None and not (self.change == "left_target" and is_sent_in_commit):
            scheduler.step("targets:", self.change)
            getattr(target.events, self.change)()

    def new_store(self) -> SimulatedStore:
        return self._make_store(clock_of(self.scheduler))

    @property
    def may_be_outdated(self) -> bool:
        """May a driver have slept while a concurrent driver went on and the store was lost?"""
        return self.plan.concurrent_drivers and self.plan.loses_store

    @property
    def may_send_in_commit(self) -> bool:
        """Is a start of the query coupled, so that it sends what it prepares without a delivery?"""
        return self.plan.delivery is None or self.plan.is_mixed

    def next_run(self) -> str:
        self._runs += 1
        return f"r{self._runs}"

    # Healing

    def _heal(self) -> None:
        """Paused processes wake up before or after the query is started again; it must not matter."""
        scheduler = self.scheduler
        scheduler.log("-- from here on nothing goes wrong")
        scheduler.hazards.calm()
        self.is_healing = True
        drivers = [driver for query in self.queries for driver in query.drivers]
        is_beside_drivers = not all(map(has_ended, drivers))
        self.source_rows += 1
        for query in self.queries:
            query.heal()
        is_overridden = any(query.is_overridden for query in self.queries)
        if is_beside_drivers or is_overridden or scheduler.actors or scheduler.in_flight:
            self.source_rows += 1  # what one of them has put in the way, the next batch tells
            scheduler.run(STEPS_MAX)
            for query in self.queries:
                query.heal()
        for target in self.targets:
            self._run_to_end("operator", target.events.recover)
        scheduler.now += 30 * DAY_S
        if self.plan.delivery is not None:
            self._run_to_end("upkeep", self._remove_sources)
        for target in self.targets:
            self._run_to_end("gc", target.events.collect_garbage)

    def _remove_sources(self) -> None:
        for stream in self.streams:
            if not stream.is_stuck:
                DeliveryProcess(self, "upkeep").remove_sources(stream, HOUR_S)

    def _run_to_end(self, name: str, body: Callable[[], object]) -> None:
        actor = self.scheduler.spawn(name, body, is_mortal=False)
        self.scheduler.run(STEPS_MAX)
        if actor.error is not None and not any(query.is_refused for query in self.queries):
            self.problems.append(f"{name}: {actor.error!r}")

    # The invariant

    def _check(self) -> None:
        for query in self.queries:
            self.problems += query.problems
            if self.rows.places:
                self.problems += torn_batches(query.streams)
        expected = (PenstockError, SparkError, UnreachableError, DiskFullError)
        self.problems += [
            f"{name} ends with {error!r}"
            for name, error in self.scheduler.errors
            if not isinstance(error, expected)
        ]
        for target in self.targets:
            place = f"target {target.name}: " if target.name else ""
            self.problems += [f"{place}{problem}" for problem in self._check_target(target)]

    def _check_target(self, target: SimulatedTarget) -> Iterator[str]:
        if not target.lake.exists:
            if any(map(target.gets, self._logged_batches())):
                yield "there is no table"
            return
        seen, streams = target.lake.contents(), target.events.streams
        yield from seen.problems
        letters = letters_in({one.key: one.store for one in streams})
        yield from self._check_letters(target, seen.rows, letters)
        seen = replace(seen, rows=seen.rows + letters)
        yield from find_problems(self._observe(target, seen))
        yield from self._check_batches(target, seen.rows)
        if strange := sorted(row_id for row_id in seen.rows if not target.takes(row_id)):
            yield f"rows {strange} name another target"
        yield from self._check_logged_batches(streams, seen.rows)
        yield from self._check_committed_batches(streams, seen.rows)
        yield from self._check_store(target.lake, streams, seen.added)
        yield from self._check_digests(target, streams, seen)
        yield from (f"{path} was deleted while a reader could need it" for path in seen.deleted_early)
        yield from target.events.check(seen)

    def _check_letters(
        self, target: SimulatedTarget, rows: Counter[int], letters: Counter[int]
    ) -> Iterator[str]:
        """A row is in the table or a dead letter, as the destination decides."""
        refuses = target.lake.refusals.refuses
        if strange := sorted(row_id for row_id in rows if row_id >= 0 and refuses(row_id)):
            yield f"rows {strange} are refused, and in the table"
        if strange := sorted(row_id for row_id in letters if not refuses(row_id)):
            yield f"rows {strange} are accepted, and dead letters"

    def _logged_batches(self) -> set[int]:
        return {batch_id for query in self.queries for batch_id in query.checkpoint.commits}

    def _ids_outside(self, target: SimulatedTarget) -> set[int]:
        """The rows of batches from before it was a target, or since."""
        if self.change is None:
            return set()
        checkpoint = self.queries[0].checkpoint
        return {i for one in checkpoint.offsets if not target.gets(one) for i in checkpoint.ids(one)}

    def _check_batches(self, target: SimulatedTarget, rows: Counter[int]) -> Iterator[str]:
        """A target has no rows of batches that are not its own. The first one that a query runs without it
        may have been prepared for it: then the target has all of its rows.
        """
        strange, checkpoint = self._ids_outside(target).intersection(rows), self.queries[0].checkpoint
        if target.end_batch in checkpoint.offsets:
            maybe = set(checkpoint.ids(target.end_batch)) - target.events.abandoned
            strange -= maybe if maybe.issubset(rows) else set()
        if strange:
            yield f"rows {sorted(strange)} are of batches that the target does not get"

    def _observe(self, target: SimulatedTarget, seen: TableContents) -> Observation:
        """A checkpoint that was refused may leave rows unread, never doubled."""
        lost = doubled = 0
        excused = target.events.rolled_back | target.events.abandoned | self._ids_outside(target)
        for first_id in {query.checkpoint.first_id for query in self.queries}:
            queries = [query for query in self.queries if query.checkpoint.first_id == first_id]
            is_complete = any(query.is_exhausted and not query.is_reported for query in queries)
            for row_id in range(first_id, first_id + self.source_rows):
                count = seen.rows[row_id]
                doubled += max(count - 1, 0)
                is_missing = is_complete and count == 0 and target.takes(row_id)
                lost += is_missing and row_id not in excused
        return Observation(
            rows=sum(seen.rows.values()),
            lost=lost,
            doubled=doubled,
            added=seen.added,
            missing=seen.missing,
            orphans=len(seen.orphans),
            tokens=seen.tokens,
            pending=[one for stream in target.events.streams for one in stream.query.pending(stream)],
        )

    def _check_logged_batches(self, streams: Sequence[Stream], rows: Counter[int]) -> Iterator[str]:
        """What Spark has logged as committed is in the table."""
        for stream in streams:
            query, checkpoint, events = stream.query, stream.checkpoint, stream.events
            excused = events.rolled_back | events.abandoned
            is_robbed = self.plan.delivery is not None and self.plan.loses_store
            is_robbed = is_robbed or events.has_deleted_files
            if query.is_stuck or (query.is_retired and is_robbed):  # no start of the query reports it
                continue
            if query.has_lost_batches and query.is_refused and self.rows.places:
                continue  # it has stopped for good
            is_reported = query.is_refused or query.is_reported or query.is_retired
            is_decoupled = self.plan.delivery is not None or stream.target.is_decoupled_always
            if is_decoupled and query.is_diverged and is_reported:
                continue  # a copy has given up, for its own, what waited to be delivered: its start says so
            for batch_id in sorted(filter(stream.target.gets, checkpoint.commits & set(checkpoint.offsets))):
                ids = filter(stream.target.takes, checkpoint.ids(batch_id))
                gone = [i for i in ids if not rows[i] and i not in excused]
                if gone:
                    yield f"batch {batch_id} of {checkpoint.name} is logged, but its rows {gone} are gone"

    def _check_committed_batches(self, streams: Sequence[Stream], rows: Counter[int]) -> Iterator[str]:
        """The rows of what a store says is committed are in the table, whichever process committed them.

        Unless an operator has taken the word of a table that a copy of the checkpoint writes, and whose
        history of the batch has expired: see docs/guarantees.md, Not covered.
        """
        for stream in streams:
            excused = stream.events.rolled_back | stream.events.abandoned
            for record in stream.store.history(stream.key, HISTORY_MAX):
                batch_id = record.batch.batch_id
                if record.state is ManifestState.COMMITTED and batch_id not in stream.taken_from_table:
                    ids = stream.events.ids_of(stream, record)
                    if gone := sorted(i for i in ids if not rows[i] and i not in excused):
                        yield f"batch {batch_id} is COMMITTED, but its rows {gone} are gone"

    def _check_store(
        self, lake: SimulatedLake, streams: Sequence[Stream], added: Counter[str]
    ) -> Iterator[str]:
        """What the store says is committed is what the table got: gc and operators rely on it.

        Not if the store was lost or put back, so that a batch was prepared twice, or copied, so that it was
        prepared elsewhere too, or the table has forgotten its history, as Iceberg does.
        """
        unsure = {"lose_store", "restore_store", "copy_checkpoint", "expire", "roll_back"}
        if not lake.has_whole_history or unsure.intersection(self.plan.events):
            return
        if self.plan.delivery is not None and (self.plan.is_mixed or "recover" in self.plan.events):
            return  # another than the one that has rewritten its files may have brought a batch in
        for stream in streams:
            if self._has_abandoned(stream):  # one that was let go may have landed after all, and been settled
                continue
            for manifest in self._landed(stream):
                strange = [path for path in lake.paths_of(manifest) if not added[path]]
                if strange:
                    yield f"batch {manifest.batch.batch_id} is COMMITTED, the table never had {strange[0]}"

    def _has_abandoned(self, stream: Stream) -> bool:
        recent = stream.store.deliveries.recent(stream.key, HISTORY_MAX)
        return any(delivery.phase is DeliveryPhase.ABANDONED for delivery in recent)

    def _landed(self, stream: Stream) -> Iterator[Manifest]:
        """What has been committed: batches on their own, and deliveries."""
        for manifest in stream.store.manifests(stream.key, ManifestState.COMMITTED):
            record = stream.store.record(stream.key, manifest.batch.batch_id)
            if record is not None and record.delivery_id is None:
                yield manifest
        for delivery in stream.store.deliveries.recent(stream.key, HISTORY_MAX):
            landed = stream.store.deliveries.manifest(delivery)
            if delivery.phase is DeliveryPhase.COMMITTED and landed is not None:
                yield landed

    def _check_digests(
        self, target: SimulatedTarget, streams: Sequence[Stream], seen: TableContents
    ) -> Iterator[str]:
        """No batch is COMMITTED in the store that the table has from other offsets.

        Empty ones do not come into the table, and what a rollback took back is for an operator to judge. The
        batches of a delivery bring the rows up to the end of its last one: a copy of the checkpoint may have
        cut these into other batches.
        """
        if target.events.was_rolled_back:
            return
        for stream in streams:
            for record in stream.store.history(stream.key, HISTORY_MAX):
                if stream.is_diverged and record.delivery_id is not None:
                    continue
                batch = record.batch
                told = seen.digests.get((batch.stream.query_id, batch.batch_id), batch.digest)
                if record.state is ManifestState.COMMITTED and record.rows and told != batch.digest:
                    yield f"batch {batch.batch_id} is COMMITTED, the table has it from other offsets"
