"""The tables of a query of penstock.lake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.lake_pairs import LakePair, lake_pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LakePair]:
    """No table is created yet."""
    with lake_pair(tmp_path) as tables:
        yield tables
