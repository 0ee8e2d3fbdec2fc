"""Compares the rows of a query with the files that a folder already has."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ...committers.cleaning.regular_files import open_input
from ...committers.error_causes import retryable
from ...committers.errors import ConfigurationError, TableNotSupportedError
from ...committers.file_tables.evolution import Narrowing
from ...committers.files.committer import place_of
from ...writers.delta.filesystem import open_filesystem
from ...writers.delta.partitions import directory
from ...writers.files.formats import FORMATS, format_in


def format_problems(rows: pa.Schema, partition_by: Sequence[str], file_format: str) -> list[str]:
    """Return the columns that the format does not have."""
    if file_format == "avro" and find_spec("fastavro") is None:
        raise ConfigurationError('fileFormat=avro needs fastavro: pip install "penstock[files]".')
    columns = pa.schema([field for field in rows if field.name not in partition_by])
    return list(FORMATS[file_format].problems(columns)) if file_format in FORMATS else []


def compare_with_files(
    folder: str,
    storage_options: Mapping[str, str],
    rows: pa.Schema,
    partition_by: Sequence[str],
    file_format: str,
    *,
    add_columns: bool,
    narrows: Narrowing,
) -> tuple[pa.Schema, list[str]]:
    """Compare the rows with one file of the folder: its format, its partitions, its columns.

    Args:
        narrows: integers and decimals may have other sizes; the writer checks each value

    Returns:
        The columns of the files to write, and the problems.
    """
    paths = (path for path in place_of(folder, storage_options).paths() if format_in(path) is not None)
    relative = next(paths, None)
    if relative is None:
        return rows, []
    path = posixpath.join(folder, relative)
    found, codec = format_in(path) or ("", None)
    if found != file_format:
        return rows, [
            f"fileFormat: {path} is {found}, and the query writes {file_format}. Use another folder."
        ]
    folders = [part.partition("=")[0] for part in relative.split("/")[:-1] if "=" in part]
    if folders != [directory(((name, ""),)).removesuffix("=") for name in partition_by]:
        return rows, [
            f"partitionBy: {path} is partitioned by {', '.join(folders) or 'nothing'}, and the query by "
            f"{', '.join(partition_by) or 'nothing'}."
        ]
    try:
        filesystem, root = open_filesystem(folder, dict(storage_options))
        with open_input(filesystem, posixpath.join(root, relative)) as content:
            stored = _stored_types(content, found, codec)
    except Exception as error:  # noqa: BLE001  each format has its own errors
        return rows, [f"{path} cannot be read as {found} ({error}). Move it away, or use another folder."]
    if narrows:
        rows = with_sizes(rows, stored, partial(_type_name, found=found))
    columns = {field.name: _type_name(field.type, found) for field in rows if field.name not in partition_by}
    return rows, list(_compared(path, stored, columns, found, add_columns=add_columns))


def with_sizes(
    rows: pa.Schema, stored: Mapping[str, str], type_name: Callable[[pa.DataType], str]
) -> pa.Schema:
    """Return the columns with the sizes that stored integers and decimals have.

    Args:
        stored: the names of types by column
        type_name: returns the name of a type as in `stored`
    """

    def sized(field: pa.Field) -> pa.Field:
        sizes = chain([field.type], _sizes_of(field.type))
        found = (size for size in sizes if type_name(size) == stored[field.name])
        return field.with_type(next(found, field.type))

    return pa.schema(
        [sized(field) if field.name in stored and _has_size(field.type) else field for field in rows]
    )


def read_rows(folder: str, storage_options: Mapping[str, str], column: str, value: str) -> pa.Table | None:
    """Return the rows of Parquet files with a value in a text column; None if there are no files.

    Raises:
        TableNotSupportedError: the folder has other files.
        RetryableError: a file cannot be read now.
    """
    names = [path for path in place_of(folder, storage_options).paths() if format_in(path) is not None]
    if not names:
        return None
    other = next((name for name in names if format_in(name) != ("parquet", None)), None)
    if other is not None:
        raise TableNotSupportedError(f"Penstock reads rows from Parquet files only, and {folder} has {other}")
    filesystem, root = open_filesystem(folder, dict(storage_options))
    try:
        paths = [posixpath.join(root, name) for name in names]
        found = ds.dataset(paths, filesystem=filesystem, partitioning="hive", partition_base_dir=root)
        return found.to_table(filter=ds.field(column) == value)
    except OSError as error:
        raise retryable(error)(
            f"The files in {folder} cannot be read: {error}. Check that the storage is reachable."
        ) from error


def _has_size(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_signed_integer(data_type) or pa.types.is_decimal(data_type))


def _sizes_of(data_type: pa.DataType) -> Iterable[pa.DataType]:
    if pa.types.is_decimal(data_type):
        return (pa.decimal128(digits, scale) for digits in range(1, 39) for scale in range(digits + 1))
    return (pa.int32(), pa.int64(), pa.int16(), pa.int8())  # an `int` of Avro is an int32


def _compared(
    path: str, stored: dict[str, str], columns: dict[str, str], found: str, *, add_columns: bool
) -> Iterator[str]:
    if found == "csv":  # readers take the columns of the first file, by position
        if list(stored) != list(columns):
            yield f"columns: {path} has {', '.join(stored)}, and the rows have {', '.join(columns)}."
        return
    names = {name.lower(): name for name in stored}
    for name, wanted in columns.items():
        if name not in stored and name.lower() in names:
            yield f"{name}: {path} has {names[name.lower()]}: only the case differs. Rename the column."
        elif name not in stored and not add_columns:
            yield f"{name}: {path} has no such column. Set schemaEvolution=addColumns to add it."
        elif name in stored and stored[name] != wanted and stored[name] and wanted:
            yield f"{name}: {path} has {stored[name]}, the rows have {wanted}."


def _stored_types(content: pa.NativeFile, found: str, codec: str | None) -> dict[str, str]:
    if found not in FORMATS:
        return {field.name: _type_name(field.type, found) for field in pq.read_schema(content)}
    plain = content if codec is None else pa.CompressedInputStream(content, codec)
    return FORMATS[found].stored_types(io.BufferedReader(plain))


def _type_name(data_type: pa.DataType, found: str) -> str:
    """Name types as readers see them: names of list elements and nullable fields make no difference."""
    if found in FORMATS:
        return FORMATS[found].type_name(data_type)
    return str(_plain(data_type))


def _plain(data_type: pa.DataType) -> pa.DataType:
    """Give inner fields one name and one nullability: Parquet has those of the writer."""
    if pa.types.is_map(data_type):
        return pa.map_(_plain(data_type.key_type), _plain(data_type.item_type))
    if pa.types.is_list(data_type):
        return pa.list_(pa.field("element", _plain(data_type.value_type)))
    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in data_type])
    return data_type
