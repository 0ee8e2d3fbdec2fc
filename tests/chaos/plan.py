"""The plan of a trial, made from its seed before it begins: drivers, crash points and faults."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from tests.chaos.delivery_faults import DeliveryFault
from tests.chaos.deployments import Setup
from tests.chaos.fault import Fault
from tests.chaos.faults import ENDING, SURVIVED
from tests.chaos.kills import KillAtPoint, KillDriver, KillWorker

from penstock.committers.crash_points import STREAM_POINTS

LEAVES_PENDING = ("prepare.done", "evolve.done", "commit.start", "commit.landed", "recover.start")
"""Crash points after which the next start finds a batch that is PREPARED."""

BEFORE_PREPARE = ("write.file_open", "write.files_closed", "prepare.start")
"""The same batch comes there again after a restart."""

IN_RECOVERY = ("recover.start", "recover.done")
EXECUTORS_WEIGHT = 3
"""Few trials have any."""

AT_THE_BEGINNING = "table.created"
NEW_COLUMN = "evolve.done"
ANYWHERE = tuple(
    point for point in STREAM_POINTS if point not in (*IN_RECOVERY, AT_THE_BEGINNING, NEW_COLUMN)
)
WITHOUT_TABLE = (*BEFORE_PREPARE, "prepare.done")
"""Where the driver of a decoupled stream comes: the others are its delivery processes'."""


@dataclass(frozen=True)
class DriverPlan:
    """What one driver is started with, what it trials through, and what ends it."""

    number: int
    columns: int
    """How many columns the query has beyond those of the source: new ones come with later drivers."""
    partitions: int
    point: str | None
    """The crash point where it will wait."""
    batches_ahead: int | None
    """Only in the batch that is so many after the last one committed when it starts; None: in any batch."""
    faults: Sequence[Fault]
    end: Fault


def plan_trial(rng: random.Random, setup: Setup) -> Iterator[DriverPlan]:
    """One driver after the other, without end."""
    columns, before = 0, None
    for number in count():
        point = _choose_point(rng, setup, number, before)
        columns += point == NEW_COLUMN or (setup.is_decoupled and rng.random() < 0.15)
        ahead = rng.randint(4, 12) if point in ANYWHERE and rng.random() < 0.4 else None
        faults = _faults(rng, setup) if point is None or ahead is not None else []
        end: Fault = rng.choice([fault for fault in ENDING if fault.applies_to(setup)])
        if point is not None:
            faults, end = faults + [KillAtPoint()] * _kills_at(rng, point, ahead), KillDriver(at_point=True)
        yield DriverPlan(number, columns, 1 + number % 3, point, ahead, faults, end)
        before = point


def _choose_point(rng: random.Random, setup: Setup, number: int, before: str | None) -> str | None:
    if number == 0:
        return AT_THE_BEGINNING if rng.random() < 0.3 else None
    if setup.is_decoupled:
        return rng.choice(WITHOUT_TABLE) if rng.random() < 0.3 else None
    if before in LEAVES_PENDING and rng.random() < 0.6:
        return rng.choice(IN_RECOVERY)
    if rng.random() < 0.4:
        return None
    return rng.choice((*ANYWHERE, NEW_COLUMN) if setup.format == "delta" else ANYWHERE)


def _faults(rng: random.Random, setup: Setup) -> list[Fault]:
    """For a driver that is on its way. One that waits in every batch gets nowhere."""
    possible = [fault for fault in SURVIVED if fault.applies_to(setup)]
    kills = [fault for fault in possible if fault.kind == "kill"]
    others = [fault for fault in possible if fault.kind != "kill"]
    weights = [EXECUTORS_WEIGHT if fault == KillWorker("executor") else 1 for fault in kills]
    faults = rng.choices(kills, weights, k=rng.randint(4, 8)) + rng.sample(others, k=rng.randint(0, 2))
    if setup.is_decoupled:
        faults.append(rng.choice([fault for fault in others if isinstance(fault, DeliveryFault)]))
    rng.shuffle(faults)
    return faults


def _kills_at(rng: random.Random, point: str, ahead: int | None) -> int:
    """How often the waiting worker alone is killed, before the driver is: the next one comes there, too."""
    comes_again = point in BEFORE_PREPARE if ahead is not None else point in (*ANYWHERE, IN_RECOVERY[0])
    return rng.choice((2, 4, 6)) if comes_again else 0
