"""Partitions of a table in a Hive metastore. Needs the extra `penstock[hive]`."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hive_metastore.ttypes import AddPartitionsRequest, NoSuchObjectException
from hive_metastore.ttypes import Partition as HivePartition

from ..iceberg.library.hive import connected
from .catalog_table import CatalogTable
from .partitions import Partition, TableName, chunks

_PARTITIONS_MAX = 1000
"""Partitions in one request."""


@contextmanager
def open_hive(catalog: Any) -> Iterator[HivePartitions]:
    """Connect with the properties of a `HiveCatalog` of pyiceberg."""
    with connected(catalog) as client:
        yield HivePartitions(client)


class HivePartitions:
    """See `PartitionCatalog`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def table(self, name: TableName) -> CatalogTable | None:
        try:
            found = self._client.get_table(name.database, name.table)
        except NoSuchObjectException:
            return None
        descriptor = found.sd
        return CatalogTable.of(
            name,
            location=descriptor.location,
            serde=descriptor.serdeInfo.serializationLib,
            serde_parameters=descriptor.serdeInfo.parameters,
            parameters=found.parameters,
            columns=[(one.name, one.type) for one in descriptor.cols],
            partition_columns=[(one.name, one.type) for one in found.partitionKeys or ()],
            descriptor=descriptor,
        )

    def locations(
        self, table: CatalogTable, partitions: Sequence[Partition]
    ) -> Mapping[tuple[str, ...], str]:
        columns = [name for name, _ in table.partition_columns]
        found: dict[tuple[str, ...], str] = {}
        for some in chunks(partitions, _PARTITIONS_MAX):
            names = [one.name(columns) for one in some]
            for one in self._client.get_partitions_by_names(*_names(table), names):
                found[tuple(one.values)] = one.sd.location or ""
        return found

    def add(self, table: CatalogTable, partitions: Mapping[str, Partition]) -> None:
        database, name = _names(table)
        for some in chunks(list(partitions.items()), _PARTITIONS_MAX):
            parts = [
                HivePartition(
                    values=list(one.values),
                    dbName=database,
                    tableName=name,
                    createTime=int(time.time()),
                    sd=_at(table.descriptor, location),
                    parameters={},
                )
                for location, one in some
            ]
            self._client.add_partitions_req(
                AddPartitionsRequest(database, name, parts, ifNotExists=True, needResult=False)
            )


def _at(descriptor: Any, location: str) -> Any:
    copied = copy.copy(descriptor)
    copied.location = location
    return copied


def _names(table: CatalogTable) -> tuple[str, str]:
    return table.name.database, table.name.table
