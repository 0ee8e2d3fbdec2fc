"""The rows of a DuckLake table that its snapshots delete, from the catalog. Driver only.

A row is deleted by a snapshot if it is in the one before, and in this one is not: its data file ends with the
snapshot, or more of the file's rows are deleted, or the row was one of the catalog. Snapshots that move rows
to other files look the same here: which snapshots delete rows at all is told by `changes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.ducklake.connection import Lake
from ..predicates import Predicate
from ..scan import ScanFile
from .catalog import CatalogFiles, DataFile
from .columns import LakeColumn
from .files import NewlyDeleted, Origins
from .table import DuckLakeVersion

_ROW_ID = "_ducklake_internal_row_id"


@dataclass(frozen=True)
class CatalogDeletions(CatalogFiles):
    """The rows that snapshots delete. The snapshot before each of them must be there."""

    @classmethod
    def of(
        cls,
        lake: Lake,
        version: DuckLakeVersion,
        snapshots: tuple[int, int],
        where: Predicate | None,
        types: pa.Schema,
    ) -> CatalogDeletions:
        """
        Args:
            snapshots: first and last
            where, types: see `CatalogFiles`
        """
        first, last = snapshots
        return cls(lake, version, first - 1, last, Origins(-1, last), where, types)

    def has_deletions(self, snapshot: int) -> bool:
        """Return False if the catalog knows of no row that a snapshot has deleted."""
        return any(self._deletes_of(snapshot)) or any(self._deleted_tables(snapshot))

    def deleted_files(self, snapshot: int) -> Iterator[ScanFile]:
        """Yield rows of data files that a snapshot has deleted.

        Raises:
            TableNotSupportedError: they cannot be read.
        """
        before, there = snapshot - 1, Origins(-1, snapshot - 1)
        for file in self._deletes_of(snapshot):
            if not self._may_match(file):
                continue
            deleted = self._deleted_rows(file, before, there)
            if file.end == snapshot:
                yield self._scan_file(file, deleted)
            else:
                now = self._deleted_rows(file, snapshot, there)
                yield self._scan_file(file, None, NewlyDeleted(now, deleted))

    def _deletes_of(self, snapshot: int) -> Iterator[DataFile]:
        """Yield the files of the snapshot before of which rows may be deleted."""
        for file in self._data_files:
            is_before = file.first < snapshot and (file.end is None or file.end >= snapshot)
            if is_before and (file.end == snapshot or self._may_lose_rows(file, snapshot)):
                yield file

    def _may_lose_rows(self, file: DataFile, snapshot: int) -> bool:
        """Only a delete file itself says for sure of which snapshots it has deletions. In files with rows of
        one snapshot, those of which the catalog does not say the last one are all of the first.
        """
        _, begins = self._inlined_deletes.get(file.number, (None, pa.array([], pa.int64())))
        if pc.any(pc.equal(begins, numeric_scalar(snapshot))).as_py():
            return True
        for one in self._delete_files.get(file.number, ()):
            last = one.newest if one.newest is not None or file.is_partial else one.begin
            if one.is_in(snapshot) and (last is None or last >= snapshot):
                return True
        return False

    def deleted_inlined(self, snapshot: int, columns: Sequence[LakeColumn]) -> Iterator[ScanFile]:
        """Yield rows of the catalog that a snapshot has deleted.

        Args:
            columns: of the table in the snapshot before

        Raises:
            TableNotSupportedError: they cannot be read.
        """
        for table in self._deleted_tables(snapshot):
            metadata = self.lake.metadata(table)
            gone = self.lake.rows(f"SELECT row_id FROM {metadata} WHERE end_snapshot = {snapshot}")
            rows = self._inlined(snapshot - 1, columns, [table], {"rowid": _ROW_ID})
            numbers = pa.array([number for (number,) in gone], pa.int64())
            found = rows.filter(pc.is_in(rows[_ROW_ID], value_set=numbers))
            yield from map(self.inlined_file, found.combine_chunks().to_batches())

    def _deleted_tables(self, snapshot: int) -> Iterator[str]:
        return (table for table, ends in self._inlined_ends.items() if snapshot in ends)

    @cached_property
    def _inlined_ends(self) -> Mapping[str, frozenset[int]]:
        """The snapshots that have deleted rows of the catalog, by the table there."""
        ends: dict[str, frozenset[int]] = {}
        for table in self._inlined_tables:
            rows = self.lake.rows(
                f"SELECT DISTINCT end_snapshot FROM {self.lake.metadata(table)} "
                f"WHERE end_snapshot BETWEEN {self.first + 1} AND {self.last}"
            )
            ends[table] = frozenset(end for (end,) in rows)
        return ends
