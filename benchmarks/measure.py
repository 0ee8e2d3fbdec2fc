"""Measuring side by side: only ratios within one run travel from machine to machine."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

LIBRARIES = ("pyspark", "deltalake", "pyiceberg", "pyarrow")
Samples = dict[str, list[float]]


@dataclass(frozen=True)
class Options:
    """What the command line asks of a benchmark; each takes what concerns it."""

    rows: int | None = None
    """None: as many as the benchmark's bounds are for."""
    repeat: int = 5
    is_quick: bool = False
    """A short look, whose figures mean little."""
    cases: tuple[str, ...] = ()
    """Only these; all if empty."""

    def wants(self, case: str) -> bool:
        return not self.cases or case in self.cases


def interleaved(cases: Mapping[str, Callable[[], float | None]], repeat: int, *, warm_up: int = 0) -> Samples:
    """Run all cases in turn, `repeat` times: whatever else the machine does meets all alike.

    Args:
        cases: what a case returns is its sample; if it returns None, that is the seconds that it took
        warm_up: rounds before, of which nothing is kept
    """
    samples: Samples = {name: [] for name in cases}
    for number in range(-warm_up, repeat):
        for name, case in cases.items():
            start = time.perf_counter()
            returned = case()
            sample = time.perf_counter() - start if returned is None else returned
            if number >= 0:
                samples[name].append(sample)
            say(f"  {'warm-up' if number < 0 else f'{number + 1}/{repeat}'} {name}: {sample:,.4g}")
    return samples


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def ratio(samples: Mapping[str, Sequence[float]], one: str, other: str) -> float | None:
    """How many times `other` the samples of `one` are: the median of the rounds; None if one was not run."""
    if not samples.get(one) or not samples.get(other):
        return None
    return statistics.median(a / b for a, b in zip(samples[one], samples[other], strict=True))


@contextmanager
def one_core() -> Iterator[None]:
    allowed, threads = os.sched_getaffinity(0), pa.cpu_count()
    os.sched_setaffinity(0, {max(allowed)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        pa.set_cpu_count(threads)


def peak_memory_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """The most memory that a fresh process held while it ran this function, its interpreter included.

    Function and arguments are pickled: the function is one of a module, and raises what pickles.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (function, arguments))


def _peak(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    function(*arguments)
    return peak_memory_of("self")


def peak_memory_of(pid: int | str) -> int:
    """The most bytes that a living process has held since its program started (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


def machine(*libraries: str) -> str:
    """One line: the hardware, Python and the libraries."""
    named = ", ".join(f"{name} {version(name)}" for name in libraries or LIBRARIES)
    own, all_ = len(os.sched_getaffinity(0)), os.cpu_count()
    cores = f"{own} cores" if own == all_ else f"{own} of {all_} cores"
    return f"{cores}, {platform.machine()}, Python {platform.python_version()}, {named}"


def say(line: str) -> None:
    """Progress, beside the report."""
    print(line, file=sys.stderr, flush=True)
