"""A hash for each row, with a field for each column: `structure=row`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from ..requests.json_rows import check_values, json_values

Command: TypeAlias = tuple[str | bytes | int, ...]


@dataclass(frozen=True, slots=True)
class RowCommands:
    """The commands of one entry, in their order. It is delivered when all of them are acknowledged."""

    commands: tuple[Command, ...]

    @property
    def size_bytes(self) -> int:
        return sum(len(str(part)) for command in self.commands for part in command)


def row_commands(
    rows: pa.RecordBatch, keys: Sequence[str], kept: Sequence[Collection[str]]
) -> list[RowCommands]:
    """Return the commands of each row: HSET for its values, HDEL for its columns that are NULL.

    Args:
        keys: of Redis
        kept: for each row, columns whose field stays as it is

    Raises:
        SchemaMismatchError: a value cannot be converted.
    """
    check_values(rows)
    columns = [_texts(rows.column(name), name) for name in rows.schema.names]
    made = []
    for number, (key, some) in enumerate(zip(keys, kept, strict=True)):
        values = [
            (name, column[number])
            for name, column in zip(rows.schema.names, columns, strict=True)
            if name not in some
        ]
        given = [part for name, value in values if value is not None for part in (name, value)]
        removed = [name for name, value in values if value is None]
        commands: list[Command] = [("HSET", key, *given)] if given else []
        if removed:
            commands.append(("HDEL", key, *removed))
        made.append(RowCommands(tuple(commands)))
    return made


def _texts(column: pa.Array, name: str) -> list[str | None]:
    """Return the values as JSON, without the quotes of strings."""
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return [
        value if value is None or isinstance(value, str) else encode(value)
        for value in json_values(column, name)
    ]
