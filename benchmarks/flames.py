"""Draws flame graphs with py-spy, before and after the changes for speed: `make flames`.

Each workload runs twice in separate processes, with the package at the commit BEFORE and with the current
one. Both graphs have the same scale. The pictures go into docs/benchmarks/; `profiles.md` describes them.
This needs the repository's history.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.data import as_from_spark, with_partition
from benchmarks.measure import one_core, print_progress
from benchmarks.report import PAGES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import penstock

ROOT = Path(__file__).parents[1]
BEFORE = "fe91f85"
"""The last commit before the changes for speed of writers, store and commits."""
SAMPLES_A_SECOND = 250
LEAST_SHARE = 0.004
"""Frames with a smaller share of the total are not drawn."""
DONE = "done"
"""Printed at the end, because py-spy does not return the program's exit code."""
LEVELS_MAX = 20
LETTERS = 150
"""Number of letters that fit into the whole width."""
LINEITEM_ROWS, ROUNDS, PARTITIONS = 1_000_000, 10, 200
BATCHES = 200
WAITING, WRITING = "Background.wait", "DataFileWriter._take_in"


def benchmark(name: str) -> Any:
    """Load the module of `benchmarks` that belongs to the package's version."""
    tree = Path(penstock.__file__).parents[2]
    spec = importlib.util.spec_from_file_location(f"{name}_of_its_time", tree / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def write_files(folder: Path, *, partitions: int) -> None:
    """Write batches of lineitem into one table partition, or into many."""
    writer = benchmark("writer")
    files = data.lineitem(LINEITEM_ROWS).files
    table = as_from_spark(pa.concat_tables(pq.read_table(file) for file in files))
    plan = writer.split_plan if partitions > 1 else writer.delta_plan
    rows = with_partition(table, partitions) if partitions > 1 else table
    with one_core():
        for number in range(ROUNDS):
            target = folder / str(number)
            target.mkdir()
            writer.penstock(target, rows, plan)


def commit_batches(folder: Path, *, kind: str) -> None:
    """Plan and commit batches of one small file as on Spark's driver."""
    streams = benchmark("streams")
    stream, write = streams.Stream(streams.sink_of(kind, folder)), streams.named_files(kind, 1)
    for _ in range(BATCHES):
        stream.run(write)


Stack = tuple[str, ...]

WORKS: dict[str, Callable[[Path], None]] = {
    "writer": partial(write_files, partitions=1),
    f"writer-{PARTITIONS}-partitions": partial(write_files, partitions=PARTITIONS),
    "batches-delta": partial(commit_batches, kind="delta"),
    "batches-iceberg": partial(commit_batches, kind="iceberg"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flames", description=__doc__)
    parser.add_argument("works", nargs="*", help=f"any of {', '.join(WORKS)}; default: all")
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help=f"default: {BEFORE}")
    parser.add_argument("--do", choices=WORKS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.do:
        with tempfile.TemporaryDirectory(prefix="penstock-flames-") as folder:
            WORKS[arguments.do](Path(folder))
        print(DONE)
        return 0
    if unknown := sorted(set(arguments.works) - set(WORKS)):
        parser.error(f"unknown workload {', '.join(unknown)}; the workloads are {', '.join(WORKS)}")
    data.lineitem(LINEITEM_ROWS)
    with tempfile.TemporaryDirectory(prefix="penstock-before-") as folder:
        extract(arguments.before, Path(folder))
        for work in arguments.works or WORKS:
            stacks = {f"before ({arguments.before})": record(work, Path(folder)), "now": record(work, ROOT)}
            picture = PAGES / f"flames-{work}.png"
            flame_graphs(stacks).savefig(picture)
            print_progress(f"{work}: {picture.relative_to(ROOT)}")
    return 0


# Record ---------------------------------------------------------------------------------------------


def extract(commit: str, folder: Path) -> None:
    """Extract the files of the commit into the folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def record(work: str, package: Path) -> Counter[Stack]:
    """Return wall-clock samples of the workload with the package in that folder, without imports."""
    spy = Path(sys.executable).with_name("py-spy")
    program = [sys.executable, "-m", "benchmarks.flames", "--do", work]
    paths = {"PYTHONPATH": f"{package / 'src'}{os.pathsep}{ROOT}"}
    with tempfile.NamedTemporaryFile(suffix=".txt") as raw:
        # Without --idle, Arrow's work outside of Python would be missing.
        options = ["--rate", str(SAMPLES_A_SECOND), "--function", "--idle", "--format", "raw"]
        recorded = subprocess.run(
            [spy, "record", *options, "--output", raw.name, "--", *program],
            cwd=ROOT,
            env={**os.environ, **paths},
            capture_output=True,
            text=True,
            check=False,
        )
        if recorded.returncode or DONE not in recorded.stdout.split():
            raise SystemExit(f"py-spy failed for {work}:\n{recorded.stdout}\n{recorded.stderr}")
        return _stacks(Path(raw.name).read_text())


def _stacks(raw: str) -> Counter[Stack]:
    """Parse lines `frame;frame;frame count` into stacks below the workload's frame.

    The stacks of the encoder's thread replace those that wait for it.
    """
    stacks: Counter[Stack] = Counter()
    for line in raw.splitlines():
        frames, _, count = line.rpartition(" ")
        names = [frame.partition(" (")[0] for frame in frames.split(";")]
        work = next((name for name in names if name in (write_files.__name__, commit_batches.__name__)), "")
        if work and WAITING not in names and "_find_and_load" not in names:
            stacks[tuple(names[names.index(work) + 1 :])] += int(count)
        elif not work and WRITING in names:
            stack = ("the writer's thread", *names[names.index(WRITING) :])
            stacks[stack] += int(count)
    return stacks


# Draw -----------------------------------------------------------------------------------------------


def flame_graphs(of: Mapping[str, Counter[Stack]]) -> Figure:
    """Draw the graphs below each other; the width is time, on the same scale."""
    longest = max(stacks.total() for stacks in of.values())
    depths = {when: _depth(stacks, longest) for when, stacks in of.items()}
    figure = Figure(figsize=(12, 0.22 * sum(depths.values()) + 1.2), layout="constrained")
    panels: Sequence[Axes] = figure.subplots(len(of), 1, sharex=True, height_ratios=list(depths.values()))
    for axes, (when, stacks) in zip(panels, of.items(), strict=True):
        axes.set_title(f"{when}: {stacks.total() / SAMPLES_A_SECOND:.1f} s", loc="left", fontsize=10)
        _draw(axes, stacks, longest)
        axes.set(xlim=(0, longest), ylim=(depths[when], 0))
        axes.axis("off")
    return figure


def _depth(stacks: Counter[Stack], longest: int) -> int:
    least = LEAST_SHARE * longest
    return max((depth for depth, _, _, width in _boxes(stacks) if width >= least), default=0) + 1


def _draw(axes: Axes, stacks: Counter[Stack], longest: int) -> None:
    for depth, name, left, width in _boxes(stacks):
        if width < LEAST_SHARE * longest:
            continue
        shade = 0.35 + 0.5 * (sum(name.encode()) % 17) / 17
        axes.barh(depth + 0.5, width, 0.94, left, color=(0.95, shade, 0.3), edgecolor="white", linewidth=0.4)
        if label := _label(name, int(LETTERS * width / longest)):
            axes.text(left + width / 2, depth + 0.5, label, ha="center", va="center", fontsize=7)


def _label(name: str, letters: int) -> str:
    """Shorten the name to fit."""
    if len(name) <= letters:
        return name
    last = name.rpartition(".")[2]
    return last if len(last) <= letters else last[:letters] if letters > 3 else ""


def _boxes(stacks: Counter[Stack], depth: int = 0, left: int = 0) -> list[tuple[int, str, int, int]]:
    """Return depth, name, left edge and width of each frame, in samples; the widest callees come first."""
    callees: dict[str, Counter[Stack]] = {}
    for stack, count in stacks.items():
        if stack and depth < LEVELS_MAX:
            callees.setdefault(stack[0], Counter())[stack[1:]] += count
    boxes = []
    for name, inner in sorted(callees.items(), key=lambda item: -item[1].total()):
        boxes.append((depth, name, left, inner.total()))
        boxes += _boxes(inner, depth + 1, left)
        left += inner.total()
    return boxes


if __name__ == "__main__":
    sys.exit(main())
