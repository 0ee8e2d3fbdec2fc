"""Checks whether written files still fit an Iceberg table. Compares by field id, as Iceberg readers do.

Pure: takes metadata, returns columns or raises an error. Called right before each commit attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField, StructType

from ..file_tables.manifest import LakeManifest
from ..file_tables.schema_diff import (
    FILES,
    UNDO,
    Difference,
    DifferenceKind,
    SchemaColumn,
    by_field_id,
    compare,
    dotted,
    files_mismatch,
    problems_in,
)
from .schema import columns_of, widens


def check_files_fit(metadata: TableMetadata, content: LakeManifest) -> list[str]:
    """Return the columns of the files that the table does not have yet: dotted names, ordered by field id.

    Columns that were renamed, moved, dropped or widened since are accepted: readers find them by field id.
    So are those that the commit of the files alters.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and no longer accepts them.
    """
    schema = Schema.model_validate_json(content.schema_json)
    written, current = columns_of(schema.as_struct()), columns_of(metadata.schema().as_struct())
    new = {schema.find_field(name).field_id: name for name in content.new_columns}
    new_columns = columns_of(StructType(*map(schema.find_field, content.new_columns)))
    fresh_ids = frozenset(field_id for column in new_columns for field_id in _ids_of(column))
    altered = frozenset(column.field_id for name in content.altered for column in _named(schema, name))
    planned = _Planned(new, fresh_ids, metadata.last_column_id, altered)
    differences = list(compare(written, current, widens, key=by_field_id))
    found_problems = [problem for found in differences for problem in planned.problems(found)]
    problems, remedies = [text for text, _ in found_problems], [remedy for _, remedy in found_problems]
    if metadata.default_spec_id != content.partition_spec_id:
        parts = [f"{part.name} ({part.transform})" for part in metadata.spec().fields]
        problems.append(
            f"it is now partitioned by {', '.join(parts) or 'nothing'} (spec {metadata.default_spec_id}); "
            f"the files have spec {content.partition_spec_id}"
        )
        remedies.append(UNDO)
    if problems:
        name = f"Iceberg table at {metadata.location}"
        remedy = " ".join(dict.fromkeys(remedies)) if all(remedies) else ""
        raise files_mismatch(name, "the batch", problems, written, current, remedy)
    missing_columns = {
        c.field_id for found in differences if found.kind is DifferenceKind.NEW for c in found.given
    }
    return [new[field_id] for field_id in sorted(missing_columns & new.keys())]


_NONE = ""
_RENAME = (
    "A column that is added again is another column for Iceberg, so the change cannot be undone. To commit "
    "the batch without the values of the old column: rename the new one, commit, and rename it back."
)


@dataclass(frozen=True, slots=True)
class _Planned:
    """Field ids assigned to new columns when the batch was planned, compared with the current table."""

    new_ids: Collection[int]
    """Ids of the new columns."""
    fresh_ids: Collection[int]
    """Ids of the new columns and their nested fields."""
    last_column_id: int
    """The highest field id that the table has ever assigned."""
    altered_ids: Collection[int] = ()
    """Ids of columns whose type and NOT NULL the commit changes."""

    def problems(self, found: Difference[IcebergType, IcebergType]) -> Iterator[tuple[str, str]]:
        """Yield each problem with its remedy; empty if there is none: a field id is assigned only once."""
        if self._is_altered(found):
            return
        if found.kind is DifferenceKind.NEW:
            names = {column.name.lower(): column.name for column in found.table}
            for column in found.given:
                yield from self._without_field(found.parent, column, names.get(column.name.lower()))
        elif found.kind is DifferenceKind.SPELLING and found.given[0].field_id in self.fresh_ids:
            path = dotted(found.parent, found.given[0])
            yield f"the table's {found.table[0].name!r} has the field id of the files' {path!r}", _NONE
        is_fresh = any(column.field_id in self.fresh_ids for column in found.given)
        is_final = found.kind is DifferenceKind.FIELD_ID or is_fresh
        yield from ((text, _NONE if is_final else UNDO) for text in problems_in([found], FILES))

    def _is_altered(self, found: Difference[IcebergType, IcebergType]) -> bool:
        if not found.given or found.given[0].field_id not in self.altered_ids:
            return False
        if found.kind is DifferenceKind.TYPE:
            return widens(found.table[0].type, found.given[0].type)
        return found.kind is DifferenceKind.NULLS

    def _without_field(
        self, parent: tuple[str, ...], column: SchemaColumn[IcebergType], alike: str | None
    ) -> Iterator[tuple[str, str]]:
        """The table has no field with the id of this field of the files."""
        path = dotted(parent, column)
        if column.field_id in self.new_ids:
            if alike is not None:
                yield f"{path!r} is now {alike!r} in the table, with another field id", _NONE
            elif min(_ids_of(column)) <= self.last_column_id:
                what = f"the field id of {path!r} was assigned to another column, which was dropped since"
                yield what, _NONE
        elif column.field_id in self.fresh_ids:
            what = f"the table's {'.'.join(parent)!r} has no field {path!r} with the field id of the files"
            yield what, _NONE
        elif alike is not None:
            yield f"{path!r} was dropped and added again; its values would be lost", _RENAME


def _named(schema: Schema, name: str) -> Sequence[NestedField]:
    """The column with a dotted name; none if the files have no such column."""
    with suppress(ValueError):
        return [schema.find_field(name)]
    return ()


def _ids_of(column: SchemaColumn[IcebergType]) -> Iterator[int]:
    yield column.field_id
    for inner in column.children:
        yield from _ids_of(inner)
