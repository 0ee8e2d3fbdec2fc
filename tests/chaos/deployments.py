"""Where a stream of the campaign writes: a format, an environment and a store, and what they are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from servers.azure import CONTAINER, NpmUnreachableError, azure_client, azure_names, emulator_options
from servers.maven import MavenUnreachableError
from servers.postgres import Postgres
from servers.s3 import BUCKET, s3_client
from servers.started import Proxied, Servers
from tests.chaos.disks import small_disk, why_no_small_disks

from penstock.testing import DeltaTable, IcebergTable
from penstock.testing.table import Table

Format = Literal["delta", "iceberg"]
Environment = Literal["disk", "small disks", "S3", "Azure", "REST catalog"]
Store = Literal["sqlite", "postgres"]
Delivery = Literal["coupled", "decoupled"]
LOCAL, CLUSTER = "local[2,8]", "local-cluster[2,1,1024]"
"""Spark's master: threads as executors, and eight failures of a task end a query; processes as executors."""

FORMATS: Sequence[Format] = ("delta", "iceberg")
OBJECT_STORES: Sequence[Environment] = ("S3", "Azure")
STORES: Sequence[Store] = ("sqlite", "postgres")
DELIVERIES: Sequence[Delivery] = ("coupled", "decoupled")

_ENVIRONMENTS_OF: Mapping[Format, Sequence[Environment]] = {
    "delta": ("disk", "small disks", *OBJECT_STORES),
    "iceberg": ("disk", "small disks", "REST catalog"),
}
ENVIRONMENTS: Sequence[Environment] = ("disk", "small disks", *OBJECT_STORES, "REST catalog")


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


def all_setups(
    formats: Collection[str],
    stores: Collection[str],
    deliveries: Collection[str] = DELIVERIES,
    environments: Collection[str] = ENVIRONMENTS,
) -> list[Setup]:
    """Each of these formats, in each of these environments, with each store, in each way of delivery."""
    return [
        Setup(lake, environment, store, delivery)
        for lake in FORMATS
        for environment in _ENVIRONMENTS_OF[lake]
        for store in STORES
        for delivery in DELIVERIES
        if lake in formats and store in stores and delivery in deliveries and environment in environments
    ]


def why_unavailable(setup: Setup, servers: Servers) -> str | None:
    """Why this machine cannot offer such a setup; None if it can."""
    if setup.environment == "small disks":
        return why_no_small_disks()
    try:
        if setup.environment == "REST catalog":
            servers.rest_catalog()
        if setup.environment == "Azure":
            servers.azure()
    except (MavenUnreachableError, NpmUnreachableError) as error:
        return str(error)
    return None


@dataclass(frozen=True)
class Deployment:
    """A setup that was deployed: folders, options, servers."""

    setup: Setup
    root: Path
    checkpoint: Path
    store_url: str
    options: Mapping[str, str]
    """Of the sink."""
    table: Table
    table_folder: Path | None
    """Where its files are, if they are on a local disk."""
    disks: Mapping[str, Path] = field(default_factory=dict)
    """Small file systems, by what is on them."""
    postgres: Postgres | None = None
    server: Proxied | None = None
    """What the table or its catalog is on, if that is a server."""

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def data_source(self) -> str:
        return f"penstock.{self.setup.format}"

    def read_table(self) -> Table:
        """The table as it is now."""
        if isinstance(self.table, Mirror):
            self.table.refresh()
        return self.table

    @property
    def folders(self) -> dict[str, Path]:
        """What can be made read-only, by its name."""
        found = {"checkpoint": self.checkpoint}
        if self.table_folder is not None:
            log = "_delta_log" if self.setup.format == "delta" else "metadata"
            found |= {"table": self.table_folder, "table's log": self.table_folder / log}
        return found


@contextmanager
def deploy(setup: Setup, root: Path, servers: Servers) -> Iterator[Deployment]:
    """Deploy a setup in the folder `root`, which is the trial's own."""
    (root / "source").mkdir(parents=True)
    with ExitStack() as stack:
        lake, checkpoints = root / "lake", root / "checkpoints"
        disks: dict[str, Path] = {}
        if setup.environment == "small disks":
            disks = {
                "table": stack.enter_context(small_disk(lake)),
                "checkpoint": stack.enter_context(small_disk(checkpoints)),
            }
        postgres = servers.postgres() if setup.store == "postgres" else None
        checkpoint = checkpoints / "ids"
        store_url = postgres.new_url() if postgres else f"sqlite:///{checkpoint}/penstock.sqlite"
        target = _target(setup, lake, servers)
        options = {**target.options, **_FOR_ALL[setup.format], "store": store_url}
        if setup.is_decoupled:
            options |= _DECOUPLED
        yield Deployment(
            setup,
            root,
            checkpoint,
            store_url,
            options,
            target.table,
            target.folder,
            disks,
            postgres,
            target.server,
        )


_FOR_ALL: Mapping[Format, Mapping[str, str]] = {
    "delta": {"partitionBy": "day", "schemaEvolution": "addColumns"},
    "iceberg": {
        "partitionSpec": "day",
        "schemaEvolution": "addColumns",
        "keepSnapshots": "8",
        "snapshotGrace": "15s",
    },
}
"""Snapshots expire during a trial, and their files go."""

_DECOUPLED: Mapping[str, str] = {
    "delivery": "decoupled",
    "deliverAfterSeconds": "2",
    "deliverAfterBatches": "12",
    "backlogBatches": "15",
    "backlogWaitSeconds": "10",
    "compactEverySeconds": "20",
}
"""Backlogs get full, and visible files are compacted, during a trial."""


@dataclass(frozen=True)
class _Target:
    """A table that is to be: as the campaign reads it, and the options that name it for the stream."""

    table: Table
    options: Mapping[str, str]
    folder: Path | None = None
    server: Proxied | None = None


def _target(setup: Setup, lake: Path, servers: Servers) -> _Target:
    name = f"trial_{lake.parent.name.rpartition('-')[2]}"
    if setup.environment == "S3":
        return _on_s3(lake, f"{name}/table", servers)
    if setup.environment == "Azure":
        return _on_azure(lake, f"{name}/table", servers)
    if setup.environment == "REST catalog":
        return _in_rest_catalog(name, servers)
    folder = lake / "table"
    if setup.format == "delta":
        return _Target(DeltaTable(folder), {"path": str(folder)}, folder)
    options = {"warehouse": str(folder), "table": "lake.ids"}
    return _Target(IcebergTable("lake.ids", folder), options, folder / "lake" / "ids")


def _on_s3(lake: Path, prefix: str, servers: Servers) -> _Target:
    storage, server = servers.s3()
    through = {**storage, "AWS_ENDPOINT_URL": server.proxy.url}
    given = {f"storage.{key}": value for key, value in through.items()}
    table = S3Mirror(lake / "mirror", prefix=prefix, storage=storage)
    return _Target(table, {"path": f"s3://{BUCKET}/{prefix}", **given}, server=server)


def _on_azure(lake: Path, prefix: str, servers: Servers) -> _Target:
    url, server = servers.azure()
    given = {f"storage.{key}": value for key, value in emulator_options().items()}
    table = AzureMirror(lake / "mirror", prefix=prefix, url=url)
    return _Target(table, {"path": f"az://{CONTAINER}/{prefix}", **given}, server=server)


def _in_rest_catalog(namespace: str, servers: Servers) -> _Target:
    catalog, server = servers.rest_catalog()
    properties = catalog.properties_at(server.proxy.url)
    given = {f"catalog.{key}": value for key, value in properties.items()}
    table = IcebergTable(f"{namespace}.ids", catalog="rest", catalog_properties=catalog.properties)
    options = {"table": f"{namespace}.ids", "catalog": "rest", **given}
    return _Target(table, options, catalog.warehouse / namespace / "ids", server)


# Tables that are behind a server ----------------------------------------------------------------------


@dataclass(frozen=True)
class Mirror(DeltaTable, ABC):
    """A Delta table in an object store, copied to a folder by `refresh`, past the proxy."""

    prefix: str = ""

    @abstractmethod
    def names(self, prefix: str) -> Iterator[str]:
        """Of all objects that begin so."""

    @abstractmethod
    def content(self, name: str) -> bytes: ...

    def refresh(self) -> None:
        """The log comes first: then all files that it names are there to be copied."""
        self._copy("_delta_log/")
        self._copy("")

    def _copy(self, below: str) -> None:
        for name in list(self.names(f"{self.prefix}/{below}")):
            path = name.removeprefix(f"{self.prefix}/")
            if path.startswith("_delta_log/") != bool(below) or path.endswith("/_last_checkpoint"):
                continue  # without that hint, readers list the log
            target = Path(self.path) / path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.content(name))


@dataclass(frozen=True)
class S3Mirror(Mirror):
    storage: Mapping[str, str] = field(default_factory=dict)

    def names(self, prefix: str) -> Iterator[str]:
        listing = s3_client(dict(self.storage)).get_paginator("list_objects_v2")
        for page in listing.paginate(Bucket=BUCKET, Prefix=prefix):
            yield from (found["Key"] for found in page.get("Contents", ()))

    def content(self, name: str) -> bytes:
        content: bytes = s3_client(dict(self.storage)).get_object(Bucket=BUCKET, Key=name)["Body"].read()
        return content


@dataclass(frozen=True)
class AzureMirror(Mirror):
    url: str = ""

    def names(self, prefix: str) -> Iterator[str]:
        yield from azure_names(self.url, prefix)

    def content(self, name: str) -> bytes:
        content: bytes = azure_client(self.url).download_blob(name).readall()
        return content
