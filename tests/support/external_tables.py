"""An external table of a Hive metastore or of Glue, as its owner and its readers see it."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import boto3
import polars as pl
from hive_metastore.ttypes import Database, FieldSchema, Partition, SerDeInfo, StorageDescriptor, Table
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.hive import HiveCatalog
from servers.glue import GlueServer
from servers.hive_metastore import HiveMetastore
from tests.support.files import FilesHarness
from tests.support.files_remote import S3FilesHarness

Columns = Sequence[tuple[str, str]]

COLUMNS: Columns = [("id", "bigint")]
PARTITIONS: Columns = [("day", "date"), ("kind", "string")]
SERDE = "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe"
_FORMATS = "org.apache.hadoop.hive.ql.io.parquet.MapredParquet"


class Layout(NamedTuple):
    """A new table."""

    location: str
    columns: Columns = COLUMNS
    partitions: Columns = PARTITIONS
    serde: str = SERDE
    parameters: Mapping[str, str] = {}


class _ExternalTable(ABC):
    """Without the code under test. The catalog's database belongs to this table."""

    def __init__(self, harness: FilesHarness, location: str, properties: dict[str, str]) -> None:
        """
        Args:
            location: the folder, as the catalog spells it
            properties: what the options `catalog.*` have
        """
        self.harness, self.location, self.properties = harness, location, properties
        self.database = f"d{uuid.uuid4().hex}"
        self.name = f"{self.database}.rows"

    @property
    def options(self) -> dict[str, str]:
        """Of a query."""
        named = {f"catalog.{name}": value for name, value in self.properties.items()}
        return {
            **self.harness.options,
            "partitionBy": ", ".join(name for name, _ in PARTITIONS),
            "catalogTable": self.name,
            **named,
        }

    def create(self, **layout: Any) -> None:
        """
        Args:
            layout: what is not as in `Layout`
        """
        self._create(Layout(**{"location": self.location, **layout}))

    @abstractmethod
    def _create(self, layout: Layout) -> None: ...

    @abstractmethod
    def partitions(self) -> dict[tuple[str, ...], str]:
        """Locations by values."""

    @abstractmethod
    def files_in(self, location: str) -> list[bytes]: ...

    def ids(self) -> list[int]:
        """As readers do: from the files in the locations of the partitions."""
        files = (file for location in self.partitions().values() for file in self.files_in(location))
        return sorted(number for file in files for number in pl.read_parquet(file)["id"])


class GlueTable(_ExternalTable):
    """In Glue, with files on S3."""

    unreachable: ClassVar = {"glue.endpoint": "http://127.0.0.1:1", "glue.max-retries": "1"}
    """Properties of a server that does not answer."""

    def __init__(self, server: GlueServer, folder: Path) -> None:
        self.files = S3FilesHarness(server.options, folder)
        given = server.properties_at(server.uri).items()
        properties = {name: value for name, value in given if not name.startswith("s3.")}
        super().__init__(self.files, self.files.uri, properties)
        keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
        region = server.options["AWS_REGION"]
        self.client: Any = boto3.client("glue", endpoint_url=server.uri, region_name=region, **keys)
        self.client.create_database(DatabaseInput={"Name": self.database})
        self._named = {"DatabaseName": self.database, "TableName": "rows"}

    def _create(self, layout: Layout) -> None:
        descriptor = {
            "Columns": [{"Name": name, "Type": text} for name, text in layout.columns],
            "Location": layout.location,
            "InputFormat": f"{_FORMATS}InputFormat",
            "OutputFormat": f"{_FORMATS}OutputFormat",
            "SerdeInfo": {"SerializationLibrary": layout.serde},
        }
        table = {
            "Name": "rows",
            "TableType": "EXTERNAL_TABLE",
            "PartitionKeys": [{"Name": name, "Type": text} for name, text in layout.partitions],
            "StorageDescriptor": descriptor,
            "Parameters": dict(layout.parameters),
        }
        self.client.create_table(DatabaseName=self.database, TableInput=table)

    def drop(self) -> None:
        self.client.delete_table(DatabaseName=self.database, Name="rows")

    def stored(self) -> list[Mapping[str, Any]]:
        pages = self.client.get_paginator("get_partitions").paginate(**self._named)
        return list(pages.search("Partitions[]"))

    def partitions(self) -> dict[tuple[str, ...], str]:
        return {tuple(one["Values"]): one["StorageDescriptor"]["Location"] for one in self.stored()}

    def add_partition(self, *values: str, location: str) -> None:
        partition = {"Values": list(values), "StorageDescriptor": {"Location": location}}
        self.client.create_partition(**self._named, PartitionInput=partition)

    def drop_partition(self, *values: str) -> None:
        self.client.delete_partition(**self._named, PartitionValues=list(values))

    def files_in(self, location: str) -> list[bytes]:
        folder = location.removeprefix(f"{self.location}/")
        found = [path for path in self.files.paths() if path.startswith(f"{folder}/")]
        return [self.files.read(path) for path in found]


class HiveTable(_ExternalTable):
    """In a Hive metastore, with files on the local disk."""

    unreachable: ClassVar = {"uri": "thrift://127.0.0.1:1"}

    def __init__(self, metastore: HiveMetastore, folder: Path) -> None:
        files = FilesHarness(folder)
        super().__init__(files, f"file:{files.folder}", {"type": "hive", "uri": metastore.uri})
        with self.client as client:
            client.create_database(Database(name=self.database, locationUri=(folder / "database").as_uri()))

    @property
    def client(self) -> Any:
        catalog = load_catalog("hive", **self.properties)
        assert isinstance(catalog, HiveCatalog)
        return catalog._client

    def _create(self, layout: Layout) -> None:
        descriptor = StorageDescriptor(
            [FieldSchema(*column) for column in layout.columns],
            layout.location,
            f"{_FORMATS}InputFormat",
            f"{_FORMATS}OutputFormat",
            serdeInfo=SerDeInfo(serializationLib=layout.serde, parameters={}),
        )
        table = Table(
            "rows",
            self.database,
            sd=descriptor,
            partitionKeys=[FieldSchema(*column) for column in layout.partitions],
            parameters={"EXTERNAL": "TRUE", **layout.parameters},
            tableType="EXTERNAL_TABLE",
        )
        with self.client as client:
            client.create_table(table)

    def drop(self) -> None:
        with self.client as client:
            client.drop_table(self.database, "rows", False)

    def stored(self) -> list[Any]:
        with self.client as client:
            return list(client.get_partitions(self.database, "rows", -1))

    def partitions(self) -> dict[tuple[str, ...], str]:
        return {tuple(one.values): one.sd.location for one in self.stored()}

    def add_partition(self, *values: str, location: str) -> None:
        with self.client as client:
            descriptor = client.get_table(self.database, "rows").sd
            descriptor.location = location
            client.add_partition(Partition(list(values), self.database, "rows", sd=descriptor, parameters={}))

    def drop_partition(self, *values: str) -> None:
        with self.client as client:
            client.drop_partition(self.database, "rows", list(values), False)

    def files_in(self, location: str) -> list[bytes]:
        return [path.read_bytes() for path in Path(location.removeprefix("file:")).glob("*.parquet")]


ExternalTable: TypeAlias = GlueTable | HiveTable
