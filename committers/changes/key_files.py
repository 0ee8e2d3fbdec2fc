"""Key files: the keys of the rows that a task has written, and those that it deletes.

A task that writes changes returns them with its data files. They are Parquet files below `FOLDER` with the
columns `key.0`, `order.0` and so on and `is_deleted`; no key comes twice. Their metadata name the data files
that have the rows of their keys, so all rows of a batch can be compared by key without reading them. Readers
of the table never see them, and they are deleted after the commit.

If rows leave columns of the table as they are, boolean columns `kept.<name>` say for which rows. A value may
then come from an older row of the key. These rows are in no data file: they follow in the key file, with
`is_older`, and their columns in `row`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_scalar
from ..contract import Batch, DataFile
from ..errors import PenstockError
from .keys import FALSE, one_array, row_numbers

FOLDER = "_penstock"
"""Below the location of the data files. Readers and vacuums of most tables leave out names with an
underscore.
"""
SUFFIX = "keys"

_METADATA = b"penstock"
_KEPT = "kept."
_READ_THREADS = 8

OpenFile: TypeAlias = Callable[[str], "AbstractContextManager[pa.NativeFile]"]
"""Opens a file by its path below the location of the data files."""


def is_key_file(file: DataFile) -> bool:
    return is_key_path(file.path)


def is_key_path(path: str) -> bool:
    return path.endswith(f".{SUFFIX}.parquet")


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
    kept: Mapping[str, pa.Array] = field(default_factory=dict)
    """For each column that keeps its value in the table for some of the rows: for which (boolean)."""

    def __len__(self) -> int:
        return len(self.is_deleted)

    def take(self, rows: pa.Array) -> Keys:
        columns, order = ([one.take(rows) for one in some] for some in (self.columns, self.order))
        kept = {name: is_kept.take(rows) for name, is_kept in self.kept.items()}
        return Keys(tuple(columns), tuple(order), self.is_deleted.take(rows), kept)

    def keeping(self, name: str) -> pa.Array:
        """Return for each row whether it keeps the value of the column in the table."""
        return self.kept[name] if name in self.kept else pa.repeat(FALSE, len(self))

    @classmethod
    def concat(cls, some: Sequence[Keys]) -> Keys:
        columns = zip(*[one.columns for one in some], strict=True)
        order = zip(*[one.order for one in some], strict=True)
        return cls(
            tuple(map(pa.concat_arrays, columns)),
            tuple(map(_concat, order)),
            pa.concat_arrays([one.is_deleted for one in some]),
            {
                name: pa.concat_arrays([one.keeping(name) for one in some])
                for name in sorted({name for one in some for name in one.kept})
            },
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
    older: Keys | None = None
    """Older rows of keys whose row keeps columns; several of one key."""
    older_rows: pa.Table | None = None
    """Their columns; NULL in deletions."""


def key_table(written: WrittenKeys) -> pa.Table:
    """Return the content of a key file."""
    keys = written.keys if written.older is None else Keys.concat([written.keys, written.older])
    columns = {
        **{f"key.{number}": column for number, column in enumerate(keys.columns)},
        **{f"order.{number}": column for number, column in enumerate(keys.order)},
        **{f"{_KEPT}{name}": is_kept for name, is_kept in keys.kept.items()},
    }
    if written.older is not None and written.older_rows is not None:
        first, rows = len(written.keys), written.older_rows
        columns["is_older"] = pc.greater_equal(row_numbers(len(keys)), numeric_scalar(first))
        row = pa.StructArray.from_arrays(list(map(one_array, rows.columns)), fields=list(rows.schema))
        columns["row"] = pa.concat_arrays([pa.nulls(first, row.type), row])
    columns["is_deleted"] = keys.is_deleted
    about = {"batch_id": written.batch_id, "files": written.files}
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    return pa.Table.from_arrays(
        list(columns.values()), schema=pa.schema(fields, metadata={_METADATA: json.dumps(about)})
    )


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
    columns = {name: one_array(table.column(name)) for name in table.column_names}

    def starting(prefix: str) -> dict[str, pa.Array]:
        return {name.removeprefix(prefix): one for name, one in columns.items() if name.startswith(prefix)}

    keys = Keys(
        tuple(starting("key.").values()),
        tuple(starting("order.").values()),
        columns["is_deleted"],
        starting(_KEPT),
    )
    if "is_older" not in columns:
        return WrittenKeys(keys, batch_id, paths)
    newest, older = (
        pc.indices_nonzero(is_it) for is_it in (pc.invert(columns["is_older"]), columns["is_older"])
    )
    row = columns["row"].take(older)
    rows = pa.Table.from_arrays(row.flatten(), schema=pa.schema(list(row.type)))
    return WrittenKeys(keys.take(newest), batch_id, paths, keys.take(older), rows)
