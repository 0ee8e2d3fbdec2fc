"""Play many histories: `python -m tests.simulation --seeds 100000`; again one of them: `--seed 4711`.

Ends with 1 if the invariant did not hold in one of them; its timeline is printed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tests.simulation.features import FEATURES, Chosen
from tests.simulation.histories import Failure, play, timeline
from tests.simulation.lakes import LAKES
from tests.simulation.plan import EVENT_NAMES

SEEDS_PER_TASK = 100


def play_some(
    seeds: Sequence[int],
    lakes: Sequence[str],
    store: str,
    chosen: Chosen,
) -> list[Failure]:
    """Histories of one task; the lakes take turns."""
    failures = (play(seed, lakes[seed % len(lakes)], store, chosen) for seed in seeds)
    return [failure for failure in failures if failure is not None]


def play_all(
    seeds: range,
    lakes: Sequence[str],
    store: str,
    chosen: Chosen,
    processes: int,
    failures_max: int,
) -> list[Failure]:
    """All of them, side by side, with progress."""
    console = Console(stderr=True)
    parts = [seeds[start : start + SEEDS_PER_TASK] for start in range(0, len(seeds), SEEDS_PER_TASK)]
    failures: list[Failure] = []
    played = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    gc.freeze()  # what was imported need not be looked through again and again
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("histories", total=len(seeds))
            play_part = partial(play_some, lakes=lakes, store=store, chosen=chosen)
            for part, found in zip(parts, pool.imap(play_part, parts), strict=True):
                progress.advance(bar, len(part))
                played += len(part)
                failures += found
                if len(failures) >= failures_max:
                    break
    seconds = time.monotonic() - began
    print(
        f"{played:,} histories of {' and '.join(lakes)} in {seconds:,.0f} s with {processes} processes "
        f"({played / seconds:,.0f} per second): {len(failures)} broke the invariant"
    )
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="play this one and print its timeline")
    parser.add_argument("--lake", choices=LAKES, help="only this format; else they take turns")
    parser.add_argument("--store", default="memory", help="memory, sqlite, or the URL of a Postgres database")
    parser.add_argument(
        "--events",
        nargs="+",
        choices=sorted(EVENT_NAMES),
        default=(),
        help="the only events, in place of those of the seed",
    )
    parser.add_argument(
        "--targets", type=int, choices=(1, 2, 3), help="of each query, in place of those of the seed"
    )
    parser.add_argument(
        "--features",
        nargs="*",
        choices=FEATURES,
        help="what the histories are about, in place of what the seed says; none: nothing of it",
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--failures", type=int, default=3, help="stop after so many broken invariants")
    arguments = parser.parse_args()
    lakes = [arguments.lake] if arguments.lake else list(LAKES)
    features = None if arguments.features is None else tuple(arguments.features)
    store, chosen = arguments.store, Chosen(tuple(arguments.events), arguments.targets, features)
    if arguments.seed is not None:
        lines = list(timeline(arguments.seed, lakes[arguments.seed % len(lakes)], store, chosen))
        print("\n".join(lines))
        return int(any(line.startswith("PROBLEM") for line in lines))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    failures = play_all(seeds, lakes, store, chosen, arguments.processes, arguments.failures)
    for failure in failures[: arguments.failures]:
        print(failure)
    if failures:
        seed, lake = failures[0].seed, failures[0].lake
        print("\n".join(["", *timeline(seed, lake, store, chosen)]))
        again = f"--lake {lake} --seed {seed} {chosen}".rstrip()
        print(f'Again: make simulate ARGS="{again}"')
    return int(bool(failures))


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets must not depend on the process
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main())
