"""Maintenance steps of a table, and the query's options for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One maintenance step of one table."""

    name: str
    every_s: float
    run: Callable[[], str]
    """Runs the step. Returns what was done, for display; empty if there was nothing to do."""
    decides_itself: bool = False
    """True if an option of its own enables the step."""


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """The query's maintenance options. In seconds; 0 means never."""

    is_wanted: bool | None = None
    """None: enabled if Penstock created the table."""
    compact_s: float = 600.0
    vacuum_s: float = 86_400.0
    """Interval for deleting removed files and files that nothing needs."""
