"""Life after life until the time is up; what each came to, and the files of those that failed."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from servers.started import Servers
from tests.chaos.disks import unmount_leftovers
from tests.chaos.life import Event, Life, Result
from tests.chaos.places import CLUSTER, Place, open_site
from tests.chaos.plan import DriverPlan, plan_life
from tests.chaos.problem import LifeFailed

FAULTS_IN_LIFE = 30
ON_CLUSTER = 0.12
"""The part of all lives whose executors are processes of their own."""


class Watcher(Protocol):
    """Who wants to see how it goes."""

    def life_begins(self, number: int, place: Place) -> None: ...

    def fault(self, number: int, event: Event) -> None: ...

    def life_ends(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Campaign:
    """Everything random of a life comes from the campaign's seed and the number of the life."""

    seed: int
    folder: Path
    servers: Servers
    listener: Watcher
    keep: bool = False
    """Keep the files of lives that went well, too."""

    def lives(self, places: Sequence[Place]) -> Iterator[tuple[int, Place]]:
        """Every place once in each round, in an order of the round's own; every second one is decoupled."""
        number = itertools.count(1)
        for turn in itertools.count():
            rng = random.Random(f"{self.seed}/round {turn}")
            for place in _alternating(rng.sample(places, len(places))):
                on_cluster = rng.random() < ON_CLUSTER
                yield next(number), replace(place, master=CLUSTER) if on_cluster else place

    def live(self, number: int, place: Place, is_over: Callable[[int], bool]) -> Result:
        """The life of this number, as the seed plans it."""
        plans = plan_life(random.Random(f"{self.seed}/{number}/plan"), place)
        return self.live_by(number, place, plans, is_over)

    def live_by(
        self, number: int, place: Place, plans: Iterator[DriverPlan], is_over: Callable[[int], bool]
    ) -> Result:
        """One life, from an empty folder to a checked table. What went wrong is in its `problems`."""
        root = self.folder / f"life-{number}"
        self.listener.life_begins(number, place)
        with open_site(place, root, self.servers) as site:
            with Life(number, site, plans, random.Random(f"{self.seed}/{number}/moments")) as life:
                try:
                    for event in life.run(is_over):
                        self.listener.fault(number, event)
                except LifeFailed as failed:
                    life.result.problems.append(str(failed))
                except Exception:  # noqa: BLE001 - told in the report; the next life may go well
                    life.result.problems.append(traceback.format_exc())
            if life.result.problems:
                self._keep_files_of(root)
        if self.keep or life.result.problems:
            (root / "life.json").write_text(json.dumps(asdict(life.result), indent=1))
        else:
            shutil.rmtree(root)
        self.listener.life_ends(life.result)
        return life.result

    @staticmethod
    def _keep_files_of(root: Path) -> None:
        """Also those on file systems that are unmounted with the life."""
        for folder in ("lake", "checkpoints"):
            if (root / folder).is_mount():
                shutil.copytree(
                    root / folder, root / f"{folder}-kept", ignore=shutil.ignore_patterns("filler")
                )


def _alternating(places: Sequence[Place]) -> Iterator[Place]:
    coupled = [place for place in places if not place.is_decoupled]
    decoupled = [place for place in places if place.is_decoupled]
    for pair in itertools.zip_longest(coupled, decoupled):
        yield from filter(None, pair)


def run_until(campaign: Campaign, places: Sequence[Place], deadline: float) -> list[Result]:
    """Lives until `deadline`, by the monotonic clock; the one under way then still comes to its end."""

    def is_over(faults: int) -> bool:
        return faults >= FAULTS_IN_LIFE or time.monotonic() > deadline

    results = []
    for number, place in campaign.lives(places):
        if time.monotonic() > deadline:
            break
        results.append(campaign.live(number, place, is_over))
    return results


def empty(folder: Path) -> None:
    """Make the folder, without what an earlier campaign has left there."""
    unmount_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
