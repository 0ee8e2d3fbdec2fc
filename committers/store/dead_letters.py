"""Dead letters in the store: they wait until the dead-letter destination has them. See `..dead_letters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..contract import Batch, DeadLetter, ManifestState, StreamKey
from . import queries
from .part import StorePart
from .tables import dead_letters, manifests, resends, streams

LETTERS_AT_ONCE = 500
"""Dead letters that are read in one transaction."""


@dataclass(frozen=True, slots=True)
class LetterCount:
    """Dead letters of a stream with one code."""

    code: str
    letters: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Resend:
    """One batch of dead letters that are sent again."""

    number: int
    digest: str
    letters: frozenset[str]
    """`<batch id>/<letter id>` of each."""


class SqlDeadLetters(StorePart):
    """Each method is one short database transaction; errors as in `SqlManifestStore`."""

    def waiting(self, stream: StreamKey) -> Sequence[Batch]:
        """Committed batches whose dead letters are not in the dead-letter destination yet, in ascending
        order.
        """
        with_letters = sa.select(dead_letters.c.batch_id).join(streams).where(queries.is_stream(stream))
        query = (
            sa.select(manifests.c.batch_id, manifests.c.digest)
            .where(queries.of_stream(stream), manifests.c.state == ManifestState.COMMITTED.value)
            .where(manifests.c.batch_id.in_(with_letters.distinct()))
            .order_by(manifests.c.batch_id)
        )
        return [Batch(stream, *row) for row in self._database.rows(query)]

    def of_batch(self, batch: Batch) -> Iterator[Sequence[DeadLetter]]:
        """Yield the dead letters of a batch in the order of their ids, some at a time."""
        last = ""
        while letters := self._after(batch, last):
            yield letters
            last = letters[-1].letter_id

    def _after(self, batch: Batch, letter_id: str) -> list[DeadLetter]:
        columns = [column for column in dead_letters.c if column.name not in ("stream_id", "batch_id")]
        query = (
            sa.select(*columns)
            .join(streams)
            .where(queries.is_stream(batch.stream), dead_letters.c.batch_id == batch.batch_id)
            .where(dead_letters.c.letter_id > letter_id)
            .order_by(dead_letters.c.letter_id)
            .limit(LETTERS_AT_ONCE)
        )
        return [DeadLetter(**row._mapping) for row in self._database.rows(query)]

    def delete(self, batch: Batch) -> int:
        """Delete the dead letters of a batch: the dead-letter destination has them. Return their number."""
        with self._database.write() as connection:
            stream_id = self._lock(connection, batch.stream)
            is_of_batch = (dead_letters.c.stream_id == stream_id, dead_letters.c.batch_id == batch.batch_id)
            return connection.execute(sa.delete(dead_letters).where(*is_of_batch)).rowcount

    def counts(self, stream: StreamKey) -> Sequence[LetterCount]:
        """Count the dead letters that wait for the dead-letter destination, by code."""
        code, refused_at = dead_letters.c.code, dead_letters.c.refused_at
        query = _waiting(stream, code, sa.func.count(), sa.func.min(refused_at), sa.func.max(refused_at))
        return [LetterCount(*row) for row in self._database.rows(query.group_by(code).order_by(code))]

    def count(self, stream: StreamKey, first_batch_id: int = 0) -> int:
        """Count those that wait for the dead-letter destination, of this batch and later ones."""
        query = _waiting(stream, sa.func.count()).where(dead_letters.c.batch_id >= first_batch_id)
        return self._database.scalar(query) or 0

    def resends(self, stream: StreamKey) -> Sequence[Resend]:
        """The resends of a stream in ascending order. The last one may not be committed."""
        query = (
            sa.select(resends.c.number, resends.c.digest, resends.c.letters)
            .join(streams)
            .where(queries.is_stream(stream))
            .order_by(resends.c.number)
        )
        return [
            Resend(number, digest, frozenset(letters.split("\n")))
            for number, digest, letters in self._database.rows(query)
        ]

    def put_resend(self, stream: StreamKey, resend: Resend) -> None:
        """Store what a resend sends, before it begins. It replaces one that was never prepared."""
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            key = {"stream_id": stream_id, "number": resend.number}
            connection.execute(sa.delete(resends).filter_by(**key))
            letters = "\n".join(sorted(resend.letters))
            connection.execute(sa.insert(resends).values(**key, digest=resend.digest, letters=letters))


def _waiting(stream: StreamKey, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select from the dead letters of the committed batches of a stream."""
    is_of_batch = sa.and_(
        dead_letters.c.stream_id == manifests.c.stream_id, dead_letters.c.batch_id == manifests.c.batch_id
    )
    return (
        sa.select(*columns)
        .select_from(dead_letters)
        .join(streams)
        .join(manifests, is_of_batch)
        .where(queries.is_stream(stream), manifests.c.state == ManifestState.COMMITTED.value)
    )


def count_waiting(connection: Connection) -> dict[int, int]:
    """Count the dead letters that wait for the dead-letter destination, by the number of the stream."""
    of_batch = (
        sa.select(dead_letters.c.stream_id, dead_letters.c.batch_id, sa.func.count().label("letters"))
        .group_by(dead_letters.c.stream_id, dead_letters.c.batch_id)
        .subquery()
    )
    query = (
        sa.select(manifests.c.stream_id, sa.func.sum(of_batch.c.letters))
        .join(
            of_batch,
            sa.and_(
                of_batch.c.stream_id == manifests.c.stream_id, of_batch.c.batch_id == manifests.c.batch_id
            ),
        )
        .where(manifests.c.state == ManifestState.COMMITTED.value)
        .group_by(manifests.c.stream_id)
    )
    return {stream_id: int(letters) for stream_id, letters in connection.execute(query)}
