"""Partitions of a table in the Glue data catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import RetryableError
from .catalog_table import CatalogTable
from .partitions import Partition, TableName, chunks

CREATED_MAX = 100
"""Partitions in one BatchCreatePartition."""
READ_MAX = 1000
"""Partitions in one BatchGetPartition."""
_READS_MAX = 20
"""Requests for partitions that Glue has not processed."""


@contextmanager
def open_glue(catalog: Any) -> Iterator[GluePartitions]:
    """Use the client of a `GlueCatalog` of pyiceberg."""
    yield GluePartitions(catalog.glue)


class GluePartitions:
    """See `PartitionCatalog`."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def table(self, name: TableName) -> CatalogTable | None:
        try:
            found = self._client.get_table(DatabaseName=name.database, Name=name.table)["Table"]
        except self._client.exceptions.EntityNotFoundException:
            return None
        descriptor = found.get("StorageDescriptor", {})
        serde = descriptor.get("SerdeInfo", {})
        return CatalogTable.of(
            name,
            location=descriptor.get("Location"),
            serde=serde.get("SerializationLibrary"),
            serde_parameters=serde.get("Parameters"),
            parameters=found.get("Parameters"),
            columns=_columns(descriptor.get("Columns", ())),
            partition_columns=_columns(found.get("PartitionKeys", ())),
            descriptor=descriptor,
        )

    def locations(
        self, table: CatalogTable, partitions: Sequence[Partition]
    ) -> Mapping[tuple[str, ...], str]:
        found: dict[tuple[str, ...], str] = {}
        for some in chunks(partitions, READ_MAX):
            left = [{"Values": list(one.values)} for one in some]
            for _ in range(_READS_MAX):
                answer = self._client.batch_get_partition(**_names(table), PartitionsToGet=left)
                for one in answer["Partitions"]:
                    location = one.get("StorageDescriptor", {}).get("Location", "")
                    found[tuple(one["Values"])] = location
                left = answer.get("UnprocessedKeys", [])
                if not left:
                    break
            else:
                raise RetryableError(f"Glue did not return all partitions of the table {table.name}.")
        return found

    def add(self, table: CatalogTable, partitions: Mapping[str, Partition]) -> None:
        inputs = [
            {"Values": list(one.values), "StorageDescriptor": {**table.descriptor, "Location": location}}
            for location, one in partitions.items()
        ]
        for some in chunks(inputs, CREATED_MAX):
            answer = self._client.batch_create_partition(**_names(table), PartitionInputList=some)
            failed = [
                f"{'/'.join(one['PartitionValues'])}: {code}: {one['ErrorDetail'].get('ErrorMessage', '')}"
                for one in answer.get("Errors", ())
                if (code := one["ErrorDetail"]["ErrorCode"]) != "AlreadyExistsException"
            ]
            if failed:
                raise RetryableError(
                    f"Glue did not add {len(failed)} partitions to the table {table.name}: {failed[0]}."
                )


def _names(table: CatalogTable) -> dict[str, str]:
    return {"DatabaseName": table.name.database, "TableName": table.name.table}


def _columns(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    return [(one["Name"], one.get("Type", "")) for one in columns]
