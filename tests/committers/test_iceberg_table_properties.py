"""A writer of an Iceberg table cannot choose a server or an import with table properties.

The attacker has a server, and sets properties with pyiceberg, which follows them.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from servers.glue import GlueServer
from servers.request_log import RequestLog
from servers.s3 import BUCKET, logged_s3_server, s3_properties
from tests.support.catalogs import CatalogLake, StoredQuery
from tests.support.lakes import IcebergLake, ids
from tests.support.query import Query

from penstock.committers.errors import TableNotSupportedError
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.iceberg.table import load_if_there
from penstock.committers.store.sql import open_store

SERVERS = ["sql", "rest", "glue", "hive"]


@dataclass
class Lake:
    """A query's table with metadata on the local disk, and the operator's S3."""

    lake: IcebergLake | CatalogLake
    query: StoredQuery
    namespace: str

    def plant(self, properties: dict[str, str]) -> None:
        """By the attacker's own pyiceberg."""
        with self.lake.load().transaction() as transaction:
            transaction.set_properties(properties)

    def ids_in_s3(self) -> list[int]:
        """Of the data files there, as polars reads them."""
        files = f"s3://{BUCKET}/{self.namespace}/**/*.parquet"
        return sorted(pl.read_parquet(files)["id"].to_list())


@pytest.fixture(params=["embedded", *SERVERS])
def lake(
    request: pytest.FixtureRequest, glue: GlueServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lake:
    for name, value in glue.options.items():
        monkeypatch.setenv(name, value)
    if request.param == "embedded":
        embedded = IcebergLake(tmp_path, f"n{uuid.uuid4().hex}.ids")
        query = StoredQuery(Query(embedded, "q"), f"sqlite:///{tmp_path}/store.db")
        made = Lake(embedded, query, embedded.table.partition(".")[0])
    else:
        lake: CatalogLake = request.getfixturevalue(f"{request.param}_lake")
        made = Lake(lake, lake.stream(properties=s3_properties(glue.options)), lake.namespace)
    made.query.run(0, ids(1))
    return made


@pytest.fixture(scope="module")
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RequestLog]]:
    with logged_s3_server(tmp_path_factory.mktemp("attacker")) as (options, log):
        log.read()
        yield options["AWS_ENDPOINT_URL"], log


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that could be imported, and must not be."""
    name = f"planted_{uuid.uuid4().hex}"
    text = (
        "from pyiceberg.io.pyarrow import PyArrowFileIO as Io\n"
        "from pyiceberg.table.locations import SimpleLocationProvider as Provider\n"
    )
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("lake", SERVERS, indirect=True)
def test_no_request_is_sent_to_an_endpoint_that_the_table_names(
    lake: Lake, attacker: tuple[str, RequestLog], caplog: pytest.LogCaptureFixture
) -> None:
    uri, log = attacker
    lake.plant({"write.data.path": f"s3://{BUCKET}/{lake.namespace}", "s3.endpoint": uri})
    log.read()
    with caplog.at_level(logging.WARNING):
        lake.query.run(1, ids(2))
        lake.query.run(2, ids(3))
    assert log.methods() == []
    assert lake.ids_in_s3() == [2, 3]
    (warning,) = [one.getMessage() for one in caplog.records if "s3.endpoint" in one.getMessage()]
    assert f"{lake.namespace}.ids" in warning
    assert "catalog.s3.endpoint" in warning
    assert uri not in warning


def test_no_file_io_is_imported_that_the_table_names(lake: Lake, planted: str) -> None:
    lake.plant({"py-io-impl": f"{planted}.Io"})
    sys.modules.pop(planted, None)
    lake.query.run(1, ids(2))
    assert planted not in sys.modules


def test_no_location_provider_is_imported_that_the_table_names(lake: Lake, planted: str) -> None:
    sink: Any = lake.query.query.sink()
    written = lake.query.write(1, ids(2))
    lake.plant({"write.py-location-provider.impl": f"{planted}.Provider"})
    sys.modules.pop(planted, None)

    def clean_up() -> None:
        with open_store(lake.query.store_url) as store:
            table = IcebergCleanableTable(
                lambda: load_if_there(sink.catalog, sink.address), sink.table_uri, "main", store.expiries
            )
            table.files()

    for use in (clean_up, lambda: lake.query.write(2, ids(3)), lambda: lake.query.commit(written)):
        with pytest.raises(TableNotSupportedError, match=r"unset write\.py-location-provider\.impl"):
            use()
    assert planted not in sys.modules
