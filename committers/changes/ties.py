"""Refuses a batch in which two tasks have written different rows of one key, and no order tells the last one.

Runs on the driver before the batch is prepared. Only the key files are read, unless there are such keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_scalar, string_array
from ..contract import Batch, Changes, DataFile
from .file_search import stored_column
from .key_files import Keys, OpenFile, WrittenKeys, data_files, key_files, read_keys
from .keys import FALSE, KeySet, LastRows, last_rows
from .last_changes import ambiguous, check_one_row
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
    rows = _WrittenRows(
        changes, written, data_files(files), read_rows or partial(read_parquet, open_file), values_of
    )

    def equal(last: LastRows) -> bool:
        some, others = rows.read(last.tied), rows.read(last.tied_with)
        return some is None or others is None or are_equal(some, others)

    where = f"batch {batch.batch_id} of {batch.stream}"
    check_one_row(written, where, equal)
    if any(one.keys.kept for one in written):
        _check_older(written, where, equal)


def read_parquet(open_file: OpenFile, file: DataFile) -> pa.Table:
    with open_file(file.path) as stream:
        return pq.ParquetFile(stream).read()


def _check_older(written: Sequence[WrittenKeys], where: str, equal: Callable[[LastRows], bool]) -> None:
    """Check the rows that may give a value to the last row of their key, which keeps columns.

    Raises:
        SchemaMismatchError: two of them have the same place in the order and differ.
    """
    keys = Keys.concat(_every(written))
    last = last_rows(keys.columns, keys.order).rows
    keeps = pa.repeat(FALSE, len(keys))
    for is_kept in keys.kept.values():
        keeps = pc.or_(keeps, is_kept)
    last = last.filter(pc.and_(keeps, pc.invert(keys.is_deleted)).take(last))
    mine, _ = KeySet([column.take(last) for column in keys.columns]).find(keys.columns)
    some = keys.take(mine)
    ties = last_rows([*some.columns, *some.order], ())
    tied, tied_with = mine.take(ties.tied), mine.take(ties.tied_with)
    if not len(tied):
        return
    same = [keys.is_deleted, *keys.kept.values()]
    differ = any(not one.take(tied).equals(one.take(tied_with)) for one in same)
    if differ or not equal(LastRows(mine.take(ties.rows), tied, tied_with)):
        raise ambiguous(where, has_order=bool(keys.order))


def _every(written: Sequence[WrittenKeys]) -> list[Keys]:
    """Return the rows of all parts, then the older ones."""
    return [one.keys for one in written] + [one.older for one in written if one.older is not None]


class _WrittenRows:
    """The rows of a batch, by their number in `_every`."""

    def __init__(
        self,
        changes: Changes,
        written: Sequence[WrittenKeys],
        files: Sequence[DataFile],
        read_rows: ReadRows,
        values_of: ValuesOf,
    ) -> None:
        self._changes = changes
        self._written = written
        self._files = {file.path: file for file in files}
        self._read_rows = read_rows
        self._values_of = values_of
        self._keys = Keys.concat(_every(written))
        older = (one.older_rows.schema for one in written if one.older_rows is not None)
        self._schema: pa.Schema | None = next(older, None)

    def read(self, which: pa.Array) -> pa.Table | None:
        """Return those of the rows that are no deletions, in the order of `which`."""
        found = list(self._found(which))
        if not found:
            return None
        tables, places = zip(*found, strict=True)
        return pa.concat_tables(tables).take(pc.array_sort_indices(pa.concat_arrays(places)))

    def _found(self, which: pa.Array) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Yield rows, and the place of each in `which`."""
        first = 0
        for one in self._written:
            mine = _between(which, first, len(one.keys))
            wanted = [column.take(which.take(mine)) for column in self._keys.columns]
            for path in one.files if len(mine) else ():
                rows, number = self._find(self._files[path], wanted)
                yield rows, mine.take(number)
            first += len(one.keys)
        for one in self._written:
            if one.older is None or one.older_rows is None:
                continue
            mine = _between(which, first, len(one.older))
            own = pc.subtract(which.take(mine), numeric_scalar(first))
            staying = pc.invert(one.older.is_deleted.take(own))
            yield one.older_rows.take(own.filter(staying)), mine.filter(staying)
            first += len(one.older)

    def _find(self, file: DataFile, keys: Sequence[pa.Array]) -> tuple[pa.Table, pa.Array]:
        """Return the rows of a file that have one of the keys, and the number of the key of each. A key may
        come twice, and then its row does.
        """
        table = self._read_rows(file)
        values = self._values_of(file)

        def column(name: str, data_type: pa.DataType) -> pa.Array:
            return stored_column(
                table, name if name in table.column_names else None, values.get(name), data_type
            )

        identity = zip(self._changes.identity, keys, strict=True)
        numbers, rows = KeySet([column(name, key.type) for name, key in identity]).find(keys)
        if self._schema is not None:  # of the rows in key files, which have all columns
            arrays = [column(one.name, one.type) for one in self._schema]
            return pa.Table.from_arrays(arrays, schema=self._schema).take(rows), numbers
        ends = self._changes.ends  # set by the task, which does not know all versions
        table = table.select([name for name in table.column_names if name not in ends])
        partition = [pair for pair in file.partition_values if not pair[0].startswith(ends)]
        place = string_array([repr(partition)])[0]  # has values that the file does not store
        table = table.append_column("\0partition", pa.repeat(place, table.num_rows))
        return table.take(rows), numbers


def _between(which: pa.Array, first: int, count: int) -> pa.Array:
    """Return the places of the numbers from `first` on, `count` at most."""
    is_in = pc.and_(
        pc.greater_equal(which, numeric_scalar(first)), pc.less(which, numeric_scalar(first + count))
    )
    return pc.indices_nonzero(is_in).cast(pa.int64())
