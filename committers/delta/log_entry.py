"""Log entries of a Delta table: writes the entry of an append, and reads the changes in entries of others.

An entry has one line of JSON per action (`PROTOCOL.md` of Delta, "Actions"). It is written as the Delta
library writes the same commit.
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
"""Characters that the library writes unescaped into the log, besides letters, digits and `-._~`."""


def append_entry(
    manifest: Manifest, content: LakeManifest, app_versions: Mapping[str, int], now_ms: int
) -> bytes:
    """The entry that adds all files of the manifest and sets these application transactions.

    Characters are never escaped: one beyond 16 bits would be escaped as two surrogates, and readers with
    Arrow's JSON for Rust, including the Delta library, decode these to another character.
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
    """Encode the path as the Delta library writes it into the log."""
    return quote(path, safe=_KEPT_BY_LIBRARY)


@dataclass(frozen=True, slots=True)
class EntryChanges:
    """Changes of a log entry, except for files."""

    app_versions: Mapping[str, int]
    has_other_layout: bool
    """True if columns, properties or protocol are set."""


def changes_of(entry: bytes) -> EntryChanges:
    """
    Raises:
        ValueError: it is not a log entry.
    """
    app_versions: dict[str, int] = {}
    has_other_layout = False
    for line in entry.splitlines():
        if not (line.startswith(b"{") and line.endswith(b"}")):
            raise ValueError("a line is not an action")
        if b'"txn"' in line or b'"metaData"' in line or b'"protocol"' in line:
            try:
                action = json.loads(line)
                has_other_layout |= "metaData" in action or "protocol" in action
                if "txn" in action:
                    app_versions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
            except (KeyError, TypeError, OverflowError, RecursionError) as error:
                raise ValueError(f"a line is not an action: {error}") from None
    return EntryChanges(app_versions, has_other_layout)
