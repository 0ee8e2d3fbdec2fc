"""Stores, storages, and catalogs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import botocore.endpoint
import pytest
from servers.glue import GlueServer
from servers.hive_metastore import HiveMetastore
from servers.lossy_proxy import LossyProxy
from servers.rest_catalog import RestCatalogServer
from servers.s3 import s3_server
from tests.support.catalogs import CatalogLake, GlueLake, HiveLake, RestLake, SqlLake, StoredQuery
from tests.support.iceberg_tables import Tables, tables_in
from tests.support.lakes import LAKES, LakeTable, ids
from tests.support.lossy_requests import ProxyOf
from tests.support.stores import HandClock


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    """A table of each format; other test files have lakes of their own."""
    return LAKES[request.param](tmp_path)


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Iceberg tables in a catalog of their own."""
    return tables_in(tmp_path)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """A server of S3; the options for its bucket."""
    with s3_server() as options:
        yield options


@pytest.fixture
def s3_proxy(s3: dict[str, str], proxy_of: ProxyOf) -> LossyProxy:
    """A proxy before the server of S3, without faults."""
    return proxy_of(s3["AWS_ENDPOINT_URL"])


@pytest.fixture
def no_azure_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in the environment."""
    for name in [name for name in os.environ if name.startswith("AZUR")]:
        monkeypatch.delenv(name)


@pytest.fixture
def sql_lake(tmp_path: Path) -> SqlLake:
    return SqlLake(tmp_path)


@pytest.fixture
def rest_lake(rest_catalog: RestCatalogServer, proxy_of: ProxyOf, tmp_path: Path) -> RestLake:
    return RestLake(rest_catalog, proxy_of(rest_catalog.uri), tmp_path)


@pytest.fixture
def glue_lake(
    glue: GlueServer, proxy_of: ProxyOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> GlueLake:
    """boto3 does not wait between its retries. Files are on the local disk, which is faster."""
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
    return GlueLake(glue, proxy_of(glue.uri), tmp_path)


@pytest.fixture
def hive_lake(hive: HiveMetastore, tmp_path: Path) -> HiveLake:
    return HiveLake(hive, tmp_path)


@pytest.fixture
def catalog_lake(request: pytest.FixtureRequest) -> CatalogLake:
    return request.getfixturevalue(f"{request.param}_lake")


@pytest.fixture
def stream(lake: CatalogLake) -> StoredQuery:
    """A query with one committed batch, through the proxy if the test file's `lake` has one."""
    stream = lake.stream(lake.proxy.url if lake.proxy else None, maxCommitAttempts="3")
    stream.run(0, ids(1, 2))
    return stream
