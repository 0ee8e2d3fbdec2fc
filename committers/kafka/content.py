"""Manifests of Kafka: the files of the row log, and the id of the topic for which the batch was planned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..contract import Batch, DataFiles, Manifest
from ..errors import ManifestCorruptError
from ..file_tables.file_manifests import FileManifests
from ..requests.content import BATCHES_MAX, RequestManifests
from ..row_log.log import LoggedBatch
from .cluster import KIND

VERSION = 1
BYTES_MAX = 256 * 1024 * 1024
"""Size limit of the files of one delivery, which is one transaction."""

_FILES = FileManifests(KIND, VERSION)
_LOGGED = RequestManifests(KIND, VERSION)


@dataclass(frozen=True, slots=True)
class KafkaContent:
    """What a manifest has."""

    target_id: str
    """See `Brokers.target_id`; empty: not known when the batch was written."""
    files: DataFiles


def encode(batch: Batch, target_id: str, payloads: Iterable[DataFiles]) -> Manifest:
    files = _FILES.encode(batch, payloads)
    content = json.dumps({"target": target_id, "files": json.loads(files.content)}, ensure_ascii=False)
    return replace(files, content=content.encode())


def decode(manifest: Manifest) -> KafkaContent:
    """
    Raises:
        ManifestCorruptError: the manifest has another kind or version, or is damaged.
    """
    target_id, files = _parts(manifest)
    return KafkaContent(target_id, _FILES.decode(files))


def batches_in(manifest: Manifest) -> tuple[LoggedBatch, ...]:
    """Return the batches in the row log, oldest first.

    Raises:
        ManifestCorruptError: also if a file does not belong to its batch.
    """
    return _LOGGED.batches(_parts(manifest)[1]) or ()


def mergeable(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the longest prefix that can be one delivery."""
    taken: list[Manifest] = []
    size_bytes = 0
    for manifest in manifests:
        size_bytes += manifest.size_bytes
        is_full = len(taken) == BATCHES_MAX or size_bytes > BYTES_MAX
        if taken and (is_full or decode(manifest).target_id != decode(taken[0]).target_id):
            break
        taken.append(manifest)
    return taken


def merge(manifests: Sequence[Manifest]) -> Manifest:
    """Return one manifest for these batches, in their order."""
    contents = [decode(manifest) for manifest in manifests]
    whole = encode(manifests[-1].batch, contents[0].target_id, [content.files for content in contents])
    return whole.merging(manifests)


def _parts(manifest: Manifest) -> tuple[str, Manifest]:
    """Return the id of the target, and the manifest with nothing but the files."""
    try:
        content = json.loads(manifest.content)
        target_id, files = content["target"], json.dumps(content["files"], ensure_ascii=False)
        if not isinstance(target_id, str):
            raise TypeError("the id of the target is no text")
        return target_id, replace(manifest, content=files.encode())
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        batch = manifest.batch
        raise ManifestCorruptError(
            f"The manifest of batch {batch.batch_id} of {batch.stream} cannot be read as one of kind "
            f"{KIND!r} ({error}). Nothing was committed. Restore the store from a backup, or use the version "
            "of Penstock that prepared the batch."
        ) from error
