"""Reads a stream from a manifest store with `penstock status`, `show` and `history`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

PENSTOCK = Path(sys.executable).with_name("penstock")
BATCHES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a stream."""

    batch_id: int
    state: str
    """PREPARED, COMMITTED or ABORTED"""
    rows: int
    files: int
    run_id: str
    prepared_at: datetime
    finished_at: datetime | None
    """Time of the commit or abort."""
    table_version: int | None


def status(checkpoint: Path) -> dict[str, Any] | None:
    """Return the store's stream from `penstock status --json`; None if there is none."""
    found = streams(checkpoint)
    return found[0] if found else None


def streams(store: Path | str) -> list[dict[str, Any]]:
    """Return all streams of the store from `penstock status --json`.

    Args:
        store: the checkpoint directory that has it, or its URL
    """
    ended = _run("status", "--checkpoint" if isinstance(store, Path) else "--store", str(store))
    found: list[dict[str, Any]] = json.loads(ended.stdout)["streams"] if ended.returncode == 0 else []
    return found


def batches(checkpoint: Path, stream: str | None = None) -> list[Batch]:
    """Return all batches of a stream in the store, in ascending order.

    Args:
        stream: name of the stream; None: the store has one
    """
    return [
        Batch(
            batch_id=one["batch_id"],
            state=one["state"],
            rows=one["rows"],
            files=one["files"],
            run_id=one["run_id"],
            prepared_at=datetime.fromisoformat(one["prepared_at"]),
            finished_at=datetime.fromisoformat(one["finished_at"]) if one["finished_at"] else None,
            table_version=None if one["table_version"] is None else int(one["table_version"]),
        )
        for one in reversed(_history(checkpoint, stream)["batches"])
    ]


def deliveries(checkpoint: Path) -> list[dict[str, Any]]:
    """Return all deliveries in the store, in ascending order."""
    return list(reversed(_history(checkpoint)["deliveries"]))


def token_batch_id(checkpoint: Path, batch_id: int) -> int | None:
    """Return the stream's last batch from the table's token, with `penstock show` of any batch."""
    stream = status(checkpoint)
    assert stream is not None, f"no stream has written a batch with the checkpoint {checkpoint}"
    ended = _run("show", stream["query_id"], str(batch_id), "--checkpoint", str(checkpoint))
    ended.check_returncode()
    found: int | None = json.loads(ended.stdout)["token_batch_id"]
    return found


def query_id(checkpoint: Path) -> str:
    return str(_history(checkpoint)["query_id"])


def _history(checkpoint: Path, name: str | None = None) -> dict[str, Any]:
    stream = status(checkpoint)
    assert stream is not None, f"no stream has written a batch with the checkpoint {checkpoint}"
    ended = _run(
        "history", name or stream["query_id"], "--checkpoint", str(checkpoint), "--limit", str(BATCHES_MAX)
    )
    ended.check_returncode()
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PENSTOCK, *arguments, "--json"], capture_output=True, text=True, check=False)
