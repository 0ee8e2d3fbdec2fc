"""Whether the rows of a commit fit the columns of a stream, in formats where a column has an id."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol, TypeVar


class StreamColumn(Protocol):
    """A column of a table. `str` shows it, `==` compares it with what it was before."""

    @property
    def name(self) -> str: ...

    @property
    def required(self) -> bool:
        """It is NOT NULL."""
        ...


ColumnT = TypeVar("ColumnT", bound=StreamColumn)


def problems_of_columns(
    there: Mapping[int, ColumnT], read: Mapping[int, ColumnT], names: Collection[str], *, are_all: bool
) -> Iterator[str]:
    """Yield why rows do not fit.

    Args:
        there: columns of the rows, by their ids
        read: columns of the table when the stream was opened
        names: of those that the stream reads
        are_all: it reads all
    """
    for number, column in read.items():
        found = there.get(number)
        if column.name not in names or found == column:
            continue
        if found is not None:
            yield f"{found.name!r} is now {found}, and {column} in the stream"
        elif column.required:
            yield f"{column.name!r} is missing, and is NOT NULL in the stream"
    if are_all:
        yield from (f"{column.name!r} is new" for number, column in there.items() if number not in read)
