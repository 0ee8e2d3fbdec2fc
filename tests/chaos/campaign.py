"""Trial after trial until the time is up; what each came to, and the files of those that failed."""

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
from tests.chaos.deployments import CLUSTER, Setup, deploy
from tests.chaos.disks import unmount_leftovers
from tests.chaos.fault import TrialFailed
from tests.chaos.plan import DriverPlan, plan_trial
from tests.chaos.trial import Event, Result, Trial

FAULTS_IN_TRIAL = 30
ON_CLUSTER = 0.12
"""The part of all trials whose executors are processes of their own."""


class Listener(Protocol):
    """Who wants to see how it goes."""

    def trial_begins(self, number: int, setup: Setup) -> None: ...

    def fault(self, number: int, event: Event) -> None: ...

    def trial_ends(self, result: Result) -> None: ...


@dataclass(frozen=True)
class Campaign:
    """Everything random of a trial comes from the campaign's seed and the number of the trial."""

    seed: int
    folder: Path
    servers: Servers
    listener: Listener
    keep: bool = False
    """Keep the files of trials that went well, too."""

    def trials(self, setups: Sequence[Setup]) -> Iterator[tuple[int, Setup]]:
        """Every setup once in each round, in an order of the round's own; every second one is decoupled."""
        number = itertools.count(1)
        for turn in itertools.count():
            rng = random.Random(f"{self.seed}/round {turn}")
            for setup in _alternating(rng.sample(setups, len(setups))):
                on_cluster = rng.random() < ON_CLUSTER
                yield next(number), replace(setup, master=CLUSTER) if on_cluster else setup

    def run(self, number: int, setup: Setup, is_over: Callable[[int], bool]) -> Result:
        """The trial of this number, as the seed plans it."""
        plans = plan_trial(random.Random(f"{self.seed}/{number}/plan"), setup)
        return self.run_plans(number, setup, plans, is_over)

    def run_plans(
        self, number: int, setup: Setup, plans: Iterator[DriverPlan], is_over: Callable[[int], bool]
    ) -> Result:
        """One trial, from an empty folder to a checked table. What went wrong is in its `problems`."""
        root = self.folder / f"trial-{number}"
        self.listener.trial_begins(number, setup)
        with deploy(setup, root, self.servers) as deployment:
            with Trial(number, deployment, plans, random.Random(f"{self.seed}/{number}/moments")) as trial:
                try:
                    for event in trial.run(is_over):
                        self.listener.fault(number, event)
                except TrialFailed as failed:
                    trial.result.problems.append(str(failed))
                except Exception:  # noqa: BLE001 - told in the report; the next trial may go well
                    trial.result.problems.append(traceback.format_exc())
            if trial.result.problems:
                self._keep_files_of(root)
        if self.keep or trial.result.problems:
            (root / "trial.json").write_text(json.dumps(asdict(trial.result), indent=1))
        else:
            shutil.rmtree(root)
        self.listener.trial_ends(trial.result)
        return trial.result

    @staticmethod
    def _keep_files_of(root: Path) -> None:
        """Also those on file systems that are unmounted with the trial."""
        for folder in ("lake", "checkpoints"):
            if (root / folder).is_mount():
                shutil.copytree(
                    root / folder, root / f"{folder}-kept", ignore=shutil.ignore_patterns("filler")
                )


def _alternating(setups: Sequence[Setup]) -> Iterator[Setup]:
    coupled = [setup for setup in setups if not setup.is_decoupled]
    decoupled = [setup for setup in setups if setup.is_decoupled]
    for pair in itertools.zip_longest(coupled, decoupled):
        yield from filter(None, pair)


def run_until(campaign: Campaign, setups: Sequence[Setup], deadline: float) -> list[Result]:
    """Trials until `deadline`, by the monotonic clock; the one under way then still comes to its end."""

    def is_over(faults: int) -> bool:
        return faults >= FAULTS_IN_TRIAL or time.monotonic() > deadline

    results = []
    for number, setup in campaign.trials(setups):
        if time.monotonic() > deadline:
            break
        results.append(campaign.run(number, setup, is_over))
    return results


def empty(folder: Path) -> None:
    """Make the folder, without what an earlier campaign has left there."""
    unmount_leftovers(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
