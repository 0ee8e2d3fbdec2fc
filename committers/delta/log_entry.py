"""One entry of a Delta table's log: the one that an append of a batch makes, and what those of others change.

An entry is a line of JSON per action (`PROTOCOL.md` of Delta, "Actions"). Written is what the Delta library
writes for the same commit, and what `DESCRIBE HISTORY` shows of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ..contract import Manifest
from ..file_tables.manifest import LakeManifest
from .history import NOTE_KEY, commit_note

_KEPT_BY_LIBRARY = "/!$&'()+,:;=@"
"""Beside letters, digits and `-._~`, what the library writes into the log as it is."""


def append_entry(
    manifest: Manifest, content: LakeManifest, app_versions: Mapping[str, int], now_ms: int
) -> bytes:
    """The entry that adds all files of the manifest, with these application transactions.

    Characters are themselves, never escaped: one beyond 16 bits is escaped as two halves, of which readers
    with Arrow's JSON for Rust, the Delta library among them, make another character.
    """
    actions = _append_actions(manifest, content, app_versions, now_ms)
    lines = [json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions]
    return "\n".join(lines).encode()


def _append_actions(
    manifest: Manifest, content: LakeManifest, app_versions: Mapping[str, int], now_ms: int
) -> Iterator[Mapping[str, Any]]:
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": json.dumps(content.partition_by)},
            "operationMetrics": {
                "numFiles": str(manifest.files),
                "numOutputRows": str(manifest.rows),
                "numOutputBytes": str(sum(file.size_bytes for file in content.files)),
            },
            "isBlindAppend": True,
            "engineInfo": "penstock",
            NOTE_KEY: commit_note(manifest),
        }
    }
    for app_id, version in app_versions.items():
        yield {"txn": {"appId": app_id, "version": version}}
    for file in content.files:
        yield {
            "add": {
                "path": logged_path(file.path),
                "partitionValues": dict(file.partition_values),
                "size": file.size_bytes,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": file.statistics or "{}",
            }
        }


def logged_path(path: str) -> str:
    """The path as the Delta library writes it into the log."""
    return quote(path, safe=_KEPT_BY_LIBRARY)


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """What an entry changes of a table, but for its files."""

    app_versions: Mapping[str, int]
    has_other_layout: bool
    """Columns, properties or protocol are set anew."""


def changes_of(entry: bytes) -> EntryChanges:
    """
    Raises:
        ValueError: it is no entry.
    """
    app_versions: dict[str, int] = {}
    has_other_layout = False
    for line in entry.splitlines():
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise ValueError("a line is no action")
        if b'"txn"' in line or b'"metaData"' in line or b'"protocol"' in line:
            try:
                action = json.loads(line)
                has_other_layout |= "metaData" in action or "protocol" in action
                if "txn" in action:
                    app_versions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
            except (KeyError, TypeError, OverflowError, RecursionError) as error:
                raise ValueError(f"a line is no action: {error}") from None
    return EntryChanges(app_versions, has_other_layout)
