"""Log entries of a Delta table: writes the entry of an append, and reads the changes in entries of others.

An entry has one line of JSON per action (`PROTOCOL.md` of Delta, "Actions"). It is written as the Delta
library writes the same commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ..contract import DataFile, Manifest
from ..file_tables.manifest import LakeManifest
from .deletion_vectors import DeletionVector
from .history import NOTE_KEY, commit_note

_KEPT_BY_LIBRARY = "/!$&'()+,:;=@"
"""Characters that the library writes unescaped into the log, besides letters, digits and `-._~`."""


@dataclass(frozen=True, slots=True)
class ActiveFile:
    """A data file of the table."""

    logged_path: str
    """As in the log, which is encoded."""
    partition_values: Mapping[str, str | None]
    size_bytes: int
    modified_ms: int
    stats: str
    """JSON; empty if the log has none."""
    vector: DeletionVector | None

    @property
    def path(self) -> str:
        """Below the table's location, or a URL."""
        return unquote(self.logged_path)

    @classmethod
    def of(cls, added: Mapping[str, Any]) -> ActiveFile:
        """
        Args:
            added: the content of an `add` action

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        vector, values = added.get("deletionVector"), added.get("partitionValues") or {}
        return cls(
            str(added["path"]),
            {str(name): value for name, value in dict(values).items()},
            int(added["size"]),
            int(added.get("modificationTime") or 0),
            str(added.get("stats") or ""),
            None if vector is None else DeletionVector.of(vector),
        )


def append_entry(
    manifest: Manifest, content: LakeManifest, app_versions: Mapping[str, int], now_ms: int
) -> bytes:
    """The entry that adds all files of the manifest and sets these application transactions."""
    info = {
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps(content.partition_by)},
        "operationMetrics": {
            "numFiles": str(manifest.files),
            "numOutputRows": str(manifest.rows),
            "numOutputBytes": str(sum(file.size_bytes for file in content.files)),
        },
        "isBlindAppend": True,
    }
    return _entry(manifest, info, app_versions, [add_action(file, now_ms) for file in content.files], now_ms)


def changes_entry(
    manifest: Manifest,
    keys: Sequence[str],
    app_versions: Mapping[str, int],
    actions: Sequence[Mapping[str, Any]],
    now_ms: int,
) -> bytes:
    """The entry that applies the changes of the manifest.

    Args:
        keys: the columns by which rows are replaced
        actions: on files
    """
    info = {
        "operation": "MERGE",
        "operationParameters": {"predicate": json.dumps([f"source.{name} = target.{name}" for name in keys])},
        "operationMetrics": {
            "numSourceRows": str(manifest.rows),
            "numTargetFilesAdded": str(sum("add" in action for action in actions)),
            "numTargetFilesRemoved": str(sum("remove" in action for action in actions)),
        },
        "isBlindAppend": False,
    }
    return _entry(manifest, info, app_versions, actions, now_ms)


def rewrite_entry(note: str, actions: Sequence[Mapping[str, Any]], now_ms: int) -> bytes:
    """The entry that replaces files by others with the same rows.

    Args:
        note: user metadata of the commit
    """
    info = {"operation": "WRITE", "operationParameters": {"mode": "Append"}, "isBlindAppend": False}
    return _lines(note, info, {}, actions, now_ms)


def schema_entry(
    metadata: Mapping[str, Any], protocol: Mapping[str, Any] | None, columns: Sequence[str], now_ms: int
) -> bytes:
    """The entry that changes the schema.

    Args:
        metadata: with the new schema
        protocol: None: it stays
        columns: that are added or changed, to show
    """
    info = {
        "operation": "UPDATE SCHEMA",
        "operationParameters": {"columns": json.dumps(list(columns), ensure_ascii=False)},
        "isBlindAppend": True,
    }
    actions: list[Mapping[str, Any]] = [{"metaData": metadata}]
    return _lines("", info, {}, actions if protocol is None else [{"protocol": protocol}, *actions], now_ms)


def _entry(
    manifest: Manifest,
    info: Mapping[str, Any],
    app_versions: Mapping[str, int],
    actions: Iterable[Mapping[str, Any]],
    now_ms: int,
) -> bytes:
    return _lines(commit_note(manifest), info, app_versions, actions, now_ms)


def _lines(
    note: str,
    info: Mapping[str, Any],
    app_versions: Mapping[str, int],
    actions: Iterable[Mapping[str, Any]],
    now_ms: int,
) -> bytes:
    """Characters are never escaped: one beyond 16 bits would be escaped as two surrogates, and readers with
    Arrow's JSON for Rust, including the Delta library, decode these to another character.
    """
    about = {"timestamp": now_ms, **info, "engineInfo": "penstock", **({NOTE_KEY: note} if note else {})}
    transactions = [
        {"txn": {"appId": app_id, "version": version}} for app_id, version in app_versions.items()
    ]
    lines = [
        json.dumps(action, separators=(",", ":"), ensure_ascii=False)
        for action in ({"commitInfo": about}, *transactions, *actions)
    ]
    return "\n".join(lines).encode()


def add_action(
    file: DataFile,
    now_ms: int,
    stats: str = "",
    vector: DeletionVector | None = None,
    *,
    data_change: bool = True,
) -> dict[str, Any]:
    """The action that adds a new file.

    Args:
        stats: in place of the file's own
        vector: rows of it that are deleted at once
        data_change: False if the rows are those of files that the same commit removes
    """
    return _add(
        logged_path(file.path),
        dict(file.partition_values),
        file.size_bytes,
        now_ms,
        stats or file.statistics or "{}",
        vector,
        data_change=data_change,
    )


def add_again_action(file: ActiveFile, stats: str, vector: DeletionVector) -> dict[str, Any]:
    """The action that gives a file another deletion vector, after the one that removes it."""
    values = dict(file.partition_values)
    return _add(file.logged_path, values, file.size_bytes, file.modified_ms, stats, vector)


def _add(
    path: str,
    partition_values: Mapping[str, str | None],
    size_bytes: int,
    modified_ms: int,
    stats: str,
    vector: DeletionVector | None,
    *,
    data_change: bool = True,
) -> dict[str, Any]:
    about = {} if vector is None else {"deletionVector": vector.to_action()}
    return {
        "add": {
            "path": path,
            "partitionValues": partition_values,
            "size": size_bytes,
            "modificationTime": modified_ms,
            "dataChange": data_change,
            "stats": stats,
            **about,
        }
    }


def cdc_action(file: DataFile) -> dict[str, Any]:
    """The action that names a file of the change data feed. With one, readers of the feed take no rows from
    the files that the entry adds and removes.
    """
    return {
        "cdc": {
            "path": logged_path(file.path),
            "partitionValues": dict(file.partition_values),
            "size": file.size_bytes,
            "dataChange": False,
        }
    }


def remove_action(file: ActiveFile, now_ms: int, *, data_change: bool = True) -> dict[str, Any]:
    """The action that removes a file with its deletion vector."""
    about = {} if file.vector is None else {"deletionVector": file.vector.to_action()}
    return {
        "remove": {
            "path": file.logged_path,
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.partition_values),
            "size": file.size_bytes,
            **about,
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
