"""The progress of streams whose destination cannot store a token. See `committers.progress`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ..contract import StreamKey, Token
from ..dead_letters import SENDING
from ..errors import FencedError
from ..progress import NO_LETTERS, BatchInDelivery, DeadLetters, Progress
from . import queries
from .database import Clock, Database
from .dead_letters import count_letters
from .tables import progress, streams


class SqlProgress:
    """`ProgressStore` on SQLite and Postgres. Each method is one short database transaction.

    Methods raise `RetryableError` if the database does not answer. `write` raises `CommitStateUnknownError`
    if the database does not answer the COMMIT.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def read(self, stream: StreamKey) -> Progress:
        query = sa.select(progress).join(streams).where(queries.is_stream(stream))
        with self._database.read() as connection:
            return _to_progress(connection.execute(query).one_or_none())

    def dead_letters(self, stream: StreamKey, batch_id: int) -> int:
        """See `ProgressStore`."""
        return count_letters(self._database, stream, batch_id, SENDING)

    def write(
        self,
        stream: StreamKey,
        expected: Progress,
        token: Token | None,
        in_delivery: BatchInDelivery | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
    ) -> Progress:
        """Replace the progress if it is still the expected one (compare-and-set), and return the new one.

        Args:
            dead_letters: by batch id; stored in the same transaction

        Raises:
            FencedError: another process has changed it. Nothing was written.
            RetryableError: the store does not know the stream.
        """
        new = Progress(expected.revision + 1, token, in_delivery)
        with self._database.write() as connection:
            stream_id = queries.lock_known_stream(connection, stream, self._database.name)
            found = _to_progress(_find(connection, stream_id))
            if found != expected:
                raise FencedError(
                    f"Another process delivers {stream}: its progress in the store {self._database.name} is "
                    f"{_shown(found)}, and this process expected {_shown(expected)}. This process sends "
                    "nothing more."
                )
            values = {**_to_values(new), "changed_at": self._clock()}
            if expected.revision:
                connection.execute(
                    sa.update(progress).where(progress.c.stream_id == stream_id).values(values)
                )
            else:
                connection.execute(sa.insert(progress).values(stream_id=stream_id, **values))
            for batch_id, letters in dead_letters.items():
                queries.put_dead_letters(connection, stream_id, batch_id, letters)
        return new


def _find(connection: Connection, stream_id: int) -> Row[Any] | None:
    return connection.execute(sa.select(progress).where(progress.c.stream_id == stream_id)).one_or_none()


def _to_progress(row: Row[Any] | None) -> Progress:
    if row is None:
        return Progress()
    token = None if row.batch_id is None else Token(row.batch_id, row.digest)
    in_delivery = None
    if row.next_batch_id is not None:
        in_delivery = BatchInDelivery(row.next_batch_id, row.next_digest, row.next_rows_id, row.next_position)
    return Progress(row.revision, token, in_delivery)


def _to_values(new: Progress) -> dict[str, Any]:
    token, in_delivery = new.token, new.in_delivery
    return {
        "revision": new.revision,
        "batch_id": None if token is None else token.batch_id,
        "digest": "" if token is None else token.digest,
        "next_batch_id": None if in_delivery is None else in_delivery.batch_id,
        "next_digest": "" if in_delivery is None else in_delivery.digest,
        "next_rows_id": "" if in_delivery is None else in_delivery.rows_id,
        "next_position": 0 if in_delivery is None else in_delivery.position,
    }


def _shown(one: Progress) -> str:
    batch = "no batch" if one.token is None else f"batch {one.token.batch_id}"
    if one.in_delivery is None:
        return batch
    return f"{batch} and {one.in_delivery.position:,} rows of batch {one.in_delivery.batch_id}"
