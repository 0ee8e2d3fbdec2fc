"""Compares the columns of rows or files with those of a table. Used by all destinations.

Pure. Runs on the driver, in the delivery process and on executors. Each format converts its schemas to
`SchemaColumn`s, and defines which differences are problems and how they are worded.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..errors import SchemaMismatchError

TypeT = TypeVar("TypeT")
GivenT = TypeVar("GivenT")
TableT = TypeVar("TableT")


@dataclass(frozen=True, slots=True)
class SchemaColumn(Generic[TypeT]):
    """A column, a field of a struct, an element of a list, or a key or value of a map."""

    name: str
    type: TypeT
    """Type in the format's own representation, including nested types."""
    is_required: bool = False
    nesting: str = ""
    """`struct`, or the format's name for a list or a map; empty if no nested columns have to be compared."""
    children: tuple[SchemaColumn[TypeT], ...] = ()
    """Fields, element, or key and value."""
    field_id: int = 0

    def __str__(self) -> str:
        """Type name for messages."""
        if not self.nesting:
            return str(self.type)
        is_struct = self.nesting == "struct"
        inside = [f"{child.name}: {child}" if is_struct else str(child) for child in self.children]
        return f"{self.nesting}<{', '.join(inside)}>"


class DifferenceKind(enum.Enum):
    """What a difference is about."""

    MISSING = enum.auto()
    """The table has a nullable column that is missing."""
    REQUIRED = enum.auto()
    """The table has a NOT NULL column that is missing."""
    NEW = enum.auto()
    """These columns, all of one level, are not in the table. `table` has the table's columns of that
    level.
    """
    TYPE = enum.auto()
    """The table's type cannot hold the given type."""
    NULLS = enum.auto()
    """The table's column is NOT NULL, and the given column may have NULLs."""
    SPELLING = enum.auto()
    """The table has the column under another name."""
    FIELD_ID = enum.auto()
    """The table's element, key or value has another field id."""
    MERGED = enum.auto()
    """These given columns differ only in case, and match one column of the table."""
    AMBIGUOUS = enum.auto()
    """These columns of the table differ only in case, and the given column matches all of them."""
    CASE = enum.auto()
    """The given column differs only in case from another one, and the table has no column with exactly this
    name.
    """


@dataclass(frozen=True, slots=True)
class Difference(Generic[GivenT, TableT]):
    kind: DifferenceKind
    parent: tuple[str, ...]
    """Names of the enclosing columns from the top level, as in the table."""
    given: tuple[SchemaColumn[GivenT], ...] = ()
    table: tuple[SchemaColumn[TableT], ...] = ()
    is_in_key: bool = False
    """The difference is in the key of a map."""


Key = Callable[[SchemaColumn[Any]], Hashable]


def by_name(column: SchemaColumn[Any]) -> Hashable:
    """Match columns with exactly the same name."""
    return column.name


def by_field_id(column: SchemaColumn[Any]) -> Hashable:
    return column.field_id


def without_case(given: Iterable[str], table: Iterable[str]) -> Callable[[str], Hashable]:
    """Match columns as Spark does: by the exact name first, then by the lower-case name."""
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
    """Yield the differences level by level: first those inside the table's columns, then new columns.

    Args:
        holds: return True if the second type can hold all values of the first; not called for equal types or
            for the same kind of nesting
        key: returns equal values for matching columns; None: `without_case`
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
                is_in_key,
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
        yield Difference(DifferenceKind.SPELLING, parent, (given,), (table,), is_in_key)
    if key is not None and key(given) != key(table):
        yield Difference(DifferenceKind.FIELD_ID, parent, (given,), (table,), is_in_key)
    if table.is_required and not given.is_required:
        yield Difference(DifferenceKind.NULLS, parent, (given,), (table,), is_in_key)
    if not table.nesting or given.nesting != table.nesting:
        if given.type != table.type and not holds(given.type, table.type):
            yield Difference(DifferenceKind.TYPE, parent, (given,), (table,), is_in_key)
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
    DifferenceKind.MERGED: "{names} differ only in case and both match {columns}",
    DifferenceKind.AMBIGUOUS: "{names} matches {columns} of the table",
    DifferenceKind.CASE: "{names} differs from another column only in case",
}
"""Which differences are problems for the columns of a query."""

NOT_ADDED: Mapping[DifferenceKind, str] = {
    DifferenceKind.NEW: "{parent} has no column {names}, and schemaEvolution=addColumns adds none there: "
    "leave it out of the query, or add it to the table"
}
"""For new columns that the destination does not add, whatever the option says."""

FILES: Mapping[DifferenceKind, str] = {
    DifferenceKind.REQUIRED: "{columns} is NOT NULL in the table and missing in the files",
    DifferenceKind.TYPE: "{columns} is now {table}; the files have {given}",
    DifferenceKind.NULLS: "{columns} is now NOT NULL; the files may have NULLs",
    DifferenceKind.FIELD_ID: "{columns} has another field id in the table than in the files",
}
"""Which differences are problems for the columns of files, if the table was altered after they were
written.
"""


def problems_in(
    differences: Iterable[Difference[GivenT, TableT]], wording: Mapping[DifferenceKind, str]
) -> Iterator[str]:
    """One sentence for each difference that `wording` has a text for."""
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
    """The error that shows both schemas. `table_name` includes the format, for example `Delta table
    /lake/t`.
    """
    has = "" if table is None else f"\n  The table has:\n{described(table)}"
    return SchemaMismatchError(
        f"The query's rows do not fit the {table_name}:\n{_lines(problems)}\n  The query has:\n"
        f"{described(given)}{has}\n"
        "Select, rename or cast the columns in the query, or alter the table. Nothing was written."
    )


UNDO = "Undo the change of the table."


def files_mismatch(
    table_name: str,
    batch: str,
    problems: Sequence[str],
    written: Sequence[SchemaColumn[Any]],
    current: Sequence[SchemaColumn[Any]],
    remedy: str = UNDO,
) -> SchemaMismatchError:
    """The error for files that are already written.

    Args:
        remedy: how the table accepts the files; empty if it never does
    """
    return SchemaMismatchError(
        f"The {table_name} was altered while {batch} was written, and no longer accepts its files:\n"
        f"{_lines(problems)}\n"
        "  The files have:\n"
        f"{described(written)}\n"
        "  The table has:\n"
        f"{described(current)}\n"
        f"The batch was not committed. {remedy}{' ' if remedy else ''}A coupled query can be started again: "
        "it writes the batch for the new schema. For a decoupled query, penstock skip gives up the batch "
        "with its rows."
    )


def _lines(problems: Sequence[str]) -> str:
    return "\n".join(f"  - {problem}" for problem in problems)


def described(columns: Sequence[SchemaColumn[Any]]) -> str:
    """One line for each column."""
    return "\n".join(
        f"    {column.name}: {column}{' NOT NULL' if column.is_required else ''}" for column in columns
    )
