"""Writes the rows of one partition with a task writer, from its start to its payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..committers.contract import AttemptId, PayloadT, StreamKey, TaskWriterFactory
from ..committers.error_causes import retryable
from ..committers.errors import RetryableError

if TYPE_CHECKING:
    import pyarrow as pa

    from .parquet.file_names import FileNames


def write_partition(
    writers: TaskWriterFactory[PayloadT],
    attempt: AttemptId,
    batches: Iterable[pa.RecordBatch],
    stream: StreamKey,
) -> PayloadT:
    """Return the payload. After an error, what was written is discarded.

    Raises:
        SchemaMismatchError: the rows do not fit.
        RetryableError: the storage has failed, for example because the disk is full.
    """
    with storage_errors(attempt, stream):
        writer = writers.open(attempt)
    try:
        for batch in batches:
            with storage_errors(attempt, stream):
                writer.write(batch)
        with storage_errors(attempt, stream):
            return writer.finish()
    except BaseException:
        writer.abort()
        raise


def not_written(error: Exception, attempt: AttemptId | FileNames, table_uri: str) -> RetryableError:
    """Return the error for one of a library, which names neither the table nor what to do."""
    return retryable(error)(
        f"Partition {attempt.partition} of batch {attempt.batch_id} cannot be written to {table_uri}: {error}"
        ". Nothing of the batch was committed. Check that the storage has space and can be reached, and that "
        "this user may write to it. Then run it again: a query writes the batch again when it starts."
    )


@contextmanager
def storage_errors(attempt: AttemptId, stream: StreamKey) -> Iterator[None]:
    """
    Raises:
        RetryableError: the storage has failed, see `not_written`.
    """
    try:
        yield
    except OSError as error:
        raise not_written(error, attempt, stream.table_uri) from error
