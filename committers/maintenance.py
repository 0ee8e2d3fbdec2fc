"""The maintenance of a table: its steps, and what the query's options say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of maintenance of one table."""

    name: str
    every_s: float
    run: Callable[[], str]
    """Does it; what was done, for people, empty if there was nothing to do."""
    decides_itself: bool = False
    """True if it has an option of its own that says whether it is wanted."""


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """What the query's options say of its table's maintenance. Seconds; 0 is never."""

    is_wanted: bool | None = None
    """None: if Penstock created the table."""
    compact_s: float = 600.0
    vacuum_s: float = 86_400.0
    """Between two looks for files that the table has removed, and for those that nothing names."""
