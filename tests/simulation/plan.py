"""What may happen in one history: who acts, what they do, and how often what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.scheduler import Hazards

OTHERS = (
    "append",
    "append",
    "compact",
    "vacuum",
    "expire",
    "go_back",
    "recover",
    "collect_garbage",
    "lose_store",
    "back_up_store",
    "restore_store",
    "rewind_checkpoint",
    "copy_checkpoint",
    "reset_checkpoint",
)


"""What others do: the names of methods of `Others`, those that are named twice more often."""


@dataclass(frozen=True)
class Plan:
    """What may happen in one history. Every seed has another selection."""

    is_remote: bool
    """An object store and a catalog behind a network, or a local disk."""
    has_shared_store: bool
    """A database server for the manifests, or a file in the checkpoint."""
    source_rows: int
    drivers: int
    """Starts of the query before it heals."""
    twins: bool
    """A second driver may start while the first one runs or sleeps."""
    speculation: float
    dies_prepared: float
    """How likely a driver dies between prepare and commit, which leaves a batch pending."""
    empty_batches: bool
    others: tuple[str, ...]
    """What others do; the names of methods of `Others`."""
    acts: int
    """How often they do something."""
    stickiness: float
    hazards: Hazards

    @staticmethod
    def of(rng: random.Random) -> Plan:
        def some(rate: float) -> float:
            return rate * rng.random() if rng.random() < 0.4 else 0.0

        others = tuple([name for name in OTHERS if rng.random() < 0.3])
        return Plan(
            is_remote=rng.random() < 0.5,
            has_shared_store=rng.random() < 0.5,
            source_rows=rng.randint(2, 10),
            drivers=rng.randint(1, 4),
            twins=rng.random() < 0.4,
            speculation=rng.choice((0.0, 0.0, 0.5)),
            dies_prepared=some(0.5),
            empty_batches="copy_checkpoint" not in others and rng.random() < 0.2,
            others=others,
            acts=rng.randint(1, 8) if others else 0,
            stickiness=rng.choice((0.3, 0.7, 0.95)),
            hazards=Hazards(
                crash=some(0.03),
                pause=some(0.05),
                unsent=some(0.05),
                unanswered=some(0.1),
                late=some(0.1),
                late_prepare=some(0.6),
                repeated=some(0.1),
                full=some(0.05),
            ),
        )
