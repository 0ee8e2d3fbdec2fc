"""Writes the rows of one task attempt to its own staging table. Executors only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ...committers.contract import AttemptId, TaskWriter
from ...committers.crash_points import reach
from ...committers.database.dialect import Dialect
from ...committers.database.server import COMMIT_TIMEOUT_S, IDLE_TASK_TIMEOUT_S, DatabaseServer
from ...committers.database.staging import StagingTable, StagingTables, staging_name
from ...committers.errors import PenstockError
from ...committers.file_tables.evolution import Narrowing
from ..background import Background
from ..parquet.schema_projection import SchemaProjector
from .changed_rows import ChangeProjector, StagedChanges

_NOT_STAGED = "The rows of this task were not staged"


class EncodedRows(Protocol):
    """Rows as they are sent to the server."""

    @property
    def size(self) -> int:
        """In bytes."""
        ...


@dataclass(frozen=True, slots=True)
class DatabaseWriters(ABC):
    """Opens task writers. Pickled to the executors, with the connection settings."""

    server: DatabaseServer
    dialect: Dialect
    schema: str
    """Schema of the staging tables."""
    table_sql: str
    """The destination table."""
    columns: pa.Schema
    """Columns that the table gets: the table's names, with types of `TypeRules.text_type`."""
    sql_types: tuple[str, ...]
    """Of all columns of the staging tables."""
    narrows: Narrowing = Narrowing.NONE
    """Some values of the query may not fit their columns. See `TypeRules.may_hold`."""
    encoding: str = ""
    """Of the database; empty if it stores every text."""
    changes: StagedChanges | None = None
    """None: rows are only added."""

    @abstractmethod
    def check(self, rows: pa.RecordBatch) -> None:
        """Check that the server accepts the values of projected rows, as far as their types do not tell.

        Raises:
            SchemaMismatchError: it does not accept one.
        """

    @property
    def staged_names(self) -> list[str]:
        """Columns of the staging tables."""
        schema = self.columns if self.changes is None else self.changes.schema(self.columns)
        return list(schema.names)

    def projector(self, attempt: AttemptId) -> SchemaProjector | ChangeProjector:
        """Return what projects the rows of a task to the columns of a staging table."""
        where = f"batch {attempt.batch_id}, partition {attempt.partition}, attempt {attempt.attempt}"
        if self.changes is None:
            return SchemaProjector(self.columns, where, narrows=self.narrows)
        return ChangeProjector(self.changes, self.columns, where, narrows=self.narrows)

    @abstractmethod
    def open(self, attempt: AttemptId) -> TaskWriter[StagingTables]:
        """Open the writer of a task attempt."""


@dataclass(frozen=True, slots=True)
class StagingWriters(DatabaseWriters):
    """For databases into which tasks write. They implement how rows are encoded and sent."""

    @abstractmethod
    def encode(self, rows: pa.RecordBatch) -> EncodedRows:
        """Encode projected rows.

        Raises:
            SchemaMismatchError: names the column with a value that the database cannot store.
        """

    @abstractmethod
    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        """Create the staging table, with the comment of `StagingComment`, in an open transaction."""

    @abstractmethod
    def load(self, connection: Any, staged: StagingTable, rows: Any, count: int) -> None:
        """Send encoded rows to the staging table, in the open transaction."""

    def end(self, connection: Any, staged: StagingTable, query_id: str) -> None:
        """End the transaction of a task, so that its rows are durable and invisible."""
        connection.commit()

    def undo(self, staged: StagingTable, query_id: str) -> None:
        """Undo `end`. Called if it is unknown whether it took effect, on no open connection.

        Raises:
            PenstockError: not possible now; it is left to clean-up.
        """
        with self.server.transaction("The staging table is left to penstock gc") as cursor:
            self.dialect.drop(cursor, [staged])

    def open(self, attempt: AttemptId) -> StagingWriter:
        return StagingWriter(self, attempt)


class StagingWriter:
    """See `TaskWriter`. Uses one transaction: before `finish` the rows are invisible. A crash leaves
    nothing, or an empty table if the database commits when it creates one.

    A task without rows creates no table. The server processes one batch while the task prepares the next, so
    an error of the server is raised by the next `write` or by `finish`.
    """

    def __init__(self, plan: StagingWriters, attempt: AttemptId) -> None:
        self._plan = plan
        self._query_id, self._batch_id = attempt.query_id, attempt.batch_id
        self._name = staging_name(attempt, plan.table_sql)
        self._project = plan.projector(attempt)
        self._connection: Any = None
        self._background = Background("penstock-copy")
        self._rows = self._bytes = 0
        self._checked: tuple[pa.RecordBatch, EncodedRows, int] | None = None
        """The last batch that was checked, its rows and their number."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        rows = self._project(batch)
        self._plan.check(rows)
        self._checked = (batch, self._plan.encode(rows), rows.num_rows)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is batch:
            _, rows, count = checked
        else:
            projected = self._project(batch)
            rows, count = self._plan.encode(projected), projected.num_rows
        if not count:  # messages that change no row
            return
        connection = self._connection or self._begin()
        self._background.start(self._load, connection, rows, count)

    def _load(self, connection: Any, rows: EncodedRows, count: int) -> None:
        try:
            self._plan.load(connection, self._table, rows, count)
        except self._plan.server.errors as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None  # its context contains a value
        self._rows += count
        self._bytes += rows.size

    def _begin(self) -> Any:
        """Create the staging table in a transaction that stays open."""
        self._connection = self._plan.server.connect(COMMIT_TIMEOUT_S, IDLE_TASK_TIMEOUT_S)
        try:
            self._plan.create(self._connection.cursor(), self._table, self._query_id)
        except self._plan.server.errors as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None
        reach("write.file_open", self._batch_id)
        return self._connection

    @property
    def _table(self) -> StagingTable:
        return StagingTable(self._plan.schema, self._name, self._rows, self._bytes)

    def finish(self) -> StagingTables:
        if self._connection is None:
            return ()
        self._background.wait()
        self._background.stop()
        try:
            self._plan.end(self._connection, self._table, self._query_id)
        except self._plan.server.errors as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None
        self._connection.close()
        self._connection = None
        reach("write.files_closed", self._batch_id)
        return (self._table,)

    def abort(self) -> None:
        """Roll back. Drop the table if it may exist: a COMMIT without a response may have created it."""
        self._background.stop()
        may_exist = bool(self._rows)
        if not self._plan.dialect.has_transactional_ddl:
            may_exist |= self._connection is not None
        with suppress(PenstockError):
            if self._connection is not None:
                self._connection.close()
            if may_exist:
                self._plan.undo(self._table, self._query_id)
