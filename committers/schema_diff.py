"""How given columns, those of rows or of files, differ from a table's: one comparison, for every destination.

Pure. Runs on the driver, in the delivery process and on executors. A format translates its schemas into
`SchemaColumn`s, and says which differences are problems and how they are worded.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import SchemaMismatchError

TypeT = TypeVar("TypeT")
GivenT = TypeVar("GivenT")
TableT = TypeVar("TableT")


@dataclass(frozen=True, slots=True)
class SchemaColumn(Generic[TypeT]):
    """A column, a field of a struct, the elements of a list, or the keys or values of a map."""

    name: str
    type: TypeT
    """As the format has it, with all that is inside."""
    is_required: bool = False
    nesting: str = ""
    """`struct`, or what the format calls a list or a map; empty if there is nothing inside to compare."""
    children: tuple[SchemaColumn[TypeT], ...] = ()
    """The fields, the elements, or the keys and the values."""
    field_id: int = 0

    def __str__(self) -> str:
        """The type, for messages."""
        if not self.nesting:
            return str(self.type)
        is_struct = self.nesting == "struct"
        inside = [f"{child.name}: {child}" if is_struct else str(child) for child in self.children]
        return f"{self.nesting}<{', '.join(inside)}>"


class DifferenceKind(enum.Enum):
    """What a difference is about."""

    MISSING = enum.auto()
    """The table has a nullable column that is not given."""
    REQUIRED = enum.auto()
    """The table has a NOT NULL column that is not given."""
    NEW = enum.auto()
    """These columns, all of one level, are not in the table. `table` holds the columns that it has there."""
    TYPE = enum.auto()
    """The table's type does not hold the given one."""
    NULLS = enum.auto()
    """The table has the column NOT NULL, and what is given may have NULLs."""
    SPELLING = enum.auto()
    """The table has the column under another name."""
    FIELD_ID = enum.auto()
    """The table has the elements, keys or values under another field id."""
    MERGED = enum.auto()
    """Case alone tells these given columns apart, and they are one column of the table."""
    AMBIGUOUS = enum.auto()
    """Case alone tells these columns of the table apart, and the given column may be each of them."""
    CASE = enum.auto()
    """Case alone tells the given column from another one, and it is not in the table under this very name."""


@dataclass(frozen=True, slots=True)
class Difference(Generic[GivenT, TableT]):
    kind: DifferenceKind
    parent: tuple[str, ...]
    """Names from the top down to what these columns are in, as the table spells them."""
    given: tuple[SchemaColumn[GivenT], ...] = ()
    table: tuple[SchemaColumn[TableT], ...] = ()
    is_in_key: bool = False
    """In the key of a map."""


Key = Callable[[SchemaColumn[Any]], Hashable]


def by_name(column: SchemaColumn[Any]) -> Hashable:
    """Columns of the very same name belong together."""
    return column.name


def by_field_id(column: SchemaColumn[Any]) -> Hashable:
    return column.field_id


def without_case(given: Iterable[str], table: Iterable[str]) -> Callable[[str], Hashable]:
    """As Spark compares names: the very same ones belong together, the others by their lower case."""
    exact = {*given} & {*table}
    return lambda name: name if name in exact else (name.lower(),)


def compare(
    given: Sequence[SchemaColumn[GivenT]],
    table: Sequence[SchemaColumn[TableT]],
    holds: Callable[[GivenT, TableT], bool],
    *,
    key: Key | None = None,
    parent: tuple[str, ...] = (),
    is_in_key: bool = False,
) -> Iterator[Difference[GivenT, TableT]]:
    """The differences level by level; those inside the table's columns first, then new columns.

    Args:
        holds: is every value of the first type one of the second? Not asked where they are nested alike, or
            equal
        key: equal for columns that belong together; `without_case` if None
    """
    spelling = without_case((column.name for column in given), (column.name for column in table))
    key_of = key or (lambda column: spelling(column.name))
    sources, targets = defaultdict(list), defaultdict(list)
    for source in given:
        sources[key_of(source)].append(source)
    for target in table:
        targets[key_of(target)].append(target)

    for target in table:
        found = sources.get(key_of(target), [])
        if not found:
            yield Difference(
                DifferenceKind.REQUIRED if target.is_required else DifferenceKind.MISSING,
                parent,
                (),
                (target,),
            )
        if len(found) > 1:
            yield Difference(DifferenceKind.MERGED, parent, tuple(found), (target,))
        for source in found[:1]:
            yield from _compare_pair(source, target, holds, key, parent, is_in_key)
    names, lower = {column.name for column in table}, Counter(column.name.lower() for column in given)
    for source in given:
        alike, fitting = sources[key_of(source)], targets.get(key_of(source), [])
        if len(fitting) > 1:
            yield Difference(DifferenceKind.AMBIGUOUS, parent, (source,), tuple(fitting))
        is_merged = len(alike) > 1 and fitting
        if lower[source.name.lower()] > 1 and source.name not in names and not is_merged:
            yield Difference(DifferenceKind.CASE, parent, (source,))
    new = tuple([source for source in given if key_of(source) not in targets])
    if new:
        yield Difference(DifferenceKind.NEW, parent, new, tuple(table), is_in_key)


def _compare_pair(
    given: SchemaColumn[GivenT],
    table: SchemaColumn[TableT],
    holds: Callable[[GivenT, TableT], bool],
    key: Key | None,
    parent: tuple[str, ...],
    is_in_key: bool,
) -> Iterator[Difference[GivenT, TableT]]:
    path, is_map = (*parent, table.name), len(table.children) == 2
    if given.name != table.name:
        yield Difference(DifferenceKind.SPELLING, parent, (given,), (table,))
    if key is not None and key(given) != key(table):
        yield Difference(DifferenceKind.FIELD_ID, parent, (given,), (table,))
    if table.is_required and not given.is_required:
        yield Difference(DifferenceKind.NULLS, parent, (given,), (table,))
    if not table.nesting or given.nesting != table.nesting:
        if given.type != table.type and not holds(given.type, table.type):
            yield Difference(DifferenceKind.TYPE, parent, (given,), (table,))
    elif table.nesting == "struct":
        yield from compare(given.children, table.children, holds, key=key, parent=path, is_in_key=is_in_key)
    else:
        for number, (inner, target) in enumerate(zip(given.children, table.children, strict=True)):
            is_key = is_in_key or (is_map and number == 0)
            yield from _compare_pair(inner, target, holds, key, path, is_key)


# Messages -----------------------------------------------------------------------------------------

QUERY: Mapping[DifferenceKind, str] = {
    DifferenceKind.REQUIRED: "{columns} is NOT NULL in the table and missing in the query",
    DifferenceKind.TYPE: "{columns} is {table} in the table and {given} in the query",
    DifferenceKind.NEW: "{parent} has no column {names} (schemaEvolution=addColumns would add it)",
    DifferenceKind.MERGED: "{names} differ by case only, and fit {columns} both",
    DifferenceKind.AMBIGUOUS: "{names} fits {columns} of the table",
    DifferenceKind.CASE: "{names} differs from another column by case only",
}
"""What is a problem in the columns of a query."""

FILES: Mapping[DifferenceKind, str] = {
    DifferenceKind.REQUIRED: "{columns} is NOT NULL in the table and not in the files",
    DifferenceKind.TYPE: "{columns} is now {table}; the files have {given}",
    DifferenceKind.NULLS: "{columns} is now NOT NULL; the files may have NULLs",
    DifferenceKind.FIELD_ID: "{columns} has another field id in the table than in the files",
}
"""What is a problem in the columns of files, after the table was altered."""


def problems_in(
    differences: Iterable[Difference[GivenT, TableT]], wording: Mapping[DifferenceKind, str]
) -> Iterator[str]:
    """A sentence for each difference of the kinds in `wording`."""
    for found in differences:
        if found.kind in wording:
            yield wording[found.kind].format(
                names=", ".join(repr(dotted(found.parent, column)) for column in found.given),
                columns=", ".join(repr(dotted(found.parent, column)) for column in found.table),
                given=found.given[0] if found.given else "",
                table=found.table[0] if found.table else "",
                parent=f"{'.'.join(found.parent)!r} of the table" if found.parent else "the table",
            )


def dotted(parent: Sequence[str], column: SchemaColumn[Any]) -> str:
    return ".".join((*parent, column.name))


def query_mismatch(
    table_name: str,
    problems: Sequence[str],
    given: Sequence[SchemaColumn[Any]],
    table: Sequence[SchemaColumn[Any]] | None = None,
) -> SchemaMismatchError:
    """The error that shows both schemas. `table_name` with the format, such as `Delta table /lake/t`."""
    has = "" if table is None else f"\n  The table has:\n{described(table)}"
    return SchemaMismatchError(
        f"The query's rows do not fit the {table_name}:\n{_lines(problems)}\n  The query has:\n"
        f"{described(given)}{has}\n"
        "Select, rename or cast the columns in the query, or alter the table. Nothing was written."
    )


def files_mismatch(
    table_name: str,
    batch: str,
    problems: Sequence[str],
    written: Sequence[SchemaColumn[Any]],
    current: Sequence[SchemaColumn[Any]],
) -> SchemaMismatchError:
    """The same for files that are written already."""
    return SchemaMismatchError(
        f"The {table_name} was altered while {batch} was written, and can no longer take its files:\n"
        f"{_lines(problems)}\n  The files have:\n{described(written)}\n  The table has:\n"
        f"{described(current)}\nThe batch did not land. Alter the table back; or start a coupled query "
        "again, which writes it for the table as it is now."
    )


def _lines(problems: Sequence[str]) -> str:
    return "\n".join(f"  - {problem}" for problem in problems)


def described(columns: Sequence[SchemaColumn[Any]]) -> str:
    """One line a column."""
    return "\n".join(
        f"    {column.name}: {column}{' NOT NULL' if column.is_required else ''}" for column in columns
    )
