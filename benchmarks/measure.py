"""Measures cases in interleaved rounds. Only ratios within one run are comparable between machines."""

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
    """Command-line options. Each benchmark uses those that apply to it."""

    rows: int | None = None
    """None: the number that the benchmark's bounds apply to."""
    repeat: int = 5
    is_quick: bool = False
    """A short run, with inaccurate figures."""
    cases: tuple[str, ...] = ()
    """The cases to run; empty: all."""
    minutes: float | None = None
    """Of an outage."""
    commits: int | None = None
    """Into one table, one after the other."""

    def wants(self, case: str) -> bool:
        return not self.cases or case in self.cases


def interleaved(cases: Mapping[str, Callable[[], float | None]], repeat: int, *, warm_up: int = 0) -> Samples:
    """Run all cases in turn, `repeat` times, so other load on the machine affects all of them.

    Args:
        cases: return a sample, or None to use the elapsed seconds as the sample
        warm_up: rounds before, whose samples are dropped
    """
    samples: Samples = {name: [] for name in cases}
    for number in range(-warm_up, repeat):
        for name, case in cases.items():
            start = time.perf_counter()
            returned = case()
            sample = time.perf_counter() - start if returned is None else returned
            if number >= 0:
                samples[name].append(sample)
            print_progress(f"  {'warm-up' if number < 0 else f'{number + 1}/{repeat}'} {name}: {sample:,.4g}")
    return samples


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in samples.items()}


def ratio(samples: Mapping[str, Sequence[float]], one: str, other: str) -> float | None:
    """Return the median over the rounds of `one` divided by `other`; None if either was not run."""
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
    """Run the function in a new process and return the peak memory of that process, with its interpreter.

    Function, arguments and exceptions are pickled, so the function must be at module level.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (function, arguments))


def _peak(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    function(*arguments)
    return peak_memory_of("self")


def peak_memory_of(pid: int | str) -> int:
    """Return the peak memory in bytes of a running process since its start (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended")


def machine(*libraries: str) -> str:
    """Describe the hardware, Python and the libraries in one line."""
    named = ", ".join(f"{name} {version(name)}" for name in libraries or LIBRARIES)
    own, all_ = len(os.sched_getaffinity(0)), os.cpu_count()
    cores = f"{own} cores" if own == all_ else f"{own} of {all_} cores"
    return f"{cores}, {platform.machine()}, Python {platform.python_version()}, {named}"


def print_progress(line: str) -> None:
    """Print to stderr; stdout has the report."""
    print(line, file=sys.stderr, flush=True)


say = print_progress
"""The name at the commit BEFORE of `flames.py`, whose modules import it."""
