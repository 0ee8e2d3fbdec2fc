"""Do files that are written still fit an Iceberg table? By field id, which is how Iceberg reads them.

Pure: metadata in, columns or an error out. Asked right before each attempt to commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from ..errors import SchemaMismatchError
from ..file_tables.manifest import LakeManifest
from .schema import describe, fields_of, type_name, widens


def check_files_fit(metadata: TableMetadata, content: LakeManifest) -> list[str]:
    """Columns of the files that the table has yet to get, dotted, in the order of their field ids.

    Columns that were renamed, moved, dropped or widened since are fine: readers find them by field id.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and cannot take them.
    """
    written, current = Schema.model_validate_json(content.schema_json), metadata.schema()
    new = {written.find_field(name): name for name in content.new_columns}
    fitting = _Fitting(
        new_ids={column.field_id: name for column, name in new.items()},
        fresh_ids=frozenset(field_id for column in new for field_id in _ids_of(column)),
        last_column_id=metadata.last_column_id,
    )
    fitting.struct(written.as_struct(), current.as_struct(), "")
    if metadata.default_spec_id != content.partition_spec_id:
        fitting.problems.append(
            f"it is now partitioned by {_partitioning(metadata)} (spec {metadata.default_spec_id}); the "
            f"files are by spec {content.partition_spec_id}"
        )
    if fitting.problems:
        lines = "\n".join(f"  - {problem}" for problem in fitting.problems)
        raise SchemaMismatchError(
            f"The Iceberg table at {metadata.location} was altered while the batch was written, and can no "
            f"longer take its files:\n{lines}\n  The files have:\n{describe(written.as_struct())}\n"
            f"  The table has:\n{describe(current.as_struct())}\nThe batch did not land. Alter the "
            "table back; or start a coupled query again, which writes it for the table as it is now."
        )
    return [fitting.new_ids[field_id] for field_id in sorted(fitting.lacking)]


def _partitioning(metadata: TableMetadata) -> str:
    return ", ".join(f"{part.name} ({part.transform})" for part in metadata.spec().fields) or "nothing"


@dataclass
class _Fitting:
    """Compares the files' fields to the table's, level by level; gathers what does not fit."""

    new_ids: Mapping[int, str]
    """The new columns' names by their field ids."""
    fresh_ids: frozenset[int]
    """The field ids that were planned for the new columns, and for what is inside them."""
    last_column_id: int
    problems: list[str] = field(default_factory=list)
    lacking: list[int] = field(default_factory=list)

    def struct(self, written: StructType, current: StructType, prefix: str) -> None:
        now = {column.field_id: column for column in current.fields}
        names = {column.name.lower(): column for column in current.fields}
        for column in written.fields:
            path, same = prefix + column.name, now.pop(column.field_id, None)
            if same is not None:
                self._same_id(column, same, path)
            elif column.field_id in self.new_ids:
                self._new(column, names.get(column.name.lower()), path)
            elif column.field_id in self.fresh_ids:
                self.problems.append(
                    f"the table's {prefix[:-1]!r} has no {path!r} with the field id of the files'"
                )
            elif column.name.lower() in names:
                self.problems.append(f"{path!r} was dropped and added anew; the rows' values would be lost")
        self.problems += [
            f"{prefix + column.name!r} is NOT NULL in the table and not in the files"
            for column in now.values()
            if column.required
        ]

    def _same_id(self, column: NestedField, same: NestedField, path: str) -> None:
        if column.field_id in self.fresh_ids and column.name != same.name:
            self.problems.append(f"the table's {same.name!r} has got the field id of the files' {path!r}")
        else:
            self._type(column.field_type, same.field_type, path)
            self._nulls(column.required, same.required, path)

    def _new(self, column: NestedField, alike: NestedField | None, path: str) -> None:
        if alike is not None:
            self.problems.append(f"{path!r} is in the table as {alike.name!r} now, under another field id")
        elif min(_ids_of(column)) <= self.last_column_id:
            self.problems.append(
                f"the field id of {path!r} has gone to another column, which was dropped since"
            )
        else:
            self.lacking.append(column.field_id)

    def _type(self, written: IcebergType, current: IcebergType, path: str) -> None:
        if isinstance(written, StructType) and isinstance(current, StructType):
            self.struct(written, current, f"{path}.")
        elif type(written) is type(current) and isinstance(written, (ListType, MapType)):
            for column, now in zip(fields_of(written), fields_of(current), strict=True):
                inner = f"{path}.{column.name}"
                if column.field_id != now.field_id:
                    self.problems.append(f"{inner!r} has another field id in the table than in the files")
                self._type(column.field_type, now.field_type, inner)
                self._nulls(column.required, now.required, inner)
        elif not widens(written, current):
            self.problems.append(f"{path!r} is now {type_name(current)}; the files have {type_name(written)}")

    def _nulls(self, written_required: bool, current_required: bool, path: str) -> None:
        if current_required and not written_required:
            self.problems.append(f"{path!r} is now NOT NULL; the files may have NULLs")


def _ids_of(column: NestedField) -> Iterator[int]:
    """The column's own field id and those inside it."""
    yield column.field_id
    for inner in fields_of(column.field_type):
        yield from _ids_of(inner)
