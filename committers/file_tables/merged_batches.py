"""The text that the table's history stores for a delivery: its batches, each with a prefix of its digest."""

from __future__ import annotations

from ..contract import Manifest

RECORDED_MAX = 1000
"""Maximum number of batches of one delivery stored in the table's history."""
_DIGEST_CHARS = 16


def merged_note(manifest: Manifest) -> str:
    """Format the batches of a delivery, each with a prefix of its digest, as one line."""
    return " ".join(f"{one.batch_id}:{one.digest[:_DIGEST_CHARS]}" for one in manifest.merged[-RECORDED_MAX:])


def recorded_digest(note: str, batch_id: int) -> str | None:
    """Return the digest prefix that `merged_note` stored for the batch; None if it has none."""
    beginning = f"{batch_id}:"
    return next((one.removeprefix(beginning) for one in note.split(" ") if one.startswith(beginning)), None)
