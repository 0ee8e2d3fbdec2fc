"""Sends the rows of a task while they arrive, for coupled queries. Executors only."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ...committers.contract import AttemptId, DeadLetter
from ...committers.dead_letters import LetterBox
from ...committers.requests.contract import ROWS_MAX, EntryWriter, Requests, RowPlace, Sent
from ...committers.requests.in_flight import RowsInFlight


@dataclass(frozen=True, slots=True)
class DirectWriters:
    """Opens task writers. Pickled to the executors, with the secrets of the destination."""

    requests: Requests

    def open(self, attempt: AttemptId) -> DirectWriter:
        return DirectWriter(self.requests, attempt)


class DirectWriter:
    """See `TaskWriter`. Rows are visible as soon as they are sent, and `abort` cannot take them back.

    A replay sends them again; their ids are the same if Spark partitions them in the same way, or if the
    query has a column with ids.
    """

    def __init__(self, requests: Requests, attempt: AttemptId) -> None:
        self._requests = requests
        self._attempt = attempt
        self._writer: EntryWriter | None = None
        self._rows = self._size_bytes = 0
        self._check = requests.checker()
        self._in_flight = RowsInFlight()
        self._box = LetterBox()

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """See `KeepsRefusedRows`."""
        return self._box.letters

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._check(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a value cannot be converted, or the destination has refused a row.
            RetryableError: the destination does not answer.
        """
        for first in range(0, batch.num_rows, ROWS_MAX):
            rows = batch.slice(first, ROWS_MAX)
            place = self._place()
            entries = self._requests.entries(rows, place)
            if self._writer is None:
                self._writer = self._requests.open_writer(self._keep_refused)
            self._in_flight.add(rows, place)
            self._writer.write(entries)
            self._rows += rows.num_rows
            self._size_bytes += sum(entry.size_bytes for entry in entries)

    def finish(self) -> Sent:
        """Wait until everything is acknowledged. Nothing is in flight afterwards."""
        if self._writer is None:
            return Sent()
        self._writer.flush()
        self._keep_refused()
        self._writer.abort()
        return Sent(self._rows, self._size_bytes, self._writer.counters.dead_letters)

    def abort(self) -> None:
        """End what is in flight. Never raises, so that the original error is reported."""
        if self._writer is not None:
            self._writer.abort()

    def _keep_refused(self) -> None:
        if self._writer is not None:
            for _, _, letter in self._in_flight.take_refused(self._writer):
                self._box.add(letter)

    def _place(self) -> RowPlace:
        attempt, row = self._attempt, self._rows
        return RowPlace(attempt.query_id, attempt.batch_id, attempt.partition, row, row, is_fixed=False)
