"""Changes the schema of an Iceberg table in the batch's own commit."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.update.schema import UpdateSchema

from ..errors import SchemaMismatchError
from ..file_tables.manifest import LakeManifest
from .schema import column_path, paths_of


def change_schema(transaction: Transaction, content: LakeManifest, missing_columns: Sequence[str]) -> None:
    """Give the table the columns, types and names of the files, as far as it does not have them yet.

    Columns are found by field id: others may have renamed them since the batch was planned.

    Args:
        missing_columns: dotted names of new columns that the table does not have yet

    Raises:
        SchemaMismatchError: a new column would not have the field id in the files.
    """
    if not (missing_columns or content.altered or content.renames):
        return
    planned = Schema.model_validate_json(content.schema_json)
    current = transaction.table_metadata.schema()
    change = _Change(planned, current, paths_of(current))
    if not (missing_columns or change.is_needed(content)):
        return
    with transaction.update_schema() as update:
        change.alter(update, content.altered)
        change.rename(update, content.renames)
        change.add(update, missing_columns)
    schema = transaction.table_metadata.schema()
    columns = {field_id: schema.find_field(field_id) for field_id in paths_of(schema)}
    for name in missing_columns:
        column = planned.find_field(name)
        if columns.get(column.field_id) != column:
            raise SchemaMismatchError(
                f"The column {name!r} would get a field id other than the one in the files. The batch was "
                "not committed. Start the query again, which writes the batch again."
            )


class _Change:
    """
    Args:
        planned: the schema of the files
        current: the table's
        paths: of the table's columns, by field id
    """

    def __init__(self, planned: Schema, current: Schema, paths: dict[int, tuple[str, ...]]) -> None:
        self._planned = planned
        self._current = current
        self._paths = paths

    def is_needed(self, content: LakeManifest) -> bool:
        """Return True if an altered or renamed column is not yet as planned."""
        for name in (*content.altered, *(name for name, _ in content.renames)):
            column = self._planned.find_field(name)
            if column.field_id in self._paths and self._current.find_field(column.field_id) != column:
                return True
        return False

    def alter(self, update: UpdateSchema, names: Sequence[str]) -> None:
        for name in names:
            column = self._planned.find_field(name)
            path = self._paths.get(column.field_id)
            if path is None:
                continue  # dropped since
            now = self._current.find_field(column.field_id)
            if now.field_type.is_primitive and now.field_type != column.field_type:
                update.update_column(path, field_type=column.field_type)
            if now.required and not column.required:
                update.make_column_optional(path)

    def rename(self, update: UpdateSchema, renames: Sequence[tuple[str, str]]) -> None:
        for name, old in renames:
            column = self._planned.find_field(name)
            path = self._paths.get(column.field_id)
            if path is not None and path[-1] == old:  # others may have given it another name
                update.rename_column(path, column.name)

    def add(self, update: UpdateSchema, names: Sequence[str]) -> None:
        for name in names:
            column = self._planned.find_field(name)
            path = column_path(self._planned, name)
            parent = path[:-1]
            if parent:
                of_parent = next(number for number, one in paths_of(self._planned).items() if one == parent)
                parent = self._paths[of_parent]
            update.add_column((*parent, path[-1]), column.field_type, doc=column.doc, required=False)
