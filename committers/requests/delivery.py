"""Sends batches of a row log, and records in the store how far it is.

Runs in the delivery process; after a change to coupled delivery, on the driver too. What is recorded is never
sent again. A crash repeats what was in flight, and what was acknowledged since the last record
(`progress_s`), with the same ids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate, compress
from typing import TYPE_CHECKING

from ..contract import DeadLetter, StreamKey, Token
from ..dead_letters import LETTERS_BYTES_MAX, BadRows, DeadLetterMax
from ..errors import PenstockError, SchemaMismatchError
from ..progress import BatchInDelivery, Progress, ProgressStore
from ..row_log.log import LoggedBatch, RowLog
from .changed_rows import changes_to_send
from .contract import ChangesRows, Counters, EntryWriter, RecordsRefused, Requests, RowPlace, Sent
from .convertible import check_columns, convertible_entries
from .in_flight import RowsInFlight
from .replaced_rows import PlacedRows, rows_to_send

if TYPE_CHECKING:
    import pyarrow as pa


class ProgressRecorder:
    """Records the progress of one delivery.

    Args:
        batches: of the delivery, oldest first; those that are delivered already are left out
        seen: the progress when the delivery began
        every_s: minimum seconds between two records
        dead_letter_max: limit for each batch; None: no limit
    """

    def __init__(
        self,
        store: ProgressStore,
        stream: StreamKey,
        batches: Sequence[LoggedBatch],
        seen: Progress,
        every_s: float,
        clock: Callable[[], float],
        dead_letter_max: DeadLetterMax | None = None,
    ) -> None:
        self._store = store
        self._stream = stream
        self._batches = batches
        self._ends = list(accumulate(batch.rows for batch in batches))
        self._every_s = every_s
        self._clock = clock
        self._recorded_at = clock()
        self._dead_letter_max = dead_letter_max
        self._letters: dict[int, tuple[int, DeadLetter]] = {}
        """Batch id and dead letter by position, if they are not recorded yet."""
        self._letter_bytes = 0
        self._not_kept: list[int] = []
        """Positions of refused rows that are in no dead letter."""
        self._counts: dict[int, int] = {}
        """Dead letters by batch, with those that earlier deliveries have recorded."""
        self.progress = seen
        """As this process has last read or written it."""

    @property
    def start(self) -> int:
        """The number of rows of the first batch that earlier deliveries have sent."""
        half, first = self.progress.in_delivery, self._batches[0]
        known = (first.batch.batch_id, first.batch.digest, first.rows_id)
        if half is None or (half.batch_id, half.digest, half.rows_id) != known:
            return 0
        return min(half.position, first.rows)

    def keep(self, refused: Iterable[tuple[int, int, DeadLetter]]) -> None:
        """Record dead letters with the progress that passes their positions.

        Args:
            refused: position, batch id and dead letter of each row

        Raises:
            SchemaMismatchError: a batch has too many. Then the progress passes neither this one nor those
                after it: they are refused again in the next delivery.
            RetryableError: the store cannot be read. Likewise.
        """
        waiting = deque(refused)
        try:
            while waiting:
                self._keep(*waiting[0])
                waiting.popleft()
        finally:
            self._not_kept += [position for position, _, _ in waiting]

    def _keep(self, position: int, batch_id: int, letter: DeadLetter) -> None:
        if batch_id not in self._counts:
            self._counts[batch_id] = self._store.dead_letters(self._stream, batch_id)
        self._counts[batch_id] += 1
        if self._dead_letter_max is not None:
            rows = sum(one.rows for one in self._batches if one.batch.batch_id == batch_id)
            where = f"batch {batch_id} of {self._stream}"
            self._dead_letter_max.check(self._counts[batch_id], rows, where, letter)
        self._letters[position] = batch_id, letter
        self._letter_bytes += len(letter.content)

    def record_if_due(self, rows: int) -> None:
        is_full = self._letter_bytes > LETTERS_BYTES_MAX
        if is_full or self._clock() - self._recorded_at >= self._every_s:
            self.record(rows)

    def record(self, rows: int) -> None:
        """Record that the first `rows` rows of the delivery are acknowledged.

        Raises:
            FencedError: another process delivers the stream.
        """
        rows = min([rows, *self._not_kept])
        done = bisect_right(self._ends, rows)
        token = self.progress.token
        if done:
            last = self._batches[done - 1].batch
            token = Token(last.batch_id, last.digest)
        half = None
        if done < len(self._batches) and (position := rows - (self._ends[done - 1] if done else 0)):
            following = self._batches[done]
            half = BatchInDelivery(
                following.batch.batch_id, following.batch.digest, following.rows_id, position
            )
        if (token, half) != (self.progress.token, self.progress.in_delivery):
            recorded = [position for position in self._letters if position < rows]
            letters: dict[int, list[DeadLetter]] = {}
            for position in recorded:
                batch_id, letter = self._letters[position]
                letters.setdefault(batch_id, []).append(letter)
            self.progress = self._store.write(self._stream, self.progress, token, half, letters)
            for position in recorded:
                self._letter_bytes -= len(self._letters.pop(position)[1].content)
        self._recorded_at = self._clock()


def deliver(
    log: RowLog,
    requests: Requests,
    recorder: ProgressRecorder,
    batches: Sequence[LoggedBatch],
    keys: Sequence[str] = (),
    on_bad_rows: BadRows = BadRows.FAIL,
    watch: Callable[[Counters], None] = lambda counters: None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Sent, int]:
    """Send the rows of the batches that are not recorded yet, and record them.

    Returns what has become of them, and how many were not sent because a later row replaces them.

    Args:
        keys: columns; a row that a later one of the same values replaces is not sent, see `replaced_rows`
        on_bad_rows: what happens to rows that cannot be converted
        watch: gets the live counters before anything is sent
        check: called while requests are sent; an exception stops them, see `EntryWriter`

    Raises:
        FencedError: another process delivers the stream. Nothing more is sent.
        SchemaMismatchError: the destination has refused a row.
        RetryableError: the destination or the log does not answer. What was acknowledged is recorded.
    """
    start = recorder.start

    def acknowledged() -> int:
        up_to = writer.acknowledged_up_to
        return start if up_to is None else up_to + 1

    def keep_refused() -> None:
        recorder.keep(in_flight.take_refused(writer))

    def on_acknowledged() -> None:
        keep_refused()
        recorder.record_if_due(acknowledged())

    def flush() -> None:
        writer.flush()
        keep_refused()

    def settle(rows: int) -> None:
        flush()
        recorder.record(rows)

    in_flight = RowsInFlight()
    writer: EntryWriter = requests.open_writer(on_acknowledged)
    writer.check_with(check)
    if isinstance(writer, RecordsRefused):
        writer.record_refused_with(lambda: recorder.record(acknowledged()))
    watch(writer.counters)
    try:
        rows = (
            changes_to_send(log, batches, start, requests)
            if isinstance(requests, ChangesRows)
            else rows_to_send(log, batches, start, keys)
        )
        size_bytes, replaced, refused = _write_all(writer, requests, rows, in_flight, on_bad_rows, settle)
        flush()
    except PenstockError:
        writer.stop()  # or what is in flight is sent twice
        with suppress(PenstockError):  # the first error counts
            recorder.record(acknowledged())
        raise
    finally:
        writer.abort()
    end = sum(batch.rows for batch in batches)
    recorder.record(end)
    return Sent(end - start, size_bytes, writer.counters.dead_letters + refused), replaced


def _write_all(
    writer: EntryWriter,
    requests: Requests,
    rows: Iterable[PlacedRows],
    in_flight: RowsInFlight,
    on_bad_rows: BadRows,
    settle: Callable[[int], None],
) -> tuple[int, int, int]:
    """Return the size of the entries, and the numbers of rows that were replaced, and not converted.

    Args:
        settle: waits until all entries are acknowledged, and records that number of rows
    """
    size_bytes = replaced = refused = 0
    columns: pa.Schema | None = None
    for some in rows:
        replaced += some.replaced
        logged, batch = some.logged, some.batch.batch
        if logged.rows.schema != columns:
            columns = logged.rows.schema
            check_columns(requests, columns, batch)
        if some.replaced == logged.rows.num_rows:
            continue
        query_id = batch.stream.query_id
        place = RowPlace(query_id, batch.batch_id, logged.partition, logged.row, some.position)
        bad: list[tuple[pa.RecordBatch, RowPlace, SchemaMismatchError]] = []
        on_refused = None if on_bad_rows is BadRows.FAIL else lambda *row, bad=bad: bad.append(row)
        folding = requests.folding(some.earlier) if isinstance(requests, ChangesRows) else requests
        entries = convertible_entries(folding, logged.rows, place, on_refused)
        in_flight.add(logged.rows, place)
        for row, at, error in bad:
            if some.kept is None or some.kept[at.position - place.position]:
                refused += 1
                if on_bad_rows is BadRows.DEAD_LETTER:
                    in_flight.refuse(row, at, error)
        if some.replaced:
            entries = list(compress(entries, some.kept or ()))
        if bad:
            entries = [entry for entry in entries if entry is not None]
        size_bytes += sum(entry.size_bytes for entry in entries)
        writer.write(entries)
        if in_flight.refused_bytes > LETTERS_BYTES_MAX:
            settle(some.position + logged.rows.num_rows)
    return size_bytes, replaced, refused
