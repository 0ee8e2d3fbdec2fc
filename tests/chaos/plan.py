"""The plan of a trial, made from its seed before it begins: drivers, crash points and faults."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tests.chaos import delivery_faults, faults
from tests.chaos.deployments import Setup
from tests.chaos.faults import KILL_AT_POINT, KILL_DRIVER_AT_POINT, KILL_EXECUTOR, Fault

from penstock.committers.crash_points import STREAM_POINTS

SURVIVED = (*faults.SURVIVED, *delivery_faults.SURVIVED)
ENDING = (*faults.ENDING, delivery_faults.KILL_AT_NEW_COLUMN)

LEAVES_PENDING = ("prepare.done", "evolve.done", "commit.start", "commit.landed", "recover.start")
"""Crash points after which the next start finds a PREPARED batch."""

BEFORE_PREPARE = ("write.file_open", "write.files_closed", "prepare.start")
"""The same batch reaches these again after a restart."""

IN_RECOVERY = ("recover.start", "recover.done")
EXECUTORS_WEIGHT = 3
"""Few trials have executors."""

AT_THE_BEGINNING = "table.created"
NEW_COLUMN = "evolve.done"
ANYWHERE = tuple(
    point for point in STREAM_POINTS if point not in (*IN_RECOVERY, AT_THE_BEGINNING, NEW_COLUMN)
)
SENT_BY_TASKS = tuple(point for point in ANYWHERE if not point.startswith("write."))
"""The points of a driver whose tasks send their rows, and write no files."""
WITHOUT_TABLE = (*BEFORE_PREPARE, "prepare.done")
"""The points of the driver of a decoupled stream: its delivery processes reach the others."""


@dataclass(frozen=True)
class DriverPlan:
    """The query of one driver, its faults, and the fault that ends it."""

    columns: int
    """Columns of the query in addition to those of the source: later drivers add some."""
    partitions: int
    point: str | None
    """The crash point where it waits."""
    batches_ahead: int | None
    """It waits in the batch that is so many after the last committed one at its start; None: in any batch."""
    faults: Sequence[Fault]
    end: Fault


def plan_trial(rng: random.Random, setup: Setup) -> Iterator[DriverPlan]:
    """Yield one driver after the other, without end."""
    columns, before = 0, None
    for number in count():
        point = _choose_point(rng, setup, number, before)
        columns += point == NEW_COLUMN or (setup.is_decoupled and rng.random() < 0.15)
        ahead = rng.randint(4, 12) if point in ANYWHERE and rng.random() < 0.4 else None
        chosen = _faults(rng, setup) if point is None or ahead is not None else []
        end = rng.choice([fault for fault in ENDING if fault.applies_to(setup)])
        if point is not None:
            chosen, end = chosen + [KILL_AT_POINT] * _kills_at(rng, point, ahead), KILL_DRIVER_AT_POINT
        yield DriverPlan(columns, 1 + number % 3, point, ahead, chosen, end)
        before = point


def _choose_point(rng: random.Random, setup: Setup, number: int, before: str | None) -> str | None:
    if number == 0:
        return AT_THE_BEGINNING if setup.is_table and rng.random() < 0.3 else None
    if setup.is_decoupled:
        return rng.choice(WITHOUT_TABLE) if rng.random() < 0.3 else None
    if before in LEAVES_PENDING and rng.random() < 0.6:
        return rng.choice(IN_RECOVERY)
    if rng.random() < 0.4:
        return None
    anywhere = ANYWHERE if setup.is_table else SENT_BY_TASKS
    return rng.choice((*anywhere, NEW_COLUMN) if setup.format == "delta" else anywhere)


def _faults(rng: random.Random, setup: Setup) -> list[Fault]:
    """Choose the faults of a driver that makes progress. One that waits in every batch makes none."""
    possible = [fault for fault in SURVIVED if fault.applies_to(setup)]
    kills = [fault for fault in possible if fault.kind == "kill"]
    others = [fault for fault in possible if fault.kind != "kill"]
    weights = [EXECUTORS_WEIGHT if fault == KILL_EXECUTOR else 1 for fault in kills]
    # A service has no files and no catalog: what it sees are its requests.
    kills_range, others_range = ((4, 8), (0, 2)) if setup.is_table else ((2, 4), (3, 5))
    chosen = rng.choices(kills, weights, k=rng.randint(*kills_range))
    chosen += rng.sample(others, k=rng.randint(*others_range))
    if setup.is_decoupled:
        chosen.append(rng.choice([fault for fault in others if fault in delivery_faults.SURVIVED]))
    rng.shuffle(chosen)
    return chosen


def _kills_at(rng: random.Random, point: str, ahead: int | None) -> int:
    """Return how often only the waiting worker is killed before the driver is: its successor waits again."""
    comes_again = point in BEFORE_PREPARE if ahead is not None else point in (*ANYWHERE, IN_RECOVERY[0])
    return rng.choice((2, 4, 6)) if comes_again else 0
