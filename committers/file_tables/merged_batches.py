"""What the history of a table stores of a batch or a delivery."""

from __future__ import annotations

from ..contract import Manifest

RECORDED_MAX = 1000
"""Maximum number of batches of one delivery stored in the table's history."""
_DIGEST_CHARS = 16


MERGED = "penstock.merged"


def history_properties(manifest: Manifest) -> dict[str, str]:
    """Properties of the snapshot or the commit of a batch. With `MERGED`, the batches of a delivery."""
    batch = manifest.batch
    properties = {
        "penstock.query-id": batch.stream.query_id,
        "penstock.batch-id": str(batch.batch_id),
        "penstock.digest": batch.digest,
        "penstock.files": str(manifest.files),
        "penstock.rows": str(manifest.rows),
    }
    return {**properties, MERGED: merged_note(manifest)} if manifest.merged else properties


def merged_note(manifest: Manifest) -> str:
    """Format the batches of a delivery, each with a prefix of its digest, as one line."""
    return " ".join(f"{one.batch_id}:{one.digest[:_DIGEST_CHARS]}" for one in manifest.merged[-RECORDED_MAX:])


def recorded_digest(note: str, batch_id: int) -> str | None:
    """Return the digest prefix that `merged_note` stored for the batch; None if it has none."""
    beginning = f"{batch_id}:"
    return next((one.removeprefix(beginning) for one in note.split(" ") if one.startswith(beginning)), None)
