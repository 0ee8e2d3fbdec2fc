"""One checkpoint with the store of its manifests, the drivers that run on it, and how it heals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.manifest_store import SimulatedStore, StoreConnection
from tests.simulation.scheduler import Actor
from tests.simulation.spark import Driver, Start
from tests.spark_logs import Checkpoint, SparkError

from penstock.committers.contract import StreamKey
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    ConfigurationError,
    FencedError,
    RetryableError,
    TableChangedError,
)

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
        self.is_retired = False
        """Its checkpoint was deleted."""
        self.drivers: list[Actor] = []
        self.problems: list[str] = []
        self._world = world

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.checkpoint.query_id, self._world.lake.table_uri)

    def connect(self) -> StoreConnection:
        world = self._world
        return StoreConnection(self.store, world.scheduler, is_remote=world.plan.has_shared_store)

    def start(self, start: Start, *, is_mortal: bool = True) -> Actor:
        """A driver starts."""
        world, run_id = self._world, self._world.next_run()
        driver = Driver(
            world.scheduler,
            world.sink,
            self.connect(),
            self.checkpoint,
            start,
            run_id,
            lambda: world.source_rows,
            keeps_store=not {"lose_store", "restore_store"}.intersection(world.plan.others),
        )
        actor = world.scheduler.spawn(run_id, lambda: self._run(driver), is_mortal=is_mortal)
        self.drivers.append(actor)
        world.scheduler.tell(f"{run_id} starts on {self.checkpoint.name}: {start}")
        return actor

    def _run(self, driver: Driver) -> None:
        try:
            driver.main()
        except Exception as error:
            self._judge(error)
            raise

    def _judge(self, error: Exception) -> None:
        """Which errors may end a query, and which show that something is wrong.

        A driver that sleeps while a twin goes on and the store is lost may well believe that the checkpoint
        was rewound. The start after it must not.
        """
        self.is_refused = isinstance(error, CheckpointMismatchError)
        others = self._world.others
        if isinstance(error, HEALED_BY_RESTART) or (self.is_refused and self._world.may_be_confused):
            return
        if self.is_refused and self.is_diverged and not self.is_unharmed:
            others.noticed |= others.went_back  # an operator has to look at the table anyway
        elif isinstance(error, TableChangedError) and others.went_back:
            others.noticed = True
        else:
            self.problems.append(f"a driver ends with {error!r}")

    def heal(self) -> None:
        """Restart alone has to do, and an operator's word where the table was rolled back."""
        if self.is_retired:
            return
        for _ in range(STARTS_MAX):
            self.is_refused = False
            driver = self.start(Start(), is_mortal=False)
            self._world.scheduler.run(STEPS_MAX, until=partial(has_ended, driver))
            self.is_exhausted = driver.error is None
            if self.is_exhausted or self.is_refused or self.problems:
                return
            if isinstance(driver.error, TableChangedError):
                self._accept_table()
        self.problems.append(f"{STARTS_MAX} starts do not heal it, last: {driver.error!r}")

    def _accept_table(self) -> None:
        scheduler = self._world.scheduler
        actor = scheduler.spawn("operator", lambda: self._world.others.accept_table(self), is_mortal=False)
        scheduler.run(STEPS_MAX, until=lambda: actor.has_ended)

    def pending(self) -> Sequence[str]:
        """Batches that are PREPARED though nothing keeps them from being committed."""
        if self.is_refused or self.is_diverged or self.is_retired:
            return ()
        return [f"batch {r.batch.batch_id} of {r.batch.stream}" for r in self.store.pending(self.stream)]
