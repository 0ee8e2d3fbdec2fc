"""What a Delta log says: commits, and the versions of the table that they make. Values, no storage.

Entries of the log are Python objects, and rendered as JSON only for who reads them as files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

from deltalake.transaction import AddAction


@dataclass(frozen=True, slots=True)
class Metadata:
    """A `metaData` action, and what `DeltaTable.metadata()` shows of it."""

    id: str
    schema_json: str
    partition_columns: list[str]
    configuration: Mapping[str, str]
    created_time: int


@dataclass(eq=False, slots=True)
class Entry:
    """One commit: what one JSON file of the log holds."""

    info: Mapping[str, Any]
    timestamp: int
    """Milliseconds since 1970."""
    add: Sequence[AddAction] = ()
    remove: Sequence[AddAction] = ()
    txn: Mapping[str, int] = field(default_factory=dict)
    metadata: Metadata | None = None
    vectors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The deletion vectors of added files that have one, by path."""
    restored: int | None = None
    """The version that a RESTORE goes back to."""
    data_change: bool = True
    """False if it only arranges rows in other files."""
    version: TableVersion | None = None
    """The version of the table that it makes, once somebody has read it."""
    _json: bytes | None = None

    @classmethod
    def of_append(cls, content: bytes) -> Entry:
        """What the product has written into the log by itself."""
        actions = [json.loads(line) for line in content.splitlines()]
        info = actions[0]["commitInfo"]
        added = [action["add"] for action in actions if "add" in action]
        return cls(
            {name: value for name, value in info.items() if name != "timestamp"},
            info["timestamp"],
            add=list(map(_add_action, added)),
            remove=[_removed(action["remove"]) for action in actions if "remove" in action],
            vectors={unquote(add["path"]): add["deletionVector"] for add in added if "deletionVector" in add},
            data_change=all(add["dataChange"] for add in added),
            txn={action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action},
            _json=content,
        )

    def again(self) -> Entry:
        """The same, for another place in the log."""
        return replace(self, version=None)

    def to_json(self) -> bytes:
        if self._json is None:
            lines = [json.dumps(action) for action in self._actions()]
            self._json = "\n".join(lines).encode()
        return self._json

    def _actions(self) -> Iterable[Mapping[str, Any]]:
        yield {"commitInfo": {"timestamp": self.timestamp, **self.info}}
        for app_id, version in self.txn.items():
            yield {"txn": {"appId": app_id, "version": version}}
        if self.metadata is not None:
            yield {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
            yield {"metaData": {"id": self.metadata.id, "schemaString": self.metadata.schema_json}}
        for file in self.add:
            yield {"add": add_of(file, self.vectors.get(file.path))}
        for file in self.remove:
            yield {"remove": {"path": quote(file.path), "deletionTimestamp": self.timestamp}}


def _add_action(add: Mapping[str, Any]) -> AddAction:
    return AddAction(
        unquote(add["path"]),
        add["size"],
        add["partitionValues"],
        add["modificationTime"],
        add["dataChange"],
        add["stats"],
    )


def _removed(remove: Mapping[str, Any]) -> AddAction:
    return AddAction(unquote(remove["path"]), remove["size"], {}, 0, remove["dataChange"], "{}")


def add_of(file: AddAction, vector: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The content of an `add` action, as far as somebody reads it."""
    add = {"path": quote(file.path), "size": file.size, "stats": file.stats}
    return add if vector is None else {**add, "deletionVector": vector}


@dataclass(frozen=True, eq=False, slots=True)
class TableVersion:
    """The table after a commit. Shared by all who read it: nobody changes it."""

    number: int
    metadata: Metadata
    files: Mapping[str, AddAction]
    tombstones: Mapping[str, int]
    """Removed files, and when, in milliseconds since 1970."""
    txn: Mapping[str, int]
    entry: Entry
    previous: TableVersion | None
    """The one before, also if the log does not tell any more."""
    vectors: Mapping[str, Mapping[str, Any]]
    """Of the files that have one."""

    def lineage(self) -> list[TableVersion]:
        """All versions up to this one, oldest first."""
        found, version = [], self
        while True:
            found.append(version)
            if version.previous is None:
                return found[::-1]
            version = version.previous


def fold(before: TableVersion | None, entry: Entry) -> TableVersion:
    """The version that an entry makes of the one before."""
    if before is None:
        assert entry.metadata is not None, "a log begins with metadata"
        return TableVersion(
            0, entry.metadata, {file.path: file for file in entry.add}, {}, entry.txn, entry, None, {}
        )
    files, tombstones, vectors = before.files, before.tombstones, before.vectors
    if entry.add or entry.remove:
        files = dict(files)
        for file in entry.remove:
            files.pop(file.path, None)
        for file in entry.add:
            files[file.path] = file
        if entry.vectors or vectors:
            gone = {file.path for file in (*entry.remove, *entry.add)}
            left = {path: vector for path, vector in vectors.items() if path not in gone}
            vectors = {**left, **entry.vectors}
        if entry.remove or tombstones:
            tombstones = {**tombstones, **{file.path: entry.timestamp for file in entry.remove}}
            for file in entry.add:
                tombstones.pop(file.path, None)
    txn = {**before.txn, **entry.txn} if entry.txn else before.txn
    return TableVersion(
        before.number + 1, entry.metadata or before.metadata, files, tombstones, txn, entry, before, vectors
    )


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """A log checkpoint: one version, and those of its tombstones that were young when it was written."""

    version: TableVersion
    removed: Sequence[str]


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """The part of the log that one version is read from."""

    first: int
    """The oldest of its JSON entries; `number + 1` if there is none."""
    number: int
    entries: Sequence[Entry]
    checkpoint: Checkpoint | None

    def version(self) -> TableVersion:
        known = len(self.entries)
        while known and self.entries[known - 1].version is None:
            known -= 1
        if known:
            version = self.entries[known - 1].version
        else:
            version = None if self.checkpoint is None else self.checkpoint.version
        for entry in self.entries[known:]:
            version = entry.version = fold(version, entry)
        assert version is not None
        return version


def find_conflict(other: Entry, entry: Entry) -> str:
    """Why the library does not commit the entry on top of another one that it did not know; else empty.

    Two compactions of the same files do not conflict in delta-rs, which doubles their rows. Here they do.
    """
    if other.metadata is not None:
        return "Metadata changed since last commit."
    if other.remove and other.data_change:
        return "Commit failed: a concurrent transaction deleted data this operation read."
    removed = {file.path for file in other.remove}
    if not entry.data_change and any(file.path in removed for file in entry.remove):
        return "Commit failed: a concurrent transaction deleted the same data."
    return "Concurrent transaction failed." if entry.txn.keys() & other.txn.keys() else ""
