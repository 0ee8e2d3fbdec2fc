"""A table in each kind of Iceberg catalog, the query that writes it, and the network between them."""

from __future__ import annotations

import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import sqlalchemy as sa
from botocore.awsrequest import AWSRequest, AWSResponse
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import ShowLocksRequest, UnlockRequest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from servers.glue import GlueServer
from servers.hive_metastore import HiveMetastore
from servers.lossy_proxy import Fault, LossyProxy
from servers.rest_catalog import RestCatalogServer
from servers.s3 import BUCKET
from tests.support.faults import in_next_call
from tests.support.lakes import ids, named_files, rows
from tests.support.query import Plan, Query, Written
from thrift.transport.TTransport import TTransportException

from penstock import testing
from penstock.committers.contract import AlreadyCommitted, Committed, ManifestState
from penstock.committers.iceberg.catalog import open_catalog
from penstock.committers.protocol.recovery import Recovered
from penstock.committers.store.sql import open_store
from penstock.datasource.iceberg.sink import DESTINATION as ICEBERG
from penstock.testing.faults import Lost, lossy

COMMIT = "POST /v1/namespaces/ /tables/"
"""The words of the request that commits to a table of a REST catalog."""

SENDS_MAX = 11
"""Of one request to Glue: pyiceberg asks boto3 for ten retries."""


@dataclass(frozen=True)
class StoredQuery:
    """A query each of whose steps is made by another process, which opens the store."""

    query: Query
    store_url: str

    def run(self, batch_id: int, rows: Any, *, overwrite: bool = False) -> Written:
        """From the plan to the mark, maintenance included."""
        written = self.write(batch_id, rows, overwrite=overwrite)
        self.commit(written)
        self.maintain(batch_id)
        return written

    def write(self, batch_id: int, rows: Any, *, overwrite: bool = False) -> Written:
        return self.query.write(self.plan(batch_id, rows, overwrite=overwrite), [rows])

    def plan(self, batch_id: int, rows: Any, *, overwrite: bool = False) -> Plan:
        schema = self.query.rows(rows).schema
        with open_store(self.store_url) as store:
            plan = self.query.plan(store, self.query.batch(batch_id), schema, overwrite=overwrite)
        assert plan.writers is not None
        return plan

    def commit(self, written: Written) -> Committed | AlreadyCommitted:
        """Without waiting between attempts."""
        attempts_max = self.query.sink().options.commit_attempts_max
        with open_store(self.store_url) as store:
            two_phase = self.query.two_phase(store, attempts_max=attempts_max)
            return two_phase.commit(written.manifest, written.committables)

    def maintain(self, batch_id: int) -> None:
        with open_store(self.store_url) as store:
            self.query.sink().maintain(store, self.query.batch(batch_id))

    def recover(self) -> list[Recovered]:
        with open_store(self.store_url) as store:
            return self.query.two_phase(store).recovery.recover(self.query.stream)

    def state(self, batch_id: int) -> ManifestState | None:
        with open_store(self.store_url) as store:
            return self.query.state(store, batch_id)

    def catalog_in_use(self) -> Catalog:
        """The very object that the query's commits go through in this process."""
        sink: Any = self.query.sink()
        return open_catalog(sink.catalog)


class CatalogLake(ABC):
    """One table in a namespace of its own, as others see it: straight from the server."""

    kind: str
    unreachable: str
    """An address at which no server answers."""
    destination = ICEBERG

    def __init__(self, folder: Path, proxy: LossyProxy | None = None) -> None:
        """
        Args:
            proxy: before the server; it loses nothing yet
        """
        self.folder = folder
        self.proxy = proxy
        self.namespace = f"n{uuid.uuid4().hex}"
        self.name = f"{self.namespace}.ids"

    @property
    def options(self) -> dict[str, str]:
        return self.options_at(None)

    def options_at(self, uri: str | None, **more: str) -> dict[str, str]:
        properties = {**self.properties(uri), **more}
        named = {f"catalog.{name}": value for name, value in properties.items()}
        return {"catalog": self.kind, "table": self.name, **named}

    @abstractmethod
    def properties(self, uri: str | None = None) -> dict[str, str]:
        """Of the catalog, whose server is at `uri`, or behind a proxy there."""

    @abstractmethod
    def losing(self, stream: StoredQuery, lost: Lost) -> AbstractContextManager[None]:
        """Inside, the request of the stream's next commit is lost for good, or only its response."""

    def settle(self) -> None:  # noqa: B027 - most servers keep nothing
        """What lost requests have left at the server is cleared."""

    def stream(
        self,
        uri: str | None = None,
        query_id: str = "q",
        properties: Mapping[str, str] | None = None,
        **options: str,
    ) -> StoredQuery:
        """The query, with its connection to the server or to a proxy at `uri`."""
        where = self.options_at(uri, **(properties or {}))
        return StoredQuery(Query(self, query_id, options, where), f"sqlite:///{self.folder}/store.db")

    @property
    def catalog(self) -> Catalog:
        return load_catalog(self.kind, **self.properties())

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    def append(self, *values: int) -> None:
        self.load().append(ids(*values))

    def ids(self, branch: str = "main") -> list[int]:
        """As duckdb reads them. polars finds the same, and every file of every snapshot is there."""
        table = self.load()
        assert set(named_files(table)) <= self.files()
        snapshot = table.metadata.refs[branch].snapshot_id
        scan = pl.scan_iceberg(table, snapshot_id=snapshot, reader_override="native").collect()
        found = sorted(scan["id"].to_list())
        assert self.rows("id", branch) == [(number,) for number in found]
        return found

    def rows(self, columns: str, branch: str = "main") -> list[tuple[object, ...]]:
        """As duckdb reads them."""
        table = testing.IcebergTable(self.name, None, self.kind, self.properties(), branch)
        return rows(table, columns)

    def files(self) -> set[str]:
        """All that lies under the table's location."""
        location = self.load().location()
        scheme = "file://" if location.startswith("file://") else "file:"
        return {f"{scheme}{path}" for path in Path(location.removeprefix(scheme)).rglob("*.*")}

    def orphan_manifests(self) -> set[str]:
        return {name for name in self.files() if name.endswith(".avro")} - set(named_files(self.load()))


class SqlLake(CatalogLake):
    """A catalog in a database, opened by name and address."""

    kind = "sql"
    unreachable = "postgresql+psycopg://me@127.0.0.1:1/catalog"

    def properties(self, uri: str | None = None) -> dict[str, str]:
        uri = uri or f"sqlite:///{self.folder}/catalog.sqlite"
        return {"type": "sql", "uri": uri, "warehouse": self.folder.as_uri()}

    def losing(self, stream: StoredQuery, lost: Lost) -> AbstractContextManager[None]:
        error = sa.exc.OperationalError("UPDATE", {}, Exception("the connection was lost"))
        return lossy(SqlCatalog, "commit_table", lost, error)


class RestLake(CatalogLake):
    """Iceberg's own REST catalog."""

    kind = "rest"
    unreachable = "http://127.0.0.1:1"

    proxy: LossyProxy

    def __init__(self, server: RestCatalogServer, proxy: LossyProxy, folder: Path) -> None:
        super().__init__(folder, proxy)
        self.server = server

    def properties(self, uri: str | None = None) -> dict[str, str]:
        return self.server.properties_at(uri or self.server.uri)

    @contextmanager
    def losing(self, stream: StoredQuery, lost: Lost) -> Iterator[None]:
        self.proxy.spend("response lost" if lost == "response" else "request lost", on=COMMIT)
        yield
        assert len(self.proxy.spent()) == 1


class GlueLake(CatalogLake):
    """Glue, with the tables' files on the local disk unless `warehouse` says otherwise."""

    kind = "glue"
    unreachable = "http://127.0.0.1:1"

    proxy: LossyProxy

    def __init__(self, server: GlueServer, proxy: LossyProxy, folder: Path, warehouse: str = "") -> None:
        super().__init__(folder, proxy)
        self.server = server
        self.files_at = warehouse or folder.as_uri()

    def properties(self, uri: str | None = None) -> dict[str, str]:
        return {**self.server.properties_at(uri or self.server.uri), "warehouse": self.files_at}

    def files(self) -> set[str]:
        if self.files_at.startswith("file:"):
            return super().files()
        prefix = self.load().location().removeprefix(f"s3://{BUCKET}/")
        pages = self.server.s3.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=BUCKET, Prefix=f"{prefix}/").search("Contents[].Key")
        return {f"s3://{BUCKET}/{key}" for key in found}

    def ids(self, branch: str = "main") -> list[int]:
        if self.files_at.startswith("file:"):
            return super().ids(branch)
        table = self.load()
        assert set(named_files(table)) <= self.files()
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        options = {"aws_endpoint_url": self.server.uri, **keys}
        scan = pl.scan_iceberg(table, reader_override="native", storage_options=options)
        return sorted(scan.collect()["id"].to_list())

    def losing(self, stream: StoredQuery, lost: Lost) -> AbstractContextManager[None]:
        """boto3 sends a request again: all attempts are lost, or the response of the one that is executed."""
        faults: list[Fault] = ["request lost"] * SENDS_MAX if lost == "request" else ["response lost"]
        return self.at_update(stream, lambda _request: self.proxy.spend(*faults))

    @contextmanager
    def at_update(
        self, stream: StoredQuery, action: Callable[[AWSRequest], AWSResponse | None]
    ) -> Iterator[None]:
        """Do this once when the table's update is about to be sent: pyiceberg knows its version by then."""
        catalog, left = stream.catalog_in_use(), [action]
        assert isinstance(catalog, GlueCatalog)

        def handler(request: AWSRequest, **_: object) -> AWSResponse | None:
            return left.pop()(request) if left else None

        events = catalog.glue.meta.events
        events.register("before-send.glue.UpdateTable", handler)
        try:
            yield
            assert not left
        finally:
            events.unregister("before-send.glue.UpdateTable", handler)


class HiveLake(CatalogLake):
    """A Hive Metastore: each commit takes a lock on the table, and has no other condition."""

    kind = "hive"
    unreachable = "thrift://127.0.0.1:1"

    def __init__(self, metastore: HiveMetastore, folder: Path) -> None:
        super().__init__(folder)
        self.metastore = metastore

    def properties(self, uri: str | None = None) -> dict[str, str]:
        """It does not wait for locks."""
        waits = {"min-wait-time": "0.01", "max-wait-time": "0.02", "retries": "3"}
        locks = {f"lock-check-{name}": value for name, value in waits.items()}
        return {**self.metastore.properties, **locks, "uri": uri or self.metastore.uri}

    @property
    def client(self) -> Any:
        catalog = self.catalog
        assert isinstance(catalog, HiveCatalog)
        return catalog._client

    def locks(self) -> list[int]:
        """Of the table, held and waited for."""
        with self.client as client:
            found = client.show_locks(ShowLocksRequest(dbname=self.namespace, tablename="ids")).locks
            return [lock.lockid for lock in found]

    def settle(self) -> None:
        """As the metastore does when a lock's holder has not been heard of for long."""
        for lock in self.locks():
            self.unlock(lock)

    def unlock(self, lock: int) -> None:
        with self.client as client:
            client.unlock(UnlockRequest(lockid=lock))

    def losing(self, stream: StoredQuery, lost: Lost) -> AbstractContextManager[None]:
        return on_call(CHANGE, response_lost if lost == "response" else request_lost)


CHANGE = "alter_table_with_environment_context"
"""The call that commits to a table of a metastore."""


def on_call(name: str, action: Callable[[Client, Callable[[], Any]], Any]) -> AbstractContextManager[None]:
    """Do this instead, once, when the metastore's client calls the method; it gets what calls it."""

    def call(send: Callable[..., Any], client: Client, *args: Any, **options: Any) -> Any:
        return action(client, partial(send, client, *args, **options))

    return in_next_call(Client, name, call)


def hang_up(client: Client) -> None:
    """For the client the connection is lost: later calls fail, too."""
    client._iprot.trans.close()
    raise TTransportException(TTransportException.END_OF_FILE, "TSocket read 0 bytes")


def response_lost(client: Client, forward: Callable[[], Any]) -> None:
    forward()
    hang_up(client)


def request_lost(client: Client, _forward: Callable[[], Any]) -> None:
    hang_up(client)


def assert_hides(error: Exception, *secrets: str) -> None:
    """The error shows none of these, nor does its traceback."""
    text = "".join(traceback.format_exception(error)) + repr(error)
    assert [secret for secret in secrets if secret in text] == []
