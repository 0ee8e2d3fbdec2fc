"""The clock of the committers of file tables. They take it as an argument, so that tests can set it."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
