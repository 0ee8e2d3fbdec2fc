"""The data files of a Delta table at one version, with their deletion vectors.

The Delta library does not return where a vector is, and a commit that replaces one has to name it. So the log
is read here: the last checkpoint, then the entries after it (`PROTOCOL.md` of Delta, "Action
Reconciliation"). A process keeps what it has read, and later reads only new entries.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from ..error_causes import retryable
from ..errors import NEXT_TRY, RetryableError, TableNotSupportedError
from .history import open_log
from .library import in_short
from .log_entry import ActiveFile
from .log_files import LOG, entry_name
from .snapshot_cache import LogTail, TableSnapshot

TABLES_MAX = 20
"""Tables that a process keeps: an entry for each of their files."""
_ROWS_PER_READ = 50_000
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-fA-F-]{36})?"
    r"\.(?P<format>parquet|json)"
)
_COLUMNS = ("path", "partitionValues", "size", "modificationTime", "stats", "deletionVector")


@dataclass(slots=True)
class ActiveFiles:
    """The files of one table, at the version of an entry of its log."""

    at: LogTail
    by_path: dict[str, ActiveFile] = field(default_factory=dict)
    """By the path in the log."""


def _apply(action: Mapping[str, Any], by_path: dict[str, ActiveFile]) -> None:
    """
    Raises:
        KeyError, TypeError, ValueError, AttributeError: the action is damaged.
    """
    if (removed := action.get("remove")) is not None:
        by_path.pop(str(removed["path"]), None)
    if (added := action.get("add")) is not None:
        file = ActiveFile.of(added)
        by_path[file.logged_path] = file


def _apply_entry(content: bytes, by_path: dict[str, ActiveFile]) -> None:
    """Removes count before adds: a commit may replace the vector of a file by removing and adding it."""
    actions = [json.loads(line) for line in content.splitlines() if b'"add"' in line or b'"remove"' in line]
    for action in actions:
        if "remove" in action:
            _apply(action, by_path)
    for action in actions:
        if "remove" not in action:
            _apply(action, by_path)


_kept: dict[tuple[str, frozenset[tuple[str, str]]], ActiveFiles] = {}
"""What this process has read last, by table."""


def active_files(table: TableSnapshot, storage_options: Mapping[str, str]) -> list[ActiveFile]:
    """Return the files of the snapshot's version.

    Raises:
        RetryableError: the log cannot be read now.
        TableNotSupportedError: an entry is damaged.
    """
    tail = table.tail
    if tail is None:
        raise RetryableError(
            f"The log of the Delta table {table.table_uri} cannot be read file by file now, as changes need "
            f"it. Nothing was committed. Check that the storage is reachable. {NEXT_TRY}"
        )
    key = table.table_uri, frozenset(storage_options.items())
    with _log_errors(table.table_uri):
        files = _kept.pop(key, None)
        if files is None or not _is_before(files.at, tail):
            version, by_path = _at_checkpoint(open_log(table.table_uri, storage_options), tail.version)
            files = ActiveFiles(LogTail(tail.files, version, "", tail.read_at_s), by_path)
        for version in range(files.at.version + 1, tail.version + 1):
            entry = tail.files.read(version)
            if entry is None:
                raise OSError(f"the entry of version {version} is missing")
            _apply_entry(entry.content, files.by_path)
        files.at = tail
    if len(_kept) >= TABLES_MAX:
        _kept.clear()
    _kept[key] = files
    return list(files.by_path.values())


def _is_before(known: LogTail, tail: LogTail) -> bool:
    """Return True if the log still has the known entry, and goes on from there."""
    if known.version > tail.version:
        return False
    if known.version == tail.version:
        return known.identity == tail.identity
    return known.is_there()


def files_at(table_uri: str, storage_options: Mapping[str, str], version: int) -> list[ActiveFile]:
    """Return the files of any version that the log still has, for readers. Nothing is kept.

    Raises:
        RetryableError: the log cannot be read now, or was cleaned up in the meantime.
        TableNotSupportedError: an entry is damaged.
    """
    with _log_errors(table_uri, "read"):
        log = open_log(table_uri, storage_options)
        known, by_path = _at_checkpoint(log, version)
        for number in range(known + 1, version + 1):
            with log.open_input_file(entry_name(number)) as entry:
                _apply_entry(entry.read(), by_path)
    return list(by_path.values())


def _at_checkpoint(log: pafs.FileSystem, version_max: int) -> tuple[int, dict[str, ActiveFile]]:
    """Return the version of the last checkpoint up to a version, and its files; without one -1 and none."""
    version, paths = _last_checkpoint(log, version_max)
    by_path: dict[str, ActiveFile] = {}
    for path in paths:
        for action in _checkpoint_actions(log, path):
            _apply(action, by_path)
    return version, by_path


def _last_checkpoint(log: pafs.FileSystem, version_max: int) -> tuple[int, list[str]]:
    """Return the version and the files of the newest complete checkpoint; -1 if there is none."""
    found: dict[tuple[int, int], list[str]] = {}
    for info in log.get_file_info(pafs.FileSelector(LOG)):
        match = _CHECKPOINT.fullmatch(posixpath.basename(info.path))
        if match is not None and int(match["version"]) <= version_max:
            found.setdefault((int(match["version"]), int(match["parts"] or 1)), []).append(info.path)
    complete = [(version, paths) for (version, parts), paths in found.items() if len(paths) >= parts]
    if not complete:
        return -1, []
    version, paths = max(complete)
    is_in_parts = all(".checkpoint.0" in path for path in paths)
    return version, sorted(paths) if is_in_parts else paths[:1]


def _checkpoint_actions(log: pafs.FileSystem, path: str) -> Iterator[Mapping[str, Any]]:
    """The `add` actions of a checkpoint, with those in its sidecars."""
    if path.endswith(".json"):
        with log.open_input_file(path) as stream:
            actions = [json.loads(line) for line in stream.read().splitlines()]
    else:
        actions = list(_parquet_actions(log, path))
    for action in actions:
        if (sidecar := action.get("sidecar")) is not None:
            yield from _parquet_actions(log, f"{LOG}/_sidecars/{posixpath.basename(str(sidecar['path']))}")
        else:
            yield action


def _parquet_actions(log: pafs.FileSystem, path: str) -> Iterator[Mapping[str, Any]]:
    with log.open_input_file(path) as stream:
        parquet = pq.ParquetFile(stream)
        schema = parquet.schema_arrow
        columns = []
        if "add" in schema.names:
            there = {child.name for child in schema.field("add").type}
            columns = [f"add.{name}" for name in _COLUMNS if name in there]
        if "sidecar" in schema.names:
            columns.append("sidecar.path")
        for batch in parquet.iter_batches(_ROWS_PER_READ, columns=columns) if columns else ():
            for name in batch.schema.names:
                column = batch.column(name).drop_null()
                yield from ({name: value} for value in column.to_pylist())


@contextmanager
def _log_errors(table_uri: str, not_done: str = "committed") -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        raise retryable(error)(
            f"The log of the Delta table {table_uri} cannot be read: {in_short(error)}. Nothing was "
            f"{not_done}. Check that the storage is reachable. {NEXT_TRY}"
        ) from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise TableNotSupportedError(
            f"The log of the Delta table {table_uri} has an entry that cannot be read: {error!r}. Nothing "
            f"was {not_done}. Repair the log with the engine that has written it."
        ) from error
