"""What the history of a table stores of a batch or a delivery."""

from __future__ import annotations

import json
from typing import Any

from ..contract import Manifest
from ..lineage import history_text

RECORDED_MAX = 1000
"""Maximum number of batches of one delivery stored in the table's history."""
_DIGEST_CHARS = 16


MERGED = "penstock.merged"
SOURCES = "penstock.sources"


def history_properties(manifest: Manifest) -> dict[str, str]:
    """Properties of the snapshot or the commit of a batch. With `MERGED`, the batches of a delivery; with
    `SOURCES`, what they have read.
    """
    batch = manifest.batch
    properties = {
        "penstock.query-id": batch.stream.query_id,
        "penstock.batch-id": str(batch.batch_id),
        "penstock.digest": batch.digest,
        "penstock.files": str(manifest.files),
        "penstock.rows": str(manifest.rows),
    }
    if manifest.merged:
        properties[MERGED] = merged_note(manifest)
    if read := history_text(manifest.sources):
        properties[SOURCES] = read
    return properties


def note_fields(manifest: Manifest) -> dict[str, Any]:
    """`MERGED` and `SOURCES` for histories that have JSON."""
    fields: dict[str, Any] = {"merged": merged_note(manifest)} if manifest.merged else {}
    if read := history_text(manifest.sources):
        fields["sources"] = json.loads(read)
    return fields


def merged_note(manifest: Manifest) -> str:
    """Format the batches of a delivery, each with a prefix of its digest, as one line."""
    return " ".join(f"{one.batch_id}:{one.digest[:_DIGEST_CHARS]}" for one in manifest.merged[-RECORDED_MAX:])


def merged_ids(note: str) -> tuple[int, ...]:
    """Return the ids of the batches in the result of `merged_note`."""
    ids = (one.partition(":")[0] for one in note.split(" "))
    return tuple(int(batch_id) for batch_id in ids if batch_id.isdecimal())


def recorded_digest(note: str, batch_id: int) -> str | None:
    """Return the digest prefix that `merged_note` stored for the batch; None if it has none."""
    beginning = f"{batch_id}:"
    return next((one.removeprefix(beginning) for one in note.split(" ") if one.startswith(beginning)), None)
