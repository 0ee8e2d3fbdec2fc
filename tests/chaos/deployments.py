"""The setups of the campaign (format or service, environment, store and delivery), and their deployment for a
trial.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from duckdb import DuckDBPyConnection
from servers.aws import KEY, SECRET
from servers.azure import CONTAINER, azure_client, azure_names, emulator_options
from servers.postgres import Postgres
from servers.s3 import BUCKET, s3_client
from servers.started import Proxied, Servers
from servers.unreachable import UnreachableError
from tests.chaos.disks import small_disk, why_no_small_disks
from tests.conformance.harnesses import (
    DeduplicatingHttpHarness,
    HttpHarness,
    KinesisHarness,
    NatsHarness,
    NatsIdHarness,
    OpenSearchHarness,
    RedisFenceHarness,
    RedisHarness,
    RedisStreamHarness,
    ServiceHarness,
)

from penstock.testing import DeltaTable, IcebergTable
from penstock.testing.table import Table, TableVersion

Format = Literal["delta", "iceberg", "http", "kinesis", "redis", "nats", "opensearch"]
Environment = Literal[
    "disk", "small disks", "S3", "Azure", "REST catalog", "plain service", "idempotent service", "Kinesis",
    "Redis strings", "Redis stream", "Redis fence", "JetStream", "JetStream ids", "OpenSearch",
]  # fmt: skip
Store = Literal["sqlite", "postgres"]
Delivery = Literal["coupled", "decoupled"]
LOCAL, CLUSTER = "local[2,8]", "local-cluster[2,1,1024]"
"""Spark's master: threads as executors, and eight failures of a task end a query; processes as executors."""

OBJECT_STORES: Sequence[Environment] = ("S3", "Azure")
_SERVICES: Mapping[Format, Mapping[Environment, type[ServiceHarness]]] = {
    "http": {"plain service": HttpHarness, "idempotent service": DeduplicatingHttpHarness},
    "kinesis": {"Kinesis": KinesisHarness},
    "redis": {
        "Redis strings": RedisHarness,
        "Redis stream": RedisStreamHarness,
        "Redis fence": RedisFenceHarness,
    },
    "nats": {"JetStream": NatsHarness, "JetStream ids": NatsIdHarness},
    "opensearch": {"OpenSearch": OpenSearchHarness},
}
SERVICES = {name: harness for services in _SERVICES.values() for name, harness in services.items()}
"""The environments whose rows are sent in requests. The harnesses of the conformance suite know them."""
STORES: Sequence[Store] = ("sqlite", "postgres")

_ENVIRONMENTS: Mapping[Format, Sequence[Environment]] = {
    "delta": ("disk", "small disks", *OBJECT_STORES),
    "iceberg": ("disk", "small disks", "REST catalog"),
    **{service: tuple(environments) for service, environments in _SERVICES.items()},
}
FORMATS: Sequence[Format] = tuple(_ENVIRONMENTS)
ENVIRONMENTS: Sequence[Environment] = (*_ENVIRONMENTS["delta"], "REST catalog", *SERVICES)

ROWS_IN_REQUEST, REQUESTS_IN_FLIGHT, ROWS_BUFFERED = 5, 4, 20
WINDOW = ROWS_BUFFERED + REQUESTS_IN_FLIGHT * ROWS_IN_REQUEST
"""Rows that a delivery sends again at most after it was interrupted (`maxBufferedRequests`)."""

_OPTIONS: Mapping[Format | Delivery | Environment, Mapping[str, str]] = {
    "delta": {"partitionBy": "day", "schemaEvolution": "addColumns"},
    "iceberg": {
        "partitionSpec": "day",
        "schemaEvolution": "addColumns",
        "keepSnapshots": "8",
        "snapshotGrace": "15s",
    },
    "kinesis": {"accessKeyId": KEY, "secretAccessKey": SECRET},
    "Redis fence": {"maxInFlightRequests": "1"},
    "coupled": {},
    "decoupled": {
        "delivery": "decoupled",
        "deliverAfterSeconds": "2",
        "deliverAfterBatches": "12",
        "backlogBatches": "15",
        "backlogWaitSeconds": "10",
    },
}
_COMPACTION = {"compactEverySeconds": "20"}
"""With these, snapshots expire, backlogs fill up and files are compacted within one trial."""
_OF_SERVICES = {
    "maxInFlightRequests": str(REQUESTS_IN_FLIGHT),
    "maxBufferedRequests": str(ROWS_BUFFERED),
    "maxBatchSize": str(ROWS_IN_REQUEST),
    "requestTimeout": "15s",
}


@dataclass(frozen=True)
class Setup:
    """What a stream runs on."""

    format: Format
    environment: Environment
    store: Store
    delivery: Delivery = "coupled"
    master: str = LOCAL

    def __str__(self) -> str:
        return ", ".join((self.format, self.environment, self.store, self.delivery))

    @property
    def is_decoupled(self) -> bool:
        return self.delivery == "decoupled"

    @property
    def has_server(self) -> bool:
        """True if the table, its catalog or the service is behind a server, and its proxy."""
        return self.environment in (*OBJECT_STORES, *SERVICES, "REST catalog")

    @property
    def is_over_tcp(self) -> bool:
        """True if that proxy does not know the requests."""
        return not self.is_table and isinstance(SERVICES[self.environment].rows_in, bytes)

    @property
    def doubles_rows(self) -> bool:
        """True if rows that are sent again are there twice."""
        harness = SERVICES.get(self.environment)
        if harness is None or (harness is NatsHarness and self.is_decoupled):
            return False  # JetStream knows the ids of rows from a row log
        return not harness.promises.is_exactly_once

    @property
    def is_table(self) -> bool:
        """False if the rows are sent in requests."""
        return self.environment not in SERVICES


def all_setups(
    formats: Collection[str] = FORMATS,
    stores: Collection[str] = STORES,
    environments: Collection[str] = ENVIRONMENTS,
) -> list[Setup]:
    """Return each format in each environment, with each store, decoupled and, but for a fence, coupled."""
    deliveries: Sequence[Delivery] = ("coupled", "decoupled")
    return [
        Setup(table_format, environment, store, delivery)
        for table_format in FORMATS
        for environment in _ENVIRONMENTS[table_format]
        for store in STORES
        for delivery in deliveries
        if table_format in formats and store in stores and environment in environments
        if environment != "Redis fence" or delivery == "decoupled"
    ]


def why_unavailable(setup: Setup, servers: Servers) -> str | None:
    """Return why this machine cannot offer the setup; None if it can."""
    if setup.environment == "small disks":
        return why_no_small_disks()
    try:
        if setup.environment == "REST catalog":
            servers.rest_catalog()
        if setup.environment == "Azure":
            servers.azure()
        if not setup.is_table:
            servers.service(setup.format)
    except UnreachableError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Place:
    """The place of a table."""

    table: Table
    """The table, past the proxy."""
    options: Mapping[str, str]
    """The options that name it in a query, through the proxy."""
    folder: Path | None = None
    """The folder of its files, on a local disk."""
    server: Proxied[Any] | None = None
    """The server of the table or of its catalog."""


@dataclass(frozen=True)
class Deployment:
    """A deployed setup: folders, servers and options."""

    setup: Setup
    root: Path
    place: Place
    store_url: str
    disks: Mapping[str, Path] = field(default_factory=dict)
    """Small file systems, by their content."""
    postgres: Postgres | None = None

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / "ids"

    @property
    def options(self) -> dict[str, str]:
        """The options of the query."""
        setup = self.setup
        more = {} if setup.is_table else dict(_OF_SERVICES)
        for part in (setup.format, setup.environment, setup.delivery):
            more |= _OPTIONS.get(part, {})
        if setup.is_decoupled and setup.is_table:
            more |= _COMPACTION
        return {**self.place.options, **more, "store": self.store_url}

    def read_table(self) -> Table:
        """Return the table in its current version."""
        if isinstance(self.place.table, Mirror):
            self.place.table.refresh()
        return self.place.table

    @property
    def folders(self) -> dict[str, Path]:
        """The folders that can be made read-only, by name."""
        found = {"checkpoint": self.checkpoint}
        if self.place.folder is not None:
            log = "_delta_log" if self.setup.format == "delta" else "metadata"
            found |= {"table": self.place.folder, "table's log": self.place.folder / log}
        return found


@contextmanager
def deploy(setup: Setup, root: Path, servers: Servers) -> Iterator[Deployment]:
    """Deploy a setup in the folder `root`, which belongs to the trial."""
    (root / "source").mkdir(parents=True)
    postgres = servers.postgres() if setup.store == "postgres" else None
    store_url = postgres.new_url() if postgres else f"sqlite:///{root}/checkpoints/ids/penstock.sqlite"
    with ExitStack() as stack:
        disks: dict[str, Path] = {}
        if setup.environment == "small disks":
            disks = {
                what: stack.enter_context(small_disk(root / folder))
                for what, folder in (("table", "lake"), ("checkpoint", "checkpoints"))
            }
        yield Deployment(setup, root, _place(setup, root, servers, stack), store_url, disks, postgres)


def _place(setup: Setup, root: Path, servers: Servers, stack: ExitStack) -> Place:
    name, folder = root.name.replace("-", "_"), root / "lake" / "table"
    if setup.environment == "S3":
        return _on_s3(folder, name, servers)
    if setup.environment == "Azure":
        return _on_azure(folder, name, servers)
    if not setup.is_table:
        return _at_service(setup, root, servers, stack)
    if setup.environment == "REST catalog":
        return _in_rest_catalog(name, servers)
    if setup.format == "delta":
        return Place(DeltaTable(folder), {"path": str(folder)}, folder)
    options = {"warehouse": str(folder), "table": "lake.ids"}
    return Place(IcebergTable("lake.ids", folder), options, folder / "lake" / "ids")


def _on_s3(copy: Path, name: str, servers: Servers) -> Place:
    storage, server = servers.s3()
    client = s3_client(storage)

    def names(prefix: str) -> Iterator[str]:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            yield from (found["Key"] for found in page.get("Contents", ()))

    def content(key: str) -> bytes:
        read: bytes = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return read

    options = _prefixed("storage", {**storage, "AWS_ENDPOINT_URL": server.proxy.url})
    table = Mirror(copy, name, names, content)
    return Place(table, {"path": f"s3://{BUCKET}/{name}", **options}, server=server)


def _on_azure(copy: Path, name: str, servers: Servers) -> Place:
    url, server = servers.azure()

    def content(key: str) -> bytes:
        read: bytes = azure_client(url).download_blob(key).readall()
        return read

    options = _prefixed("storage", emulator_options())
    table = Mirror(copy, name, lambda prefix: azure_names(url, prefix), content)
    return Place(table, {"path": f"az://{CONTAINER}/{name}", **options}, server=server)


def _in_rest_catalog(namespace: str, servers: Servers) -> Place:
    catalog, server = servers.rest_catalog()
    options = _prefixed("catalog", catalog.properties_at(server.proxy.url))
    table = IcebergTable(f"{namespace}.ids", catalog="rest", catalog_properties=catalog.properties)
    options |= {"table": f"{namespace}.ids", "catalog": "rest"}
    return Place(table, options, catalog.warehouse / namespace / "ids", server)


def _at_service(setup: Setup, root: Path, servers: Servers, stack: ExitStack) -> Place:
    service, server = servers.service(setup.format)
    new_harness: Any = SERVICES[setup.environment]
    harness = stack.enter_context(new_harness(root / "checkpoints" / "ids", service, server.proxy).created())
    return Place(ReceivedRows(harness), harness.options, server=server)


def _prefixed(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{key}": value for key, value in options.items()}


@dataclass(frozen=True)
class ReceivedRows:
    """See `Table`: the rows that a service has received, past the proxy."""

    service: ServiceHarness

    @property
    def uri(self) -> str:
        return self.service.promises.name

    def relation(self, connection: DuckDBPyConnection) -> str:
        rows = self.service.rows()
        columns = {name: [row[name] for row in rows] for name in ("id", "day")}
        connection.register("received", pa.table(columns, pa.schema({"id": pa.int64(), "day": pa.string()})))
        return "received"

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        return TableVersion(self.relation(connection), {}, (), set(), ())


@dataclass(frozen=True)
class Mirror(DeltaTable):
    """A Delta table in an object store, copied to the folder `path`, past the proxy."""

    prefix: str
    names: Callable[[str], Iterable[str]]
    """Lists the names of the objects with a prefix."""
    content: Callable[[str], bytes]

    def refresh(self) -> None:
        """Copy the log first: all files that it references are in the store then."""
        self._copy("_delta_log/")
        self._copy("")

    def _copy(self, below: str) -> None:
        for name in list(self.names(f"{self.prefix}/{below}")):
            path = name.removeprefix(f"{self.prefix}/")
            if path.startswith("_delta_log/") != bool(below) or path.endswith("/_last_checkpoint"):
                continue  # without that hint, readers list the log
            copy = Path(self.path) / path
            if not copy.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(self.content(name))
