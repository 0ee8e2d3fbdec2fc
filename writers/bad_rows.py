"""Separates rows that the destination cannot accept from the others. Executors only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, runtime_checkable

from ..committers.contract import PayloadT
from ..committers.dead_letters import (
    DOES_NOT_FIT,
    NEW_SHAPE,
    WRITING,
    BadRows,
    LetterBox,
    NewShapeError,
    dead_letter,
)
from ..committers.errors import ConfigurationError, SchemaMismatchError
from ..committers.texts.safe_text import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from ..committers.contract import AttemptId, DeadLetter, TaskWriter, TaskWriterFactory

logger = get_logger(__name__)


@runtime_checkable
class ChecksRows(Protocol):
    """A task writer that can tell bad rows before it writes them."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Check that `write` would accept the rows. The result depends on each row alone.

        Raises:
            SchemaMismatchError: a value does not fit the destination.
        """
        ...


@runtime_checkable
class KeepsRefusedRows(Protocol):
    """A task writer whose destination refuses single rows while they are sent."""

    @property
    def dead_letters(self) -> Sequence[DeadLetter]:
        """The refused rows, once `finish` has returned."""
        ...


@dataclass(frozen=True, slots=True)
class BadRowWriters(Generic[PayloadT]):
    """Opens task writers that drop bad rows or keep them as dead letters. Pickled to the executors."""

    writers: TaskWriterFactory[PayloadT]
    on_bad_rows: BadRows

    def open(self, attempt: AttemptId) -> BadRowWriter[PayloadT]:
        """
        Raises:
            ConfigurationError: the destination cannot tell bad rows.
        """
        return BadRowWriter.around(self.writers.open(attempt), attempt.partition, self.on_bad_rows)


def with_bad_rows(writers: TaskWriterFactory[PayloadT], on_bad_rows: BadRows) -> TaskWriterFactory[PayloadT]:
    """Return writers that do with bad rows what the option `badRows` says."""
    return writers if on_bad_rows is BadRows.FAIL else BadRowWriters(writers, on_bad_rows)


class BadRowWriter(Generic[PayloadT]):
    """See `TaskWriter`. Splits an Arrow batch with bad rows in halves until they are alone.

    Args:
        first_row: number of the first row in its partition
    """

    @classmethod
    def around(
        cls, writer: TaskWriter[PayloadT], partition: int, on_bad_rows: BadRows, first_row: int = 0
    ) -> BadRowWriter[PayloadT]:
        """
        Raises:
            ConfigurationError: the destination cannot tell bad rows.
        """
        if not isinstance(writer, ChecksRows):
            writer.abort()
            raise ConfigurationError(
                f"This destination does not support badRows={on_bad_rows.value}: its task writers have no "
                "method check_rows. Remove the option."
            )
        return cls(writer, writer.check_rows, partition, on_bad_rows, first_row)

    def __init__(
        self,
        writer: TaskWriter[PayloadT],
        check: Callable[[pa.RecordBatch], None],
        partition: int,
        on_bad_rows: BadRows,
        first_row: int = 0,
    ) -> None:
        self._writer = writer
        self._check = check
        self._partition = partition
        self._on_bad_rows = on_bad_rows
        self._first_row = first_row
        self._box = LetterBox()
        self.dropped = 0
        """Bad rows that are no dead letters."""
        self._arriving = 0
        self.rows = 0
        """All rows, with the bad ones."""

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """Complete once `finish` has returned."""
        sent = self._writer.dead_letters if isinstance(self._writer, KeepsRefusedRows) else ()
        return (*self._box.letters, *sent)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self._arriving = batch.num_rows
        bad = self._bad_rows(batch, 0)
        self.rows += batch.num_rows
        if bad:
            batch = _without(batch, bad)
        self._writer.write(batch)

    def finish(self) -> PayloadT:
        payload = self._writer.finish()
        if self.dropped:
            logger.warning(
                "Partition %s: %s of %s rows do not fit and were dropped (badRows=drop).",
                self._partition,
                self.dropped,
                self.rows,
            )
        return payload

    def abort(self) -> None:
        self._writer.abort()

    def _bad_rows(self, rows: pa.RecordBatch, first: int) -> list[int]:
        """Keep the bad rows, and return their numbers in the batch.

        Args:
            first: number of the first row
        """
        try:
            self._check(rows)
        except SchemaMismatchError as error:
            if not first and rows.num_rows == self._arriving:
                self._check(rows.slice(0, 0))  # raises if the columns do not fit
            if rows.num_rows > 1:
                half = rows.num_rows // 2
                left = self._bad_rows(_copied(rows.slice(0, half)), first)
                return left + self._bad_rows(_copied(rows.slice(half)), first + half)
            self._keep(rows, first, error)
            return [first]
        return []

    def _keep(self, row: pa.RecordBatch, number: int, error: SchemaMismatchError) -> None:
        if self._on_bad_rows is BadRows.DROP:
            self.dropped += 1
            return
        number += self._first_row + self.rows
        code = NEW_SHAPE if isinstance(error, NewShapeError) else DOES_NOT_FIT
        self._box.add(dead_letter(row, WRITING, self._partition, number, code, str(error)))


def _copied(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a slice in memory of its own. A slice shares the elements of lists and maps with the rows around
    it, so that a check would find the bad values of these.
    """
    import pyarrow as pa

    from .parquet.columns import with_offsets

    every = pa.array(range(rows.num_rows), pa.int32())
    columns = [with_offsets(column).take(every) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _without(batch: pa.RecordBatch, bad: list[int]) -> pa.RecordBatch:
    import pyarrow as pa

    is_good = [True] * batch.num_rows
    for number in bad:
        is_good[number] = False
    return batch.filter(pa.array(is_good))
