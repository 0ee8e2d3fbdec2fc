"""Lineage in the store: what the batches have read, as long as their records are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ..contract import ManifestState, StreamKey
from ..lineage import SourceRange, TableCommit, holds, merged_ranges, of_stored
from . import queries
from .part import StorePart
from .tables import lineage, manifests

BATCHES_READ = 500


class SqlLineage(StorePart):
    """Reads lineage. Takes no lock. Methods raise `RetryableError` if the database does not answer."""

    def of_version(self, stream: StreamKey, table_version: int) -> TableCommit | None:
        """Return what was committed to a version of the stream's table; None if the store does not know."""
        is_it = (
            manifests.c.table_version == table_version,
            manifests.c.state == ManifestState.COMMITTED.value,
        )
        query = _BATCHES.where(queries.of_stream(stream), *is_it).order_by(manifests.c.batch_id)
        rows = self._database.rows(query)
        return _commit(stream, rows, merged_ranges(of_stored(row.ranges) for row in rows)) if rows else None

    def holding(self, stream: StreamKey, topic: str, partition: int, offset: int) -> TableCommit | None:
        """Return the batch that has read a record of a Kafka topic; None if the store does not know one. The
        cost grows with the number of its batches.
        """
        for row in self._newest_first(stream):
            read = of_stored(row.ranges)
            if holds((one.lineage() for one in read), topic, partition, offset):
                return _commit(stream, [row], read)
        return None

    def _newest_first(self, stream: StreamKey) -> Iterator[Row[Any]]:
        query = _BATCHES.where(queries.of_stream(stream), lineage.c.ranges.is_not(None))
        query = query.where(manifests.c.state != ManifestState.ABORTED.value)
        query, before = query.order_by(manifests.c.batch_id.desc()).limit(BATCHES_READ), sa.true()
        while rows := self._database.rows(query.where(before)):
            yield from rows
            before = manifests.c.batch_id < rows[-1].batch_id


_BATCHES = sa.select(
    manifests.c.batch_id,
    manifests.c.table_version,
    manifests.c.state,
    manifests.c.finished_at,
    lineage.c.ranges,
).outerjoin(
    lineage,
    sa.and_(lineage.c.stream_id == manifests.c.stream_id, lineage.c.batch_id == manifests.c.batch_id),
)


def _commit(stream: StreamKey, rows: Sequence[Row[Any]], read: tuple[SourceRange, ...]) -> TableCommit:
    last = rows[-1]
    return TableCommit(
        last.table_version,
        last.finished_at if last.state == ManifestState.COMMITTED.value else None,
        stream.query_id,
        tuple(row.batch_id for row in rows),
        tuple(one.lineage() for one in read),
    )
