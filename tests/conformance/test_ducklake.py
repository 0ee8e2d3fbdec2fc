"""DuckLake tables pass the conformance suite; in other catalogs than SQLite, what depends on the catalog."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conformance.harnesses import DuckLakeHarness
from tests.support.ducklakes import duckdb_lake, postgres_lake, sqlite_lake

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.cleaning import CleaningClaims
from penstock.testing.conformance.commits import CommitClaims
from penstock.testing.conformance.concurrency import ConcurrencyClaims
from penstock.testing.conformance.crashes import CrashClaims
from penstock.testing.conformance.secrecy import SecrecyClaims


@pytest.mark.slow
class TestInSqlite(DestinationConformance):
    """The manifests are in the same file as the catalog."""

    @pytest.fixture
    def store(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SqlManifestStore]:
        """In the catalog, but for queries with routes, which are refused then."""
        file = "store" if "routed" in request.fixturenames else "catalog"
        with open_store(f"sqlite:///{tmp_path}/{file}.sqlite") as store:
            yield store

    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DuckLakeHarness(tmp_path, sqlite_lake(tmp_path).catalog)


@pytest.mark.campaign
class TestInDuckDb(CommitClaims, CrashClaims, ConcurrencyClaims, CleaningClaims):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DuckLakeHarness(tmp_path, duckdb_lake(tmp_path).catalog)


@pytest.mark.campaign
class TestInPostgres(CommitClaims, CrashClaims, ConcurrencyClaims, CleaningClaims, SecrecyClaims):
    """The manifests are in the same database as the catalog."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return DuckLakeHarness(tmp_path, postgres_lake(tmp_path, new_postgres_url).catalog)

    @pytest.fixture
    def store(self, harness: DuckLakeHarness) -> Iterator[SqlManifestStore]:
        with open_store(harness.catalog.replace("postgresql:", "postgresql+psycopg:", 1)) as store:
            yield store
