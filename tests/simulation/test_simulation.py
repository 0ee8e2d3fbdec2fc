"""The simulation in short: some histories, and that it can be trusted to be the same again and to notice."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulation import __main__ as program
from tests.simulation.features import Chosen
from tests.simulation.histories import Failure, play, timeline
from tests.simulation.lakes import LAKES
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.plan import Plan
from tests.simulation.source_changes import ChangedModules
from tests.simulation.targets import targets_in

ROOT = Path(__file__).parents[2]
SEEDS = 120
UPSERTS, UPSERT_SEEDS = Chosen(features=("upserts",)), 20


@pytest.mark.parametrize("lake", LAKES)
def test_the_invariant_holds_after_any_history(lake: str) -> None:
    failures = [failure for seed in range(SEEDS) if (failure := play(seed, lake))]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_the_invariant_holds_after_any_history_of_upserts(lake: str) -> None:
    failures = [failure for seed in range(UPSERT_SEEDS) if (failure := play(seed, lake, chosen=UPSERTS))]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.parametrize("lake", LAKES)
def test_the_invariant_holds_on_the_real_store(lake: str) -> None:
    failures = [failure for seed in range(4) if (failure := play(seed, lake, "sqlite"))]
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.slow
@pytest.mark.parametrize("lake", LAKES)
def test_the_invariant_holds_on_postgres(lake: str, new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url()
    failures = [failure for seed in range(3) if (failure := play(seed, lake, url))]
    assert not failures, "\n".join(map(str, failures))


def test_half_of_the_histories_are_decoupled_and_some_of_them_mixed() -> None:
    plans = [Plan.of(random.Random(seed)) for seed in range(1000)]
    decoupled = sum(plan.delivery is not None for plan in plans)
    mixed = sum(plan.is_mixed for plan in plans)
    assert 450 < decoupled < 550
    assert 100 < mixed < decoupled / 2


def test_a_third_of_the_queries_has_several_targets() -> None:
    counts = [targets_in(seed) for seed in range(1000)]
    assert 280 < sum(count > 1 for count in counts) < 390
    assert 80 < counts.count(3) < 160


@pytest.mark.slow
def test_what_befalls_one_of_several_targets_happens_before_everything_heals() -> None:
    """Else the histories would prove little of it."""
    seeds = [(seed, lake) for seed in range(40) for lake in LAKES]
    told = "\n".join(line for seed, lake in seeds for line in before_healing(seed, lake, targets=3))
    for what in (
        r"prepare batch 0 batch 0 batch 0 by",
        r"planned: write batch \d+ a, b, c\n",
        r"planned: write batch \d+ [abc]\n",
        r"batch \d+ of target [abc] is aborted",
        r"event: park",
        r"event: skip",
    ):
        assert re.search(what, told), what


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feature", "lake", "targets", "told"),
    [
        ("letters", "database", 1, "database: drop refused rows"),
        ("letters", "requests", 1, "store: dead letters progress"),
        ("new_target", "delta", 2, "targets: new_target"),
        ("left_target", "requests", 2, "targets: left_target"),
        ("routes", "requests", 3, r"prepare batch 1 batch 1 batch 1 by"),
        ("shared_files", "delta", 2, r"planned: write batch \d+ iceberg, delta\n"),
        ("upserts", "delta", 1, r"maintenance: compacted \d+ files"),
        ("upserts", "delta", 1, r"head \S+/_penstock/tombstones-\S+parquet"),
        ("upserts", "delta", 1, r"put \S+/deletion_vector_\S+bin"),
        ("upserts", "iceberg", 1, r"head \S+/_penstock/tombstones-\S+parquet"),
        ("upserts", "iceberg", 1, r"put \S+\.deletes"),
    ],
)
def test_what_a_history_is_about_happens_before_everything_heals(
    feature: str, lake: str, targets: int, told: str
) -> None:
    """Else the histories would prove little of it."""
    lines = [line for seed in range(20) for line in before_healing(seed, lake, targets, (feature,))]
    assert re.search(told, "\n".join(lines))


@pytest.mark.parametrize("lake", LAKES)
def test_what_delivery_can_do_happens_before_everything_heals(lake: str) -> None:
    """Else the histories would prove little of it."""
    told = "\n".join(line for seed in range(60) for line in before_healing(seed, lake))
    for what in (
        "store: prepare delivery",
        "batches 0 to 1",
        "store: finish delivery",
        "replaced files deleted",
        *(("compacted",) if lake in ("delta", "iceberg") else ()),
        *(() if lake == "requests" else ("is_decoupled=False",)),
    ):
        assert what in told, what


def before_healing(
    seed: int, lake: str, targets: int = 1, features: tuple[str, ...] | None = None
) -> list[str]:
    if Plan.of(random.Random(seed)).delivery is None:
        return []
    lines = list(timeline(seed, lake, chosen=Chosen(targets=targets, features=features)))
    return lines[: next(i for i, line in enumerate(lines) if "nothing goes wrong" in line)]


@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("seed", range(5))
def test_a_seed_is_the_same_history_again(lake: str, seed: int) -> None:
    assert list(timeline(seed, lake)) == list(timeline(seed, lake))


@pytest.mark.parametrize("lake", ["delta", "iceberg"])
def test_a_seed_is_the_same_history_of_upserts_again(lake: str) -> None:
    assert list(timeline(3, lake, chosen=UPSERTS)) == list(timeline(3, lake, chosen=UPSERTS))


@pytest.mark.slow
def test_a_history_is_the_same_in_another_process() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "11"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in (0, 1)
    ]
    assert told[0] == told[1]
    assert "The invariant holds." in told[0]


def test_a_broken_invariant_is_told_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Failure(11, "delta", ["a row is gone"])
    monkeypatch.setattr(program, "play_all", lambda *_args: [broken])
    monkeypatch.setattr(sys, "argv", ["tests.simulation", "--seeds", "1"])
    assert program.main() == 1
    told = capsys.readouterr().out
    assert "seed 11, delta:\n  a row is gone" in told
    assert "spark: log offsets batch 0" in told
    assert 'make simulate ARGS="--lake delta --seed 11"' in told


NOTICED_SOON = (
    "token check (Delta)",
    "compare-and-set of the branch's head (Iceberg)",
)


@pytest.mark.slow
@pytest.mark.parametrize("guard", NOTICED_SOON)
def test_a_guard_that_is_taken_away_is_noticed(guard: str) -> None:
    """A few of them; `make mutants` takes away each."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--only", guard, "--seeds", "300"]
    ended = subprocess.run([*command, "--processes", "1"], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 of 1 removed guards were noticed" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_every_mutation_still_applies(mutation: Mutation) -> None:
    modules = ChangedModules(mutation.changes)
    for file in modules.files.values():
        assert ast.dump(modules.tree(file)) != ast.dump(ast.parse((ROOT / file).read_text()))
        modules.code(file)
