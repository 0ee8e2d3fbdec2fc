"""Which rows a commit of a Hudi table has changed: the difference between two slices of a file group.

A row that a commit leaves as it is keeps its record key and the instant of the commit that wrote it last, in
Hudi's own columns. Runs in a task, which compares one file group at a time. It holds a column of Hudi's own,
of the rows of both slices, one after the other, and for each row some numbers. The rows themselves are read
in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.changes.keys import one_array
from ...committers.errors import PenstockError, TableNotSupportedError
from ...committers.hudi.names import COMMIT_SEQUENCE, COMMIT_TIME, RECORD_KEY
from ..predicates import Predicate
from ..scan import Scan, ScanFile
from ..streaming.change_feed import AFTER_UPDATE, BEFORE_UPDATE, CHANGE_TYPE, DELETE, INSERT
from .files import RowNumbers


@dataclass(frozen=True, slots=True)
class Codes:
    """A number for each row of two slices (int64): equal for rows with equal values."""

    before: pa.Array
    after: pa.Array
    count: int
    """All numbers are below it."""

    @classmethod
    def of(cls, values: pa.ChunkedArray, rows_before: int) -> Codes:
        encoded = values.dictionary_encode()
        count = max((len(one.dictionary) for one in encoded.chunks), default=0)
        codes = one_array(pa.chunked_array([one.indices for one in encoded.chunks], pa.int32()))
        codes = codes.cast(pa.int64())
        return cls(codes.slice(0, rows_before), codes.slice(rows_before), count)

    def combined(self, other: Codes) -> Codes:
        """Return a number for each pair of numbers.

        Raises:
            pa.ArrowInvalid: there are too many pairs.
        """
        scale = numeric_scalar(max(other.count, 1))
        before, after = (
            pc.add_checked(pc.multiply_checked(first, scale), second)
            for first, second in ((self.before, other.before), (self.after, other.after))
        )
        return Codes(before, after, self.count * max(other.count, 1))


@dataclass(frozen=True, slots=True)
class SliceBefore:
    """See `ScanFile.only`: the rows that are different in the file and in the slice before."""

    path: str


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Numbers of rows of both slices (int64, ascending)."""

    deleted: pa.Array
    before_update: pa.Array
    after_update: pa.Array
    inserted: pa.Array


@dataclass(frozen=True)
class HudiChangesScan:
    """How the rows that commits change are read. See `StreamScanner`."""

    rows: Scan

    def with_where(self, where: Predicate | None) -> HudiChangesScan:
        return replace(self, rows=self.rows.with_where(where))

    def named(self, table: str) -> HudiChangesScan:
        """See `StreamScanner`."""
        return replace(self, rows=self.rows.named(table))

    def in_a_task(self) -> HudiChangesScan:
        """See `TableScanner`."""
        return replace(self, rows=self.rows.in_a_task())

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """See `TableScanner`.

        Raises: also
            PenstockError: it is not known which rows of a file are new.
        """
        for file in files:
            is_compared = isinstance(file.only, SliceBefore)
            yield from self.rows.read(self._changed(file, file.only) if is_compared else [file])

    def _changed(self, file: ScanFile, before: SliceBefore) -> Iterator[ScanFile]:
        """Yield the changed rows of both slices, those that leave the table first."""
        found = changed_rows(lambda name: self._codes(name, before.path, file.path), file.path)
        for path, kind, numbers in (
            (before.path, DELETE, found.deleted),
            (before.path, BEFORE_UPDATE, found.before_update),
            (file.path, AFTER_UPDATE, found.after_update),
            (file.path, INSERT, found.inserted),
        ):
            if len(numbers):
                values = ((CHANGE_TYPE, kind), *file.values)
                yield ScanFile(path, file.size_bytes, values, only=RowNumbers(numbers))

    def _codes(self, name: str, before: str, path: str) -> Codes:
        """
        Raises:
            TableNotSupportedError: a row has NULL in the column.
        """
        parts = [self._column(name, one) for one in (before, path)]
        count = sum(map(len, parts[0]))
        return Codes.of(pa.chunked_array([*parts.pop(0), *parts.pop(0)], pa.string()), count)

    def _column(self, name: str, path: str) -> list[pa.Array]:
        schema = pa.schema([pa.field(name, pa.string())])
        scan = Scan(self.rows.table, schema, schema, self.rows.files, use_threads=self.rows.use_threads)
        parts = [batch.column(0) for batch in scan.read([ScanFile(path, 0)])]
        if any(part.null_count for part in parts):
            raise TableNotSupportedError(
                f"The data file {path} of {self.rows.table} has rows without {name}, so which rows were "
                "changed is not known. Nothing of the commit was read. skipChangeCommits=true in place of "
                "changes=true passes over it."
            )
        return parts


def changed_rows(codes_of: Callable[[str], Codes], path: str) -> ChangedRows:
    """Compare two slices of a file group.

    Args:
        codes_of: returns the codes of one of Hudi's own columns
        path: of the new slice, for messages

    Raises:
        PenstockError: rows cannot be told apart.
    """
    keys = codes_of(RECORD_KEY)
    found = _Compared.of(rows := keys.combined(codes_of(COMMIT_TIME)))
    if not found.are_same_equally_often:  # rows of one commit have the same key
        found = _Compared.of(rows.combined(codes_of(COMMIT_SEQUENCE)))
    if not found.are_same_equally_often:
        raise PenstockError(
            f"The data file {path} has rows with the same {RECORD_KEY}, {COMMIT_TIME} and {COMMIT_SEQUENCE}, "
            "and the file before has another number of them. Which of them were deleted is not known. "
            "Nothing of the commit was read. skipChangeCommits=true in place of changes=true passes over it."
        )
    return found.with_kinds(keys)


@dataclass(frozen=True, slots=True)
class _Compared:
    """Which rows only one of the slices has."""

    is_gone: pa.Array
    """For each row of the slice before."""
    is_new: pa.Array
    """For each row of the new slice."""
    are_same_equally_often: bool
    """The slices have the same number of each of the other rows."""

    @classmethod
    def of(cls, rows: Codes) -> _Compared:
        was_there = pc.is_in(rows.after, value_set=rows.before)
        is_there = pc.is_in(rows.before, value_set=rows.after)
        same = _sorted(rows.before.filter(is_there)).equals(_sorted(rows.after.filter(was_there)))
        return cls(pc.invert(is_there), pc.invert(was_there), same)

    def with_kinds(self, keys: Codes) -> ChangedRows:
        gone_keys, new_keys = keys.before.filter(self.is_gone), keys.after.filter(self.is_new)
        was_updated = pc.is_in(gone_keys, value_set=new_keys)
        is_updated = pc.is_in(new_keys, value_set=gone_keys)
        gone, new = _numbers(self.is_gone), _numbers(self.is_new)
        return ChangedRows(
            deleted=gone.filter(pc.invert(was_updated)),
            before_update=gone.filter(was_updated),
            after_update=new.filter(is_updated),
            inserted=new.filter(pc.invert(is_updated)),
        )


def _sorted(codes: pa.Array) -> pa.Array:
    return codes.take(pc.array_sort_indices(codes))


def _numbers(mask: pa.Array) -> pa.Array:
    return pc.indices_nonzero(mask).cast(pa.int64())
