"""Writes the rows of one task attempt to its own staging table. Executors only."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.contract import AttemptId
from ...committers.crash_points import reach
from ...committers.errors import PenstockError
from ...committers.file_tables.evolution import Narrowing
from ...committers.postgres.address import literal, qualified, quoted
from ...committers.postgres.staging import (
    StagingComment,
    StagingTable,
    StagingTables,
    drop,
    staging_name,
)
from ...committers.postgres.types import UTF8
from ..background import Background
from ..parquet.schema_projection import SchemaProjector
from .changed_rows import ChangeProjector, StagedChanges
from .copy_csv import copy_csv
from .text_checks import check_texts, has_limits

if TYPE_CHECKING:
    from ...committers.postgres.connection import Connection, PostgresServer

_NOT_STAGED = "The rows of this task were not staged"


@dataclass(frozen=True, slots=True)
class StagingWriters:
    """Opens task writers. Pickled to the executors, with the connection settings."""

    server: PostgresServer
    schema: str
    """Schema of the staging tables."""
    table_sql: str
    """The destination table."""
    columns: pa.Schema
    """Columns that the table gets: the table's names, with types in whose text form the table's types
    read the same values.
    """
    sql_types: tuple[str, ...]
    """Of all columns of the staging tables."""
    narrows: Narrowing = Narrowing.NONE
    """Some values of the query may not fit their columns. See `types.may_hold`."""
    encoding: str = UTF8
    """Of the database."""
    changes: StagedChanges | None = None
    """None: rows are only added."""

    @property
    def staged_names(self) -> list[str]:
        """Columns of the staging tables."""
        schema = self.columns if self.changes is None else self.changes.schema(self.columns)
        return list(schema.names)

    def open(self, attempt: AttemptId) -> StagingWriter:
        return StagingWriter(self, attempt)


class StagingWriter:
    """See `TaskWriter`. Uses one transaction: before `finish` the table is invisible, and a crash leaves
    nothing.

    A task without rows creates no table. The server processes one batch while the task prepares the next, so
    an error of the server is raised by the next `write` or by `finish`.
    """

    def __init__(self, plan: StagingWriters, attempt: AttemptId) -> None:
        self._plan = plan
        self._query_id, self._batch_id = attempt.query_id, attempt.batch_id
        self._name = staging_name(attempt, plan.table_sql)
        self._sql = qualified(plan.schema, self._name)
        where = f"batch {attempt.batch_id}, partition {attempt.partition}, attempt {attempt.attempt}"
        self._project: SchemaProjector | ChangeProjector
        if plan.changes is None:
            self._project = SchemaProjector(plan.columns, where, narrows=plan.narrows)
        else:
            self._project = ChangeProjector(plan.changes, plan.columns, where, narrows=plan.narrows)
        self._limited = [(number, kind) for number, kind in enumerate(plan.sql_types) if has_limits(kind)]
        self._connection: Connection | None = None
        self._background = Background("penstock-copy")
        self._rows = self._bytes = 0
        self._checked: tuple[pa.RecordBatch, pa.Buffer, int] | None = None
        """The last batch that was checked, its rows and their number."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        rows = self._project(batch)
        for number, kind in self._limited:
            check_texts(rows.column(number), rows.schema.names[number], kind)
        self._checked = (batch, copy_csv(rows, self._plan.encoding), rows.num_rows)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        checked, self._checked = self._checked, None
        if checked is not None and checked[0] is batch:
            _, rows, count = checked
        else:
            projected = self._project(batch)
            rows, count = copy_csv(projected, self._plan.encoding), projected.num_rows
        if not count:  # messages that change no row
            return
        connection = self._connection or self._begin()
        self._background.start(self._copy, connection, rows, count)

    def _copy(self, connection: Connection, rows: pa.Buffer, count: int) -> None:
        """FREEZE: the commit, which reads the rows, then need not check their visibility and write hint bits.
        It is allowed in the transaction that has created the table.
        """
        from ...committers.postgres.connection import DatabaseError

        try:
            with (
                connection.cursor() as cursor,
                cursor.copy(f"COPY {self._sql} FROM STDIN (FORMAT csv, FREEZE)") as copy,
            ):
                copy.write(memoryview(rows))
        except DatabaseError as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None  # its context contains a value
        self._rows += count
        self._bytes += rows.size

    def _begin(self) -> Connection:
        """Create the staging table in a transaction that stays open."""
        from ...committers.postgres.connection import (
            COMMIT_TIMEOUT_S,
            IDLE_TASK_TIMEOUT_S,
            DatabaseError,
        )

        self._connection = self._plan.server.connect(COMMIT_TIMEOUT_S, IDLE_TASK_TIMEOUT_S)
        columns = ", ".join(
            f"{quoted(name)} {kind}"
            for name, kind in zip(self._plan.staged_names, self._plan.sql_types, strict=True)
        )
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(f"CREATE TABLE {self._sql} ({columns}) WITH (autovacuum_enabled = false)")
                (now,) = cursor.execute("SELECT now()").fetchone() or (None,)
                comment = literal(str(StagingComment(now, self._query_id)))
                cursor.execute(f"COMMENT ON TABLE {self._sql} IS {comment}")
        except DatabaseError as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None
        reach("write.file_open", self._batch_id)
        return self._connection

    def finish(self) -> StagingTables:
        from ...committers.postgres.connection import DatabaseError

        if self._connection is None:
            return ()
        self._background.wait()
        self._background.stop()
        try:
            self._connection.commit()
        except DatabaseError as error:
            raise self._plan.server.failed(error, _NOT_STAGED) from None
        self._connection.close()
        self._connection = None
        reach("write.files_closed", self._batch_id)
        return (StagingTable(self._plan.schema, self._name, self._rows, self._bytes),)

    def abort(self) -> None:
        """Roll back. Drop the table if a COMMIT without a response may have created it."""
        self._background.stop()
        if not self._rows:
            if self._connection is not None:
                self._connection.close()
            return
        with suppress(PenstockError):
            if self._connection is not None:
                self._connection.close()
            with self._plan.server.transaction("The staging table is left to penstock gc") as cursor:
                drop(cursor, [self._sql])
