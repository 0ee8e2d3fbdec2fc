"""A Paimon table in a REST catalog for tests. Penstock reaches the catalog through a proxy, others do not."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from servers.lossy_proxy import LossyProxy
from servers.paimon_rest_catalog import PaimonRestCatalog
from tests.support.paimon_table import IDS, PaimonHarness

from penstock.committers.paimon.address import PaimonAddress
from penstock.committers.paimon.catalog import CatalogConfig
from penstock.committers.paimon.catalog_table import CatalogTable
from penstock.committers.paimon.committer import PaimonTableCommitter
from penstock.testing.conformance import Lost

COMMIT = "POST /commit"


class PaimonCatalogHarness(PaimonHarness):
    """A table of a database of its own. The server writes the files of the snapshots."""

    promises = replace(PaimonHarness.promises, name="Paimon tables in a REST catalog")

    def __init__(self, server: PaimonRestCatalog, proxy: LossyProxy) -> None:
        database = f"lake_{uuid.uuid4().hex}"
        self.server = server
        self.proxy = proxy
        self.warehouse = server.folder
        self.name = f"{database}.rows"
        self.path = self.warehouse / f"{database}.db" / "rows"

    @property
    def properties(self) -> Mapping[str, str]:
        return self.server.properties_at(self.proxy.url)

    @property
    def options(self) -> dict[str, str]:
        return {"table": self.name, **{f"catalog.{key}": value for key, value in self.properties.items()}}

    @property
    def secret_options(self) -> dict[str, str]:
        return self.options

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.options, "catalog.uri": f"http://127.0.0.1:{self.unreachable_port}"}

    def in_catalog(self) -> CatalogTable:
        return catalog_table(self.properties, self.name)

    @property
    def new_committer(self) -> Callable[[], PaimonTableCommitter]:
        return partial(committer_of, self.properties, self.name)

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return self._losing(lost)

    @contextmanager
    def _losing(self, lost: Lost) -> Iterator[None]:
        self.proxy.spend("response lost" if lost == "response" else "request lost", on=COMMIT)
        yield
        assert len(self.proxy.spent()) == 1

    def catalog(self) -> Any:
        from pypaimon import CatalogFactory

        return CatalogFactory.create(self.server.properties_at(self.server.uri))

    def drop(self) -> None:
        self.catalog().drop_table(self.name)

    def recreate(self) -> None:
        self.drop()
        self.create(IDS)


def catalog_table(properties: Mapping[str, str], name: str) -> CatalogTable:
    """The table, for a committer."""
    warehouse = properties["warehouse"]
    return CatalogTable(CatalogConfig.of(properties, warehouse), PaimonAddress.of(warehouse, name))


def committer_of(properties: Mapping[str, str], name: str) -> PaimonTableCommitter:
    """A committer in any process."""
    return PaimonTableCommitter(catalog_table(properties, name))
