"""Needs pypaimon, which is in an environment of its own: `make test-paimon`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from servers.lossy_proxy import LossyProxy, lossy_proxy
from servers.paimon_rest_catalog import PaimonRestCatalog, paimon_rest_catalog
from tests.spark.conftest import spark
from tests.support.paimon_catalog import PaimonCatalogHarness
from tests.support.paimon_table import PaimonHarness
from tests.support.unreachable import skipped_if_unreachable

from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.harness import SECRET
from penstock.testing.conformance.query import NO_ACCESS, Query

__all__ = ["spark"]

collect_ignore_glob = [] if find_spec("pypaimon") else ["test_*.py"]


@pytest.fixture
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> PaimonHarness:
    """In a folder, or in the REST catalog, if the test has that as its parameter."""
    if getattr(request, "param", "folder") == "REST catalog":
        return request.getfixturevalue("in_catalog")
    return PaimonHarness(tmp_path)


@pytest.fixture
def query(harness: PaimonHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaimonRestCatalog]:
    """Paimon's own REST catalog, one for all tests: each takes a database of its own."""
    with skipped_if_unreachable(), paimon_rest_catalog(tmp_path_factory.mktemp("rest"), SECRET) as server:
        yield server


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
