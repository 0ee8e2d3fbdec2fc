"""Test your own jobs as Penstock itself is tested: kill them, and check that no row is lost or doubled.

    from penstock import testing

    job = testing.Job([sys.executable, "job.py"], log="job.log")
    job.kill_at("prepare.done", batch_id=3)
    job.run()
    found = testing.check(testing.DeltaTable("/lake/orders"), "read_parquet('/data/*.parquet')")
    assert not found.problems, found

Needs `pip install 'penstock[testing]'`; only `Observation` and `find_problems` work without. Names are
imported on first use. docs/testing.md has a complete example.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..committers.crash_points import CRASH_POINTS
    from .checking import check
    from .delta_table import DeltaTable
    from .iceberg_table import IcebergTable
    from .invariant import Observation, find_problems
    from .jobs import Job, RunningJob

__all__ = [
    "CRASH_POINTS",
    "DeltaTable",
    "IcebergTable",
    "Job",
    "Observation",
    "RunningJob",
    "check",
    "find_problems",
]

_HOME = {
    "CRASH_POINTS": "..committers.crash_points",
    "DeltaTable": ".delta_table",
    "IcebergTable": ".iceberg_table",
    "Job": ".jobs",
    "Observation": ".invariant",
    "RunningJob": ".jobs",
    "check": ".checking",
    "find_problems": ".invariant",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock.testing' has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
