"""Messages of a source of changes, after they are parsed: as Arrow columns, or as Python objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.errors import SchemaMismatchError
from ...parquet.columns import is_list, with_offsets
from .conversion import UNKNOWN, Logical, convert
from .objects import from_objects
from .unavailable import booleans, unavailable, unavailable_objects

Path: TypeAlias = tuple[str, ...]
"""Names of fields from the top of a message."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of a column of the table in some messages."""

    values: pa.Array
    unavailable: pa.Array | None = None
    """Where a message has a placeholder in place of the value, which is NULL; None: nowhere."""


class Fields(Protocol):
    """The fields of some messages."""

    def __len__(self) -> int: ...

    def has(self, path: Path) -> pa.Array:
        """Return for each message whether the field is there and not null."""
        ...

    def column(self, path: Path, target: pa.DataType, logical: Logical = UNKNOWN) -> Column:
        """Return the values of a field; NULL where it is missing.

        Raises:
            SchemaMismatchError: a value does not have the type.
        """
        ...


@dataclass(frozen=True, slots=True)
class ArrowFields:
    """Fields that are columns. A struct has the fields below it."""

    columns: Mapping[str, pa.Array]
    count: int

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> ArrowFields:
        return cls(dict(zip(rows.schema.names, rows.columns, strict=True)), rows.num_rows)

    def __len__(self) -> int:
        return self.count

    def has(self, path: Path) -> pa.Array:
        column = self._at(path)
        return booleans([False] * self.count) if column is None else pc.is_valid(column)

    def column(self, path: Path, target: pa.DataType, logical: Logical = UNKNOWN) -> Column:
        values = self._at(path)
        if values is None:
            return Column(pa.nulls(self.count, target))
        missing = unavailable(values)
        if missing is not None:
            values = pc.if_else(missing, pa.nulls(self.count, values.type), values)
        try:
            if pa.types.is_nested(values.type) and values.type != target:
                return Column(from_objects(values.to_pylist(), target, logical), missing)
            return Column(convert(values, target, logical), missing)
        except ValueError as error:
            raise misfit(path, target, error) from error

    def _at(self, path: Path) -> pa.Array | None:
        values = self.columns.get(path[0])
        for name in path[1:]:
            if values is None or not pa.types.is_struct(values.type):
                return None
            if (index := values.type.get_field_index(name)) < 0:
                return None
            values = pc.struct_field(values, [index])
        if values is not None and (is_list(values.type) or pa.types.is_map(values.type)):
            return with_offsets(values)
        return values


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """Fields of Python objects."""

    objects: Sequence[dict[str, Any]]
    _parents: dict[Path, list[dict[str, Any]]] = field(default_factory=dict, compare=False)
    """The objects that have fields, by path; empty ones where there are none."""

    def __len__(self) -> int:
        return len(self.objects)

    def has(self, path: Path) -> pa.Array:
        return booleans([value is not None for value in self._at(path)])

    def column(self, path: Path, target: pa.DataType, logical: Logical = UNKNOWN) -> Column:
        values = self._at(path)
        missing = unavailable_objects(values)
        if missing is not None:
            values = [
                None if is_missing else value for value, is_missing in zip(values, missing, strict=True)
            ]
        try:
            converted = from_objects(values, target, logical)
        except ValueError as error:
            raise misfit(path, target, error) from error
        return Column(converted, None if missing is None else booleans(missing))

    def _at(self, path: Path) -> list[Any]:
        *above, name = path
        return [parent.get(name) for parent in self._objects_at(tuple(above))]

    def _objects_at(self, path: Path) -> Sequence[dict[str, Any]]:
        if not path:
            return self.objects
        if (found := self._parents.get(path)) is None:
            found = [value if isinstance(value, dict) else {} for value in self._at(path)]
            self._parents[path] = found
        return found


def misfit(path: Path, target: pa.DataType, error: ValueError) -> SchemaMismatchError:
    return SchemaMismatchError(f"The field {'.'.join(path)} has a value that does not fit {target}: {error}.")


@dataclass(frozen=True, slots=True)
class Messages:
    """Some messages of a batch, all of one form."""

    fields: Fields
    rows: pa.Array
    """Their row numbers in the batch."""
    logical: Mapping[Path, Logical] = field(default_factory=dict)
    """Logical types of fields, from the schema of the messages."""
    is_flat: bool = False
    """True if the columns of a row are fields at the top."""

    def text(self, *path: str) -> pa.Array:
        return self.fields.column(path, pa.string()).values

    def number(self, *path: str) -> pa.Array:
        return self.fields.column(path, pa.int64()).values

    def image(self, path: Path, columns: pa.Schema, given: Mapping[str, Logical]) -> tuple[Column, ...]:
        """Return the columns of the table from the object at a path: the row before or after the change.

        Args:
            given: logical types for messages without a schema, by column
        """
        return tuple(
            [
                self.fields.column(
                    (*path, column.name),
                    column.type,
                    self.logical.get((*path, column.name)) or given.get(column.name, UNKNOWN),
                )
                for column in columns
            ]
        )


@dataclass(frozen=True, slots=True)
class FieldsWithRows:
    """Fields of which some are rows that were texts in the messages."""

    fields: Fields
    rows: ArrowFields

    def __len__(self) -> int:
        return len(self.fields)

    def has(self, path: Path) -> pa.Array:
        return self._of(path).has(path)

    def column(self, path: Path, target: pa.DataType, logical: Logical = UNKNOWN) -> Column:
        return self._of(path).column(path, target, logical)

    def _of(self, path: Path) -> Fields:
        return self.rows if path[0] in self.rows.columns else self.fields
