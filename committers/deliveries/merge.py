"""Many batches as one manifest: what a delivery commits. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..contract import Manifest, Token
from ..errors import FencedError
from ..file_tables.manifest import DECODED_BYTES_MAX, LakeManifest, build_manifest, columns_bytes, decode

FILES_MAX = 100_000
"""Of one delivery: what one table commit takes without trouble."""
BYTES_MAX = DECODED_BYTES_MAX // 4
"""Of the columns of one delivery's manifest: paths, statistics and partition values of its files."""


def merge(manifests: Sequence[Manifest], seen_version: int | None = None) -> Manifest:
    """One manifest that does to the table what these do one after the other.

    A batch that overwrites the table makes all before it needless.

    Args:
        manifests: of consecutive pending batches of one stream, oldest first, all of one shape
        seen_version: version of the table up to which all that others did was looked at
    """
    contents = [decode(manifest) for manifest in manifests]
    overwrites = [number for number, content in enumerate(contents) if content.mode == "overwrite"]
    kept = contents[overwrites[-1] :] if overwrites else contents
    whole = replace(
        contents[-1],
        mode="overwrite" if overwrites else "append",
        table_version=_oldest_look(contents[0], seen_version),
        new_columns=_all_new_columns(contents),
        files=tuple(file for content in kept for file in content.files),
    )
    events = [manifest.oldest_event_at for manifest in manifests if manifest.oldest_event_at is not None]
    return replace(
        build_manifest(manifests[-1].batch, whole),
        merged=tuple(manifest.batch for manifest in manifests),
        oldest_event_at=min(events, default=None),
    )


def mergeable(manifests: Iterable[Manifest]) -> list[Manifest]:
    """The longest beginning that can be one delivery: one table, one schema, one partitioning.

    Where the schema changes in the middle of a backlog, a delivery ends and another begins. A delivery has
    at most `FILES_MAX` files and `BYTES_MAX` bytes, unless one batch alone has more.
    """
    taken: list[Manifest] = []
    shape, files, size_bytes = None, 0, 0
    for manifest in manifests:
        content = decode(manifest)
        files += len(content.files)
        size_bytes += columns_bytes(content)
        if taken and (_shape(content) != shape or files > FILES_MAX or size_bytes > BYTES_MAX):
            break
        shape = _shape(content)
        taken.append(manifest)
    return taken


def _shape(content: LakeManifest) -> tuple[object, ...]:
    return (
        content.kind,
        content.table_id,
        content.schema_json,
        content.partition_by,
        content.partition_spec_id,
        content.location,
    )


def _oldest_look(content: LakeManifest, seen_version: int | None) -> int:
    """Whatever others did to the table since this version has to be checked. Snapshots have no order."""
    if content.kind != "delta" or seen_version is None:
        return content.table_version
    return max(content.table_version, seen_version)


def _all_new_columns(contents: Sequence[LakeManifest]) -> tuple[str, ...]:
    """Batches planned before the first of them landed all say that its columns are new."""
    return tuple(dict.fromkeys(name for content in contents for name in content.new_columns))


# What the table's own history says of a delivery ----------------------------------------------------

NOTED_MAX = 1000
"""Batches of one delivery that the table's history names."""
_DIGEST_CHARS = 16


def merged_note(manifest: Manifest) -> str:
    """The batches of a delivery, each with the beginning of its digest, in one line of text."""
    return " ".join(f"{one.batch_id}:{one.digest[:_DIGEST_CHARS]}" for one in manifest.merged[-NOTED_MAX:])


def noted_digest(note: str, batch_id: int) -> str | None:
    """The beginning of the digest that a line of `merged_note` has for the batch; None if it has none."""
    beginning = f"{batch_id}:"
    return next((one.removeprefix(beginning) for one in note.split(" ") if one.startswith(beginning)), None)


def check_none_landed(manifest: Manifest, token: Token, table_uri: str) -> None:
    """The batches of a delivery land together or not at all: the table must not hold some of them.

    It does if another process has delivered a part of them meanwhile.

    Raises:
        FencedError: nothing was committed.
    """
    first = manifest.batches[0].batch_id
    if first <= token.batch_id < manifest.batch.batch_id:
        raise FencedError(
            f"The table {table_uri} holds batches up to {token.batch_id} of query "
            f"{manifest.batch.stream.query_id} already, and this delivery has the batches {first} to "
            f"{manifest.batch.batch_id}: another process was faster. Nothing was committed."
        )
