"""What the plan of a fan-out's batch passes on to its commit, with the tasks' messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...committers.contract import Batch, StreamKey


@dataclass(frozen=True, slots=True)
class PlannedTarget:
    """A target for which the tasks write the batch."""

    name: str
    part: int
    """Index of its payload. Targets that share a row log have the same."""
    content: Any
    """See `PlannedBatch.content`."""


FanoutContent: TypeAlias = "tuple[PlannedTarget, ...]"
"""Targets that have the batch already are left out."""


def batch_of_target(batch: Batch, table_uri: str) -> Batch:
    """Return the batch of one target's stream."""
    return replace(batch, stream=StreamKey(batch.stream.query_id, table_uri))
