"""Tombstones of file tables: several processes read, write and merge the same files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from penstock.committers.changes import tombstones
from penstock.committers.changes.key_files import Keys
from penstock.committers.changes.tombstones import Tombstones
from penstock.committers.contract import Batch, Changes, StreamKey
from penstock.committers.file_tables.files import TableFiles

CHANGES = Changes(keys=("k",), order_by=("v",), late_rows="ignore", tombstones_s=3600.0)


def keys_of(keys: list[int], place: int, *, is_deleted: bool) -> Keys:
    return Keys((pa.array(keys),), (pa.array([place] * len(keys)),), pa.array([is_deleted] * len(keys)))


class MergedMeanwhile(TableFiles):
    """Another process merges the files before the first one is read."""

    def merge(self) -> None:
        """Replaced by the test."""

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        merge, self.merge = self.merge, lambda: None  # type: ignore[method-assign]
        merge()
        with super().opened(path) as file:
            yield file


def test_files_that_another_process_merges_while_they_are_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "FILES_MAX", 1)

    def open_location() -> pafs.FileSystem:
        return pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())

    files = MergedMeanwhile(str(tmp_path), "", open_location, local=str(tmp_path))

    def of_batch(batch_id: int) -> Tombstones:
        batch = Batch(StreamKey("q", f"{tmp_path}"), batch_id, f"{batch_id:064x}")
        return Tombstones(files, batch, CHANGES)

    for batch_id in range(3):
        of_batch(batch_id).add(keys_of([batch_id], 9, is_deleted=True))
    files.merge = of_batch(3).prune  # type: ignore[method-assign]
    late = of_batch(4).late_keys(keys_of([0, 1, 2], 5, is_deleted=False))
    assert sorted(late.to_pylist()) == [0, 1, 2]
