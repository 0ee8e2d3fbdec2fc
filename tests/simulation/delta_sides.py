"""A Delta table as the fake has it and as the library has it, and the same operations on either."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    PostCommitHookProperties,
    Schema,
    Transaction,
)
from deltalake.transaction import AddAction
from tests.simulation.delta_lake import DeltaSimLake
from tests.simulation.scheduler import Scheduler
from tests.support.lakes import DeltaLake

LOG = "_delta_log"
EPOCH = 1_700_000_000
"""When version 0 was written, after `set_times`; each version 100 s after the one before."""


def _parquet(row_id: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [row_id]}), sink)
    return sink.getvalue()


FILE_BYTES = len(_parquet(0))
"""Of every data file: compaction wants to know."""


class FakeSide:
    """The table of a simulation. Its methods mean the same on both sides."""

    def __init__(self, scheduler: Scheduler | None = None, *, is_remote: bool = False) -> None:
        self.lake = DeltaSimLake(scheduler or Scheduler(0), is_remote=is_remote)
        self.uri, self.delta_table = self.lake.table_uri, self.lake.delta_table
        self.append, self.compact = self.lake.append, self.lake.compact
        self.storage_options: dict[str, str] = {}
        self._stored = self.lake.objects.objects

    def write_file(self, path: str, row_id: int) -> None:
        """A data file with this id."""
        self.lake.objects.put(f"{self.uri}/{path}", (row_id,))

    def delete(self, path: str) -> None:
        del self._stored[f"{self.uri}/{path}"]

    def paths(self) -> set[str]:
        """All files below the table, the log's included."""
        return {path.removeprefix(f"{self.uri}/") for path in self._stored}

    def set_time(self, path: str, seconds: int) -> None:
        """Of the file's last modification."""
        path = f"{self.uri}/{path}"
        self._stored[path] = replace(self._stored[path], modified_at=seconds)

    def files(self, handle: Any) -> set[str]:
        """The data files of a handle's version."""
        return set(handle.at.files)

    def rows(self, handle: Any) -> list[int]:
        """The ids of a handle's version."""
        files = [self._stored[f"{self.uri}/{path}"] for path in handle.at.files]
        return sorted(row_id for file in files for row_id in file.content)

    def vacuum(self) -> None:
        """Delete all data files that the newest version does not name."""
        self.lake.objects.scheduler.now += 1  # what was written at the same moment is too young
        self.lake.vacuum(0)


class RealSide:
    """A table of the Delta library, on the local disk."""

    delta_table: Any = DeltaTable

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "table"
        self.uri = str(self._folder)
        lake = DeltaLake(self._folder)
        self.append, self.compact, self.vacuum = lake.append, lake.compact, lake.vacuum
        self.storage_options: dict[str, str] = {}

    def write_file(self, path: str, row_id: int) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_parquet(row_id))

    def delete(self, path: str) -> None:
        (self._folder / path).unlink()
        if not self.paths():
            shutil.rmtree(self._folder)

    def paths(self) -> set[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*") if path.is_file()}

    def set_time(self, path: str, seconds: int) -> None:
        os.utime(self._folder / path, (seconds, seconds))

    def files(self, handle: Any) -> set[str]:
        return {os.path.relpath(uri, self._folder) for uri in handle.file_uris()}

    def rows(self, handle: Any) -> list[int]:
        files = [pq.ParquetFile(self._folder / path).read(["id"]) for path in self.files(handle)]
        return sorted(row_id for file in files for row_id in file.column("id").to_pylist())


class RealPlace(NamedTuple):
    """Where a table of the Delta library is, and the class that opens it."""

    uri: str
    storage_options: dict[str, str]
    delta_table: type[DeltaTable] = DeltaTable


Side: TypeAlias = FakeSide | RealSide
Place: TypeAlias = Side | RealPlace


# What the product asks of the library, as it asks -------------------------------------------------------


def create(
    side: Place,
    checkpoint_every: int = 20,
    storage_options: dict[str, str] | None = None,
    retries: int | None = 0,
) -> None:
    side.delta_table.create(
        side.uri,
        Schema.from_json(json.dumps({"type": "struct", "fields": [column("id", "long")]})),
        mode="error",
        partition_by=[],
        configuration={"delta.checkpointInterval": str(checkpoint_every)},
        storage_options=storage_options or side.storage_options,
        commit_properties=CommitProperties(max_commit_retries=retries),
        raise_if_key_not_exists=False,
    )


def column(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def commit(
    handle: Any,
    batch_id: int,
    paths: Sequence[str] = (),
    *,
    query: str = "q",
    mode: str = "append",
    drops_expired: bool | None = False,
    retries: int | None = 0,
) -> None:
    """Add these files and the token of a batch."""
    handle.create_write_transaction(
        [AddAction(path, FILE_BYTES, {}, 0, True, "{}") for path in paths],
        mode=mode,
        schema=handle.schema(),
        partition_by=[],
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": f"{query} {batch_id}", "isBlindAppend": mode == "append"},
            max_commit_retries=retries,
            app_transactions=[Transaction(query, batch_id)],
        ),
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=True, cleanup_expired_logs=drops_expired
        ),
    )


def add_column(handle: Any, name: str, kind: str = "long", retries: int | None = 0) -> None:
    fields = [Field.from_json(json.dumps(column(name, kind)))]
    handle.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=retries))


# What happens to a table ----------------------------------------------------------------------------------


def open_table(side: Place, version: int | None = None, storage_options: dict[str, str] | None = None) -> Any:
    return side.delta_table(
        side.uri, version=version, storage_options=storage_options or side.storage_options
    )


def write(side: Side, batch_id: int, *, mode: str = "append", query: str = "q") -> None:
    """A batch of one file with one row, both named by its id."""
    path = f"{query}-{batch_id}.parquet"
    side.write_file(path, batch_id)
    commit(open_table(side), batch_id, [path], mode=mode, query=query)


def new_table(side: Side, batches: int = 0, checkpoint_every: int = 20) -> None:
    """A table with batches 1, 2 and so on: a batch's id is its version."""
    create(side, checkpoint_every)
    for batch_id in range(1, batches + 1):
        write(side, batch_id)


def drop(side: Side) -> None:
    for path in side.paths():
        side.delete(path)


def log_of(side: Side) -> list[str]:
    return sorted(path.removeprefix(f"{LOG}/") for path in side.paths() if path.startswith(LOG))


def entry(version: int) -> str:
    return f"{LOG}/{version:020}.json"


def drop_old_entries(side: Side) -> None:
    """What the newest log checkpoint makes superfluous."""
    checkpoints = [name for name in log_of(side) if name.endswith(".checkpoint.parquet")]
    for name in log_of(side):
        if checkpoints and name[:20] < checkpoints[-1][:20]:
            side.delete(f"{LOG}/{name}")


def set_times(side: Side) -> None:
    for name in log_of(side):
        if name[0] != "_":
            side.set_time(f"{LOG}/{name}", EPOCH + 100 * int(name[:20]))


# What is compared -----------------------------------------------------------------------------------------


def history(handle: Any, limit: int | None = None) -> list[tuple[Any, ...]]:
    """What the product reads of it."""
    return [
        (one["version"], one["operation"], one.get("userMetadata"), _told(one))
        for one in handle.history(limit)
    ]


def _told(commit_info: dict[str, Any]) -> Any:
    is_read = commit_info["operation"] == "RESTORE"
    return commit_info["operationParameters"] if is_read else None


def ending(act: Callable[[], Any]) -> Any:
    """What an operation returns, or the very class of its error."""
    try:
        return act()
    except Exception as error:  # noqa: BLE001  which one it is, is compared
        return type(error)
