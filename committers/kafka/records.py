"""Records of Kafka. Plain values, without the client library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

Headers: TypeAlias = "list[tuple[str, str | bytes | None]]"
Record: TypeAlias = "tuple[str, bytes | None, bytes | None, int, int, Headers | None]"
"""Topic, value, key, partition (-1: by the key), timestamp in milliseconds (0: now) and headers."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a batch that follow each other, as records."""

    batch_id: int
    first_row: int
    """Number of the first row in the partition of its task."""
    records: Sequence[Record | None]
    """None: the row cannot be converted."""

    @property
    def convertible(self) -> Sequence[Record]:
        if None not in self.records:
            return cast("Sequence[Record]", self.records)
        return [record for record in self.records if record is not None]
