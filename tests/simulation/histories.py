"""Play one history, or tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tests.simulation.features import SEED_CHOOSES, Chosen
from tests.simulation.lakes import LAKES
from tests.simulation.manifest_store import RealStore, SimulatedStore
from tests.simulation.memory_store import Clock, MemoryStore
from tests.simulation.world import World


@dataclass(frozen=True)
class Failure:
    """A history at whose end the invariant did not hold."""

    seed: int
    lake: str
    problems: Sequence[str]

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}, {self.lake}:", *(f"  {problem}" for problem in self.problems)])


def play(seed: int, lake: str, store: str = "memory", chosen: Chosen = SEED_CHOOSES) -> Failure | None:
    """One history."""
    problems = World(seed, LAKES[lake], stores(store), chosen=chosen).play()
    return Failure(seed, lake, problems) if problems else None


def timeline(seed: int, lake: str, store: str = "memory", chosen: Chosen = SEED_CHOOSES) -> Iterator[str]:
    """The timeline of the same history."""
    world = World(seed, LAKES[lake], stores(store), chosen=chosen, is_recorded=True)
    problems = world.play()
    yield f"seed {seed}, {lake}. Seconds since the beginning, who, what:"
    yield from world.scheduler.timeline or ()
    yield from (f"PROBLEM: {problem}" for problem in problems)
    yield "" if problems else "The invariant holds."


def stores(name: str) -> Callable[[Clock], SimulatedStore]:
    """
    Args:
        name: `memory`, `sqlite`, or the URL of a Postgres database
    """
    if name == "memory":
        return MemoryStore
    return RealStore if name == "sqlite" else lambda clock: RealStore(clock, name)
