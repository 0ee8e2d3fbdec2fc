"""The files of a branch, from its manifests."""

from __future__ import annotations

import gc
from pathlib import Path
from threading import Barrier
from unittest.mock import Mock

import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from tests.support.lakes import iceberg_lake, ids

from penstock.committers.iceberg.live_files import ManifestCache, files_of, live_files


class TogetherIO(PyArrowFileIO):
    """Waits until some manifests are read at the same time."""

    def __init__(self, readers: int) -> None:
        super().__init__()
        self._barrier = Barrier(readers, timeout=20)

    def new_input(self, location: str) -> PyArrowFile:
        if not Path(location).name.startswith("snap-"):
            self._barrier.wait()
        return super().new_input(location)


def test_manifests_are_downloaded_together(tmp_path: Path) -> None:
    lake = iceberg_lake(tmp_path)
    lake.create(ids().schema)
    for number in range(8):
        lake.append_rows(ids(number))
    found = files_of(lake.head, TogetherIO(4), ManifestCache())
    assert len(found.data) == 8
    assert found.data.keys() == live_files(lake.load(), "main").data.keys()


def test_garbage_is_collected_again_after_manifests_were_read(tmp_path: Path) -> None:
    """And not meanwhile. Also if one of them cannot be read."""
    lake, seen = iceberg_lake(tmp_path), []
    lake.create(ids().schema)
    for number in range(3):
        lake.append_rows(ids(number))
    cache = ManifestCache()
    real, broken = cache.read, Mock(side_effect=OSError("the storage is away"))

    def read(*arguments: object) -> object:
        seen.append(gc.isenabled())
        return real(*arguments)  # type: ignore[arg-type]

    live_files(lake.load(), "main", Mock(read=read))
    assert seen == [False] * 3
    assert gc.isenabled()
    with pytest.raises(OSError, match="the storage is away"):
        live_files(lake.load(), "main", Mock(read=broken))
    assert gc.isenabled()
