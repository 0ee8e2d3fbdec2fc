"""Needs pypaimon, which is in an environment of its own: `make test-paimon`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.maven import MavenUnreachableError
from servers.paimon_rest_catalog import PaimonRestCatalog, paimon_rest_catalog
from tests.spark.conftest import spark
from tests.support.paimon_catalog import PaimonCatalogHarness
from tests.support.paimon_table import PaimonHarness

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance.harness import SECRET
from penstock.testing.conformance.query import NO_ACCESS, Query

__all__ = ["spark"]

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py"]


@pytest.fixture
def harness(tmp_path: Path) -> PaimonHarness:
    return PaimonHarness(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield store


@pytest.fixture
def query(harness: PaimonHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaimonRestCatalog]:
    """Paimon's own REST catalog, one for all tests: each takes a database of its own."""
    try:
        with paimon_rest_catalog(tmp_path_factory.mktemp("paimon-rest"), SECRET) as server:
            yield server
    except MavenUnreachableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def rest_proxy(rest_server: PaimonRestCatalog) -> Iterator[LossyProxy]:
    with lossy_proxy(rest_server.uri) as proxy:
        yield proxy


@pytest.fixture
def in_catalog(
    rest_server: PaimonRestCatalog, rest_proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> PaimonCatalogHarness:
    """Commands and delivery processes of the suite have the options of the catalog, too."""
    rest_proxy.spend()
    harness = PaimonCatalogHarness(rest_server, rest_proxy)
    for key, value in harness.properties.items():
        monkeypatch.setitem(NO_ACCESS.catalog, key, value)
    return harness
