"""Compaction of a Delta table: the files that can be rewritten, and the commit that replaces them.

The library's own `optimize` is not used: if two of them run at the same time, both succeed and every row is
duplicated. Here each attempt commits exactly the version after the loaded one, and the library does not
retry. This does not protect against others who call the library's `optimize`: if it starts before a commit
made here, it does not notice that commit. So tables that others compact are skipped.

A file is removed by the exact path text in the log. The library derives that text from the path. If another
engine has encoded the path differently, the old file would stay next to the new one, so such files are
skipped. Removing a file with a deletion vector requires naming the vector, which the library cannot: then the
entry is written here, as for changes. Such a file is another one as soon as its vector changes.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from ..contract import Conflict, DataFile, Token
from ..file_tables.clock import now_ms
from ..file_tables.compaction import (
    DeletedRows,
    Outdated,
    Replaced,
    Replacement,
    Rewritten,
    VisibleFiles,
)
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from ..protocol.failed_commit import failed_compaction
from .active_files import active_files
from .checks import check_supported
from .deletion_vectors import DeletionVector, read_vector
from .files import delta_files
from .history import NOTE_KEY, commits_since
from .library import in_short
from .library_commit import add_actions, post_commit
from .log_entry import ActiveFile, add_action, logged_path, remove_action, rewrite_entry
from .log_files import is_local
from .schema_update import is_beyond_library
from .snapshot_cache import SnapshotCache, TableSnapshot
from .table import KIND, load, load_if_there, token_of

FormatPartition = Callable[[Any, pa.DataType], "str | None"]
"""Formats a partition value as the Delta protocol requires."""

LOOKBACK_COMMITS = 200
"""Number of commits searched for compactions by others on the first call. Later calls check every commit
since.
"""


class DeltaCompactableTable:
    """`compaction.CompactableTable` for Delta. Each call reads the current state.

    Args:
        query_id: its token shows the progress of the stream
        format_partition: formats the partition values of the new files
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str],
        query_id: str,
        format_partition: FormatPartition,
    ) -> None:
        self._uri = table_uri
        self._options = dict(storage_options)
        self._query_id = query_id
        self._format_partition = format_partition
        self._verified_version = -1
        self._others_compact = False

    def visible_files(self) -> VisibleFiles | None:
        table = load_if_there(self._uri, self._options)
        token = None if table is None else self._token(table)
        if table is None or token is None:
            return None
        check_supported(table)
        if self._is_compacted_by_others(table):
            return None
        content = LakeManifest(
            kind=KIND,
            mode="append",
            table_id=str(table.metadata().id),
            table_version=table.version(),
            schema_json=table.schema().to_json(),
            new_columns=(),
            partition_by=tuple(table.metadata().partition_columns),
            files=tuple(self._plain_files(table)),
        )
        with_vectors = self._files_with_vectors(table)
        vectors = {file.path: active.vector for file, active in with_vectors.items() if active.vector}
        return VisibleFiles(
            content.with_files([*content.files, *with_vectors]),
            token.batch_id,
            {path: DeletedRows(vector.rows, _origin(vector)) for path, vector in vectors.items()},
            lambda paths: {path: read_vector(vectors[path], self._files.read, self._uri) for path in paths},
        )

    def replace(self, content: LakeManifest, rewritten: Sequence[Rewritten], batch_id: int) -> Replacement:
        missing = self._files.missing([file.path for group in rewritten for file in group.files])
        if missing:
            return Outdated(f"{len(missing)} new files are missing, first {missing[0]}")
        table = load(self._uri, self._options, content.table_id)
        token = self._token(table)
        if token is None or token.batch_id >= batch_id:
            return Outdated("the stream has committed too many batches in the meantime")
        check_supported(table)
        if self._is_compacted_by_others(table):
            return Outdated("others compact the table")
        layout = table.schema().to_json(), tuple(table.metadata().partition_columns)
        if layout != (content.schema_json, content.partition_by):
            return Outdated("the table was altered in the meantime")
        with_vectors = self._files_with_vectors(table) if any(one.deleted for one in rewritten) else {}
        origins = {
            file.path: _origin(active.vector) for file, active in with_vectors.items() if active.vector
        }
        there = {*self._plain_files(table), *with_vectors}
        kept = tuple(
            [
                group
                for group in rewritten
                if there.issuperset(group.sources)
                and dict(group.deleted)
                == {one.path: origins[one.path] for one in group.sources if one.path in origins}
            ]
        )
        if not kept:
            return Outdated("other writers have removed or changed the same files")
        if any(group.deleted for group in kept) or is_beyond_library(table):
            snapshot = SnapshotCache().load(self._uri, self._options)
            if snapshot is None or snapshot.version() != table.version() or snapshot.tail is None:
                return Conflict(f"another writer has just changed {self._uri}")
            return self._commit_entry(snapshot, content, kept, with_vectors)
        return self._commit(table, content, kept)

    def _token(self, table: DeltaTable) -> Token | None:
        return token_of(TableSnapshot.of(table, self._options), self._query_id)

    def _is_compacted_by_others(self, table: DeltaTable) -> bool:
        """The commit is not called `OPTIMIZE` because the library does not allow setting the operation's
        name.
        """
        since = max(self._verified_version, table.version() - LOOKBACK_COMMITS, -1)
        commits = commits_since(table, self._options, since)
        self._others_compact |= any(commit.operation == "OPTIMIZE" for commit in commits)
        self._verified_version = table.version()
        return self._others_compact

    def delete_files(self, paths: Iterable[str]) -> int:
        return self._files.delete(paths)

    @property
    def _files(self) -> TableFiles:
        return delta_files(self._uri, self._options)

    # Files ----------------------------------------------------------------------------------------

    def _plain_files(self, table: DeltaTable) -> Iterator[DataFile]:
        """Files that can be removed by a commit. Without statistics, because the new files get their own."""
        actions = pa.table(table.get_add_actions())
        partition_by = table.metadata().partition_columns
        kinds = {name: actions.schema.field("partition").type.field(name).type for name in partition_by}
        wanted = ["path", "size_bytes", "num_records", *(["partition"] if partition_by else [])]
        with_vector = _names_with_deletion_vectors(table)
        for row in actions.select(wanted).to_pylist():
            path = unquote(row["path"])
            if row["num_records"] is None or logged_path(path) != row["path"]:
                continue
            if posixpath.basename(path) in with_vector:
                continue
            values = tuple(
                (name, self._format_partition(row["partition"][name], kinds[name])) for name in partition_by
            )
            yield DataFile(path, row["size_bytes"], row["num_records"], values)

    def _files_with_vectors(self, table: DeltaTable) -> dict[DataFile, ActiveFile]:
        """The files that have a deletion vector; none if the log cannot be read file by file."""
        if "deletionVectors" not in (table.protocol().reader_features or ()):
            return {}
        snapshot = SnapshotCache().load(self._uri, self._options)
        if snapshot is None or snapshot.tail is None or snapshot.version() != table.version():
            return {}
        partition_by = table.metadata().partition_columns
        found = {}
        for active in active_files(snapshot, self._options):
            rows = _rows_of(active)
            if active.vector is None or rows is None or logged_path(active.path) != active.logged_path:
                continue
            values = tuple([(name, active.partition_values.get(name)) for name in partition_by])
            found[DataFile(active.path, active.size_bytes, rows, values)] = active
        return found

    # Commit ---------------------------------------------------------------------------------------

    def _commit_entry(
        self,
        snapshot: TableSnapshot,
        content: LakeManifest,
        groups: tuple[Rewritten, ...],
        with_vectors: Mapping[DataFile, ActiveFile],
    ) -> Replaced | Conflict:
        """Commit with an entry of our own, which can remove files with deletion vectors."""
        version, note, now = snapshot.version() + 1, _note(groups), now_ms()
        actions = [
            *(
                remove_action(with_vectors.get(file) or _active(file), now, data_change=False)
                for group in groups
                for file in group.sources
            ),
            *(add_action(file, now, data_change=False) for group in groups for file in group.files),
        ]
        try:
            snapshot.append(rewrite_entry(note, actions, now), {})
        except Exception as error:  # noqa: BLE001  the log shows whether it was committed
            return self._outcome_after(error, content, groups, version, note)
        return Replaced(version, groups)

    def _commit(
        self, table: DeltaTable, content: LakeManifest, groups: tuple[Rewritten, ...]
    ) -> Replaced | Conflict:
        version = table.version() + 1
        note = _note(groups)
        try:
            table.create_write_transaction(
                [*_removes(groups), *_adds(groups)],
                mode="append",
                schema=table.schema(),
                partition_by=list(content.partition_by),
                commit_properties=CommitProperties(
                    custom_metadata={NOTE_KEY: note, "isBlindAppend": False}, max_commit_retries=0
                ),
                post_commithook_properties=post_commit(table),
            )
        except Exception as error:  # noqa: BLE001  the log shows whether it was committed
            return self._outcome_after(error, content, groups, version, note)
        return Replaced(version, groups)

    def _outcome_after(
        self,
        error: Exception,
        content: LakeManifest,
        groups: tuple[Rewritten, ...],
        version: int,
        note: str,
    ) -> Replaced | Conflict:
        """Interpret an error of the commit call."""
        failed = failed_compaction(
            f"the Delta table {self._uri}",
            in_short(error),
            can_commit_later=not is_local(self._uri),
            cause=error,
        )
        with failed.reading_table():
            found = self._outcome_in_table(error, content, groups, version, note)
        if found is None:
            raise failed.not_found() from error
        return found

    def _outcome_in_table(
        self,
        error: Exception,
        content: LakeManifest,
        groups: tuple[Rewritten, ...],
        version: int,
        note: str,
    ) -> Replaced | Conflict | None:
        table = load(self._uri, self._options, content.table_id)
        commits = commits_since(table, self._options, version - 1)
        committed = next((commit.version for commit in commits if commit.note == note), None)
        if committed is not None:
            return Replaced(committed, groups)
        if isinstance(error, (CommitFailedError, FileExistsError)) and table.version() >= version:
            return Conflict(f"version {version} of {self._uri} was taken by another writer")
        return None


def _removes(groups: Iterable[Rewritten]) -> list[RemoveAction]:
    sources, now = [file for group in groups for file in group.sources], now_ms()
    return [
        RemoveAction(file.path, False, now, file.size_bytes, dict(file.partition_values)) for file in sources
    ]


def _adds(groups: Iterable[Rewritten]) -> list[AddAction]:
    return add_actions([file for group in groups for file in group.files], now_ms(), data_change=False)


def _origin(vector: DeletionVector) -> str:
    return json.dumps(vector.to_action())


def _rows_of(file: ActiveFile) -> int | None:
    try:
        return int(json.loads(file.stats or "{}")["numRecords"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _active(file: DataFile) -> ActiveFile:
    """A file without a vector as the log has it."""
    values = dict(file.partition_values)
    return ActiveFile(logged_path(file.path), values, file.size_bytes, 0, "", None)


def _names_with_deletion_vectors(table: DeltaTable) -> set[str]:
    """Base names of files that have deleted rows."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return set()
    uris = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    return {unquote(posixpath.basename(str(uri))) for uri in uris}


def _note(groups: Sequence[Rewritten]) -> str:
    """User metadata of the commit. It identifies no batch; the names of the new files make it unique."""
    fields = {
        "compaction": groups[0].files[0].path if groups[0].files else "",
        "sources": sum(len(group.sources) for group in groups),
        "files": sum(len(group.files) for group in groups),
    }
    return json.dumps({"penstock": fields})
