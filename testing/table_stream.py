"""A stream of a table's rows without Spark: what Spark asks its source, batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa

from ..datasource.reading.formats import stream_options
from ..readers.streaming.plan import StreamPlan
from ..readers.streaming.positions import Offset
from ..readers.table import TableScan


class TableStream:
    """A query that reads a table. Its checkpoint is `ends`; all else is lost when it is started again.

    Args:
        format: one that can be read as a stream, such as `penstock.delta`
        options: those of the reader
    """

    def __init__(self, format: str, options: Mapping[str, str]) -> None:  # noqa: A002
        self.format, self.options = format, dict(options)
        self.ends: list[Mapping[str, Any]] = []
        """The logged offset of the end of each batch."""
        self.start()

    def start(self) -> None:
        """In a new process, which knows only the checkpoint."""
        self.parsed = stream_options(self.format, self.options)
        self.table = TableScan.of(self.parsed.open(), self.parsed.columns, self.parsed.where)
        history = self.parsed.history(self.table)
        self.plan = StreamPlan(
            history, self.parsed.start, self.parsed.skips, lambda: datetime.now(timezone.utc)
        )

    def next(self) -> list[dict[str, Any]] | None:
        """Plan, log and read the next batch; None if there is none."""
        start = Offset.of(self.ends[-1]) if self.ends else None
        end = self.plan.end_of_batch(start, self.parsed.limits)
        if end == start:
            return None
        self.ends.append(end.to_dict())
        return self.read(len(self.ends) - 1)

    def read(self, number: int) -> list[dict[str, Any]]:
        """Read a logged batch, perhaps again."""
        start = Offset.of(self.ends[number - 1]) if number else None
        files = list(self.plan.files(start, Offset.of(self.ends[number])))
        batches = list(self.table.scan().read(files))
        rows: list[dict[str, Any]] = pa.Table.from_batches(batches, self.table.schema).to_pylist()
        return rows

    def ids(self) -> list[Any] | None:
        """The ids of the next batch."""
        rows = self.next()
        return None if rows is None else sorted(row["id"] for row in rows)

    def all_ids(self) -> list[Any]:
        """The ids of all batches that there are."""
        found: list[Any] = []
        while (ids := self.ids()) is not None:
            found += ids
        return sorted(found)
