"""The way of dead letters: from the store to the dead-letter destination, and back to the stream's own.

Runs on the driver after a coupled batch, in the delivery process after a delivery, and in commands. The dead
letters of a batch are committed as a batch of another stream, with its own token, and then deleted from the
store. So a crash leaves each dead letter exactly once in the dead-letter destination.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..committers import crash_points
from ..committers.contract import AttemptId, Batch, Committable, DeadLetter, StreamKey
from ..committers.dead_letters import letters_stream, row_in
from ..committers.errors import ConfigurationError, PenstockError
from ..committers.protocol.commit_runner import Retry
from ..committers.protocol.decision import Action
from ..committers.protocol.recovery import Recovery
from ..committers.protocol.two_phase import TwoPhaseCommitter
from ..committers.texts.row_text import row_text
from ..committers.texts.safe_text import get_logger
from ..writers.partition import write_partition
from .options.dead_letters import letter_options
from .plug_ins import data_source_of
from .sink import Destination, Sink, mode_of, open_table, without_origins

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore

logger = get_logger(__name__)

LETTERS = pa.schema(
    [
        ("query_id", pa.string()),
        ("table_uri", pa.string()),
        ("batch_id", pa.int64()),
        ("letter_id", pa.string()),
        ("row_id", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("refused_at", pa.timestamp("us", "UTC")),
        ("row", pa.string()),
        ("content", pa.binary()),
    ]
)
"""Columns of a dead-letter table. `row` is JSON for people, `content` is exact."""

RECORDS_PRUNED_MAX = 100
"""Old records of batches of dead letters that are deleted from the store with each new one."""


def letter_sink_of(sink: Destination) -> Sink[Any, Any] | None:
    """Return the dead-letter destination of a query, from its options; None if it has none.

    Raises:
        ConfigurationError: the options of the dead-letter destination are wrong.
    """
    if not sink.options.has_dead_letters:
        return None
    name, options = letter_options(sink.options)
    try:
        letters: Sink[Any, Any] = data_source_of(name)(options).sink()
    except ConfigurationError as error:
        raise ConfigurationError(f"The dead-letter destination of the query is wrong. {error}") from error
    return letters


def check_letter_sink(sink: Destination, siblings: Sequence[str] = ()) -> None:
    """
    Args:
        siblings: see `Query.siblings`

    Raises:
        ConfigurationError: the dead-letter destination cannot be used.
    """
    letters = letter_sink_of(sink)
    if letters is not None and letters.table_uri in (sink.table_uri, *siblings):
        raise ConfigurationError(
            f"deadLetter names {letters.table_uri}, to which the query writes its other rows. Give another "
            "location."
        )


def try_to_deliver_letters(store: SqlManifestStore, stream: StreamKey, letters: Sink[Any, Any]) -> None:
    """Deliver the dead letters of committed batches. An error is only logged: they are safe in the store."""
    try:
        deliver_letters(store, stream, letters)
    except PenstockError as error:
        logger.warning(
            "The dead letters of %s wait in the manifest store, and the next batch tries again to deliver "
            "them: %s",
            stream,
            error,
        )


def deliver_letters(store: SqlManifestStore, stream: StreamKey, letters: Sink[Any, Any]) -> int:
    """Deliver the dead letters of committed batches, in ascending order; return their number.

    Raises:
        PenstockError: the dead-letter destination or the store does not answer, or refuses them. Those that
            were not delivered stay in the store.
    """
    delivered = 0
    for batch in store.dead_letters.waiting(stream):
        crash_points.reach("letters.start", batch.batch_id)
        key = letters_stream(stream, letters.table_uri)
        of_letters = Batch(key, batch.batch_id, batch.digest)
        write_rows(store, letters, of_letters, partial(_letters_in, store, batch))
        crash_points.reach("letters.landed", batch.batch_id)
        delivered += store.dead_letters.delete(batch)
        crash_points.reach("letters.deleted", batch.batch_id)
        store.prune(key, letters.options.delivered_s_max, letters.options.delivered_max, RECORDS_PRUNED_MAX)
    return delivered


def write_rows(
    store: SqlManifestStore, sink: Sink[Any, Any], batch: Batch, rows: Any, *, schema: pa.Schema = LETTERS
) -> bool:
    """Write and commit a batch without Spark, unless the destination has it; return False if it has.

    Args:
        rows: returns the rows, in batches
    """
    target = open_table(sink, store)
    committer: TwoPhaseCommitter[Any] = TwoPhaseCommitter(
        store, target, Retry(attempts_max=sink.options.commit_attempts_max)
    )
    if committer.begin(batch) is Action.SKIP:
        return False
    planned = target.plan_batch(schema, mode_of(sink.options, overwrite=False), batch.batch_id)
    run_id = str(uuid.uuid4())
    attempt = AttemptId(batch.stream.query_id, run_id, batch.batch_id, partition=0, attempt=0)
    payload = write_partition(planned.writers, attempt, rows(), batch.stream)
    committable = Committable(batch, run_id, attempt.partition, attempt.attempt, payload)
    manifest = target.manifest(batch, without_origins(planned.content), [payload])
    committer.commit(manifest, [committable])
    return True


def committed_up_to(store: SqlManifestStore, sink: Sink[Any, Any], stream: StreamKey) -> int:
    """Finish what an earlier call of `write_rows` has prepared; return the last committed batch, or -1."""
    target = open_table(sink, store)
    Recovery(store, target).recover(stream)
    token = target.token(stream.query_id)
    return -1 if token is None else token.batch_id


def _letters_in(store: SqlManifestStore, batch: Batch) -> Iterator[pa.RecordBatch]:
    return (letters_batch(batch, letters) for letters in store.dead_letters.of_batch(batch))


def letters_batch(batch: Batch, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return dead letters as rows of a dead-letter table."""
    stream = batch.stream
    columns = zip(
        *(
            [
                stream.query_id,
                stream.table_uri,
                batch.batch_id,
                letter.letter_id,
                letter.row_id,
                letter.code,
                letter.message,
                letter.refused_at,
                _text_of(letter, batch),
                letter.content,
            ]
            for letter in letters
        ),
        strict=True,
    )
    arrays = [pa.array(values, field.type) for values, field in zip(columns, LETTERS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LETTERS)


def _text_of(letter: DeadLetter, batch: Batch) -> str:
    """Return the row as JSON; a message if it is damaged in the store, so that others do not wait for it."""
    try:
        return row_text(row_in(letter.content))
    except ValueError as error:
        logger.warning(
            "The dead letter %s of batch %s of %s is damaged in the manifest store (%s). The "
            "dead-letter table gets it as it is.",
            letter.letter_id,
            batch.batch_id,
            batch.stream,
            error,
        )
        return json.dumps(f"damaged in the manifest store: {error}")
