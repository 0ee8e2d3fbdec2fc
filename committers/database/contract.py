"""What drivers and databases are for the modules of this package. Importable on executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..contract import DeadLetters

if TYPE_CHECKING:
    import pyarrow as pa


class Cursor(Protocol):
    """A cursor of the Python DB-API whose `execute` returns itself, as that of psycopg."""

    @property
    def rowcount(self) -> int: ...

    @property
    def connection(self) -> Any: ...

    def execute(self, statement: Any, parameters: Any = None, /) -> Cursor: ...

    def executemany(self, statement: Any, parameters: Iterable[Any], /) -> None: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> Any: ...


class TableAddress(Protocol):
    """Address of a table, without user and password. One per table."""

    @property
    def schema(self) -> str:
        """Schema or database of the table, not quoted. The fence table is in it."""
        ...

    @property
    def table(self) -> str:
        """Name of the table, not quoted."""
        ...

    @property
    def uri(self) -> str: ...

    @property
    def sql(self) -> str:
        """Name of the table in statements."""
        ...

    @property
    def fence_sql(self) -> str:
        """Name of the fence table in statements."""
        ...

    @property
    def title(self) -> str:
        """For messages: the kind of database and the address."""
        ...


class TypeRules(Protocol):
    """Which SQL type stores which Arrow type. A module, or an object, with these functions."""

    def sql_type(self, data_type: pa.DataType, /) -> str | None:
        """The type of a new column; None if there is none that stores the values without loss."""
        ...

    def arrow_type(self, column: str, /) -> pa.DataType:
        """The Arrow type that has every value of a staged column, or its text."""
        ...

    def holds(self, column: str, data_type: pa.DataType, /) -> bool:
        """True if a column of the SQL type stores every value of the Arrow type unchanged, or rejects it."""
        ...

    def may_hold(self, column: str, data_type: pa.DataType, /) -> bool:
        """True if `holds`, or if some values fit and the writer can tell which."""
        ...

    def widened(self, column: str, data_type: pa.DataType, /) -> str | None:
        """The SQL type that a column gets so that it `holds` the Arrow type, without loss of what it has;
        None if there is none.
        """
        ...

    def can_widen(self, column: str, staged: str, /) -> bool:
        """True if `widened` can have chosen the second type for a column of the first one."""
        ...

    def takes(self, column: str, staged: str, /) -> bool:
        """True if every value of the second SQL type is stored unchanged in a column of the first one."""
        ...

    def is_staged_as(self, column: str, /) -> bool:
        """True if `may_hold` can have accepted the type. Checks stored manifests."""
        ...

    def text_type(self, column: str, data_type: pa.DataType, /) -> pa.DataType:
        """The Arrow type in which the writer loads values of a column, so that it stores the same values."""
        ...


class RowIds(ABC):
    """How rows of a staging table are told apart and ordered as they were written."""

    column: ClassVar[str]
    """The column with the id of a row, which is not one of the table's."""

    @abstractmethod
    def blocks(self, cursor: Cursor, relation: str) -> int:
        """Return the number of blocks of rows, which is at least one if there are rows."""

    @abstractmethod
    def in_blocks(self, first: int, end: int) -> str:
        """The condition that a row of `n` is in these blocks."""

    @abstractmethod
    def selected(self) -> str:
        """The id of a row of `n`, as it is selected for `among` and `literal`."""

    @abstractmethod
    def literal(self, row_id: Any) -> str:
        """A selected id in SQL."""

    def among(self, row_ids: Sequence[Any]) -> str:
        """The condition that a row of `n` is one of these."""
        return f"n.{self.column} IN ({', '.join(map(self.literal, row_ids))})"


class NumberedRows(RowIds):
    """Rows with whole numbers, from 0 or 1, most of them without gaps.

    Args:
        column: its SQL name in the staging tables
    """

    BLOCK_ROWS: ClassVar[int] = 4096

    def __init__(self, column: str) -> None:
        self.column = column  # type: ignore[misc]

    def blocks(self, cursor: Cursor, relation: str) -> int:
        ((last,),) = cursor.execute(f"SELECT max(n.{self.column}) FROM {relation} n").fetchall()
        return 0 if last is None else int(last) // self.BLOCK_ROWS + 1

    def in_blocks(self, first: int, end: int) -> str:
        low, high = first * self.BLOCK_ROWS, end * self.BLOCK_ROWS
        return f"n.{self.column} >= {low} AND n.{self.column} < {high}"

    def selected(self) -> str:
        return f"n.{self.column}"

    def literal(self, row_id: Any) -> str:
        return str(int(row_id))


class Mover(Protocol):
    """Moves the rows of a manifest, in the open transaction of its commit. See `moving.RowMover`."""

    def move(self) -> tuple[int, DeadLetters]: ...
