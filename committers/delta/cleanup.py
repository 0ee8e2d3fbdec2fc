"""Clean-up of a Delta table: its tokens, its files, and the files that its log lists.

All remaining entries of the log count, not only the newest version: time travel and RESTORE need the files of
all readable versions. Names are taken from `add` and `remove` actions alike; an extra name only keeps a file.
Layout of the log: `PROTOCOL.md` of Delta, "File types".
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from ..cleaning.cleanup import ListedFile
from ..contract import Token
from ..errors import RetryableError
from .deletion_vectors import vector_path
from .files import delta_files
from .snapshot_cache import SnapshotCache
from .table import token_of

LOG = "_delta_log"

_NAME = re.compile(rb'[/\\"]([^/\\"]+\.parquet)')
"""Last segment of a path in a JSON entry, for any action: it starts after a quote or a slash and ends before
a quote. A pattern that can start anywhere would restart at every byte.
"""
_VECTOR = re.compile(rb'"pathOrInlineDv" ?: ?"((?:[^"\\\\]|\\\\.)*)"')
"""Place of a deletion vector in a JSON entry. Of an inline one it is no path, which keeps no file."""
_LISTINGS_MAX = 5
_ROWS_PER_READ = 100_000


class DeltaCleanableTable:
    """`cleanup.CleanableTable` for Delta. Each call reads the current state."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = table_uri
        self._options = dict(storage_options)
        self._files = delta_files(table_uri, self._options)
        self._read_entries: set[str] = set()

    @cached_property
    def _fs(self) -> pafs.FileSystem:
        """
        Raises:
            RetryableError: the location is a folder of this machine that does not exist.
        """
        try:
            return pafs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))
        except TableNotFoundError as error:
            raise self._unreadable(LOG, error) from error

    def id_and_tokens(self, query_ids: Iterable[str]) -> tuple[str | None, Mapping[str, Token]]:
        table = SnapshotCache().load(self._uri, self._options)
        if table is None:
            return None, {}
        tokens = {query_id: token_of(table, query_id) for query_id in query_ids}
        found = {query_id: token for query_id, token in tokens.items() if token is not None}
        return str(table.metadata().id), found

    def files(self) -> Iterator[ListedFile]:
        """All files below the location, except the log and tables inside it."""
        listed = [ListedFile(*file) for file in self._files.walk()]
        logs = {root for file in listed if (root := _root_of_log(file.path)) is not None}
        return (file for file in listed if not _is_in_other_table(file.path, logs))

    def names(self) -> Iterator[set[str]]:
        """Base names in log entries that were not read before.

        Raises:
            RetryableError: an entry cannot be read, so the files that it lists are unknown.
        """
        for _ in range(_LISTINGS_MAX):
            # Log clean-up may delete an entry that was just listed. Its replacement already exists.
            with suppress(FileNotFoundError):
                yield from self._new_names()
                return
        raise RetryableError(
            f"The log of the Delta table {self._uri} is cleaned up faster than it can be read. Files that "
            "it may list were not deleted. Try again later."
        )

    def delete_files(self, paths: Iterable[str]) -> int:
        return self._files.delete(paths)

    def _new_names(self) -> Iterator[set[str]]:
        for info in self._list_log():
            if info.path not in self._read_entries and info.path.endswith((".json", ".parquet")):
                yield from self._names_in(info.path)
                self._read_entries.add(info.path)

    def _list_log(self) -> Sequence[pafs.FileInfo]:
        everything = pafs.FileSelector(LOG, recursive=True, allow_not_found=True)
        try:
            entries: Sequence[pafs.FileInfo] = self._fs.get_file_info(everything)
        except OSError as error:
            raise self._unreadable(LOG, error) from error
        return entries

    def _names_in(self, entry: str) -> Iterator[set[str]]:
        try:
            if entry.endswith(".json"):
                yield self._names_in_json(entry)
            else:
                yield from self._names_in_parquet(entry)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(entry, error) from error

    def _unreadable(self, entry: str, error: Exception) -> RetryableError:
        return RetryableError(
            f"The entry {entry} of the Delta table {self._uri} cannot be read: {error}. Files that it may "
            "list were not deleted. Check that the storage is reachable, then try again."
        )

    def _names_in_json(self, entry: str) -> set[str]:
        with self._fs.open_input_file(entry) as stream:
            content = stream.read()
        names = {unquote(name.decode()) for name in _NAME.findall(content)}
        places = [json.loads(b'"%s"' % place) for place in _VECTOR.findall(content)]
        return names.union(*map(_vector_names, places))

    def _names_in_parquet(self, entry: str) -> Iterator[set[str]]:
        """File names in a checkpoint or in one of its sidecars."""
        with self._fs.open_input_file(entry) as stream:
            parquet = pq.ParquetFile(stream)
            columns = [name for name in ("add", "remove") if name in parquet.schema_arrow.names]
            paths = [f"{name}.path" for name in columns]
            with_vectors = [name for name in columns if _has_vectors(parquet.schema_arrow.field(name).type)]
            paths += [f"{name}.deletionVector.pathOrInlineDv" for name in with_vectors]
            for batch in parquet.iter_batches(_ROWS_PER_READ, columns=paths) if paths else ():
                for name in columns:
                    values = cast("list[str | None]", batch.column(name).field("path").to_pylist())
                    yield {unquote(posixpath.basename(path)) for path in values if path is not None}
                for name in with_vectors:
                    places = batch.column(name).field("deletionVector").field("pathOrInlineDv").to_pylist()
                    for place in places:
                        yield set() if place is None else _vector_names(place)


def _has_vectors(actions: pa.StructType) -> bool:
    return any(column.name == "deletionVector" for column in actions)


def _vector_names(place: str) -> set[str]:
    """The base name of a vector's file, from its place in the log; none if it is not a file of a table."""
    try:
        return {posixpath.basename(vector_path(place))}
    except ValueError:
        return {posixpath.basename(place)}


def _root_of_log(path: str) -> str | None:
    """The table, relative to this one, to whose log the path belongs; None if it is not part of a log."""
    folders = path.split("/")[:-1]
    return "/".join(folders[: folders.index(LOG)]) if LOG in folders else None


def _is_in_other_table(path: str, roots: set[str]) -> bool:
    """Return True if the file is part of a log, or below one of `roots` except this table (the empty
    root).
    """
    folders = path.split("/")[:-1]
    return LOG in folders or any("/".join(folders[:depth]) in roots for depth in range(1, len(folders) + 1))
