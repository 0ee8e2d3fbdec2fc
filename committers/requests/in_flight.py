"""The rows whose entries are not acknowledged yet: a refused entry is kept as the row that it was made of."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from ..dead_letters import DOES_NOT_FIT, SENDING, dead_letter
from .contract import RowPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from ..contract import DeadLetter
    from ..errors import SchemaMismatchError
    from .contract import EntryWriter


class RowsInFlight:
    """Rows by the position of their entries. One thread adds rows, another may take the refused ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[tuple[pa.RecordBatch, RowPlace]] = deque()
        self._refused: list[tuple[int, int, DeadLetter]] = []
        self.refused_bytes = 0
        """Size of the refused rows that were not taken yet."""

    def add(self, rows: pa.RecordBatch, place: RowPlace) -> None:
        """Add rows that follow all others."""
        with self._lock:
            self._rows.append((rows, place))

    def refuse(self, row: pa.RecordBatch, place: RowPlace, error: SchemaMismatchError) -> None:
        """Keep a row that cannot be converted. Call this before entries of later rows are written, so that
        the progress does not pass it.
        """
        letter = dead_letter(row, SENDING, place.partition, place.row, DOES_NOT_FIT, str(error))
        with self._lock:
            self._refused.append((place.position, place.batch_id, letter))
            self.refused_bytes += len(letter.content)

    def take_refused(self, writer: EntryWriter) -> Iterator[tuple[int, int, DeadLetter]]:
        """Yield the rows that were refused since the last call: position, batch id, and the dead letter.

        Then forget the rows that are acknowledged.
        """
        up_to = writer.acknowledged_up_to
        with self._lock:
            not_converted, self._refused, self.refused_bytes = self._refused, [], 0
        yield from not_converted
        for refused in writer.take_refused():
            rows, place = self._find(refused.position)
            number = refused.position - place.position
            letter = dead_letter(
                rows.slice(number, 1),
                SENDING,
                place.partition,
                place.row + number,
                refused.code,
                refused.message,
                row_id=refused.entry_id,
                at=refused.at,
            )
            yield refused.position, place.batch_id, letter
        with self._lock:
            while up_to is not None and self._rows and _end(*self._rows[0]) <= up_to:
                self._rows.popleft()

    def _find(self, position: int) -> tuple[pa.RecordBatch, RowPlace]:
        with self._lock:
            return next(one for one in self._rows if one[1].position <= position < _end(*one))


def _end(rows: pa.RecordBatch, place: RowPlace) -> int:
    end: int = place.position + rows.num_rows
    return end
