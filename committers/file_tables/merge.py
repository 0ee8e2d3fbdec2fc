"""Merges many batches of a file table into the manifest of one delivery. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..contract import Changes, Manifest
from .manifest import DECODED_BYTES_MAX, LakeManifest, build_manifest, decode, decode_measured

FILES_MAX = 100_000
"""Limit per delivery: a number of files that one table commit handles well."""
BYTES_MAX = DECODED_BYTES_MAX // 4
"""Limit per delivery, for the manifest's columns: paths, statistics and partition values of its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded(Manifest):
    """A manifest that is decoded already: that takes longer than all else that a merge does with it."""

    decoded: LakeManifest = field(repr=False, compare=False)


class MergeableFiles:
    """Implements `Mergeable` for targets of file tables."""

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        return mergeable(manifests)

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """All changes by others since the first batch was planned have to be checked. Formats with ordered
        versions override this: `verified_version` may be later.
        """
        return merge(manifests)


def merge(manifests: Sequence[Manifest], verified_version: int = -1) -> Manifest:
    """Return one manifest with the same effect on the table as these, committed one after the other.

    A batch that overwrites the table makes all earlier ones unnecessary.

    Args:
        manifests: of consecutive pending batches of one stream, oldest first, all of one shape
        verified_version: version up to which changes by others were checked, if versions are ordered
    """
    contents = [one.decoded if isinstance(one, _Decoded) else decode(one) for one in manifests]
    overwrites = [number for number, content in enumerate(contents) if content.mode == "overwrite"]
    kept = contents[overwrites[-1] :] if overwrites else contents
    whole = replace(
        contents[-1],
        mode="overwrite" if overwrites else contents[-1].mode,
        table_version=max(contents[0].table_version, verified_version),
        # Batches that were planned before the first one is committed all list its columns as new.
        new_columns=tuple(dict.fromkeys(name for content in contents for name in content.new_columns)),
        altered=tuple(dict.fromkeys(name for content in contents for name in content.altered)),
        renames=tuple(dict.fromkeys(pair for content in contents for pair in content.renames)),
        files=tuple(file for content in kept for file in content.files),
    )
    return build_manifest(manifests[-1].batch, whole).merging(manifests)


def mergeable(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the longest prefix that can be one delivery: same table, same schema, same partitioning.

    If the schema changes within a backlog, one delivery ends there and the next begins. A delivery has at
    most `FILES_MAX` files and `BYTES_MAX` bytes, unless a single batch has more.
    """
    taken: list[Manifest] = []
    shape, files, size_bytes = None, 0, 0
    for manifest in manifests:
        content, columns_bytes = decode_measured(manifest)
        files += len(content.files)
        size_bytes += columns_bytes
        if taken and (_shape(content) != shape or files > FILES_MAX or size_bytes > BYTES_MAX):
            break
        shape = _shape(content)
        taken.append(_Decoded(**_fields_of(manifest), decoded=content))
    return taken


def _fields_of(manifest: Manifest) -> dict[str, Any]:
    return {one.name: getattr(manifest, one.name) for one in fields(manifest)}


def _shape(content: LakeManifest) -> tuple[object, ...]:
    return (
        content.mode if isinstance(content.mode, Changes) else None,
        content.kind,
        content.table_id,
        content.schema_json,
        content.partition_by,
        content.partition_spec_id,
        content.location,
    )
