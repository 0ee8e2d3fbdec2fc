"""The files of a branch, from its manifests."""

from __future__ import annotations

import gc
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.lakes import iceberg_lake, ids

from penstock.committers.iceberg.live_files import ManifestCache, live_files


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
