"""The store of the commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.committers.store.sql import SqlManifestStore, open_store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlManifestStore]:
    url = f"sqlite:///{tmp_path}/store.db"
    monkeypatch.setenv("PENSTOCK_STORE", url)
    with open_store(url) as opened:
        yield opened
