"""One step of a table's maintenance. A target with maintenance has a list of them."""

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
