"""The stream reader for Spark 4.2 and newer, which says where a batch begins, and how much it may read."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from ...readers.streaming.plan import NO_LIMITS
from ..spark.worker_errors import message_first
from .stream_reader import TableStreamReader, offset_of


class BoundedStreamReader(TableStreamReader, SupportsTriggerAvailableNow):
    """Reads the rows of a table and those that commits add. With `availableNow` it plans as many batches as
    the limits need.
    """

    @message_first()
    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit. Both count, unless it asks for all rows."""
        limits = self._source.options.limits
        if limits.files is not None:
            return ReadMaxFiles(limits.files)
        return ReadAllAvailable() if limits.file_bytes is None else ReadMaxBytes(limits.file_bytes)

    @message_first()
    def prepareForTriggerAvailableNow(self) -> None:
        self._source.plan.stop_at_newest()

    @message_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        is_bounded = not isinstance(limit, ReadAllAvailable)
        return self._end(offset_of(start), self._source.options.limits if is_bounded else NO_LIMITS)
