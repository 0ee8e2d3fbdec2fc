"""Partitions that a batch has files in. The journal lists them until they are in the catalog."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..contract import DataFile

T = TypeVar("T")

NULL = "__HIVE_DEFAULT_PARTITION__"
"""NULL in a catalog and in the name of a folder."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table of a Hive metastore or of Glue. No address, which commands and deliveries get as options."""

    catalog: str
    """Name of the catalog, as in the option `catalog`."""
    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"

    @classmethod
    def parse(cls, catalog: str, name: str) -> TableName:
        """
        Raises:
            ValueError: `name` is not `database.table`.
        """
        database, _, table = name.strip().partition(".")
        if not database or not table or "." in table:
            raise ValueError("must be the name of a database and a table: `database.table`")
        return cls(catalog, database, table)


@dataclass(frozen=True, slots=True)
class Partition:
    folder: str
    """`day=2024-01-01/kind=a%3Ab`, relative to the folder of the table. Values are escaped as in Hive."""
    values: tuple[str, ...]
    """In the order of the partition columns, not escaped."""

    def name(self, columns: Iterable[str]) -> str:
        """The name in a Hive metastore: as the folder, with the names of the catalog's columns."""
        values = (part.partition("=")[2] for part in self.folder.split("/"))
        return "/".join(f"{column}={value}" for column, value in zip(columns, values, strict=True))


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """The partitions of a batch, and the table that gets them."""

    table: TableName
    partitions: tuple[Partition, ...]

    @classmethod
    def of(cls, table: TableName, files: Iterable[DataFile]) -> NewPartitions:
        """Files of an earlier query without `partitionBy` have none."""
        found = {
            posixpath.dirname(file.path): file.partition_values for file in files if file.partition_values
        }
        return cls(
            table,
            tuple(
                Partition(folder, tuple(NULL if value is None else value for _, value in values))
                for folder, values in found.items()
            ),
        )

    def encode(self) -> dict[str, Any]:
        """Return a JSON object for the journal."""
        partitions = {partition.folder: list(partition.values) for partition in self.partitions}
        return {"name": self.table.catalog, "table": str(self.table), "partitions": partitions}

    @classmethod
    def decode(cls, content: Mapping[str, Any]) -> NewPartitions:
        """
        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is not what `encode` returns.
        """
        partitions = (
            Partition(str(folder), tuple(map(str, values)))
            for folder, values in content["partitions"].items()
        )
        return cls(TableName.parse(str(content["name"]), str(content["table"])), tuple(partitions))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
