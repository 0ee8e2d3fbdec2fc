"""The `deltalake` classes that the product uses, over a Delta log in memory.

`test_fake_delta.py` holds them against the library.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
from deltalake.exceptions import DeltaError, SchemaMismatchError
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction
from tests.simulation.delta_log import DeltaLog
from tests.simulation.delta_versions import Checkpoint, Entry, Metadata, Segment, TableVersion, add_of
from tests.simulation.object_store import LocationFileSystem, StoredObject
from tests.simulation.scheduler import as_os_error

from penstock.committers.delta.change_features import VECTORS_PROPERTY
from penstock.committers.delta.log_files import LogFile, entry_name

PROTOCOL = ProtocolVersions(1, 2, None, None)
WITH_VECTORS = ProtocolVersions(3, 7, ["deletionVectors"], ["deletionVectors"])


@dataclass(frozen=True, slots=True)
class FakeSchema:
    """What the product asks of a `deltalake.Schema`."""

    json: str

    def to_json(self) -> str:
        return self.json


class FakeDeltaTable:
    """What the product asks of a `deltalake.DeltaTable`: a handle on one version. See `table_class`."""

    log: ClassVar[DeltaLog]

    def __init__(
        self, table_uri: str, version: int | None = None, storage_options: Mapping[str, str] | None = None
    ) -> None:
        assert table_uri in (self.log.table_uri, self.table_uri), "one table in a simulation"
        self._take(self.log.load(version))

    def _take(self, segment: Segment) -> None:
        self._segment = segment
        self.at = segment.version()
        """For foreign writers, not for the product."""

    @property
    def table_uri(self) -> str:
        """As the library spells it."""
        return self.log.table_uri if self.log.objects.is_remote else f"file://{self.log.table_uri}"

    def version(self) -> int:
        return self._segment.number

    def metadata(self) -> Metadata:
        return self.at.metadata

    def schema(self) -> FakeSchema:
        return FakeSchema(self.at.metadata.schema_json)

    def protocol(self) -> ProtocolVersions:
        has_vectors = self.at.metadata.configuration.get(VECTORS_PROPERTY) == "true"
        return WITH_VECTORS if has_vectors else PROTOCOL

    def transaction_version(self, app_id: str) -> int | None:
        return self.log.transaction_version(self._segment, app_id)

    def file_uris(self) -> list[str]:
        return [f"{self.table_uri}/{path}" for path in self.at.files]

    def get_add_actions(self) -> pa.Table:
        """What compaction asks for."""
        files = self.at.files.values()
        counts = [json.loads(file.stats).get("numRecords") for file in files]
        columns = [[quote(file.path) for file in files], [file.size for file in files], counts]
        return pa.table(columns, names=["path", "size_bytes", "num_records"])

    def deletion_vectors(self) -> pa.Table:
        return pa.table({"filepath": [f"{self.table_uri}/{quote(path)}" for path in self.at.vectors]})

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        return self.log.history(self.version(), limit)

    def load_as_version(self, version: int | datetime) -> None:
        self._take(
            self.log.load(self.log.find_number_at(version) if isinstance(version, datetime) else version)
        )

    # Commits

    @classmethod
    def create(
        cls,
        table_uri: str,
        schema: Any,
        mode: str,
        partition_by: Sequence[str],
        configuration: Mapping[str, str],
        storage_options: Mapping[str, str],
        commit_properties: Any,
        raise_if_key_not_exists: bool,
    ) -> FakeDeltaTable:
        assert mode == "error"
        log = cls.log
        if log.read("list log", lambda: log.has_files()):
            raise DeltaError("Generic error: A Delta Lake table already exists at that location.")
        table_id = str(uuid.UUID(int=log.objects.scheduler.rng.getrandbits(128)))
        metadata = Metadata(table_id, schema.to_json(), list(partition_by), dict(configuration), log.now_ms)
        info = {"operation": "CREATE TABLE", "operationParameters": {"mode": "ErrorIfExists"}}
        entry = Entry(info, log.now_ms, metadata=metadata)
        retries = commit_properties.max_commit_retries
        log.read_back(log.commit_new_table(entry, retries))
        return cls(table_uri, storage_options=storage_options)

    def create_write_transaction(
        self,
        actions: Sequence[AddAction | RemoveAction],
        mode: str,
        schema: FakeSchema,
        partition_by: Sequence[str],
        commit_properties: Any,
        post_commithook_properties: Any,
    ) -> None:
        """The handle stays at its version."""
        info = {
            "operation": "WRITE",
            "operationParameters": {"mode": mode.title(), "partitionBy": json.dumps(list(partition_by))},
            **(commit_properties.custom_metadata or {}),
        }
        txn = {one.app_id: one.version for one in commit_properties.app_transactions or ()}
        added = tuple([one for one in actions if isinstance(one, AddAction)])
        replaced = {one.path for one in actions if isinstance(one, RemoveAction)}
        if mode == "overwrite":
            replaced = set(self.at.files)
        removed = [file for path, file in self.at.files.items() if path in replaced]
        entry = Entry(info, self.log.now_ms, added, removed, txn, data_change=_changes_data(actions))
        hooks = post_commithook_properties
        self.log.after_commit(
            self.log.commit(self.version(), entry, commit_properties.max_commit_retries),
            checkpoint=hooks.create_checkpoint,
            drop_expired=hooks.cleanup_expired_logs is not False,
        )

    @property
    def alter(self) -> SimpleNamespace:
        """What the product asks of it."""
        return SimpleNamespace(add_columns=self._add_columns)

    def _add_columns(self, fields: Sequence[Any], commit_properties: Any) -> None:
        """The handle moves on to the new version."""
        metadata, added = self.metadata(), [json.loads(one.to_json()) for one in fields]
        schema = json.loads(metadata.schema_json)
        for one in added:
            _add_field(schema["fields"], one)
        info = {"operation": "ADD COLUMN", "operationParameters": {"fields": json.dumps(added)}}
        metadata = replace(metadata, schema_json=json.dumps(schema))
        entry = Entry(info, self.log.now_ms, metadata=metadata)
        self._move_on(self.log.commit(self.version(), entry, commit_properties.max_commit_retries))

    def _move_on(self, number: int) -> None:
        self.log.after_commit(number)
        self._take(self.log.segment(number))

    def restore(self, target: int | datetime) -> None:
        """The handle moves on to the new version."""
        log, now = self.log, self.at
        number = log.find_number_at(target) if isinstance(target, datetime) else target
        then = log.load(number).version()
        if number >= self.version():
            raise DeltaError(f"Generic error: Version to restore {number} should be less then {now.number}.")
        back = [file for path, file in then.files.items() if not _is_in(path, then, now)]
        gone = [file for path, file in now.files.items() if not _is_in(path, now, then)]
        missing = log.read("look for files", lambda: [file.path for file in back if not log.has(file.path)])
        if missing:
            raise DeltaError(f"Generic error: Find missing file {missing[0]} when restore.")
        info = {"operation": "RESTORE", "operationParameters": _restored(target)}
        vectors = {file.path: then.vectors[file.path] for file in back if file.path in then.vectors}
        entry = Entry(info, log.now_ms, back, gone, {}, then.metadata, vectors, restored=number)
        log.put_next(self.version() + 1, entry)
        self._move_on(self.version() + 1)


def _changes_data(actions: Sequence[AddAction | RemoveAction]) -> bool:
    return any(one.data_change for one in actions)


def _is_in(path: str, one: TableVersion, other: TableVersion) -> bool:
    """Does the other version have the file, with the same deleted rows?"""
    return path in other.files and one.vectors.get(path) == other.vectors.get(path)


def _add_field(fields: list[Any], added: Any) -> None:
    for there in fields:
        if there["name"] == added["name"] and there["type"] != added["type"]:
            raise SchemaMismatchError(f"Schema error: Cannot merge types of {added['name']}")
        if there["name"] == added["name"]:
            return
        if there["name"].lower() == added["name"].lower():
            raise Exception(f"External error: Schema error: Duplicate field name: {added['name']!r}")
    fields.append(added)


def _restored(target: int | datetime) -> dict[str, str]:
    if isinstance(target, datetime):
        return {"datetime": str(int(target.timestamp() * 1000))}
    return {"version": str(target)}


def table_class(log: DeltaLog) -> type[FakeDeltaTable]:
    """What stands for the library's class in a simulation of that table."""
    return type("DeltaTable", (FakeDeltaTable,), {"log": log})


# The log's files ------------------------------------------------------------------------------------------


class FakeLogFiles:
    """See `penstock.committers.delta.log_files.LogFiles`."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    def read(self, version: int) -> LogFile | None:
        stored = self._head(version)
        return None if stored is None else LogFile(stored.content.to_json(), _identity(stored))

    def identity(self, version: int) -> str | None:
        stored = self._head(version)
        return None if stored is None else _identity(stored)

    def _head(self, version: int) -> StoredObject | None:
        with as_os_error():
            return self._log.objects.head(self._path(version))

    def put(self, version: int, content: bytes) -> str:
        self._log.put(version, Entry.of_append(content))
        return _identity(self._log.objects.ever[self._path(version)])

    def _path(self, version: int) -> str:
        return f"{self._log.table_uri}/{entry_name(version)}"


def _identity(stored: StoredObject) -> str:
    return f"{id(stored.content)}"


# Files as clean-up looks at them ---------------------------------------------------------------------------


class TableFileSystem(LocationFileSystem):
    """`deltalake.fs` over the location of a table: data files and the log."""

    def __init__(self, log: DeltaLog) -> None:
        log.check_location()
        super().__init__(log.objects, log.table_uri, log.on_create)
        self._log = log

    def open_input_file(self, path: str) -> Any:
        """An entry of the log as JSON; of a checkpoint what `CheckpointFile` reads; or any other file."""
        with as_os_error():
            content = self._log.objects.get(f"{self._log.table_uri}/{path}").content
        if isinstance(content, bytes):
            return pa.BufferReader(content)
        return CheckpointStream(content) if isinstance(content, Checkpoint) else io.BytesIO(content.to_json())


class CheckpointStream(io.BytesIO):
    """A log checkpoint that was opened."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__()
        self.checkpoint = checkpoint


_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD = pa.struct(
    [("path", pa.string()), ("size", pa.int64()), ("stats", pa.string()), ("deletionVector", _VECTOR)]
)
_REMOVE = pa.struct([("path", pa.string()), ("deletionVector", _VECTOR)])


class CheckpointFile:
    """What the product asks of a `pq.ParquetFile` over a log checkpoint."""

    schema_arrow = pa.schema([("add", _ADD), ("remove", _REMOVE)])

    def __init__(self, stream: CheckpointStream) -> None:
        self._checkpoint = stream.checkpoint

    def iter_batches(self, rows: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """All columns of what is asked for."""
        version = self._checkpoint.version
        added = [add_of(file, version.vectors.get(path)) for path, file in version.files.items()]
        removed = [{"path": quote(path)} for path in self._checkpoint.removed]
        values = {"add": added + [None] * len(removed), "remove": [None] * len(added) + removed}
        asked = {name.partition(".")[0] for name in columns}
        fields = [column for column in self.schema_arrow if column.name in asked]
        yield pa.record_batch([values[one.name] for one in fields], schema=pa.schema(fields))
