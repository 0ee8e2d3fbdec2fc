"""What a database gives so that Penstock can write its tables. Importable on executors.

The other modules of this package are the same for all databases: manifests, staging tables and their names,
the matching of columns, the fence, the flow of a commit, refused rows, clean-up. A database is a `Dialect`
(statements), `TypeRules` (types), a `DatabaseServer` (connections and errors), a `TableAddress`, and a loader
of rows in `writers`. `committers/postgres` is the first one.

Shared statements are standard SQL with `%s` for parameters, and `%%` for a percent sign if there are
parameters. A driver that wants them otherwise gets a cursor that translates them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa

from ..contract import Changes, DeadLetters, Manifest, Mode
from ..errors import ConfigurationError
from .address import SqlNames
from .content import Manifests, TableContent
from .contract import Cursor, Mover, NumberedRows, RowIds, TableAddress, TypeRules
from .fence import Fence
from .keyed_changes import KeyedChanges, TransactionalChanges
from .layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from .prepared import PreparedTransactions
from .staging import StagingTable


class Dialect(ABC):
    """The statements of one database. Has no state; methods get the cursor of an open transaction."""

    kind: ClassVar[str]
    """Of its manifests and streams in the store."""
    name: ClassVar[str]
    """Of the database, for messages."""
    id_name: ClassVar[str] = "id"
    """What `TableState.table_id` is called."""
    names: ClassVar[SqlNames]
    types: ClassVar[TypeRules]
    manifests: ClassVar[Manifests]
    fence: ClassVar[Fence]
    row_ids: ClassVar[RowIds]
    prepared: ClassVar[PreparedTransactions | None] = None
    """None: it has no `commit=prepared`."""
    changes: ClassVar[KeyedChanges | None] = None
    """None: it has no `writeMode=upsert`."""
    has_transactional_ddl: ClassVar[bool] = True
    """False if a statement that creates, changes or drops tables commits. Then a commit changes columns
    before its transaction, and drops the staging tables after it.
    """
    has_staging_files: ClassVar[bool] = False
    """True if files take the place of staging tables. A commit deletes them after its transaction."""
    ignores_case: ClassVar[bool] = False
    """True if a table cannot have two columns whose names differ only in case."""

    def keyed_changes(self) -> KeyedChanges:
        """
        Raises:
            ConfigurationError: the database has no changes by key.
        """
        if self.changes is None:
            raise ConfigurationError(
                f"writeMode=upsert: Penstock only appends to tables of {self.name}, and replaces and deletes "
                "no rows by key. Nothing was written. To keep all changes, append the changes as they are: "
                "leave writeMode out."
            )
        return self.changes

    # Names ------------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Quote an identifier."""
        return self.names.quoted(name)

    def qualified(self, schema: str, name: str) -> str:
        return self.names.qualified(schema, name)

    def staged_sql(self, staged: StagingTable) -> str:
        return self.qualified(staged.schema, staged.name)

    def address_of(self, uri: str) -> TableAddress:
        """Parse the address of a stream's table.

        Raises:
            ConfigurationError: it is no address of such a table.
        """
        return self.manifests.address_of(uri)

    @abstractmethod
    def new_name_problem(self, name: str) -> str:
        """Why a new column cannot have the name, and what to do; empty if it can."""

    def name_problem(self, name: str, encoding: str) -> str:
        """Why no column can have the name, and what to do; empty if one can.

        Args:
            encoding: of the database
        """
        if isinstance(self.row_ids, NumberedRows) and name.lower() == self.row_ids.column:
            where = "files of tasks" if self.has_staging_files else "staging tables"
            return f"{name!r} is a column of the {where}: rename it"
        if not name:
            return "a column has an empty name: give it one"
        return f"{name!r} has a NUL character: rename it" if "\0" in name else ""

    def encoding(self, cursor: Cursor) -> str:
        """The encoding of the database; empty if it stores every text."""
        return ""

    # Tables -----------------------------------------------------------------------------------------

    @abstractmethod
    def load(self, cursor: Cursor, address: Any) -> TableState | None:
        """Load the table; None if it does not exist."""

    @abstractmethod
    def lock_creation(self, cursor: Cursor, address: Any) -> None:
        """Wait for other processes that create the table or the fence table."""

    @abstractmethod
    def create(
        self, cursor: Cursor, address: Any, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        """Create the table.

        Args:
            keys: columns of the primary key; empty if there is none
        """

    def has_rows(self, cursor: Cursor, address: Any) -> bool:
        select = f"SELECT CASE WHEN EXISTS (SELECT 1 FROM {address.sql}) THEN 1 ELSE 0 END"
        ((is_there,),) = cursor.execute(select).fetchall()
        return bool(is_there)

    def identified(self, cursor: Cursor, address: Any, table: TableState) -> TableState:
        """Give the table an id if it has none, for a database that does not number its tables."""
        return table

    def lock_table(self, cursor: Cursor, address: Any) -> None:
        """Keep others from dropping or altering the table until this transaction ends. In many databases a
        transaction keeps the definition of a table that it has read, or it fails.
        """
        cursor.execute(f"SELECT 1 FROM {address.sql} WHERE 1 = 0").fetchall()

    @abstractmethod
    def alter(self, address: Any, wanted: AlterTable) -> Iterable[str]:
        """The statements that change the columns of the table."""

    @abstractmethod
    def primary_key(self, cursor: Cursor, address: Any) -> Sequence[str]:
        """The columns of the primary key; empty if there is none."""

    def selected(self, name: str, data_type: pa.DataType) -> str:
        """A column of a staging table, in a form that the driver returns without loss as Python's value."""
        return self.quoted(name)

    def arrow_rows(self, cursor: Cursor, query: str, schema: pa.Schema) -> pa.RecordBatch:
        """The result of a query whose columns are `selected`."""
        rows = cursor.execute(query).fetchall()
        columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
        arrays = [array_of(values, field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def limited(self, query: str, limit: int, offset: int = 0) -> str:
        """The query, which has an order, with a limit to its rows."""
        return f"{query} LIMIT {limit} OFFSET {offset}" if offset else f"{query} LIMIT {limit}"

    # Staging tables ---------------------------------------------------------------------------------

    @abstractmethod
    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        """For each of these tables, or prepared transactions, whether it exists."""

    @abstractmethod
    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        """Drop the existing ones among these tables; return their number."""

    @abstractmethod
    def staging_comments(self, cursor: Cursor, address: Any) -> Iterable[tuple[str, str, int, str]]:
        """Schema, name, bytes and comment of the tables whose names have the prefix of staging tables.
        Prepared transactions have the comment that their tables would have.
        """

    # Checks of a plan -------------------------------------------------------------------------------

    def check_alterable(self, cursor: Cursor, address: Any, table: TableState, match: TableMatch) -> None:
        """
        Raises:
            TableNotSupportedError: the database would refuse to change columns.
        """
        return

    @abstractmethod
    def check_rights(
        self,
        cursor: Cursor,
        address: Any,
        table: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        """
        Raises:
            AccessRefusedError: the user lacks privileges; names them.
        """


class TransactionalDialect(Dialect):
    """The statements of a database that commits a batch in one transaction."""

    changes: ClassVar[TransactionalChanges | None] = None

    def keyed_changes(self) -> TransactionalChanges:
        found = super().keyed_changes()
        assert isinstance(found, TransactionalChanges)
        return found

    def drop_in_time(self, cursor: Cursor, tables: Sequence[StagingTable], timeout_s: float) -> None:
        """Drop the existing ones among these tables, in a savepoint of a commit. Fails with a conflict if
        they are still being read after the time.
        """
        self.drop(cursor, tables)

    # In the commit ----------------------------------------------------------------------------------

    @abstractmethod
    def mover_of(self, mode: Mode) -> Callable[..., Mover]:
        """A `moving.RowAppender`, which moves the rows of a batch that are added."""

    def check_deferred(self, cursor: Cursor) -> None:
        """Check constraints now that are deferred to the COMMIT, where an error would end the transaction."""
        return

    # Refused rows -----------------------------------------------------------------------------------

    @abstractmethod
    def put_refused(
        self,
        cursor: Cursor,
        address: Any,
        manifest: Manifest,
        content: TableContent,
        letters: DeadLetters,
    ) -> None:
        """Store the refused rows of the batches, in the transaction of the commit."""

    @abstractmethod
    def read_refused(
        self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent
    ) -> DeadLetters:
        """Return the refused rows of the batches that are held, by batch id."""

    @abstractmethod
    def delete_refused(self, cursor: Cursor, address: Any, manifest: Manifest, content: TableContent) -> None:
        """Delete what `put_refused` has stored."""


def array_of(given: Iterable[Any], data_type: pa.DataType) -> pa.Array:
    """Values as drivers return them. Some have numbers for booleans, or texts for decimals and times."""
    values = list(given)
    if convert := next((make for is_type, make in _MADE if is_type(data_type)), None):
        values = [None if value is None else convert(value) for value in values]
    elif pa.types.is_temporal(data_type) and any(isinstance(value, str) for value in values):
        plain = pa.timestamp("us") if pa.types.is_timestamp(data_type) else data_type
        return pa.array(values, pa.string()).cast(plain).cast(data_type)
    return pa.array(values, data_type)


_MADE: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_string, str),
    (pa.types.is_decimal, lambda value: Decimal(str(value))),
)
