"""Dead letters: rows that a destination has refused for good and the query keeps (`badRows=deadLetter`).

The store has them from the transaction on that makes their batch durable: with its manifest, or with the
progress of a delivery (a transactional outbox). Once the batch is committed, they move to the dead-letter
destination, in a batch with its own token.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Literal

from .contract import DeadLetter, StreamKey
from .errors import SchemaMismatchError
from .texts.safe_text import without_credentials

if TYPE_CHECKING:
    import pyarrow as pa

Stage = Literal["commit", "send", "skip", "write"]
WRITING: Stage = "write"
"""Refused by a task: a value does not fit."""
SENDING: Stage = "send"
"""Refused by a request-based destination."""

COMMITTING: Stage = "commit"
"""Refused by a table when the batch is committed."""

SKIPPING: Stage = "skip"
"""Not refused: an operator has skipped the batch."""

OF_DESTINATION = (SENDING, COMMITTING)
"""Refused by the destination itself. The manifest counts these rows; those of other stages it does not."""

SKIPPED = "skipped"
"""Code of the rows of a batch that an operator has skipped."""
DOES_NOT_FIT = "does_not_fit"
"""Code of a value that cannot be converted."""
NEW_SHAPE = "new_shape"
"""Code of a row with a column or a type that the table does not have (`schemaEvolution=quarantine`)."""

LETTERS_BYTES_MAX = 8 * 1024 * 1024
"""Size of the dead letters that a task, or a delivery between two records of its progress, holds."""


ROW_BYTES_MAX = 4 * 1024**3
"""Limit for one decoded row; Spark's own limit is 2 GiB."""


class NewShapeError(SchemaMismatchError):
    """A row has a value in a column that the table does not have, or has with another type."""


class BadRows(Enum):
    """What happens to a row that the destination refuses for good."""

    FAIL = "fail"
    DROP = "drop"
    DEAD_LETTER = "deadLetter"


@dataclass(frozen=True, slots=True)
class DeadLetterMax:
    """How many rows of a batch may be dead letters: a number, or a ratio of the batch's rows."""

    rows: int | None = None
    ratio: float | None = None

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.rows is not None else f"{(self.ratio or 0) * 100:g} %"

    def check(self, letters: int, rows: int, where: str, last: DeadLetter | None) -> None:
        """
        Args:
            rows: all rows of the batch
            where: names the batch in the error message

        Raises:
            SchemaMismatchError: there are too many dead letters.
        """
        allowed = self.rows if self.rows is not None else int((self.ratio or 0) * rows)
        if letters <= allowed:
            return
        why = f" The last one: {last.code}. {last.message}" if last is not None else ""
        raise SchemaMismatchError(
            f"{letters:,} of {rows:,} rows of {where} are refused, more than deadLetterMax allows "
            f"({self}).{why}\nThe batch is not committed, and none of its rows is a dead letter. Correct the "
            "rows in the query or the destination, or raise deadLetterMax."
        )


@dataclass(slots=True)
class LetterBox:
    """Collects dead letters, and bounds their size."""

    letters: list[DeadLetter] = field(default_factory=list)
    size_bytes: int = 0
    of: str = "task"
    """Whose dead letters they are; for the error message."""

    def add(self, letter: DeadLetter) -> None:
        """
        Raises:
            SchemaMismatchError: they take too much memory.
        """
        self.size_bytes += len(letter.content) + len(letter.message)
        if self.size_bytes > LETTERS_BYTES_MAX:
            raise SchemaMismatchError(
                f"The dead letters of one {self.of} have more than {LETTERS_BYTES_MAX:,} bytes "
                f"({len(self.letters):,} rows). The rows or the destination may be wrong. The last "
                f"one: {letter.code}. {letter.message}"
            )
        self.letters.append(letter)


def dead_letter(
    row: pa.RecordBatch,
    stage: Stage,
    partition: int,
    number: int,
    code: str,
    message: str,
    *,
    row_id: str = "",
    at: datetime | None = None,
) -> DeadLetter:
    """
    Args:
        row: the one row
        number: of the row in its partition
    """
    letter_id = f"{stage}-{partition:05}-{number:012}"
    at = at or datetime.now(timezone.utc)
    return DeadLetter(letter_id, row_id, code, without_credentials(message), at, _encoded(row))


def _encoded(row: pa.RecordBatch) -> bytes:
    import pyarrow as pa

    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, row.schema) as stream:
        stream.write_batch(row)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def row_in(content: bytes | None) -> pa.Table:
    """Return the row of a dead letter.

    Args:
        content: from the store or from a dead-letter table, so it may be damaged or manipulated

    Raises:
        ValueError: it is not what `dead_letter` has stored.
    """
    import pyarrow as pa

    from .arrow_ipc.reader import read_stream

    if content is None:
        raise ValueError("it is NULL")
    stream = read_stream(content, ROW_BYTES_MAX, 1)
    rows = pa.Table.from_batches(stream.batches, stream.schema)
    if rows.num_rows != 1:
        raise ValueError("it has no row")
    return rows


def joined(rows: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of dead letters in one table: with the columns of all, and the widest type of each.

    Raises:
        SchemaMismatchError: a column has types of which none has the values of all.
    """
    import pyarrow as pa

    try:
        # "permissive" would also round integers to floating-point numbers
        is_widened = not any(map(_mixes_numbers, _types_by_name(rows)))
        return pa.concat_tables(rows, promote_options="permissive" if is_widened else "default")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaMismatchError(
            f"The dead letters have different columns, because the query was changed in between: {error}"
        ) from error


def _types_by_name(rows: Sequence[pa.Table]) -> Iterable[list[pa.DataType]]:
    types: dict[str, list[pa.DataType]] = {}
    for column in (column for table in rows for column in table.schema):
        types.setdefault(column.name, []).append(column.type)
    return types.values()


def _mixes_numbers(types: Sequence[pa.DataType]) -> bool:
    """Return True if numbers with binary fractions and others are among the types, also inside of them."""
    import pyarrow as pa

    names = {str(one) for one in types}
    if len(names) < 2:
        return False
    if any(pa.types.is_nested(one) for one in types):
        return True
    are_floating = {pa.types.is_floating(one) for one in types if not pa.types.is_null(one)}
    return len(are_floating) > 1


def letters_stream(stream: StreamKey, letters_uri: str) -> StreamKey:
    """Return the stream of the dead letters of a stream.

    Args:
        letters_uri: address of the dead-letter destination
    """
    return StreamKey(_derived_id("dead letters", stream), letters_uri)


def skipped_stream(stream: StreamKey, letters_uri: str) -> StreamKey:
    """Return the stream of the rows that an operator has skipped, in a dead-letter table."""
    return StreamKey(_derived_id("skipped", stream), letters_uri)


def resent_stream(stream: StreamKey) -> StreamKey:
    """Return the stream as which dead letters of a stream are sent to its destination again."""
    return StreamKey(_derived_id("sent again", stream), stream.table_uri)


def _derived_id(what: str, stream: StreamKey) -> str:
    digest = hashlib.sha256(f"{what}\0{stream.query_id}\0{stream.table_uri}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))
