"""polars plans its scans of Iceberg tables with pyiceberg: its own planner is not there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _polars_plans_with_pyiceberg() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        yield
