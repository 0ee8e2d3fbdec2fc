"""How rows are divided among the transactions of a batch. Without the client library."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import Chunk, Record

PARALLEL_MAX = 16
"""Parts of a batch."""


@dataclass(frozen=True, slots=True)
class Split:
    """How the rows of a batch are divided into parts. It has to be the same until all parts have the batch.

    Rows with the same key are in one part, and so are those with the same explicit partition. The part of a
    row without a key depends on its place in the row log.
    """

    parts: int = 1
    key: str = ""
    """The options that determine the keys of the rows; empty with one part."""

    @property
    def text(self) -> str:
        return "" if self.parts == 1 else f"{self.parts} by {self.key}"

    @classmethod
    def parse(cls, text: str) -> Split:
        """
        Raises:
            ValueError: it is no split.
        """
        if not text:
            return WHOLE
        parts, by, key = text.partition(" by ")
        if not by or int(parts) < 2:
            raise ValueError(f"split {text!r}")
        return cls(int(parts), key)

    def divide(self, chunk: Chunk) -> Sequence[Sequence[Record]]:
        """Return the records of each part, in their order."""
        if self.parts == 1:
            return [chunk.convertible]
        divided: list[list[Record]] = [[] for _ in range(self.parts)]
        for row, record in enumerate(chunk.records, chunk.first_row):
            if record is not None:
                _, _, key, partition, _, _ = record
                number = partition if partition >= 0 else row if key is None else zlib.crc32(key)
                divided[number % self.parts].append(record)
        return divided


WHOLE = Split()
