"""What ends a life of the campaign before its time."""

from __future__ import annotations


class LifeFailed(Exception):  # noqa: N818 - the story ends here; what is wrong is its message
    """The invariant does not hold, or the stream did not heal."""
