"""The rows that a commit has refused: they are held in a table until the manifest store has them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..contract import Batch, DeadLetter, DeadLetters, Manifest
from .content import TableContent
from .contract import Cursor
from .dialect import TransactionalDialect
from .staging import StagingName, StagingTable, refused_name

COLUMNS = ("letter_id", "row_id", "code", "message", "refused_at", "content")


class RefusedTables(TransactionalDialect):
    """For a database that creates tables in the transaction of a commit.

    The table is created in the transaction that commits the other rows of the batch, so there is exactly one
    such table for a batch, whichever process has committed it. It looks like a staging table, so clean-up
    finds it.
    """

    @abstractmethod
    def create_refused(self, cursor: Cursor, table: StagingTable, query_id: str) -> None:
        """Create the table with `COLUMNS` and the comment of a staging table. The first one is its key; the
        last ones are a point in time and bytes, the others are texts.
        """

    def put_refused(
        self,
        cursor: Cursor,
        address: Any,
        manifest: Manifest,
        content: TableContent,
        letters: DeadLetters,
    ) -> None:
        tables = self._tables(address, manifest, content)
        for batch_id, some in letters.items():
            table = tables[batch_id]
            self.drop(cursor, [table])
            self.create_refused(cursor, table, manifest.batch.stream.query_id)
            places = ", ".join(["%s"] * len(COLUMNS))
            escaped = self.staged_sql(table).replace("%", "%%")
            statement = f"INSERT INTO {escaped} ({', '.join(COLUMNS)}) VALUES ({places})"
            cursor.executemany(statement, [letter_values(letter) for letter in some])

    def read_refused(
        self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent
    ) -> DeadLetters:
        tables = self._tables(address, manifest, content)
        there = self.exist(cursor, list(tables.values()))
        found: dict[int, Sequence[DeadLetter]] = {}
        for (batch_id, table), is_there in zip(tables.items(), there, strict=True):
            if is_there:
                select = f"SELECT {', '.join(COLUMNS)} FROM {self.staged_sql(table)} ORDER BY letter_id"
                found[batch_id] = [DeadLetter(*row) for row in cursor.execute(select).fetchall()]
        return found

    def delete_refused(self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent) -> None:
        self.drop(cursor, list(self._tables(address, manifest, content).values()))

    def _tables(self, address: Any, manifest: Manifest, content: TableContent) -> dict[int, StagingTable]:
        """The tables by batch id, in the schema of the batch's staging tables."""
        schemas: dict[int, str] = {}
        for staged in content.staged:
            name = StagingName.parse(staged.name)
            if name is not None:
                schemas.setdefault(name.batch_id, staged.schema)
        batches: dict[int, Batch] = {batch.batch_id: batch for batch in manifest.batches}
        return {
            batch_id: StagingTable(schema, refused_name(batches[batch_id], address.sql), 0, 0)
            for batch_id, schema in schemas.items()
            if batch_id in batches
        }


def letter_values(letter: DeadLetter) -> tuple[Any, ...]:
    message = letter.message.replace("\0", "")
    return letter.letter_id, letter.row_id, letter.code, message, letter.refused_at, letter.content


class OneRefusedTable(TransactionalDialect):
    """For a database where a commit creates no table. Its fence creates one table of refused rows beside the
    fence table, `refused_sql` of the address, with the columns `BATCH_COLUMNS` and `COLUMNS`: `batch_id` is
    a whole number, `content` has bytes, all others are texts. The key is `BATCH_COLUMNS` and `letter_id`.
    """

    def put_refused(
        self,
        cursor: Cursor,
        address: Any,
        manifest: Manifest,
        content: TableContent,
        letters: DeadLetters,
    ) -> None:
        self.delete_refused(cursor, address, manifest, content)
        columns = (*BATCH_COLUMNS, *COLUMNS)
        places = ", ".join(["%s"] * len(columns))
        statement = f"INSERT INTO {_refused_sql(address)} ({', '.join(columns)}) VALUES ({places})"
        for batch_id, some in letters.items():
            key = (manifest.batch.stream.query_id, address.table, batch_id)
            rows = [letter_values(letter) for letter in some]
            cursor.executemany(statement, [(*key, *row[:-2], row[-2].isoformat(), row[-1]) for row in rows])

    def read_refused(
        self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent
    ) -> DeadLetters:
        if not self.fence.is_there(cursor, address):
            return {}
        found: dict[int, list[DeadLetter]] = {}
        rows = cursor.execute(
            f"SELECT batch_id, {', '.join(COLUMNS)} FROM {_refused_sql(address)} WHERE {_OF_BATCHES} "
            "ORDER BY letter_id",
            _batches(address, manifest),
        ).fetchall()
        for batch_id, letter_id, row_id, code, message, refused_at, row in rows:
            at = datetime.fromisoformat(refused_at)
            letter = DeadLetter(letter_id, row_id, code, message, at, bytes(row))
            found.setdefault(int(batch_id), []).append(letter)
        return found

    def delete_refused(self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent) -> None:
        if self.fence.is_there(cursor, address):
            delete = f"DELETE FROM {_refused_sql(address)} WHERE {_OF_BATCHES}"
            cursor.execute(delete, _batches(address, manifest))


BATCH_COLUMNS = ("query_id", "table_name", "batch_id")
_OF_BATCHES = "query_id = %s AND table_name = %s AND batch_id BETWEEN %s AND %s"


def _batches(address: Any, manifest: Manifest) -> tuple[str, str, int, int]:
    ids = [batch.batch_id for batch in manifest.batches]
    return manifest.batch.stream.query_id, address.table, min(ids), max(ids)


def _refused_sql(address: Any) -> str:
    return str(address.refused_sql).replace("%", "%%")
