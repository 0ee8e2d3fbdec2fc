"""What the table's own history says of a delivery: its batches, each with the beginning of its digest."""

from __future__ import annotations

from ..contract import Manifest

RECORDED_MAX = 1000
"""Batches of one delivery that the table's history names."""
_DIGEST_CHARS = 16


def merged_note(manifest: Manifest) -> str:
    """The batches of a delivery, each with the beginning of its digest, in one line of text."""
    return " ".join(f"{one.batch_id}:{one.digest[:_DIGEST_CHARS]}" for one in manifest.merged[-RECORDED_MAX:])


def recorded_digest(note: str, batch_id: int) -> str | None:
    """The beginning of the digest that a line of `merged_note` has for the batch; None if it has none."""
    beginning = f"{batch_id}:"
    return next((one.removeprefix(beginning) for one in note.split(" ") if one.startswith(beginning)), None)
