"""Adapter for deltalake: undocumented behaviour that Penstock relies on.

`tests/committers/test_delta_library.py` tests that behaviour. The adapter for obstore is `object_store`.
"""

from __future__ import annotations

from deltalake.exceptions import CommitFailedError

CHECKPOINT_INTERVAL = 100
"""Commits between two log checkpoints of a table without `delta.checkpointInterval`."""


def needs_other_features(error: Exception) -> bool:
    """Return True if the library rejected the commit because it cannot write a feature of the table."""
    return isinstance(error, CommitFailedError) and "Unsupported table features" in str(error)


def in_short(error: BaseException) -> str:
    """The library's message without its backtrace and color codes."""
    lines = [line.strip() for line in str(error).replace("\x1b[31m↳\x1b[0m", "").splitlines()]
    kept = []
    for line in lines:
        if line.startswith("0: ") or not line:
            break
        kept.append(line)
    return "; ".join(kept)[:500] or type(error).__name__
