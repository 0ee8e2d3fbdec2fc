"""One checkpoint with the store of its manifests, the drivers that run on it, and how it heals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.deliveries import DeliveryProcess
from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.routes import anchor_of
from tests.simulation.scheduler import Actor
from tests.simulation.spark import Driver, Start, batch_of
from tests.simulation.store_connection import StoreConnection
from tests.simulation.targets import Stream
from tests.spark_logs import Checkpoint, SparkError

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    ConfigurationError,
    FencedError,
    RetryableError,
    TableChangedError,
)
from penstock.delivery.stream_settings import StreamSettings

LOST_WITH_THE_STORE = "were lost with the store"
"""In the error of a decoupled query about batches that neither store nor table knows."""

if TYPE_CHECKING:
    from tests.simulation.world import World

STARTS_MAX = 8
"""Of one query while everything heals: more than any history can need."""

STEPS_MAX = 20_000
"""Of one history: a hundred times what most of them take."""

HEALED_BY_RESTART = (RetryableError, CommitStateUnknownError, FencedError, SparkError, ConfigurationError)
"""A table that cannot be created now is a configuration error, like one that never can."""


def has_ended(actor: Actor) -> bool:
    return actor.has_ended


class Query:
    """One checkpoint with the store of its manifests, and the drivers that run on it."""

    def __init__(self, world: World, checkpoint: Checkpoint, store: SimulatedStore) -> None:
        self.checkpoint = checkpoint
        self.store = store
        self.is_diverged = False
        """Its checkpoint was rewound or copied: then it may be refused, loudly."""
        self.is_unharmed = True
        """Nothing of the batches that its checkpoint was rewound by had been committed."""
        self.is_refused = False
        """Its last start ended in the error that asks for an operator."""
        self.is_exhausted = False
        """Its last start has read all of the source."""
        self.is_overridden = False
        """After its last start, decoupled, a concurrent driver was started coupled: nobody delivers yet."""
        self.is_retired = False
        """Its checkpoint was deleted."""
        self.has_lost_batches = False
        """Its last start has reported that prepared batches were lost with the store."""
        self.drivers: list[Actor] = []
        self.problems: list[str] = []
        self.streams = [Stream(self, target) for target in world.targets]
        """One for each target."""
        self._world = world

    @property
    def anchor(self) -> StreamKey | None:
        """Its own stream, if it has routes."""
        return anchor_of(self.checkpoint.query_id) if self._world.rows.places else None

    @property
    def keys(self) -> list[StreamKey]:
        """Of all its streams."""
        own = [] if self.anchor is None else [self.anchor]
        return [*own, *(stream.key for stream in self.streams)]

    @property
    def can_accept_loss(self) -> bool:
        """It has lost batches with its store, and a coupled start goes on without them."""
        return self.has_lost_batches and self.anchor is None

    @property
    def is_stuck(self) -> bool:
        """One of its streams is."""
        return any(stream.is_stuck for stream in self.streams)

    @property
    def is_reported(self) -> bool:
        """One of its streams is."""
        return any(stream.is_reported for stream in self.streams)

    def connect(self) -> StoreConnection:
        world = self._world
        return StoreConnection(self.store, world.scheduler, is_remote=world.plan.has_shared_store)

    def start(self, start: Start, *, is_mortal: bool = True) -> Actor:
        """A driver starts."""
        world, run_id = self._world, self._world.next_run()
        if self.has_lost_batches and not start.is_decoupled:
            self._accept_loss()
        driver = Driver(
            world.scheduler,
            world.product_query(start),
            self.connect(),
            self.checkpoint,
            start,
            run_id,
            lambda: world.source_rows,
            self._is_kept,
            {target.name: target.lake for target in world.targets},
            world.rows,
        )
        is_healing = world.is_healing
        actor = world.scheduler.spawn(run_id, lambda: self._run(driver, is_healing), is_mortal=is_mortal)
        self.drivers.append(actor)
        world.scheduler.log(f"{run_id} starts on {self.checkpoint.name}: {start}")
        return actor

    def _is_kept(self, batch: Batch) -> bool:
        """The store was not lost, and no decoupled batch was given up."""
        world = self._world
        may_be_given_up = world.plan.delivery is not None and (
            self.is_diverged or "skip" in world.plan.events
        )
        return not (world.plan.loses_store or may_be_given_up or "lose_record" in world.plan.events)

    def _run(self, driver: Driver, is_healing: bool) -> None:
        try:
            driver.main()
        except Exception as error:
            before = self.is_refused, self.has_lost_batches
            self._judge(error, is_healing)
            if self._world.is_healing and not is_healing:  # it has slept: the query was started again since
                self.is_refused, self.has_lost_batches = before
            raise
        self.has_lost_batches = False

    def _judge(self, error: Exception, is_healing: bool) -> None:
        """Which errors may end a query, and which show that something is wrong.

        A driver that sleeps while a concurrent one goes on and the store is lost may take the checkpoint for
        rewound. The start after it must not.
        """
        self.is_refused = isinstance(error, CheckpointMismatchError)
        self.has_lost_batches = False
        told = [stream.events for stream in self.streams if stream.target.is_in(error)]
        all_events = [stream.events for stream in self.streams]
        is_outdated = self.is_refused and self._world.may_be_outdated and not is_healing
        if isinstance(error, HEALED_BY_RESTART) or is_outdated:
            return
        if self.is_refused and self._world.plan.loses_store and LOST_WITH_THE_STORE in str(error):
            self.has_lost_batches = self._world.plan.delivery is not None
        elif self.is_refused and self.is_diverged and not self.is_unharmed:
            for events in all_events:
                events.noticed |= events.was_rolled_back  # an operator has to look at the table anyway
        elif isinstance(error, TableChangedError) and any(events.was_rolled_back for events in told):
            for events in told:
                events.noticed |= events.was_rolled_back
        elif not (
            isinstance(error, (TableChangedError, CheckpointMismatchError))
            and any(events.has_deleted_files for events in all_events)
        ):
            self.problems.append(f"a driver ends with {error!r}")

    def heal(self) -> None:
        """A restart must be enough; where the table was rolled back, also an operator's decision."""
        if self.is_retired:
            self._deliver_rest(lambda: True)
            return
        for _ in range(STARTS_MAX):
            self.is_refused = False
            start = self._world.healing_start(self)
            driver = self.start(start, is_mortal=False)
            self._deliver_rest(partial(has_ended, driver))
            self.is_exhausted = driver.error is None and not self.is_stuck
            started = [stream for stream in self.streams if stream.target.is_in_query]
            given = [self.store.settings(stream.key) for stream in started]
            settings = [StreamSettings.parse(one) for one in given if one or not self._world.rows.places]
            self.is_overridden = start.is_decoupled and not all(one.is_decoupled for one in settings)
            if self.is_exhausted or (self.is_refused and not self.can_accept_loss) or self.problems:
                return
            if self.is_stuck:
                return
            if isinstance(driver.error, TableChangedError):
                for stream in self.streams:
                    if stream.target.is_in(driver.error):
                        self._accept_table(stream)
        if not all(map(has_ended, self.drivers)):  # one that was there before is always ahead
            self._deliver_rest(lambda: all(map(has_ended, self.drivers)))
            self.heal()
        elif self.is_diverged and self._world.plan.delivery is not None:
            self.streams[0].is_stuck = True  # its deliveries are parked, and its backlog is full
        else:
            self.problems.append(f"{STARTS_MAX} starts do not heal it, last: {driver.error!r}")

    def _deliver_rest(self, is_over: Callable[[], bool]) -> None:
        """Let the query end, with a delivery process beside it for each target."""
        scheduler = self._world.scheduler
        if self._world.plan.delivery is None:
            scheduler.run(STEPS_MAX, until=is_over)
            return
        actors = []
        for stream in self.streams:
            name = f"delivery {stream.target.name}".rstrip()
            process = DeliveryProcess(self._world, name)
            deliver = partial(process.deliver_rest, stream, is_over)
            actors.append(scheduler.spawn(name, deliver, is_mortal=False))
        scheduler.run(STEPS_MAX, until=lambda: is_over() and all(map(has_ended, actors)))
        for actor in actors:
            if actor.error is not None:
                self.problems.append(f"delivering the rest ends with {actor.error!r}")

    def _accept_loss(self) -> None:
        """The operator starts the query coupled: batches that went with the store stay away."""
        for stream in self.streams:
            self._accept_loss_of(stream)

    def _accept_loss_of(self, stream: Stream) -> None:
        seen = stream.lake.contents() if stream.lake.exists else None
        tokens = seen.tokens if seen is not None else ()
        query_id, checkpoint = self.checkpoint.query_id, self.checkpoint
        last = max((one for token_of, one, _ in tokens if token_of == query_id), default=-1)
        if seen is not None and last in checkpoint.offsets:  # what was rewound may have left another one
            ours = batch_of(checkpoint, last, stream.lake.table_uri).digest
            last -= seen.digests.get((query_id, last)) != ours
        for batch_id in range(last + 1, checkpoint.next_batch()):
            stream.events.abandoned |= set(checkpoint.ids(batch_id))

    def _accept_table(self, stream: Stream) -> None:
        scheduler, events = self._world.scheduler, stream.events
        if self._world.plan.delivery is not None and (stream.is_accepted or not events.was_rolled_back):
            events.skip_refused(stream)
            return
        actor = scheduler.spawn("operator", lambda: events.accept_table(stream), is_mortal=False)
        scheduler.run(STEPS_MAX, until=lambda: actor.has_ended)

    def pending(self, stream: Stream) -> Sequence[str]:
        """Batches that are PREPARED though nothing keeps them from being committed."""
        if self.is_refused or self.is_diverged or self.is_retired:
            return ()
        keys = [stream.key] if self.anchor is None else [stream.key, self.anchor]
        waiting = [record.batch for key in keys for record in self.store.pending(key)]
        return [f"batch {batch.batch_id} of {batch.stream}" for batch in waiting]
