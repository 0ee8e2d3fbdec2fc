"""The destinations of this package pass the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conformance.harnesses import DeltaHarness, IcebergHarness, PostgresHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestDelta(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DeltaHarness(tmp_path)


class TestIceberg(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return IcebergHarness(tmp_path)


class TestPostgres(DestinationConformance):
    @pytest.fixture
    def harness(
        self, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return PostgresHarness(new_postgres_url)
