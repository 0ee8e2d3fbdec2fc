"""A decoupled stream for tests of the delivery process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.backlogs import SOON, DecoupledLake, decoupled


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[DecoupledLake]:
    """A Delta table with four prepared batches that are due in a second."""
    with decoupled(tmp_path, **SOON) as lake:
        yield lake
