"""The files that a commit adds to a Paimon table with a primary key, because a batch changes rows by key.

Rows with the same key stay where they are: the row with the greatest sequence number counts (`merge_tree`).
So a commit does not search the table. It reads only the keys of the batch, and checks that the last row of
each key has the greatest number. Where another row of the batch has not a smaller one, as rows of two tasks,
the last row is written once more, with the next number. If the table has rows with numbers as great as those
of the batch, since others have committed in between, all its files are written again with greater ones.

With `lateRows=ignore` readers compare rows by `orderBy` first, deletions too. But a compaction forgets
deletions. So they are remembered in tombstones, and an older row of such a key is written once more as a
deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_array, numeric_scalar
from ..changes.key_files import OpenFile, data_files, key_files, read_keys
from ..changes.keys import TRUE, KeySet, one_array
from ..changes.last_changes import last_changes
from ..changes.rewriting import cannot_rewrite
from ..changes.tombstones import Tombstones
from ..contract import Changes, DataFiles, Manifest
from ..errors import PenstockError
from ..file_tables.files import TableFiles
from ..file_tables.manifest import LakeManifest
from .merge_tree import DELETE, KEY_PREFIX, KIND, SEQUENCE, kind_of

WriteRows: TypeAlias = Callable[[Any, Manifest, LakeManifest, pa.Table], DataFiles]
"""Writes rows of a table of pypaimon, with `SEQUENCE` and `KIND`, into new files of level 0, durable and
invisible. No key comes twice. Raises RetryableError.
"""


@dataclass(frozen=True, slots=True)
class SequencedFiles:
    """What a commit adds."""

    files: DataFiles
    newest: int = -1
    """The greatest sequence number of the table after the commit."""
    written: DataFiles = ()
    """Those of `files` that only this attempt needs."""


class PaimonChanges:
    """The changes of one manifest. Attempts to commit it share what they have read.

    Args:
        files: of the table
        write: None: this process has no writer of data files
    """

    def __init__(
        self, manifest: Manifest, content: LakeManifest, files: TableFiles, write: WriteRows | None
    ) -> None:
        assert isinstance(content.mode, Changes)
        self.manifest = manifest
        self._content = content
        self._changes = content.mode
        self._files = files
        self._write = write
        self._tombstones = Tombstones.of(files, manifest.batch, content.mode)
        self._has_added_tombstones = False
        self._written = read_keys(manifest.batch, key_files(content.files), files.opened)
        self._last = last_changes(self._written, content.mode)

    def sequenced(self, loaded: Any, messages: Sequence[Any], newest: int) -> SequencedFiles:
        """Return the files to commit after a snapshot.

        Args:
            loaded: the table of pypaimon
            messages: of pypaimon, one for each data file of the manifest
            newest: see `newest_sequence`, of the snapshot

        Raises:
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged or missing.
        """
        files = data_files(self._content.files)
        numbers = [int(message.new_files[0].min_sequence_number) for message in messages]
        by_path = {file.path: number for file, number in zip(files, numbers, strict=True)}
        behind = max(newest + 1 - min(numbers), 0)
        greatest = max(numbers) + behind
        late = self._late()
        again = pc.unique(pa.concat_arrays([late, self._not_greatest(by_path)]))
        moved = [self._write_again(loaded, _moved(self._read(file.path), behind)) for file in files if behind]
        if len(again):
            greatest += 1
            moved.append(self._write_again(loaded, self._last_rows(again, late, greatest)))
        written = tuple([file for some in moved for file in some])
        return SequencedFiles(written if behind else (*files, *written), greatest, written)

    def discard(self, attempt: SequencedFiles) -> None:
        """Delete what an attempt has written that was certainly not committed. Clean-up finds the rest."""
        with suppress(PenstockError):
            self._files.delete([file.path for file in attempt.written])

    def clean_up(self, committed: SequencedFiles) -> None:
        """Delete the key files of the batch after its commit, files that were written again, and old
        tombstones. The rest is done later.
        """
        added = {file.path for file in committed.files}
        with suppress(PenstockError):
            self._files.delete([file.path for file in self._content.files if file.path not in added])
        if self._tombstones is not None:
            self._tombstones.prune()

    def _late(self) -> pa.Array:
        """Remember the deletions of the batch, and return the numbers of keys that something newer has
        deleted.
        """
        if self._tombstones is None:
            return numeric_array(())
        if not self._has_added_tombstones:
            self._tombstones.add(self._last.keys)
            self._has_added_tombstones = True
        return self._tombstones.late_keys(self._last.keys)

    def _not_greatest(self, sequences: Mapping[str, int]) -> pa.Array:
        """Return the numbers of the keys whose last row has not a greater sequence number than another one.

        Args:
            sequences: the number of the rows of each file, by its path
        """
        last, found = self._last, [numeric_array(())]
        of_parts = numeric_array([sequences[one.files[0]] for one in self._written])
        batches = numeric_array([one.batch_id for one in self._written])
        keys = KeySet(last.keys.columns)
        for part, losing in enumerate(last.losing):
            rows, winner = keys.find(losing.columns)
            won_in = last.written_in.take(winner)
            is_not = pc.less_equal(of_parts.take(won_in), of_parts[part])
            is_same = pa.repeat(TRUE, len(winner))
            for own, lost in zip(last.keys.order, losing.order, strict=True):
                is_same = pc.and_(is_same, pc.equal(own.take(winner), lost.take(rows)))
            # the rows are equal, so it does not matter which one counts
            is_equal = pc.and_(is_same, pc.equal(batches.take(won_in), batches[part]))
            is_not = pc.and_not(is_not, is_equal)
            if self._changes.late_rows == "ignore":  # otherwise readers see the order
                is_not = pc.and_(is_not, is_same)
            found.append(winner.filter(is_not))
        return pa.concat_arrays(found)

    def _last_rows(self, numbers: pa.Array, late: pa.Array, sequence: int) -> pa.Table:
        """Return the last rows of keys, with a sequence number; those that are late as deletions."""
        found, parts = [], self._last.written_in.take(numbers)
        for number, part in enumerate(self._written):
            mine = numbers.filter(pc.equal(parts, numeric_scalar(number)))
            wanted = KeySet([column.take(mine) for column in self._last.keys.columns])
            for path in part.files if len(mine) else ():
                rows = self._read(path)
                columns = [one_array(rows.column(name)) for name in self._changes.keys]
                typed = [_of_type(*pair) for pair in zip(columns, wanted.columns, strict=True)]
                places, key = wanted.find(typed)
                rows = rows.take(places)
                is_late = pc.is_in(mine.take(key), value_set=late)
                kinds = pc.if_else(is_late, kind_of(DELETE), one_array(rows.column(KIND)))
                found.append(_with(rows, KIND, kinds))
        table = pa.concat_tables(found).combine_chunks()
        return _with(table, SEQUENCE, pa.repeat(numeric_scalar(sequence), table.num_rows))

    def _read(self, path: str) -> pa.Table:
        """Return the rows of a file, without the columns that repeat the key."""
        return read_rows(self._files.opened, path)

    def _write_again(self, loaded: Any, rows: pa.Table) -> DataFiles:
        if self._write is None:
            raise cannot_rewrite(self.manifest)
        return self._write(loaded, self.manifest, self._content, rows)


def read_rows(open_file: OpenFile, path: str) -> pa.Table:
    """Return the rows of a file of the table, with `SEQUENCE` and `KIND`.

    Raises:
        TableChangedError: the file is missing.
        PenstockError: it is damaged.
        RetryableError: the storage cannot be reached now.
    """
    with open_file(path) as stream:
        try:
            rows = pq.ParquetFile(stream).read(use_threads=False)
        except pa.ArrowException as error:
            raise PenstockError(
                f"The data file {path} is damaged: {error}. Nothing was committed. Restore it from a backup, "
                "or abort the batch: `penstock skip`."
            ) from error
    return rows.select([name for name in rows.column_names if not name.startswith(KEY_PREFIX)])


def _moved(rows: pa.Table, by: int) -> pa.Table:
    return _with(rows, SEQUENCE, pc.add(one_array(rows.column(SEQUENCE)), numeric_scalar(by)))


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    number = rows.schema.get_field_index(name)
    return rows.set_column(number, rows.schema.field(number), column)


def _of_type(column: pa.Array, key: pa.Array) -> pa.Array:
    return column if column.type == key.type else pc.cast(column, key.type)
