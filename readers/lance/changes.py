"""What a version of a Lance table does to rows: the rows that leave the table and those that it gets.

Found by comparing its fragments with those of the version before. Columns: those of Delta's change feed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ...committers.errors import TableNotSupportedError
from ..streaming.change_feed import ChangeValues, change_values
from ..streaming.commits import CommitKind
from .versions import ColumnIds, Fragments, LanceVersion

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

Pair: TypeAlias = "tuple[FragmentMetadata, FragmentMetadata]"
"""A fragment as it was, and as it is now."""


def values_of(version: LanceVersion, kind: str) -> ChangeValues:
    return change_values(kind, version.number, version.at)


@dataclass(frozen=True, slots=True)
class Difference:
    """Fragments of two versions that are not the same."""

    new: Fragments
    gone: tuple[FragmentMetadata, ...] = ()
    fewer: tuple[Pair, ...] = ()
    """Of which more rows are deleted now."""
    changed: tuple[Pair, ...] = ()
    """Of which rows have other values in the columns that are read, or are no longer deleted."""

    @property
    def kind(self) -> CommitKind:
        """What it does to rows, if those of new fragments were not in the table before."""
        loses_rows = bool(self.fewer) or any(one.num_rows for one in self.gone)
        if self.changed or (loses_rows and self._added):
            return CommitKind.CHANGES
        return CommitKind.DELETES if loses_rows else CommitKind.ADDS

    @property
    def _added(self) -> int:
        return sum(one.num_rows for one in self.new.values())

    @property
    def keeps_rows(self) -> bool:
        """Whether new fragments have as many rows as those that are gone, as after a compaction."""
        has_same = self._added == sum(one.num_rows for one in self.gone)
        return has_same and not self.fewer and not self.changed


def difference(before: Fragments, columns: ColumnIds, after: LanceVersion) -> Difference:
    """Compare a version with the one before.

    Args:
        before: the fragments of the version before
        columns: that are read, as it has them
    """
    from lance import LanceOperation

    fragments = after.fragments
    shared = _shared(columns, after.ids([name for name, _ in columns]))
    fewer: list[Pair] = []
    changed: list[Pair] = []
    for was, now in ((before[number], one) for number, one in fragments.items() if number in before):
        if _is_changed(was, now, shared):
            changed.append((was, now))
        elif was.num_rows > now.num_rows:
            fewer.append((was, now))
    new = {number: one for number, one in fragments.items() if number not in before}
    gone = tuple(one for number, one in before.items() if number not in fragments)
    found = Difference(new, gone, tuple(fewer), tuple(changed))
    is_rewrite = bool(new) and after.operation is LanceOperation.Rewrite
    return Difference({}) if is_rewrite and found.keeps_rows else found


def _shared(before: ColumnIds, after: ColumnIds) -> frozenset[int]:
    """Return the ids of fields that are in the same column in both versions."""
    now = dict(after)
    return frozenset(number for name, ids in before for number in ids if number in now.get(name, ()))


def _is_changed(was: FragmentMetadata, now: FragmentMetadata, fields: Collection[int]) -> bool:
    return bool(
        (was.deletion_file != now.deletion_file and was.num_rows <= now.num_rows)
        or was.physical_rows != now.physical_rows
        or was.overlays != now.overlays
        or _places(was, fields) != _places(now, fields)
    )


def _places(fragment: FragmentMetadata, fields: Collection[int]) -> Mapping[int, tuple[str, int | None]]:
    """Return the data file of each field."""
    return {
        number: (file.path, file.base_id)
        for file in fragment.files
        for number in file.fields
        if number in fields
    }


def kind_of(found: Difference, after: LanceVersion) -> CommitKind:
    """Return what a version does to rows. Fragments that a restore brings back look like those of an append.

    Raises:
        TableNotSupportedError: it is not known.
    """
    from lance import LanceOperation as Known

    if found.kind is not CommitKind.ADDS or not found.new:
        return found.kind
    operation = after.operation
    if operation is Known.Restore:
        return CommitKind.CHANGES
    if operation in (Known.Append, Known.Update, Known.Merge, Known.Overwrite):
        return CommitKind.ADDS
    raise TableNotSupportedError(
        f"{after.shown} does not say which operation has made it, or one that this version of Penstock does "
        "not know: so it is not known whether its rows are new. Nothing of it was read. Use a newer version "
        "of Penstock, or begin with a later version (startingVersion)."
    )
