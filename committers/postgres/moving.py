"""Moves staged rows into the table, and finds the rows that the server refuses.

Constraints, foreign keys, unique keys and triggers are the server's: it refuses a whole statement and often
does not say because of which row. So after an error the staged rows are moved in halves, each in a savepoint,
until the refused rows are alone. Without an error that costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ..contract import DeadLetter, DeadLetters, Manifest
from ..dead_letters import COMMITTING, BadRows, DeadLetterMax, LetterBox, dead_letter
from ..errors import SchemaMismatchError, TableNotSupportedError, shown
from .address import PostgresAddress, quoted
from .connection import Cursor, DatabaseError, in_short, is_about_values
from .content import PostgresContent
from .staged_rows import read_rows, tid_literal
from .staging import StagingName, StagingTable

if TYPE_CHECKING:
    import pyarrow as pa

ALL = "true"
_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary
ORDER BY array_position(i.indkey::int2[], a.attnum)
"""


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
    tid: str
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
        cursor: Cursor,
        address: PostgresAddress,
        manifest: Manifest,
        content: PostgresContent,
        on_bad_rows: BadRows,
        dead_letter_max: DeadLetterMax | None,
    ) -> None:
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
    def _origin(self, source: RowSource, tid: str) -> tuple[StagingName, int]:
        """Return the staging table of a row, and its number there."""

    @abstractmethod
    def _named_by(self) -> Sequence[str]:
        """Return the columns that identify a row of the table; empty if there are none."""

    def move(self) -> tuple[int, DeadLetters]:
        """Move all rows that the table accepts. Return the number of refused rows, and the dead letters.

        Raises:
            SchemaMismatchError: the server refuses a row, and `badRows` does not allow it, or too many.
            TableNotSupportedError: the table did not get as many rows as were staged.
            DatabaseError: the server failed for another reason.
        """
        is_refused = False
        try:
            with self._cursor.connection.transaction():
                for source in self._sources():
                    self._check_moved(source, self._apply(source, ALL))
                self._check_deferred()
        except DatabaseError as error:
            if not is_about_values(error):
                raise
            is_refused = True  # continue outside: the details of the error contain values of rows
        return self._move_without_refused() if is_refused else (0, {})

    def _move_without_refused(self) -> tuple[int, DeadLetters]:
        refused: list[_Refused] = []
        for group in self._groups():
            self._refused = []
            for source in group:
                self._moved, before = 0, len(self._refused)
                self._move_pages(source, 0, self._pages(source))
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
            still = [one for one in self._refused if self._tried(one.source, _is_row([one.tid]))]
            is_done, self._refused = len(still) == len(self._refused), still
            if is_done:
                return

    # Halving ----------------------------------------------------------------------------------------

    def _move_pages(self, source: RowSource, first: int, end: int) -> None:
        where = f"n.ctid >= '({first},0)'::tid AND n.ctid < '({end},0)'::tid"
        if self._tried(source, where) is None:
            return
        if end - first > 1:
            middle = (first + end) // 2
            self._move_pages(source, first, middle)
            self._move_pages(source, middle, end)
            return
        select = f"SELECT n.ctid::text FROM {source.relation} AS n WHERE {where} ORDER BY n.ctid"
        self._move_rows(source, [tid for (tid,) in self._cursor.execute(select).fetchall()])

    def _move_rows(self, source: RowSource, tids: Sequence[str]) -> None:
        error = self._tried(source, _is_row(tids))
        if error is None:
            return
        if len(tids) > 1:
            middle = len(tids) // 2
            self._move_rows(source, tids[:middle])
            self._move_rows(source, tids[middle:])
            return
        self._refuse(source, tids[0], error)

    def _tried(self, source: RowSource, where: str) -> DatabaseError | None:
        """Move some rows; return the error if the server refuses them."""
        try:
            with self._cursor.connection.transaction():
                moved = self._apply(source, where)
                self._check_deferred()
        except DatabaseError as error:
            if not is_about_values(error):
                raise
            return error
        self._moved += moved
        return None

    def _check_deferred(self) -> None:
        """Check constraints now that are deferred to the COMMIT, where an error would end the transaction."""
        self._cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _pages(self, source: RowSource) -> int:
        size = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint"
        ((pages,),) = self._cursor.execute(size, (source.relation,)).fetchall()
        return int(pages)

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

    def _refuse(self, source: RowSource, tid: str, error: DatabaseError) -> None:
        name, number = self._origin(source, tid)
        letter = None
        if self._on_bad_rows is not BadRows.DROP:
            where = f"ctid = {tid_literal(tid)}"
            row = read_rows(self._cursor, self._content, source.relation, where=where, limit=1)
            if self._on_bad_rows is BadRows.FAIL:
                self._fail(name.batch_id, number, row, error)
            code = error.sqlstate or type(error).__name__
            letter = dead_letter(row, COMMITTING, name.partition, number, code, in_short(error))
            self._box.add(letter)
        self._refused.append(_Refused(source, tid, name.batch_id, letter))

    def _check_limit(self, batch_id: int, letters: Sequence[DeadLetter]) -> None:
        if self._dead_letter_max is None:
            return
        mine = (one for one in self._content.staged if parsed_name(one).batch_id == batch_id)
        where = f"batch {batch_id} of {self._manifest.batch.stream}"
        self._dead_letter_max.check(len(letters), sum(one.rows for one in mine), where, letters[-1])

    def _fail(self, batch_id: int, number: int, row: pa.RecordBatch, error: DatabaseError) -> NoReturn:
        stream = self._manifest.batch.stream
        raise SchemaMismatchError(
            f"The Postgres table {self._address.uri} rejected rows: {in_short(error)}. The first one is "
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
        return (RowSource(one.sql, one.path, one.rows) for one in self._content.staged)

    def _groups(self) -> Iterator[Sequence[RowSource]]:
        yield list(self._sources())

    def _apply(self, source: RowSource, where: str) -> int:
        names = ", ".join(quoted(name) for name, _ in self._content.columns)
        condition = "" if where == ALL else f" WHERE {where}"
        self._cursor.execute(
            f"INSERT INTO {self._address.sql} ({names}) SELECT {names} FROM {source.relation} AS n{condition}"
        )
        return self._cursor.rowcount

    def _origin(self, source: RowSource, tid: str) -> tuple[StagingName, int]:
        (staged,) = (one for one in self._content.staged if one.sql == source.relation)
        number = self._moved + len([one for one in self._refused if one.source is source])
        return parsed_name(staged), number

    def _named_by(self) -> Sequence[str]:
        return [name for (name,) in self._cursor.execute(_PRIMARY_KEY, (self._address.sql,)).fetchall()]


def parsed_name(staged: StagingTable) -> StagingName:
    name = StagingName.parse(staged.name)
    assert name is not None, staged.name  # see `content.decode`
    return name


def _is_row(tids: Sequence[str]) -> str:
    return f"n.ctid = ANY (ARRAY[{', '.join(map(tid_literal, tids))}])"
