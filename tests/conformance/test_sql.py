"""The conformance suite for tables of SQL databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.sql_postgres import SqlPostgresHarness
from tests.support.sqlite_table import SqliteHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestSqlite(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return SqliteHarness(tmp_path)


@pytest.mark.campaign
class TestPostgresBySqlAlchemy(DestinationConformance):
    """A server: transactions of tasks are open at the same time."""

    @pytest.fixture
    def harness(
        self, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return SqlPostgresHarness(new_postgres_url)
