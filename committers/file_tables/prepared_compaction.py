"""Encoding of a prepared compaction of two tables; version 1.

A header with the sizes of the groups, then a manifest for each table, whose files are the old and the new
files of one group after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import Batch, DataFile, Manifest, StreamKey
from ..errors import ManifestCorruptError
from .compaction import Rewritten
from .manifest import VERSION, LakeManifest, decode, encode


@dataclass(frozen=True, slots=True)
class PreparedCompaction:
    """The groups of files to replace, for each of the two tables."""

    batch_id: int
    """Used in the names of the new files."""
    contents: tuple[LakeManifest, LakeManifest]
    """The tables when their files were listed."""
    of_first: tuple[Rewritten, ...]
    of_second: tuple[Rewritten, ...]


def encode_compaction(prepared: PreparedCompaction) -> bytes:
    """Raises the errors of `manifest.encode`."""
    of_tables = (prepared.of_first, prepared.of_second)
    manifests = [
        encode(content.with_files([file for one in groups for file in (*one.sources, *one.files)]))
        for content, groups in zip(prepared.contents, of_tables, strict=True)
    ]
    header = {
        "version": VERSION,
        "batch_id": prepared.batch_id,
        "kinds": [content.kind for content in prepared.contents],
        "groups": [[len(group.sources), len(group.files)] for group in prepared.of_first],
        "bytes": [len(manifest) for manifest in manifests],
    }
    return json.dumps(header).encode() + b"\n" + b"".join(manifests)


def decode_compaction(stream: StreamKey, content: bytes) -> PreparedCompaction:
    """
    Raises:
        ManifestCorruptError: it is damaged, or a newer version has written it.
    """
    try:
        text, _, body = content.partition(b"\n")
        header = json.loads(text)
        if header["version"] != VERSION or sum(header["bytes"]) != len(body):
            raise ValueError(f"version {header['version']!r}, {len(body)} bytes")
        batch_id, size = int(header["batch_id"]), int(header["bytes"][0])
        counts = [(int(sources), int(files)) for sources, files in header["groups"]]
        kinds = [str(kind) for kind in header["kinds"]]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ManifestCorruptError(
            f"The prepared compaction of {stream} in the store cannot be read ({error!r}). Nothing was "
            "changed. Restore the store from a backup, or use the version of Penstock that prepared it."
        ) from error
    first, second = (
        _decoded(Batch(stream, batch_id, ""), kind, manifest, sum(map(sum, counts)))
        for kind, manifest in zip(kinds, (body[:size], body[size:]), strict=True)
    )
    return PreparedCompaction(
        batch_id,
        (first.with_files(()), second.with_files(())),
        tuple(_groups(first.files, counts)),
        tuple(_groups(second.files, counts)),
    )


def _decoded(batch: Batch, kind: str, content: bytes, files: int) -> LakeManifest:
    values: dict[str, Any] = {"files": files, "rows": 0, "size_bytes": 0, "is_empty": False}
    return decode(Manifest(batch=batch, kind=kind, version=VERSION, content=content, **values), kind)


def _groups(files: Sequence[DataFile], counts: Sequence[tuple[int, int]]) -> Iterator[Rewritten]:
    start = 0
    for sources, new in counts:
        middle, end = start + sources, start + sources + new
        yield Rewritten(tuple(files[start:middle]), tuple(files[middle:end]))
        start = end
