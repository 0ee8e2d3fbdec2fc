"""Trial after trial until the time is up, with a line for each fault."""

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

from servers.started import Servers
from tests.chaos.checks import Verdict
from tests.chaos.deployments import CLUSTER, Deployment, ReceivedRows, Setup, deploy
from tests.chaos.disks import FILLER
from tests.chaos.faults import TrialFailed
from tests.chaos.plan import DriverPlan, plan_trial
from tests.chaos.trial import Event, Result, Trial

FAULTS_IN_TRIAL = 30
ON_CLUSTER = 0.12
"""Share of the trials whose executors are processes."""


@dataclass(frozen=True)
class Campaign:
    """All random choices of a trial depend on the campaign's seed and the number of the trial."""

    seed: int
    folder: Path
    servers: Servers
    say: Callable[[str], None]
    faults: int = FAULTS_IN_TRIAL
    """Maximum in a trial."""

    def run(self, setups: Sequence[Setup], deadline: float, only: int | None = None) -> list[Result]:
        """Run trials until `deadline`, by the monotonic clock; the current one still ends as usual.

        Args:
            only: the number of the only trial to run
        """

        def is_over(faults: int) -> bool:
            return faults >= self.faults or time.monotonic() > deadline

        results: list[Result] = []
        for number, setup in self.trials(setups):
            if time.monotonic() > deadline or (results and only is not None):
                break
            if only in (None, number):
                plans = plan_trial(random.Random(f"{self.seed}/{number}/plan"), setup)
                results.append(self.run_trial(number, setup, plans, is_over))
        return results

    def trials(self, setups: Sequence[Setup]) -> Iterator[tuple[int, Setup]]:
        """Yield each setup once per round, in random order; every second one is decoupled."""
        number = itertools.count(1)
        for turn in itertools.count():
            rng = random.Random(f"{self.seed}/round {turn}")
            order = rng.sample(setups, len(setups))
            coupled = [setup for setup in order if not setup.is_decoupled]
            decoupled = [setup for setup in order if setup.is_decoupled]
            for setup in itertools.chain.from_iterable(itertools.zip_longest(coupled, decoupled)):
                if setup is not None:
                    on_cluster = rng.random() < ON_CLUSTER
                    yield next(number), replace(setup, master=CLUSTER) if on_cluster else setup

    def run_trial(
        self, number: int, setup: Setup, plans: Iterator[DriverPlan], is_over: Callable[[int], bool]
    ) -> Result:
        """Run one trial, from an empty folder to a checked table. If it fails, its files are kept."""
        root = self.folder / f"trial-{number}"
        self.say(f"trial {number}: {setup}, {setup.master}")
        with deploy(setup, root, self.servers) as deployment:
            with Trial(number, deployment, plans, random.Random(f"{self.seed}/{number}/moments")) as trial:
                try:
                    for event in trial.run(is_over):
                        self.say(f"trial {number} {line(event)}")
                except TrialFailed as failed:
                    trial.result.problems.append(str(failed))
                except Exception:  # noqa: BLE001  reported; the next trial may succeed
                    trial.result.problems.append(traceback.format_exc())
            if trial.result.problems:
                _keep(deployment)
        result = trial.result
        if result.problems:
            (root / "trial.json").write_text(json.dumps(asdict(result), indent=1))
            self.say("\n    ".join([f"trial {number} FAILED:", *map(line, result.events), *result.problems]))
        else:
            shutil.rmtree(root)
            rows = f"{result.verdict.rows:,} rows in {result.batches} batches"
            self.say(f"trial {number}: {rows}, {how_often(result.verdict)}, {result.seconds:.0f} s")
        return result


def how_often(verdict: Verdict) -> str:
    if not verdict.doubled:
        return "each once"
    return f"none lost, {verdict.doubled:,} doubled (at most {verdict.doubles_max:,})"


def line(event: Event) -> str:
    """Return a description of a fault in one line."""
    if not event.counts:
        return f"{event.at_s:6.1f} s  ({event.fault}: {event.what})"
    verdict = event.verdict
    found = "; ".join(verdict.problems) or f"{verdict.rows:,} rows, {how_often(verdict)}"
    return (
        f"{event.at_s:6.1f} s  {event.fault}: {event.what}; continued after {event.healed_s:.1f} s, "
        f"{event.restarts} restarts; {found}"
    )


def _keep(deployment: Deployment) -> None:
    """Copy what does not outlast the trial: the files of mounted file systems, and the rows of a service."""
    root, table = deployment.root, deployment.place.table
    if isinstance(table, ReceivedRows):
        (root / "rows.json").write_text(json.dumps(table.service.rows()))
    for folder in (root / "lake", root / "checkpoints"):
        if folder.is_mount():
            copy = folder.with_name(f"{folder.name}-kept")
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(FILLER))
