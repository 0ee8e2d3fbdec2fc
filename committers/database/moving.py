"""Moves staged rows into the table, and finds the rows that the server refuses.

Constraints, foreign keys, unique keys and triggers are the server's: it refuses a whole statement and often
does not say because of which row. So after an error the staged rows are moved in halves, each in a savepoint,
until the refused rows are alone. Without an error that costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ..contract import DeadLetter, DeadLetters, Manifest
from ..dead_letters import COMMITTING, BadRows, DeadLetterMax, LetterBox, dead_letter
from ..errors import SchemaMismatchError, TableNotSupportedError, shown
from .content import TableContent
from .contract import Cursor, RowIds, TableAddress
from .dialect import TransactionalDialect
from .server import TransactionalServer
from .staged_rows import read_rows
from .staging import StagingName, StagingTable, parsed_name

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "1 = 1"


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows that are moved one after the other."""

    relation: str
    """SQL name of a table with the columns of the staging tables."""
    name: str
    """For messages."""
    rows: int
    """How many there must be."""


@dataclass(frozen=True, slots=True)
class _Refused:
    """A row that the server refuses."""

    source: RowSource
    row_id: Any
    batch_id: int
    letter: DeadLetter | None
    """None if refused rows are dropped."""


class RowMover(ABC):
    """Moves the rows of a manifest, in the open transaction of its commit.

    Args:
        on_bad_rows: what happens to rows that the server refuses
        dead_letter_max: how many of a batch may be dead letters; None: no limit
    """

    def __init__(
        self,
        server: TransactionalServer,
        dialect: TransactionalDialect,
        cursor: Cursor,
        address: TableAddress,
        manifest: Manifest,
        content: TableContent,
        on_bad_rows: BadRows,
        dead_letter_max: DeadLetterMax | None,
    ) -> None:
        self._server = server
        self._dialect = dialect
        self._cursor = cursor
        self._address = address
        self._manifest = manifest
        self._content = content
        self._on_bad_rows = on_bad_rows
        self._dead_letter_max = dead_letter_max
        self._box = LetterBox(of="commit")
        self._refused: list[_Refused] = []
        self._moved = 0
        """Rows of the current source that are moved."""

    @abstractmethod
    def _sources(self) -> Iterator[RowSource]:
        """Yield the rows of the manifest. Each source is used before the next one is made."""

    @abstractmethod
    def _groups(self) -> Iterator[Sequence[RowSource]]:
        """Yield the rows of the manifest in groups, to find the refused ones. A refused row may refer to a
        later row of its group.
        """

    @abstractmethod
    def _apply(self, source: RowSource, where: str) -> int:
        """Move some rows; return their number.

        Args:
            where: condition on the columns of `n`, the source
        """

    @abstractmethod
    def _origin(self, source: RowSource, row_id: Any) -> tuple[StagingName, int]:
        """Return the staging table of a row, and its number there."""

    @abstractmethod
    def _named_by(self) -> Sequence[str]:
        """Return the columns that identify a row of the table; empty if there are none."""

    def move(self) -> tuple[int, DeadLetters]:
        """Move all rows that the table accepts. Return the number of refused rows, and the dead letters.

        Raises:
            SchemaMismatchError: the server refuses a row, and `badRows` does not allow it, or too many.
            TableNotSupportedError: the table did not get as many rows as were staged.
            Exception: the server failed for another reason.
        """
        is_refused = False
        try:
            with self._server.savepoint(self._cursor):
                for source in self._sources():
                    self._check_moved(source, self._apply(source, ALL))
                self._dialect.check_deferred(self._cursor)
        except self._server.errors as error:
            if not self._server.is_about_values(error):
                raise
            is_refused = True  # continue outside: the details of the error contain values of rows
        return self._move_without_refused() if is_refused else (0, {})

    def _move_without_refused(self) -> tuple[int, DeadLetters]:
        refused: list[_Refused] = []
        for group in self._groups():
            self._refused = []
            for source in group:
                self._moved, before = 0, len(self._refused)
                self._move_blocks(source, 0, self._ids.blocks(self._cursor, source.relation))
                self._check_moved(source, self._moved, len(self._refused) - before)
            self._try_refused_again()
            refused += self._refused
        letters: dict[int, list[DeadLetter]] = {}
        for one in refused:
            if one.letter is not None:
                letters.setdefault(one.batch_id, []).append(one.letter)
        for batch_id, some in letters.items():
            self._check_limit(batch_id, some)
        return len(refused), letters

    def _try_refused_again(self) -> None:
        """A row may refer to a later row of its group. Ends when no more row is accepted."""
        while True:
            still = [one for one in self._refused if self._tried(one.source, self._ids.among([one.row_id]))]
            is_done, self._refused = len(still) == len(self._refused), still
            if is_done:
                return

    # Halving ----------------------------------------------------------------------------------------

    def _move_blocks(self, source: RowSource, first: int, end: int) -> None:
        where = self._ids.in_blocks(first, end)
        if self._tried(source, where) is None:
            return
        if end - first > 1:
            middle = (first + end) // 2
            self._move_blocks(source, first, middle)
            self._move_blocks(source, middle, end)
            return
        ids = self._ids
        select = f"SELECT {ids.selected()} FROM {source.relation} n WHERE {where} ORDER BY n.{ids.column}"
        self._move_rows(source, [row_id for (row_id,) in self._cursor.execute(select).fetchall()])

    def _move_rows(self, source: RowSource, row_ids: Sequence[Any]) -> None:
        if not row_ids:
            return
        error = self._tried(source, self._ids.among(row_ids))
        if error is None:
            return
        if len(row_ids) > 1:
            middle = len(row_ids) // 2
            self._move_rows(source, row_ids[:middle])
            self._move_rows(source, row_ids[middle:])
            return
        self._refuse(source, row_ids[0], error)

    def _tried(self, source: RowSource, where: str) -> Exception | None:
        """Move some rows; return the error if the server refuses them."""
        try:
            with self._server.savepoint(self._cursor):
                moved = self._apply(source, where)
                self._dialect.check_deferred(self._cursor)
        except self._server.errors as error:
            if not self._server.is_about_values(error):
                raise
            return error
        self._moved += moved
        return None

    @property
    def _ids(self) -> RowIds:
        return self._dialect.row_ids

    def _source_of(self, staged: StagingTable) -> RowSource:
        return RowSource(self._dialect.staged_sql(staged), staged.path, staged.rows)

    def _check_moved(self, source: RowSource, moved: int, refused: int = 0) -> None:
        if moved + refused == source.rows:
            return
        batch = self._manifest.batch
        raise TableNotSupportedError(
            f"The staging table {source.name} of batch {batch.batch_id} of {batch.stream} has "
            f"{moved + refused} rows, but its task has written {source.rows}. The batch was not committed. "
            "Someone has changed the staging table, or a trigger of the table drops rows."
        )

    # Refused rows -----------------------------------------------------------------------------------

    def _refuse(self, source: RowSource, row_id: Any, error: Exception) -> None:
        name, number = self._origin(source, row_id)
        letter = None
        if self._on_bad_rows is not BadRows.DROP:
            where = self._ids.among([row_id])
            row = read_rows(self._cursor, self._dialect, self._content, source.relation, where=where, limit=1)
            if self._on_bad_rows is BadRows.FAIL:
                self._fail(name.batch_id, number, row, error)
            code = self._server.code(error)
            letter = dead_letter(row, COMMITTING, name.partition, number, code, self._server.in_short(error))
            self._box.add(letter)
        self._refused.append(_Refused(source, row_id, name.batch_id, letter))

    def _check_limit(self, batch_id: int, letters: Sequence[DeadLetter]) -> None:
        if self._dead_letter_max is None:
            return
        mine = (one for one in self._content.staged if parsed_name(one).batch_id == batch_id)
        where = f"batch {batch_id} of {self._manifest.batch.stream}"
        self._dead_letter_max.check(len(letters), sum(one.rows for one in mine), where, letters[-1])

    def _fail(self, batch_id: int, number: int, row: pa.RecordBatch, error: Exception) -> NoReturn:
        stream = self._manifest.batch.stream
        raise SchemaMismatchError(
            f"The {self._address.title} rejected rows: {self._server.in_short(error)}. The first one is "
            f"{self._key(row, number)} of batch {batch_id} of {stream}. The batch was not committed.\n"
            "Correct the table, or what the row refers to. Or start the query with badRows=deadLetter and "
            "deadLetter=<location>: then such rows go to the dead-letter table, and all others are "
            "committed. If the stream is parked, run penstock retry after that. To see the rows: penstock "
            f"show {stream.query_id} {batch_id} --rows"
        )

    def _key(self, row: pa.RecordBatch, number: int) -> str:
        keys, names = self._named_by(), [name for name, _ in self._content.columns]
        if not keys or not set(keys) <= set(names):
            return f"row {number + 1} of its task (the table has no primary key)"
        values = [row.column(names.index(key))[0].as_py() for key in keys]
        pairs = (f"{key} = {shown(str(value))}" for key, value in zip(keys, values, strict=True))
        return f"the row with {', '.join(pairs)}"


class RowAppender(RowMover):
    """Adds all rows to the table."""

    def _sources(self) -> Iterator[RowSource]:
        return (self._source_of(one) for one in self._content.staged)

    def _groups(self) -> Iterator[Sequence[RowSource]]:
        yield list(self._sources())

    def _apply(self, source: RowSource, where: str) -> int:
        names = ", ".join(self._dialect.quoted(name) for name, _ in self._content.columns)
        condition = "" if where == ALL else f" WHERE {where}"
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} ({names}) SELECT {names} FROM {source.relation} n{condition}"
        )
        return self._cursor.rowcount

    def _origin(self, source: RowSource, row_id: Any) -> tuple[StagingName, int]:
        (staged,) = (one for one in self._content.staged if self._dialect.staged_sql(one) == source.relation)
        number = self._moved + len([one for one in self._refused if one.source is source])
        return parsed_name(staged), number

    def _named_by(self) -> Sequence[str]:
        return self._dialect.primary_key(self._cursor, self._address)
