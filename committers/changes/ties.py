"""Refuses a batch in which two tasks have written different rows of one key, and no order tells the last one.

Runs on the driver before the batch is prepared. Only the key files are read, unless there are such keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_array, string_array
from ..contract import Batch, Changes, DataFile
from .file_search import stored_column
from .key_files import Keys, OpenFile, data_files, key_files, read_keys
from .keys import KeySet, LastRows
from .last_changes import check_one_row
from .same_rows import are_equal

ValuesOf = Callable[[DataFile], "Mapping[str, pa.Scalar]"]
"""Returns the values of columns that a file does not store."""


ReadRows = Callable[[DataFile], pa.Table]
"""Returns the rows of a data file."""


def check_ties(
    batch: Batch,
    changes: Changes,
    files: Sequence[DataFile],
    open_file: OpenFile,
    values_of: ValuesOf = lambda _: {},
    read_rows: ReadRows | None = None,
) -> None:
    """
    Args:
        files: that the tasks of the batch have written
        read_rows: of data files that are not in Parquet

    Raises:
        SchemaMismatchError: two different rows of one key could be the last one.
        RetryableError: a file cannot be read now.
    """
    of_keys = key_files(files)
    if len(of_keys) < 2:
        return
    written = read_keys(batch, of_keys, open_file)
    by_path = {file.path: file for file in data_files(files)}
    read = read_rows or partial(_read_parquet, open_file)
    parts = pa.concat_arrays([numeric_array([i] * len(one.keys)) for i, one in enumerate(written)])
    keys = Keys.concat([one.keys for one in written])

    def rows_of(which: pa.Array) -> pa.Table | None:
        """Return the rows of these keys that are no deletions, in the order of the keys."""
        found: list[pa.Table] = []
        numbers: list[pa.Array] = []
        for part, one in enumerate(written):
            of_part = pc.indices_nonzero(pc.equal(parts.take(which), part)).cast(pa.int64())
            wanted = [column.take(which.take(of_part)) for column in keys.columns]
            for path in one.files if len(of_part) else ():
                rows, number = _find(changes, by_path[path], wanted, read, values_of)
                found.append(rows)
                numbers.append(of_part.take(number))
        if not found:
            return None
        return pa.concat_tables(found).take(pc.array_sort_indices(pa.concat_arrays(numbers)))

    def equal(last: LastRows) -> bool:
        some, others = rows_of(last.tied), rows_of(last.tied_with)
        return some is None or others is None or are_equal(some, others)

    check_one_row(written, f"batch {batch.batch_id} of {batch.stream}", equal)


def _read_parquet(open_file: OpenFile, file: DataFile) -> pa.Table:
    with open_file(file.path) as stream:
        return pq.ParquetFile(stream).read()


def _find(
    changes: Changes, file: DataFile, keys: Sequence[pa.Array], read: ReadRows, values_of: ValuesOf
) -> tuple[pa.Table, pa.Array]:
    """Return the rows of a file that have one of the keys, and the number of the key of each. A key may come
    twice, and then its row does.
    """
    table = read(file)
    values = values_of(file)
    columns = [
        stored_column(table, name if name in table.column_names else None, values.get(name), key.type)
        for name, key in zip(changes.keys, keys, strict=True)
    ]
    numbers, rows = KeySet(columns).find(keys)
    place = string_array([repr(file.partition_values)])[0]  # has values that the file does not store
    table = table.append_column("\0partition", pa.repeat(place, table.num_rows))
    return table.take(rows), numbers
