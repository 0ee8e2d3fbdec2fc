"""What `penstock.check` returns: a record for each thing that it has looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """What a finding means for the start of the query."""

    OK = "ok"
    """The query can start, as far as this was checked."""
    WARNING = "warning"
    """The query can start, and something is probably not intended."""
    ERROR = "error"
    """The query would end with an error, or lose its guarantee."""
    SKIPPED = "skipped"
    """It was not checked. The text says why."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check has looked at."""

    severity: Severity
    subject: str
    """What was looked at: `options`, `extras`, `versions`, `query`, `store`, `checkpoint`, `storage`,
    `clock`, `table` or `rows`.
    """
    target: str
    """Name of the target, for a query with several; empty for the query."""
    message: str
    """What is right or wrong, and where."""
    remedy: str = ""
    """What to do; empty if there is nothing to do, or if the message says it."""

    def __str__(self) -> str:
        of_target = f" of {self.target}" if self.target else ""
        remedy = f" {self.remedy}" if self.remedy else ""
        return f"{self.severity.value:<8} {self.subject}{of_target}: {self.message}{remedy}"
