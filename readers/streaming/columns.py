"""Whether the rows of a commit fit the columns of a stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa


class StreamColumn(Protocol):
    """A column of a table. `str` shows it, `==` compares it with what it was before."""

    @property
    def name(self) -> str: ...

    @property
    def required(self) -> bool:
        """It is NOT NULL."""
        ...


@dataclass(frozen=True, slots=True)
class ArrowColumn:
    """See `StreamColumn`. Ids do not count: there are none, or other ones in other versions."""

    name: str
    data_type: pa.DataType
    required: bool

    def __str__(self) -> str:
        return f"{self.name} {self.data_type}{' NOT NULL' if self.required else ''}"


IdT = TypeVar("IdT", int, str)
ColumnT = TypeVar("ColumnT", bound=StreamColumn)


def problems_of_columns(
    there: Mapping[IdT, ColumnT], read: Mapping[IdT, ColumnT], names: Collection[str], *, are_all: bool
) -> Iterator[str]:
    """Yield why rows do not fit.

    Args:
        there: columns of the rows, by their ids, or by their names in formats without ids
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
