"""Reads the rows of a delivery from the row log, as records, and separates those that cannot be converted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..contract import DeadLetter, DeadLetters
from ..dead_letters import DOES_NOT_FIT, SENDING, BadRows, DeadLetterMax, LetterBox, dead_letter
from ..errors import SchemaMismatchError
from ..requests.contract import RowPlace
from ..requests.convertible import check_columns, convertible_entries
from ..row_log.log import LoggedBatch, LoggedRows, RowLog
from .records import Chunk

if TYPE_CHECKING:
    import pyarrow as pa

    from .records import Record


class RowRecords(Protocol):
    """How rows become records. Made from the options of a query; has no secrets."""

    def check_schema(self, rows: pa.Schema) -> None:
        """
        Raises:
            SchemaMismatchError: records cannot be made of these columns.
        """
        ...

    def check(self, rows: pa.RecordBatch) -> None:
        """Check rows before they are written to a row log.

        Raises:
            SchemaMismatchError: `entries` would refuse one.
        """
        ...

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Record]:
        """Return a record for each row.

        Raises:
            SchemaMismatchError: a value cannot be converted.
        """
        ...


class LoggedRecords:
    """The records of one delivery."""

    def __init__(self, records: RowRecords, log: RowLog, on_bad_rows: BadRows) -> None:
        self._records = records
        self._log = log
        self._on_bad_rows = on_bad_rows
        self._box = LetterBox(of="delivery")
        self._letters: dict[int, list[DeadLetter]] = {}
        self._schema: pa.Schema | None = None
        self.dropped = 0
        """Rows that could not be converted."""

    @property
    def letters(self) -> DeadLetters:
        return self._letters

    def records(self, batches: Sequence[LoggedBatch]) -> Iterator[Chunk]:
        """Yield the records in the order of the rows, some at a time.

        Raises:
            SchemaMismatchError: a row cannot be converted, and the option is badRows=fail.
            RetryableError, TableChangedError: see `RowLog.read`.
        """
        for batch in batches:
            for some in self._log.read(batch):
                yield self._converted(batch, some)

    def check_letters(self, batches: Sequence[LoggedBatch], limit: DeadLetterMax | None) -> None:
        """
        Raises:
            SchemaMismatchError: a batch has more dead letters than the limit.
        """
        for one in batches:
            found = self._letters.get(one.batch.batch_id)
            if limit is not None and found:
                where = f"batch {one.batch.batch_id} of {one.batch.stream}"
                limit.check(len(found), one.rows, where, found[-1])

    def _converted(self, batch: LoggedBatch, some: LoggedRows) -> Chunk:
        converter = cast("Any", self._records)
        if some.rows.schema != self._schema:
            self._schema = some.rows.schema
            check_columns(converter, self._schema, batch.batch)
        place = RowPlace(
            batch.batch.stream.query_id, batch.batch.batch_id, some.partition, some.row, some.position
        )
        on_refused = None if self._on_bad_rows is BadRows.FAIL else self._refuse
        found = convertible_entries(converter, some.rows, place, on_refused)
        return Chunk(batch.batch.batch_id, some.row, found)

    def _refuse(self, row: pa.RecordBatch, place: RowPlace, error: SchemaMismatchError) -> None:
        self.dropped += 1
        if self._on_bad_rows is BadRows.DEAD_LETTER:
            letter = dead_letter(row, SENDING, place.partition, place.row, DOES_NOT_FIT, str(error))
            self._box.add(letter)
            self._letters.setdefault(place.batch_id, []).append(letter)
