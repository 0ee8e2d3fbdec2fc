"""Remove one guard of the product after another: the simulation must notice each within a bounded time.

`python -m tests.simulation.mutants` prints, for each guard, after how many histories the invariant broke; for
those of the real store, after how many it answered otherwise than the simulation's. What hardly any history
shows has a test that must fail. A guard that nothing misses is either not needed or not tested: the run ends
with 1.
"""

from __future__ import annotations

import argparse
import io
import itertools
import multiprocessing
import os
import random
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial

import pytest
from rich.console import Console
from rich.table import Table
from tests.simulation.features import Chosen
from tests.simulation.mutations import MUTATIONS
from tests.simulation.source_changes import ChangedModules


@dataclass(frozen=True)
class Verdict:
    """What became of one mutation."""

    guard: str
    seeds: int
    """Histories until it was noticed, or all of them; none where a test tells."""
    problem: str
    """Empty if nothing was."""
    seed: int | None = None
    lake: str = ""
    """The history that showed it; none for a guard in the real store, or with a test of its own."""


def judge(guard: str, seeds_max: int) -> Verdict:
    """Play histories with the mutation in place until one breaks the invariant. In a process of its own."""
    mutation = MUTATIONS[guard]
    sys.meta_path.insert(0, ChangedModules(mutation.changes))
    if mutation.test:
        return Verdict(guard, 0, f"{mutation.test} fails" if fails(mutation.test) else "")
    if mutation.is_in_store:
        from tests.simulation.store_calls import differs_after

        return Verdict(guard, *differs_after(seeds_max))
    from tests.simulation.histories import play
    from tests.simulation.plan import Plan

    parts = ((seed, Plan.of(random.Random(seed)).parts) for seed in itertools.count(mutation.first))
    seeds = (seed for seed, has in parts if mutation.needs <= has)
    for played, seed in enumerate(itertools.islice(seeds, seeds_max), start=1):
        lake = mutation.lakes[played % len(mutation.lakes)]
        failure = play(seed, lake, chosen=mutation.chosen)
        if failure is not None:
            return Verdict(guard, played, failure.problems[0], seed, lake)
    return Verdict(guard, seeds_max, "")


def fails(test: str) -> bool:
    """Run one test in this process, with all its parameters. It passes with all guards in place."""
    with redirect_stdout(io.StringIO()):
        return pytest.main([test, "-q", "-p", "no:cacheprovider"]) == pytest.ExitCode.TESTS_FAILED


def breaks(seed: int, lake: str, chosen: Chosen) -> bool:
    """Does the history break with all guards in place? In a process without mutations."""
    from tests.simulation.histories import play

    return play(seed, lake, chosen=chosen) is not None


def judge_all(guards: Sequence[str], seeds_max: int, processes: int) -> list[Verdict]:
    """In parallel, each in a fresh process. A history that breaks with all guards in place does not count."""
    console = Console(stderr=True)
    verdicts = []
    context = multiprocessing.get_context("fork")
    with context.Pool(processes, maxtasksperchild=1) as pool, context.Pool(1) as unmutated:
        for verdict in pool.imap(partial(judge, seeds_max=seeds_max), guards, chunksize=1):
            chosen = MUTATIONS[verdict.guard].chosen
            if verdict.seed is not None and unmutated.apply(breaks, (verdict.seed, verdict.lake, chosen)):
                again = f"BROKEN WITH ALL GUARDS, --lake {verdict.lake} --seed {verdict.seed} {chosen}"
                console.print(again, markup=False, highlight=False, soft_wrap=True)
                verdict = replace(verdict, problem="")
            after = f"{verdict.seeds:,} histories: " if verdict.seeds else ""
            found = f"{after}{verdict.problem}" if verdict.problem else "NOT FOUND"
            console.print(f"{verdict.guard}: {found}", markup=False, highlight=False, soft_wrap=True)
            verdicts.append(verdict)
    return verdicts


def table_of(verdicts: Sequence[Verdict]) -> Table:
    table = Table("guard", "without it", "where", "histories until found", "what broke")
    for verdict in verdicts:
        mutation = MUTATIONS[verdict.guard]
        seeds = f"{verdict.seeds:,}" if verdict.problem else f"not in {verdict.seeds:,}"
        table.add_row(verdict.guard, mutation.without, mutation.file, seeds, verdict.problem[:100])
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="histories for each guard at most")
    parser.add_argument("--only", default="", help="guards whose names contain this")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    guards = [guard for guard in MUTATIONS if arguments.only in guard]
    verdicts = judge_all(guards, arguments.seeds, arguments.processes)
    Console(width=200 if not sys.stdout.isatty() else None).print(table_of(verdicts))
    missed = [verdict for verdict in verdicts if not verdict.problem]
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} removed guards were noticed")
    return int(bool(missed))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.simulation.mutants", *sys.argv[1:]], environment
        )
    sys.exit(main())
