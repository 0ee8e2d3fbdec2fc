"""The metadata of a commit, as Hudi's writers store it: JSON in layout 1, Avro in layout 2. Pure."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import DataFile, Manifest, Token
from ..file_tables.merged_batches import note_fields
from . import avro
from .layout import Layout
from .names import file_id_of, visible_path
from .schema import Record

TOKEN_KEY = "penstock"  # noqa: S105  a key in `extraMetadata`
SCHEMA_KEY = "schema"


@dataclass(frozen=True, slots=True)
class CommitToken:
    """The batch of a commit by Penstock."""

    query_id: str
    token: Token
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RewrittenSlice:
    """The next file of a file group, which has the rows of the one before but those that a commit deletes."""

    file: DataFile
    """Its path is one of `names.slice_path`."""
    before: str
    """Instant of the file before."""
    deleted: int


def inflight_metadata(manifest: Manifest, origins: Sequence[str], layout: Layout) -> bytes:
    """Return what the requested and the inflight instant say: whose they are."""
    return _encoded({}, {TOKEN_KEY: _token_json(manifest, origins)}, layout)


def commit_metadata(
    manifest: Manifest,
    files: Sequence[DataFile],
    origins: Sequence[str],
    schema: Record,
    layout: Layout,
    slices: Sequence[RewrittenSlice] | None = None,
) -> bytes:
    """Return the content of the completed instant.

    Args:
        files: those that begin a file group
        slices: of a commit of changes
    """
    partitions: dict[str, list[Mapping[str, Any]]] = {}
    stats = [_write_stat(file) for file in files] + [_stat_of_slice(one) for one in slices or ()]
    for stat in stats:
        partitions.setdefault(stat["partitionPath"], []).append(stat)
    schema_json = json.dumps(schema, separators=(",", ":"))
    extra = {SCHEMA_KEY: schema_json, TOKEN_KEY: _token_json(manifest, origins)}
    return _encoded(partitions, extra, layout, "INSERT" if slices is None else "UPSERT")


def _encoded(
    partitions: Mapping[str, Any], extra: Mapping[str, str], layout: Layout, operation: str = "INSERT"
) -> bytes:
    metadata = {
        "partitionToWriteStats": partitions,
        "compacted": False,
        "extraMetadata": extra,
        "operationType": operation,
    }
    if layout.has_completion_times:
        return avro.encode(metadata)
    return json.dumps(metadata, indent=2).encode()


def _stat_of_slice(one: RewrittenSlice) -> Mapping[str, Any]:
    deleted = {"prevCommit": one.before, "numDeletes": one.deleted, "numInserts": 0}
    return {**_write_stat(one.file), **deleted}


def _write_stat(file: DataFile) -> Mapping[str, Any]:
    path = visible_path(file.path)
    return {
        "fileId": file_id_of(path),
        "path": path,
        "cdcStats": None,
        "prevCommit": "null",
        "numWrites": file.rows,
        "numDeletes": 0,
        "numUpdateWrites": 0,
        "numInserts": file.rows,
        "totalWriteBytes": file.size_bytes,
        "totalWriteErrors": 0,
        "tempPath": None,
        "partitionPath": posixpath.dirname(path),
        "totalLogRecords": 0,
        "totalLogFilesCompacted": 0,
        "totalLogSizeCompacted": 0,
        "totalUpdatedRecordsCompacted": 0,
        "totalLogBlocks": 0,
        "totalCorruptLogBlock": 0,
        "totalRollbackBlocks": 0,
        "fileSizeInBytes": file.size_bytes,
        "minEventTime": None,
        "maxEventTime": None,
        "runtimeStats": None,
    }


def _token_json(manifest: Manifest, origins: Sequence[str]) -> str:
    batch = manifest.batch
    start = token_json_start(batch.stream.query_id, Token(batch.batch_id, batch.digest))
    return f"{start}, {json.dumps({'origins': list(origins), **note_fields(manifest)})[1:]}"


def token_json_start(query_id: str, token: Token) -> str:
    """Return the beginning of the token's JSON, which only the commit of this batch has."""
    fields = {"query_id": query_id, "batch_id": token.batch_id, "digest": token.digest}
    return json.dumps(fields)[:-1]


def decode(content: bytes) -> Any:
    """Return the metadata of a commit by any writer.

    Raises:
        ValueError, RecursionError: it has another form.
    """
    return avro.decode(content) if avro.is_avro(content) else json.loads(content)


def extra_metadata(content: bytes) -> Mapping[str, str]:
    """Return the extra metadata of a commit by any writer; empty if it has none, or another form."""
    try:
        extra = decode(content)["extraMetadata"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return extra if isinstance(extra, dict) else {}


def token_in(extra: Mapping[str, str]) -> CommitToken | None:
    """Return the token in the extra metadata; None if another program has made the commit."""
    try:
        fields = json.loads(extra[TOKEN_KEY])
        token = Token(int(fields["batch_id"]), str(fields["digest"]))
        return CommitToken(str(fields["query_id"]), token, tuple(map(str, fields["origins"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def empty_commit(schema: Record, layout: Layout) -> bytes:
    """Return the content of a commit without files."""
    return _encoded({}, {SCHEMA_KEY: json.dumps(schema, separators=(",", ":"))}, layout)
