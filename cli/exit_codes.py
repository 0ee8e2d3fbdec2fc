"""Exit codes of all commands and of the delivery process."""

from __future__ import annotations

ATTENTION, WRONG_USAGE, FAILED, UNREACHABLE = 1, 2, 3, 4
