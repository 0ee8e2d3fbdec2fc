"""Tombstones: which keys of a file table were deleted, and by which place in the order.

With `lateRows=ignore` an older row must not bring a deleted key back, and the table has no row left to
compare it with. So a commit first writes the keys that it deletes to a file below `_penstock/tombstones-...`
in the table's location, where readers and vacuums do not look. If the commit fails, the file stays: the
deletion is a fact of the source, and its batch is written again.

A process reads each file once, into an index of its own that it loses when it ends. Batches look up their
keys there. Files with no tombstone younger than `tombstonesFor` are deleted, and many small files are merged,
a limited number with each commit.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import posixpath
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_array, numeric_scalar
from ..contract import Batch, Changes
from ..errors import NEXT_TRY, PenstockError, RetryableError
from ..file_tables.files import MissingFileError, TableFiles
from ..texts.safe_text import get_logger
from .key_files import FOLDER, Keys
from .keys import last_rows, one_array

logger = get_logger(__name__)

FILES_MAX = 64
"""With more files than this, a commit merges as many of them."""
PRUNED_MAX = 10_000
"""Tombstones that one commit removes from the index, and files that it deletes, at most."""
INDEXES_MAX = 20
"""Tables whose index a process keeps."""
_KEYS_PER_LOOKUP = 500
_LISTINGS_MAX = 5
_NAME = re.compile(r"(?P<newest>\d{12})-[0-9a-f]{32}\.parquet")


class Tombstones:
    """The tombstones of one table, for queries with the same keys and order. Runs on the driver and in the
    delivery process.

    Args:
        files: of the table
        batch: the one to commit
        now: seconds since 1970
        folder: where they are, below the table's location
    """

    def __init__(
        self,
        files: TableFiles,
        batch: Batch,
        changes: Changes,
        now: Callable[[], float] = time.time,
        folder: str = FOLDER,
    ) -> None:
        self._files = files
        self._batch = batch
        self._changes = changes
        self._now = now
        # with the table, since two tables may have their files in one place
        compared = json.dumps([batch.stream.table_uri, changes.keys, changes.order_by])
        name = f"tombstones-{hashlib.sha256(compared.encode()).hexdigest()[:16]}"
        self._folder = posixpath.join(folder, name)
        self._index = _index_of(name)

    def late_keys(self, keys: Keys) -> pa.Array:
        """Return the numbers of the keys that were deleted by something newer (int64).

        Raises:
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged.
        """
        self._read_new_files()
        found = self._index.newest([_text(key) for key in _tuples(keys.columns)])
        if not found:
            return numeric_array(())
        order = list(_tuples(keys.order))
        return numeric_array([number for number, newest in found if newest > order[number]])

    @classmethod
    def of(cls, files: TableFiles, batch: Batch, changes: Changes, folder: str = FOLDER) -> Tombstones | None:
        """Return the tombstones that a batch needs; None if it needs none."""
        return cls(files, batch, changes, folder=folder) if changes.tombstones_s else None

    def add(self, keys: Keys) -> None:
        """Write the deletions of the batch, before its commit. Another attempt writes them again.

        Raises:
            RetryableError: the storage cannot be written now.
        """
        deleted = keys.take(pc.indices_nonzero(keys.is_deleted))
        if not len(deleted):
            return
        batch, at = self._batch, pa.repeat(numeric_scalar(int(self._now())), len(deleted))
        unique = hashlib.sha256(f"{batch.stream} {batch.batch_id} {batch.digest}".encode()).hexdigest()[:32]
        self._write(deleted, at, unique)

    def prune(self) -> None:
        """Forget what is too old, and merge small files. What fails is left to a later commit."""
        try:
            oldest = int(self._now() - self._changes.tombstones_s)
            self._index.prune(oldest, PRUNED_MAX)
            names = self._list()
            expired = [name for name in names if _newest(name) < oldest]
            self._files.delete([self._path(name) for name in expired[:PRUNED_MAX]])
            left = sorted(set(names).difference(expired))
            if len(left) > FILES_MAX:
                self._merge(left[:FILES_MAX], oldest)
        except PenstockError as error:
            logger.info("Tombstones are pruned with a later batch: %s", error)

    # Files ----------------------------------------------------------------------------------------

    def _list(self) -> list[str]:
        return [name for name in self._files.names(self._folder) if _NAME.fullmatch(name)]

    def _path(self, name: str) -> str:
        return posixpath.join(self._folder, name)

    def _read_new_files(self) -> None:
        """
        Raises:
            RetryableError: other processes merge the files faster than they can be read.
        """
        for _ in range(_LISTINGS_MAX):
            with suppress(MissingFileError):  # merged meanwhile: its rows are in a file that was not listed
                for name in self._index.unread(self._list()):
                    keys, at = self._read(name)
                    rows = zip(_tuples(keys.columns), _tuples(keys.order), at.to_pylist(), strict=True)
                    self._index.put(name, ((_text(key), order, seconds) for key, order, seconds in rows))
                return
        raise RetryableError(
            f"Files of deleted keys of {self._batch.stream} disappear while they are read. Nothing was "
            f"committed. {NEXT_TRY}"
        )

    def _read(self, name: str) -> tuple[Keys, pa.Array]:
        """
        Raises:
            MissingFileError: the file is missing.
        """
        with self._files.opened(self._path(name)) as stream:
            try:
                table = pq.read_table(stream, use_threads=False)
            except pa.ArrowException as error:
                raise PenstockError(
                    f"The file {self._path(name)} of deleted keys is damaged: {error}. Nothing was "
                    "committed. Restore it from a backup; or delete it, and older rows may bring its keys "
                    "back."
                ) from error
        columns = {column: one_array(table.column(column)) for column in table.column_names}
        keys = [values for column, values in columns.items() if column.startswith("key.")]
        order = [values for column, values in columns.items() if column.startswith("order.")]
        deleted = pa.repeat(pc.equal(numeric_scalar(0), numeric_scalar(0)), table.num_rows)
        return Keys(tuple(keys), tuple(order), deleted), columns["at"]

    def _write(self, keys: Keys, at: pa.Array, unique: str) -> None:
        names = [f"key.{i}" for i in range(len(keys.columns))] + [
            f"order.{i}" for i in range(len(keys.order))
        ]
        table = pa.Table.from_arrays([*keys.columns, *keys.order, at], names=[*names, "at"])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        name = f"{pc.max(at).as_py():012d}-{unique}.parquet"
        self._files.create(self._path(name), sink.getvalue().to_pybytes())

    def _merge(self, names: Sequence[str], oldest: int) -> None:
        """Write the tombstones of several files to one, and delete those. A crash leaves both, which does no
        harm.
        """
        read = [self._read(name) for name in names]
        keys, at = Keys.concat([keys for keys, _ in read]), pa.concat_arrays([at for _, at in read])
        last = last_rows(keys.columns, keys.order).rows
        kept = last.filter(pc.greater_equal(at.take(last), numeric_scalar(oldest)))
        if len(kept):
            unique = hashlib.sha256(" ".join(names).encode()).hexdigest()[:32]
            self._write(keys.take(kept), at.take(kept), unique)
        self._files.delete([self._path(name) for name in names])


def _newest(name: str) -> int:
    match = _NAME.fullmatch(name)
    return 0 if match is None else int(match["newest"])


def _tuples(columns: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    return zip(*[column.to_pylist() for column in columns], strict=True)


def _text(key: tuple[Any, ...]) -> str:
    return repr(key)


# The index ----------------------------------------------------------------------------------------


class _Index:
    """The tombstones of a table by key, in a temporary database of this process. Safe to share among
    threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: set[str] = set()
        # an empty name is a private file, which the system deletes when the process ends
        self._database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._database.execute(
            "CREATE TABLE tombstones (key TEXT PRIMARY KEY, newest BLOB, at INTEGER) WITHOUT ROWID"
        )
        self._database.execute("CREATE INDEX by_age ON tombstones (at)")

    def unread(self, names: Sequence[str]) -> list[str]:
        """Return the names of files that are not in the index. Forget the others that no longer exist."""
        with self._lock:
            self._read.intersection_update(names)
            return [name for name in names if name not in self._read]

    def put(self, name: str, rows: Iterator[tuple[str, tuple[Any, ...], int]]) -> None:
        """Add the rows of a file: (key, place in the order, seconds)."""
        with self._lock:
            self._database.execute("BEGIN")
            while some := list(islice(rows, _KEYS_PER_LOOKUP)):
                known = dict(self._newest([key for key, _, _ in some]))
                self._database.executemany(
                    "INSERT OR REPLACE INTO tombstones VALUES (?, ?, ?)",
                    [
                        (key, pickle.dumps(order), at)
                        for key, order, at in some
                        if key not in known or known[key] < order
                    ],
                )
            self._database.execute("COMMIT")
            self._read.add(name)

    def newest(self, keys: Sequence[str]) -> list[tuple[int, tuple[Any, ...]]]:
        """Return, for those of the keys that are there, their number and the place of their deletion."""
        numbers = {key: number for number, key in enumerate(keys)}
        with self._lock:
            found = [
                pair
                for first in range(0, len(keys), _KEYS_PER_LOOKUP)
                for pair in self._newest(keys[first : first + _KEYS_PER_LOOKUP])
            ]
        return [(numbers[key], order) for key, order in found]

    def _newest(self, keys: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]]:
        places = ", ".join("?" * len(keys))
        statement = f"SELECT key, newest FROM tombstones WHERE key IN ({places})"  # noqa: S608  only marks
        rows = self._database.execute(statement, list(keys)).fetchall()
        return [(key, pickle.loads(order)) for key, order in rows]  # noqa: S301  written by this process

    def prune(self, oldest: int, rows_max: int) -> None:
        with self._lock:
            self._database.execute(
                "DELETE FROM tombstones WHERE key IN (SELECT key FROM tombstones WHERE at < ? LIMIT ?)",
                (oldest, rows_max),
            )


_indexes: dict[str, _Index] = {}
_indexes_lock = threading.Lock()


def _index_of(name: str) -> _Index:
    with _indexes_lock:
        if name not in _indexes and len(_indexes) >= INDEXES_MAX:
            _indexes.clear()
        return _indexes.setdefault(name, _Index()) if name not in _indexes else _indexes[name]
