"""Key files: the keys of the rows that a task has written, and those that it deletes.

A task that writes changes returns them with its data files. They are Parquet files below `FOLDER` with the
columns `key.0`, `order.0` and so on and `is_deleted`; no key comes twice. Their metadata name the data files
that have the rows of their keys, so all rows of a batch can be compared by key without reading them. Readers
of the table never see them, and they are deleted after the commit.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from ..contract import Batch, DataFile
from ..errors import PenstockError
from .keys import one_array

FOLDER = "_penstock"
"""Below the location of the data files. Readers and vacuums of tables leave out names with an underscore."""
SUFFIX = "keys"

_METADATA = b"penstock"
_READ_THREADS = 8

OpenFile: TypeAlias = Callable[[str], "AbstractContextManager[pa.NativeFile]"]
"""Opens a file by its path below the location of the data files."""


def is_key_file(file: DataFile) -> bool:
    return is_key_path(file.path)


def is_key_path(path: str) -> bool:
    return posixpath.dirname(path) == FOLDER


def data_files(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    return tuple([file for file in files if not is_key_file(file)])


def key_files(files: Iterable[DataFile]) -> tuple[DataFile, ...]:
    return tuple([file for file in files if is_key_file(file)])


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows by key: an insert or update, or a deletion, each."""

    columns: tuple[pa.Array, ...]
    """The key columns, without NULL."""
    order: tuple[pa.Array, ...]
    """The columns of `Changes.order_by`, without NULL."""
    is_deleted: pa.Array

    def __len__(self) -> int:
        return len(self.is_deleted)

    def take(self, rows: pa.Array) -> Keys:
        columns, order = ([one.take(rows) for one in some] for some in (self.columns, self.order))
        return Keys(tuple(columns), tuple(order), self.is_deleted.take(rows))

    @classmethod
    def concat(cls, some: Sequence[Keys]) -> Keys:
        columns = zip(*[one.columns for one in some], strict=True)
        order = zip(*[one.order for one in some], strict=True)
        return cls(
            tuple(map(pa.concat_arrays, columns)),
            tuple(map(_concat, order)),
            pa.concat_arrays([one.is_deleted for one in some]),
        )


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """Join arrays. The type of a column that the table does not have may differ from batch to batch."""
    if len({array.type for array in arrays}) == 1:
        return pa.concat_arrays(arrays)
    tables = [pa.Table.from_arrays([array], names=["values"]) for array in arrays]
    return one_array(pa.concat_tables(tables, promote_options="permissive").column(0))


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """The content of a key file. No key comes twice."""

    keys: Keys
    batch_id: int
    files: tuple[str, ...]
    """Paths of the data files that have the rows of the keys, as far as they are not deleted."""


def key_table(written: WrittenKeys) -> pa.Table:
    """Return the content of a key file."""
    keys = written.keys
    names = [
        *(f"key.{number}" for number in range(len(keys.columns))),
        *(f"order.{number}" for number in range(len(keys.order))),
        "is_deleted",
    ]
    about = {"batch_id": written.batch_id, "files": written.files}
    table = pa.Table.from_arrays([*keys.columns, *keys.order, keys.is_deleted], names=names)
    return table.replace_schema_metadata({_METADATA: json.dumps(about)})


def read_keys(batch: Batch, files: Sequence[DataFile], open_file: OpenFile) -> list[WrittenKeys]:
    """Read key files.

    Raises:
        PenstockError: one of them is damaged.
        TableChangedError: one of them is missing.
        RetryableError: the storage cannot be reached now.
    """
    if len(files) < 2:
        return [_read(batch, file, open_file) for file in files]
    with ThreadPoolExecutor(_READ_THREADS) as threads:
        return list(threads.map(lambda file: _read(batch, file, open_file), files))


def _read(batch: Batch, file: DataFile, open_file: OpenFile) -> WrittenKeys:
    with open_file(file.path) as stream:
        try:
            table = pq.read_table(stream, use_threads=False)
            about = json.loads(table.schema.metadata[_METADATA])
            batch_id, paths = int(about["batch_id"]), tuple(map(str, about["files"]))
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise PenstockError(
                f"The key file {file.path} of batch {batch.batch_id} of {batch.stream} is damaged: {error}. "
                "Nothing was committed. Restore it from a backup of the storage, or abort the batch: "
                "`penstock skip`."
            ) from error
    columns = [one_array(column) for column in table.columns]
    names = table.column_names
    keys = Keys(
        tuple([column for name, column in zip(names, columns, strict=True) if name.startswith("key.")]),
        tuple([column for name, column in zip(names, columns, strict=True) if name.startswith("order.")]),
        columns[-1],
    )
    return WrittenKeys(keys, batch_id, paths)
