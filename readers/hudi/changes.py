"""What a commit of a Hudi table changes: the data files to read for it. Runs on the driver.

A commit that deletes or updates rows writes the next slices of their file groups, with all rows that stay. So
what it does to rows is the difference between each of these slices and the one before, which tasks find (see
`changed_rows`). File groups that it replaces by others leave the table with all their rows.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...committers.errors import ConfigurationError, PenstockError
from ...committers.hudi.file_slices import FileSlice, replaced_groups
from ...committers.hudi.names import file_id_of, instant_of
from ...committers.hudi.timeline import Timeline
from ..scan import ScanFile
from ..streaming.change_feed import CHANGE_TYPE, DELETE, INSERT, ChangeValues
from ..streaming.errors import cleaned_up
from .changed_rows import SliceBefore
from .commits import CommitContent, WrittenSlice
from .slices import slices_among
from .table import HudiVersion


def inserts(files: Sequence[ScanFile], values: ChangeValues) -> list[ScanFile]:
    """Return files whose rows are new.

    Args:
        values: of the other columns of the change feed
    """
    return [replace(file, values=((CHANGE_TYPE, INSERT), *values)) for file in files]


class SliceChanges:
    """Finds the slices that commits have written, and those before them. Lists each partition once.

    Args:
        version: of the table that was opened
        timeline: has all commits that are asked for
    """

    def __init__(self, version: HudiVersion, timeline: Timeline) -> None:
        self._table_uri = version.table_uri
        self._storage = version.storage
        self._timeline = timeline
        self._sizes: dict[str, Mapping[str, int]] = {}
        """Of the files of each partition, by name."""
        self._names: dict[str, dict[tuple[str, str | None], list[str]]] = {}
        """Of these files, by file group and instant."""

    def files(self, instant: str, content: CommitContent, values: ChangeValues) -> list[ScanFile]:
        """Return the rows that leave the table and those that it gets, in an order that never changes.

        Args:
            values: of the columns of the change feed, without the kind

        Raises:
            ConfigurationError: the table no longer has one of the slices.
            PenstockError: it is not known which one it is.
            TableNotSupportedError: a data file has no name of Hudi's form.
            OSError: the table cannot be read now.
        """
        written = [posixpath.dirname(one.path) for one in content.written]
        self._list([*written, *(partition for partition, _ in content.replaced)])
        replaced = self._replaced(instant, content.replaced)
        gone = ((CHANGE_TYPE, DELETE), *values)
        return [
            *(ScanFile(one.path, one.size_bytes, gone) for one in replaced),
            *(self._changed(one, instant, values) for one in content.written),
        ]

    def _list(self, partitions: Sequence[str]) -> None:
        listed = self._storage.sizes(sorted(set(partitions) - set(self._sizes)))
        self._sizes.update(listed)
        for partition, sizes in listed.items():
            names = self._names.setdefault(partition, {})
            for name in sizes:
                names.setdefault((file_id_of(name), instant_of(name)), []).append(name)

    def _changed(self, written: WrittenSlice, instant: str, values: ChangeValues) -> ScanFile:
        folder, name = posixpath.split(written.path)
        size_bytes = self._sizes[folder].get(name)
        if size_bytes is None:
            raise self._cleaned(written.path, instant)
        if written.before is None:
            return inserts([ScanFile(written.path, size_bytes)], values)[0]
        before = self._before(written.path, written.before, instant)
        whole = size_bytes + self._sizes[folder][before]
        only = SliceBefore(posixpath.join(folder, before))
        return ScanFile(written.path, whole, values, only=only, is_divisible=False)

    def _before(self, path: str, before: str, instant: str) -> str:
        """Return the name of the slice with an instant, of the file group of a path."""
        folder, file_id = posixpath.dirname(path), file_id_of(path)
        found = self._names[folder].get((file_id, before), ())
        if not found:
            raise self._cleaned(posixpath.join(folder, f"{file_id}_…_{before}.parquet"), instant)
        if len(found) > 1:
            raise PenstockError(
                f"The Hudi table {self._table_uri} has several files of the file group {file_id} with the "
                f"instant {before}: {', '.join(sorted(found))}. Which of them the commit {instant} follows "
                "is not known. Nothing of it was read. Let Hudi roll back what failed writers have left, or "
                "begin with a later commit (startingVersion, with a new checkpoint)."
            )
        return found[0]

    def _replaced(self, instant: str, groups: Sequence[tuple[str, str]]) -> Iterator[FileSlice]:
        """Yield the newest slices that file groups had before a commit."""
        if not groups:
            return
        order = self._timeline.order_of(instant)
        earlier = [one for one in self._timeline.commits if self._timeline.order_of(one[0]) < order]
        before = replace(self._timeline, commits=tuple(earlier))
        found, cleaned = slices_among(
            self._listed({partition for partition, _ in groups}),
            self._table_uri,
            self._storage,
            before,
            lambda clean: clean > instant,
        )
        slices = {one.group: one for one in found}
        known = replaced_groups(self._storage, before)
        for partition, file_id in groups:
            if (partition, file_id) in known:  # by two writers at the same time
                continue
            newest = slices.get((partition, file_id))
            if newest is None or newest.path in cleaned:
                shown = f"{file_id}_….parquet" if newest is None else posixpath.basename(newest.path)
                raise self._cleaned(posixpath.join(partition, shown), instant)
            yield newest

    def _listed(self, partitions: set[str]) -> Mapping[str, int]:
        return {
            posixpath.join(partition, name): size
            for partition in partitions
            for name, size in self._sizes[partition].items()
        }

    def _cleaned(self, path: str, instant: str) -> ConfigurationError:
        return cleaned_up(
            f"The Hudi table {self._table_uri} no longer has the file {path}, which tells what the commit "
            f"{instant} has changed: its cleaner has deleted it before the stream had read the commit.",
            "the cleaner keep more commits (hoodie.clean.commits.retained)",
        )
