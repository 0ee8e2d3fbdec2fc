"""The tables of this package pass the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers.mysql import MySqlProcess
from servers.postgres import Postgres, postgres
from tests.conformance.harnesses import (
    DeltaHarness,
    DeltaLibraryHarness,
    IcebergHarness,
    MySqlHarness,
    PostgresHarness,
    PreparedMySqlHarness,
    PreparedPostgresHarness,
)

from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delta.sink import DeltaTarget
from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.changes import ChangeClaims
from penstock.testing.conformance.cleaning import CleaningClaims
from penstock.testing.conformance.commits import CommitClaims
from penstock.testing.conformance.concurrency import ConcurrencyClaims
from penstock.testing.conformance.crashes import CrashClaims
from penstock.testing.conformance.responses import ResponseClaims
from penstock.testing.conformance.secrecy import SecrecyClaims


class TestDelta(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DeltaHarness(tmp_path)


@pytest.mark.campaign
class TestDeltaByTheLibrary(CommitClaims, CrashClaims, ResponseClaims, ConcurrencyClaims, ChangeClaims):
    """Where only the Delta library reaches the log, it makes all commits."""

    @pytest.fixture
    def harness(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        snapshot_cache = SnapshotCache(open_files=lambda _uri, _options: None)
        for init in (DeltaTarget.__init__, DeltaTableCommitter.__init__):
            assert init.__kwdefaults__ is not None
            monkeypatch.setitem(init.__kwdefaults__, "snapshot_cache", snapshot_cache)
        return DeltaLibraryHarness(tmp_path)


class TestIceberg(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return IcebergHarness(tmp_path)


@pytest.mark.slow
class TestMySql(DestinationConformance):
    """On MariaDB and on MySQL."""

    @pytest.fixture
    def harness(self, mysql_server: MySqlProcess, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        for name, value in mysql_server.environment.items():
            monkeypatch.setenv(name, value)  # the store knows no user
        return MySqlHarness(mysql_server.new_url)


@pytest.mark.slow
class TestPostgres(DestinationConformance):
    """The manifests are in the same server."""

    @pytest.fixture
    def store(self, new_postgres_url: Callable[[], str]) -> Iterator[SqlManifestStore]:
        with open_store(new_postgres_url()) as store:
            yield store

    @pytest.fixture
    def harness(
        self, new_postgres_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
    ) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return PostgresHarness(new_postgres_url)


@pytest.fixture(scope="module")
def preparing_server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


class PreparedClaims(
    CommitClaims, CrashClaims, ResponseClaims, ConcurrencyClaims, CleaningClaims, SecrecyClaims
):
    """Those of streams that append, since `commit=prepared` refuses the others."""


@pytest.mark.campaign
class TestPreparedPostgres(PreparedClaims):
    """Tasks prepare transactions in a server that allows them."""

    @pytest.fixture
    def harness(self, preparing_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        monkeypatch.setenv("PGUSER", "postgres")  # the store knows no user
        return PreparedPostgresHarness(preparing_server.new_url)


@pytest.mark.campaign
class TestPreparedMySql(PreparedClaims):
    """Tasks prepare XA transactions, on MariaDB and on MySQL."""

    @pytest.fixture
    def harness(self, mysql_server: MySqlProcess, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        for name, value in mysql_server.environment.items():
            monkeypatch.setenv(name, value)  # the store knows no user
        return PreparedMySqlHarness(mysql_server.new_url)
