"""Encoding of a lake table's manifest, for all formats; version 1.

Typed columns in one Arrow IPC stream, compressed with zstd unless there are only a few files, after a magic
number and a checksum: Arrow itself does not detect every damaged byte. 100,000 files with statistics of one
column take less than 4 MB (checked by a test).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import repeat
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from ..arrow_ipc.reader import read_stream
from ..arrow_values import numeric_array, string_array
from ..changes.key_files import data_files, is_key_file, key_files
from ..cleaning.deletion import is_relative
from ..contract import Batch, Changes, DataFile, DataFiles, History, Manifest, Mode, PlannedBatch
from ..errors import ConfigurationError, ManifestCorruptError, PenstockError

VERSION = 1

T = TypeVar("T")

_MAGIC = b"PSLM"
_PREFIX = struct.Struct(">4sHI")
_HEADER_KEY = b"penstock"
_CHANGES = "changes"
"""The mode of a manifest with `Changes`."""
_COLUMNS = {
    "path": pa.string(),
    "size_bytes": pa.int64(),
    "rows": pa.int64(),
    "statistics": pa.large_string(),
}
_UNCOMPRESSED_FILES_MAX = 32
"""Compressing the columns of a few files takes ten times as long as writing them, and saves nothing."""

FILES_MAX = 5_000_000
DECODED_BYTES_MAX = 1024**3
"""Size limit of a manifest's columns when decoded. Larger manifests are neither written nor read, so that a
manipulated store cannot exhaust the memory of its readers.
"""


@dataclass(frozen=True, slots=True)
class LakeManifest:
    """What one batch does to a lake table."""

    kind: str
    mode: Mode
    table_id: str
    """The table's own id when the batch was planned. A table with another id is another table."""
    table_version: int
    """Version of the table when the batch was planned (Iceberg: snapshot id); -1 if there was no snapshot
    yet.
    """
    schema_json: str
    """Schema of the files in the format's own JSON, including partition columns."""
    new_columns: tuple[str, ...]
    """Columns of the schema that the table did not have when the batch was planned."""
    partition_by: tuple[str, ...]
    """Names of the partition columns (Iceberg: of the partition fields)."""
    files: tuple[DataFile, ...] = field(repr=False)
    location: str = ""
    """Base location of the files' paths; empty for the table's own location."""
    partition_spec_id: int = 0
    """The partition spec of the files, in formats that have several."""
    origins: tuple[str, ...] = ()
    """Origins of the query, stored with its token; see `origins`."""
    altered: tuple[str, ...] = ()
    """Dotted names of columns that the commit changes, in their type, in NOT NULL or in their fields."""
    renames: tuple[tuple[str, str], ...] = ()
    """Dotted names of columns that the commit renames, and their last names before."""

    @property
    def changes_schema(self) -> bool:
        """True if the table did not have the schema of the files when the batch was planned."""
        return bool(self.new_columns or self.altered or self.renames)

    def with_files(self, files: Sequence[DataFile]) -> LakeManifest:
        return replace(self, files=tuple(files))


PlannedFiles: TypeAlias = PlannedBatch[DataFiles, LakeManifest]
"""How a batch is written into a file table."""


def manifest_of(batch: Batch, content: LakeManifest, payloads: Iterable[DataFiles]) -> Manifest:
    """Build the manifest of a batch from the payloads of its tasks; raises the errors of `build_manifest`."""
    return build_manifest(batch, content.with_files([file for files in payloads for file in files]))


def build_manifest(batch: Batch, content: LakeManifest) -> Manifest:
    """Build the manifest to prepare, with its counts.

    Raises:
        PenstockError: a file is listed twice, which would duplicate its rows.
        ConfigurationError: there are too many files or too many statistics for a manifest.
    """
    _check_no_file_twice(batch, content.files)
    # of changes, the key files have all rows, with those that are deleted
    counted = key_files(content.files) if isinstance(content.mode, Changes) else content.files
    return Manifest(
        batch=batch,
        kind=content.kind,
        version=VERSION,
        content=encode(content),
        files=len(content.files),
        rows=sum(file.rows for file in counted),
        size_bytes=sum(file.size_bytes for file in content.files),
        is_empty=content.mode != "overwrite" and not content.files,
    )


def _check_no_file_twice(batch: Batch, files: Sequence[DataFile]) -> None:
    if len({file.path for file in files}) == len(files):
        return
    duplicates = [path for path, count in Counter(file.path for file in files).items() if count > 1]
    raise PenstockError(
        f"Batch {batch.batch_id} of {batch.stream} lists {len(duplicates)} data file(s) more than once, for "
        f"example {duplicates[0]!r}. Nothing was prepared. This is a bug in Penstock: please report it."
    )


def encode(content: LakeManifest) -> bytes:
    sink = pa.BufferOutputStream()
    is_large = len(content.files) > _UNCOMPRESSED_FILES_MAX
    options = pa.ipc.IpcWriteOptions(compression="zstd" if is_large else None)
    columns = _to_columns(content)
    if len(content.files) > FILES_MAX or columns.nbytes > DECODED_BYTES_MAX:
        raise ConfigurationError(
            f"A batch or delivery has {len(content.files):,} data files, and its manifest takes "
            f"{columns.nbytes:,} bytes. The limits are {FILES_MAX:,} files and {DECODED_BYTES_MAX:,} bytes. "
            "Nothing was prepared. Write fewer and larger files (targetFileSize, penstock.distribute, "
            "fewer partitions), deliver more often (deliverAfterBatches), or collect statistics of fewer "
            "columns in the table's properties."
        )
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
    body: bytes = sink.getvalue().to_pybytes()
    return _PREFIX.pack(_MAGIC, VERSION, zlib.crc32(body)) + body


def decode(manifest: Manifest, kind: str | None = None) -> LakeManifest:
    """Return the content that was passed to `encode`.

    Args:
        kind: the expected kind of manifest

    Raises:
        ManifestCorruptError: not a manifest of a lake table, an unknown version, or damaged.
    """
    return decode_measured(manifest, kind)[0]


def decode_measured(manifest: Manifest, kind: str | None = None) -> tuple[LakeManifest, int]:
    """Return `decode`, and the size of the manifest's columns before compression in bytes: at most
    `DECODED_BYTES_MAX` can be encoded.
    """
    if manifest.version != VERSION:
        raise _corrupt(manifest, f"has the unknown version {manifest.version}")
    if kind is not None and manifest.kind != kind:
        raise _corrupt(manifest, f"is of kind {manifest.kind!r}, but the table is of kind {kind!r}")
    body = _checked_body(manifest)
    try:
        content, columns_bytes = _decode_body(manifest.kind, body)
    except (
        pa.ArrowException,
        OSError,
        KeyError,
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:
        raise _corrupt(manifest, f"cannot be read ({error})") from error
    if len(content.files) != manifest.files:
        raise _corrupt(manifest, f"lists {len(content.files)} files instead of {manifest.files}")
    return content, columns_bytes


def _checked_body(manifest: Manifest) -> bytes:
    if len(manifest.content) < _PREFIX.size:
        raise _corrupt(manifest, "is truncated")
    magic, version, checksum = _PREFIX.unpack_from(manifest.content)
    if magic != _MAGIC or version != VERSION:
        raise _corrupt(manifest, "is not a manifest of a lake table in a known version")
    if len(manifest.content) > 2 * DECODED_BYTES_MAX:
        raise _corrupt(manifest, "is larger than any that Penstock writes")
    body = manifest.content[_PREFIX.size :]
    if zlib.crc32(body) != checksum:
        raise _corrupt(manifest, "does not match its checksum")
    return body


def _to_columns(content: LakeManifest) -> pa.RecordBatch:
    files = content.files
    columns = {
        "path": string_array([file.path for file in files]),
        "size_bytes": numeric_array([file.size_bytes for file in files]),
        "rows": numeric_array([file.rows for file in files]),
        "statistics": string_array([file.statistics for file in files], pa.large_string()),
    }
    _check_partition_columns(content)
    for index in range(len(content.partition_by)):
        values = [file.partition_values[index][1] if file.partition_values else None for file in files]
        columns[f"partition.{index}"] = string_array(values)
    header = {
        "mode": _CHANGES if isinstance(content.mode, Changes) else content.mode,
        "table_id": content.table_id,
        "table_version": content.table_version,
        "schema_json": content.schema_json,
        "new_columns": content.new_columns,
        "partition_by": content.partition_by,
        "location": content.location,
        "partition_spec_id": content.partition_spec_id,
        "origins": content.origins,
        **({"altered": content.altered} if content.altered else {}),
        **({"renames": content.renames} if content.renames else {}),
        **({"changes": asdict(content.mode)} if isinstance(content.mode, Changes) else {}),
    }
    metadata = {_HEADER_KEY: json.dumps(header).encode()}
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns), metadata=metadata)


def _check_partition_columns(content: LakeManifest) -> None:
    changes = isinstance(content.mode, Changes)
    for file in data_files(content.files) if changes else content.files:
        if tuple([column for column, _ in file.partition_values]) != content.partition_by:
            raise PenstockError(
                f"Data file {file.path!r} has the partition values {file.partition_values!r}, but the table "
                f"is partitioned by {content.partition_by!r}. This is a bug in Penstock: please report it."
            )


def _decode_body(kind: str, body: bytes) -> tuple[LakeManifest, int]:
    stream = read_stream(body, DECODED_BYTES_MAX, FILES_MAX)
    header = json.loads((stream.schema.metadata or {})[_HEADER_KEY])
    partition_by = _strings(header, "partition_by")
    _check_columns(stream.schema, len(partition_by))
    files = tuple(file for batch in stream.batches for file in _files(batch, partition_by))
    outside = [file.path for file in files if not is_relative(file.path)]
    if outside:
        raise ValueError(f"it lists {outside[0]!r}, which is not a path below the table's location")
    mode = _mode(header)
    if isinstance(mode, Changes):
        files = tuple([replace(file, partition_values=()) if is_key_file(file) else file for file in files])
    content = LakeManifest(
        kind=kind,
        mode=mode,
        table_id=_typed(header, "table_id", str),
        table_version=_typed(header, "table_version", int),
        schema_json=_typed(header, "schema_json", str),
        new_columns=_strings(header, "new_columns"),
        partition_by=partition_by,
        files=files,
        location=_typed(header, "location", str),
        partition_spec_id=_typed(header, "partition_spec_id", int),
        origins=_strings({"origins": [], **header}, "origins"),
        altered=_strings({"altered": [], **header}, "altered"),
        renames=_pairs({"renames": [], **header}, "renames"),
    )
    return content, sum(batch.nbytes for batch in stream.batches)


def _mode(header: Mapping[str, Any]) -> Mode:
    mode = header["mode"]
    if mode == _CHANGES:
        given = {"partial_columns": [], "history": None, **header["changes"]}
        names = ("keys", "order_by", "drop_columns", "partial_columns")
        history = None if given["history"] is None else History(**given["history"])
        return Changes(**{**given, **{name: _strings(given, name) for name in names}, "history": history})
    if mode not in ("append", "overwrite"):
        raise ValueError(f"unknown mode {mode!r}")
    return mode  # type: ignore[no-any-return]


def _check_columns(schema: pa.Schema, partitions: int) -> None:
    kinds = {**_COLUMNS, **{f"partition.{index}": pa.string() for index in range(partitions)}}
    if dict(zip(schema.names, schema.types, strict=True)) != kinds or len(schema) != len(kinds):
        raise ValueError("the columns are not those of a manifest")


def _typed(header: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = header[name]
    if type(value) is not kind:
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def _strings(header: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _typed(header, name, list)
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"{name} contains something other than strings")
    return tuple(values)


def _pairs(header: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    pairs = [_strings({name: pair}, name) for pair in _typed(header, name, list)]
    return tuple([(one, other) for one, other in pairs])


def _files(batch: pa.RecordBatch, partition_by: tuple[str, ...]) -> list[DataFile]:
    values = [batch.column(f"partition.{index}").to_pylist() for index in range(len(partition_by))]
    partitions = zip(*values, strict=True) if values else repeat(())
    columns = [batch.column(name) for name in _COLUMNS]
    if any(column.null_count for column in columns):
        raise ValueError("a file has no path, size, row count or statistics")
    return [
        DataFile(path, size_bytes, rows, tuple(zip(partition_by, partition, strict=True)), statistics)
        for path, size_bytes, rows, statistics, partition in zip(
            *(column.to_pylist() for column in columns), partitions, strict=False
        )
    ]


def _corrupt(manifest: Manifest, what: str) -> ManifestCorruptError:
    batch = manifest.batch
    return ManifestCorruptError(
        f"The manifest of batch {batch.batch_id} of {batch.stream} {what}. Nothing was committed. Restore "
        "the store from a backup, or use the version of Penstock that prepared the batch. `penstock show "
        f"{batch.stream.query_id} {batch.batch_id}` shows the record in the store."
    )
