"""What a batch may change in the schema of its table, and which values fit columns of other types.

Pure values, standard library only; used on the driver and on executors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

from ..contract import Changes, Mode

if TYPE_CHECKING:
    import pyarrow as pa

Path = tuple[str, ...]


class SchemaEvolution(Enum):
    """What happens if the columns of a query do not fit those of the table."""

    FAIL = "fail"
    ADD_COLUMNS = "addColumns"
    EVOLVE = "evolve"
    QUARANTINE = "quarantine"


class Narrowing(IntEnum):
    """Which values of a query fit a column of another type, although not all values do. The writer checks
    each of them.
    """

    NONE = 0
    NUMBERS = 1
    """Integers and decimals that the column can have."""
    ANY = 2
    """Also floating-point numbers, and NULL in columns of any type and in columns that the table does not
    have.
    """


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a batch may change in the schema of its table."""

    adds: bool = False
    """New nullable columns."""
    alters: bool = False
    """Types are widened, and NOT NULL is relaxed."""
    renames: tuple[tuple[str, str], ...] = ()
    """The present name of a column, with dots through structs, and its new name without them."""
    fixed: frozenset[str] = frozenset()
    """Columns that are never altered, in lower case."""
    required: frozenset[Path] = frozenset()
    """Paths of the columns that are never NULL in the query, in lower case."""

    def of_batch(self, rows: pa.Schema, mode: Mode) -> Evolution:
        """Return what a batch with these columns may change."""
        fixed: frozenset[str] = frozenset()
        if isinstance(mode, Changes):
            compared = mode.order_by if mode.late_rows == "ignore" else ()
            fixed = frozenset(name.lower() for name in (*mode.keys, *compared))
        return replace(self, fixed=fixed, required=frozenset(_required(rows, ())))

    def relaxes(self, parent: Path, name: str) -> bool:
        """Return True if a column that is NOT NULL in the table becomes nullable."""
        path = tuple([part.lower() for part in (*parent, name)])
        return self.may_alter(parent, name) and path not in self.required

    def may_alter(self, parent: Path, name: str) -> bool:
        return self.alters and (parent[0] if parent else name).lower() not in self.fixed


NO_EVOLUTION = Evolution()
ADD_COLUMNS = Evolution(adds=True)


def _required(fields: Iterable[pa.Field], parent: Path) -> Iterable[Path]:
    for field in fields:
        path = (*parent, field.name.lower())
        if not field.nullable:
            yield path
        yield from _required_inside(field.type, path)


def _required_inside(data_type: pa.DataType, path: Path) -> Iterable[Path]:
    import pyarrow as pa

    if pa.types.is_struct(data_type):
        yield from _required(data_type, path)
    elif pa.types.is_map(data_type):
        yield (*path, "key")
        yield from _required([data_type.item_field.with_name("value")], path)
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        yield from _required([data_type.value_field.with_name("element")], path)
