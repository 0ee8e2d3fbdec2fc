"""The schema of a Lance table: the columns of its files, their types and field ids."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from ..arrow_ipc.reader import read_schema
from ..contract import Mode
from ..errors import (
    ConfigurationError,
    ManifestCorruptError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from ..file_tables.manifest import LakeManifest
from .table import KIND

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.lance.schema import LanceField
    from lance.schema import LanceSchema

FileVersion: TypeAlias = Literal["2.0", "2.1", "2.2"]
FILE_VERSIONS: tuple[FileVersion, ...] = ("2.0", "2.1", "2.2")
"""Versions of Lance's data files that Penstock writes."""
FLOATS = {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64()}


@dataclass(frozen=True, slots=True)
class Vector:
    """A column of vectors of one length."""

    length: int
    element: str = "float32"

    @property
    def data_type(self) -> pa.DataType:
        return pa.list_(FLOATS[self.element], self.length)

    def __str__(self) -> str:
        return f"{self.length}:{self.element}"


@dataclass(frozen=True, slots=True)
class LanceLayout:
    """How the files of one batch are written."""

    schema: pa.Schema
    file_version: str
    table_id: str
    table_version: int
    new_columns: tuple[str, ...] = ()

    def content(self, mode: Mode, origins: tuple[str, ...]) -> LakeManifest:
        schema = base64.b64encode(self.schema.serialize()).decode()
        files = {"file_version": self.file_version, "schema": schema}
        return LakeManifest(
            kind=KIND,
            mode=mode,
            table_id=self.table_id,
            table_version=self.table_version,
            schema_json=json.dumps(files),
            new_columns=self.new_columns,
            partition_by=(),
            files=(),
            origins=origins,
        )


def files_of(content: LakeManifest) -> tuple[pa.Schema, str]:
    """Return the schema of the files in a manifest, and their version.

    Raises:
        ManifestCorruptError: the manifest has another content.
    """
    try:
        files = json.loads(content.schema_json)
        schema = read_schema(base64.b64decode(files["schema"]))
        return schema, str(files["file_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestCorruptError(
            f"A manifest has no schema of Lance files ({error}). Nothing was committed. Restore the store "
            "from a backup, or use the version of Penstock that prepared the batch."
        ) from error


# Types ------------------------------------------------------------------------------------------------


def with_vectors(rows: pa.Schema, vectors: Mapping[str, Vector], table: pa.Schema | None) -> pa.Schema:
    """Return the rows' columns with the types in which vectors are written.

    Args:
        vectors: from the query's options
        table: columns of the table; None for a new one. Its vectors need no option.

    Raises:
        ConfigurationError, SchemaMismatchError: lists all columns that cannot be vectors.
    """
    asked = {name.lower(): (name, vector) for name, vector in vectors.items()}
    stored = {field.name.lower(): field.type for field in table or ()}
    unknown = [name for name, _ in asked.values() if name.lower() not in {one.lower() for one in rows.names}]
    if unknown:
        raise ConfigurationError(
            f"vectors names {', '.join(unknown)}, but the query has the columns {', '.join(rows.names)}. "
            "Only columns at the top level can be vectors."
        )
    problems, fields = [], []
    for field in rows:
        has = stored.get(field.name.lower())
        wanted = asked[field.name.lower()][1].data_type if field.name.lower() in asked else None
        is_floats = is_array_of_floats(field.type)
        if wanted is not None and not is_floats:
            problems.append(
                f"{field.name}: vectors are made of array<float> or array<double>, not {field.type}."
            )
        elif wanted is not None and has not in (None, wanted):
            problems.append(f"{field.name}: vectors asks for {wanted}, and the table has {has}.")
        target = wanted or (has if has is not None and is_vector(has) and is_floats else field.type)
        fields.append(pa.field(field.name, target))
    if problems:
        raise SchemaMismatchError("The rows do not fit the vectors of the table.\n- " + "\n- ".join(problems))
    return pa.schema(fields)


def is_vector(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(data_type) and pa.types.is_floating(data_type.value_type))


def is_array_of_floats(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) and pa.types.is_floating(data_type.value_type))


def check_types(fields: Iterable[pa.Field], file_version: str, table_uri: str) -> None:
    """
    Raises:
        TableNotSupportedError: lists all columns that files of this version cannot hold without loss.
    """
    problems = [problem for field in fields for problem in _problems(field, field.name, file_version)]
    if problems:
        raise TableNotSupportedError(
            f"The Lance table {table_uri} has columns that Penstock cannot write:\n- " + "\n- ".join(problems)
        )


def _problems(field: pa.Field, path: str, file_version: str) -> Iterator[str]:
    data_type, types = field.type, pa.types
    metadata = {key.decode() for key in field.metadata or {}}
    if isinstance(data_type, pa.BaseExtensionType) or "ARROW:extension:name" in metadata:
        yield f"{path}: it has an extension type ({data_type})."
    elif any("blob" in key for key in metadata):
        yield f"{path}: it is stored as blobs."
    elif types.is_dictionary(data_type):
        yield f"{path}: it is dictionary-encoded in the schema."
    elif types.is_struct(data_type) and file_version == "2.0":
        yield f"{path}: files of version 2.0 do not store whether a struct is NULL. Use version 2.1."
    elif types.is_map(data_type) and file_version < "2.2":
        yield f"{path}: files of version {file_version} have no maps. Use version 2.2."
    if not types.is_fixed_size_list(data_type):
        for child in _children(data_type):
            yield from _problems(child, f"{path}.{child.name}", file_version)


def _children(data_type: pa.DataType) -> Sequence[pa.Field]:
    if isinstance(data_type, pa.BaseExtensionType) or not pa.types.is_nested(data_type):
        return ()
    return [data_type.field(number) for number in range(data_type.num_fields)]


def nullable(field: pa.Field) -> pa.Field:
    """Return the field as a column of a new table, nullable on each level: Spark's NOT NULL may change."""
    return pa.field(field.name, _nullable_type(field.type))


def _nullable_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct([nullable(child) for child in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_nullable_type(data_type.key_type), _nullable_type(data_type.item_type))
    if pa.types.is_list(data_type):
        return pa.list_(_nullable_type(data_type.value_type))
    return data_type


# Do files fit the table? --------------------------------------------------------------------------------


def check_files_fit(table: LanceDataset, content: LakeManifest, what: str) -> list[pa.Field]:
    """Return the columns of the files that the table does not have yet.

    Args:
        what: names the batch in messages

    Raises:
        SchemaMismatchError: the table was changed since the batch was planned.
        TableNotSupportedError: its data storage version was changed.
    """
    files, file_version = files_of(content)
    if table.data_storage_version != file_version:
        raise TableNotSupportedError(
            f"The files of {what} have Lance's version {file_version}, and the table {table.uri} now has "
            f"{table.data_storage_version}. Nothing was committed. A replay of the batch writes new files."
        )
    stored = {field.name: field for field in table.schema}
    missing = [field for field in files if field.name not in stored]
    problems = [
        f"{field.name}: it was removed." for field in missing if field.name not in content.new_columns
    ]
    problems += [
        f"{field.name}: it is {stored[field.name].type} now, and was {field.type}."
        for field in files
        if field.name in stored and _nullable_type(stored[field.name].type) != _nullable_type(field.type)
    ]
    problems += [
        f"{name}: it was added, and must not be NULL."
        for name, field in stored.items()
        if name not in files.names and not field.nullable
    ]
    if problems:
        raise SchemaMismatchError(
            f"The columns of the Lance table {table.uri} were changed while {what} was written. Nothing was "
            "committed.\n- " + "\n- ".join(problems)
        )
    return missing


def field_ids(table: LanceDataset, files: pa.Schema) -> list[int]:
    """Return the table's field ids of the columns in a data file.

    Files of version 2.0 have a column for each level of a nested type, later ones only for its leaves.
    """
    columns = {field.name(): field for field in table.lance_schema.fields()}
    has_levels = table.data_storage_version == "2.0"

    def below(field: LanceField) -> Iterator[int]:
        children = field.children()
        if has_levels or not children:
            yield field.id()
        for child in children:
            yield from below(child)

    return [number for name in files.names for number in below(columns[name])]


def with_metadata(table: LanceDataset, changes: Mapping[str, str | None]) -> LanceSchema:
    """Return the table's schema with changed metadata; None removes a key. The field ids stay.

    The library's public constructor numbers the fields anew, so this uses the one with which it pickles.
    """
    pickled: Any = table.lance_schema.__reduce__()
    rebuild, (metadata, *fields) = pickled
    changed = {
        **json.loads(metadata),
        **{key: value and list(value.encode()) for key, value in changes.items()},
    }
    kept = {key: value for key, value in changed.items() if value is not None}
    schema: LanceSchema = rebuild(json.dumps(kept), *fields)
    return schema
