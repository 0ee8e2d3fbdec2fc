"""Lineage: which offsets of its sources a batch has read.

A batch has read a source from where the batch before ended to where Spark's offset log says that it ends.
That is recorded with the batch in the store, and with its commit in the history of the table. So a version of
a table can be traced to the records of a topic, and back. It is for display: no decision depends on it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

HISTORY_CHARS_MAX = 8000
"""Longest text in a table's history: tables keep the text of each version in their metadata. A topic with 300
partitions fits.
"""
STORED_BYTES_MAX = 1024**2
_DECODED_BYTES_MAX = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Records of one partition of a Kafka topic."""

    topic: str
    partition: int
    from_offset: int | None
    """None: unknown, because the partition was new. Spark reads it from its earliest offset."""
    until_offset: int
    """Exclusive, as in Kafka."""

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        is_it = (self.topic, self.partition) == (topic, partition)
        return is_it and (self.from_offset or 0) <= offset < self.until_offset


@dataclass(frozen=True, slots=True)
class SourceLineage:
    """What a batch or a delivery has read of one source, for display."""

    source: str
    """Its position in the query or its name, as in Spark's offset log."""
    partitions: tuple[PartitionRange, ...] = ()
    """Of a Kafka source, those with records."""
    start: str = ""
    """Of another source: the offset from which it was read, as in Spark's offset log; empty: from the
    beginning.
    """
    end: str = ""
    """The offset to which it was read; empty for a Kafka source."""
    is_omitted: bool = False
    """True if the text was too long for the table's history."""


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A version of a table that has rows of a stream, from the history of the table or from the store."""

    version: int | None
    """None: the batch is not committed yet, or its version is unknown."""
    committed_at: datetime | None
    query_id: str
    """Empty for a commit by others."""
    batch_ids: tuple[int, ...] = ()
    sources: tuple[SourceLineage, ...] = ()
    operation: str = ""
    """Of a commit by others, as the format names it."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What a batch or a delivery has read of one source: the offsets as in Spark's offset log."""

    source: str
    start: str
    """Empty if there is none: the source is read from its beginning."""
    end: str

    def lineage(self) -> SourceLineage:
        end = _kafka_offsets(self.end)
        if end is None:
            return SourceLineage(self.source, start=self.start, end=self.end)
        start = _kafka_offsets(self.start) or {}
        ranges = [PartitionRange(*key, start.get(key), until) for key, until in sorted(end.items())]
        read = tuple(one for one in ranges if one.from_offset != one.until_offset)
        return SourceLineage(self.source, partitions=read)


def merged_ranges(batches: Iterable[Sequence[SourceRange]]) -> tuple[SourceRange, ...]:
    """Return what these batches have read together, in their order. Where one begins at the end of the one
    before, their ranges become one; where a batch is left out, a source has several.
    """
    merged: list[SourceRange] = []
    newest: dict[str, int] = {}
    for one in (one for ranges in batches for one in ranges):
        place = newest.get(one.source)
        if place is not None and merged[place].end == one.start:
            merged[place] = replace(merged[place], end=one.end)
        else:
            newest[one.source] = len(merged)
            merged.append(one)
    return tuple(merged)


def holds(sources: Iterable[SourceLineage], topic: str, partition: int, offset: int) -> bool:
    """Return True if a record of a Kafka topic is among what was read."""
    return any(one.holds(topic, partition, offset) for read in sources for one in read.partitions)


def _kafka_offsets(text: str) -> dict[tuple[str, int], int] | None:
    """Parse an offset of Spark's Kafka source, `{"topic":{"0":17}}`; None for other sources."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not all(isinstance(one, dict) and one for one in given.values()):
        return None
    offsets = [
        (topic, partition, offset) for topic, one in given.items() for partition, offset in one.items()
    ]
    if not all(partition.isdecimal() and type(offset) is int for _, partition, offset in offsets):
        return None
    return {(topic, int(partition)): offset for topic, partition, offset in offsets} or None


# In the store ---------------------------------------------------------------------------------------


def stored(ranges: Sequence[SourceRange]) -> bytes | None:
    """Encode the ranges; None if there are none, or too many."""
    listed = [[one.source, one.start, one.end] for one in ranges]
    content = zlib.compress(json.dumps(listed).encode())
    return content if listed and len(content) <= STORED_BYTES_MAX else None


def of_stored(content: bytes | None) -> tuple[SourceRange, ...]:
    """Decode the result of `stored`. Empty if there is none or if it is damaged: a batch is committed in any
    case.
    """
    try:
        text = zlib.decompressobj().decompress(content or b"", _DECODED_BYTES_MAX)
        return tuple(SourceRange(*map(str, (source, start, end))) for source, start, end in json.loads(text))
    except (zlib.error, ValueError, TypeError, RecursionError):
        return ()


# In the history of a table --------------------------------------------------------------------------


def history_text(ranges: Sequence[SourceRange]) -> str:
    """Return what the history of a table gets; empty if nothing is known.

    `[{"source": "0", "offsets": {"orders": "0:100-200 1:40-60"}}]`: partition, first offset, and the offset
    after the last one. Sources other than Kafka have their offsets as they are, as `start` and `end`.
    """
    for entries in (
        [_entry(one.lineage()) for one in ranges],
        [{"source": source, "omitted": True} for source in dict.fromkeys(one.source for one in ranges)],
    ):
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")) if entries else ""
        if len(text) <= HISTORY_CHARS_MAX:
            return text
    return ""


def _entry(one: SourceLineage) -> dict[str, Any]:
    if one.end:
        return {"source": one.source, "start": one.start, "end": one.end}
    topics: dict[str, list[str]] = {}
    for read in one.partitions:
        start = "" if read.from_offset is None else read.from_offset
        topics.setdefault(read.topic, []).append(f"{read.partition}:{start}-{read.until_offset}")
    return {"source": one.source, "offsets": {topic: " ".join(parts) for topic, parts in topics.items()}}


def of_history(text: object) -> tuple[SourceLineage, ...]:
    """Parse the result of `history_text`; empty if it is something else."""
    try:
        return tuple(map(_of_entry, json.loads(str(text))))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def _of_entry(entry: dict[str, Any]) -> SourceLineage:
    source = str(entry["source"])
    if entry.get("omitted") is True:
        return SourceLineage(source, is_omitted=True)
    if "offsets" not in entry:
        return SourceLineage(source, start=str(entry["start"]), end=str(entry["end"]))
    parts = ((str(topic), part) for topic, some in entry["offsets"].items() for part in some.split())
    return SourceLineage(source, tuple(_partition(topic, part) for topic, part in parts))


def _partition(topic: str, text: str) -> PartitionRange:
    partition, _, offsets = text.partition(":")
    start, _, until = offsets.partition("-")
    return PartitionRange(topic, int(partition), int(start) if start else None, int(until))
