"""Tables of a Hive metastore and of Glue in one form, and the requests for their partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .partitions import Partition, TableName

_SPARK_PLACEHOLDER = (("col", "array<string>"),)


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as its catalog describes it."""

    name: TableName
    location: str
    storage: str
    """Format of the table, or its SerDe."""
    columns: tuple[tuple[str, str], ...] | None
    """Name and type, without the partition columns. None: only Spark knows them."""
    partition_columns: tuple[tuple[str, str], ...]
    descriptor: Any = field(repr=False)
    """The storage descriptor, as the client returns it."""

    @classmethod
    def of(
        cls,
        name: TableName,
        *,
        location: str | None,
        serde: str | None,
        serde_parameters: Mapping[str, str] | None,
        parameters: Mapping[str, str] | None,
        columns: Sequence[tuple[str, str]],
        partition_columns: Sequence[tuple[str, str]],
        descriptor: Any,
    ) -> CatalogTable:
        """Describe a table of Hive or Glue by the fields that both have.

        Tables that Spark creates with `USING` have their location in the parameters of the SerDe, and if
        Hive cannot read them, one column as a placeholder.
        """
        more = parameters or {}
        provider = more.get("spark.sql.sources.provider")
        if provider is not None:
            location = (serde_parameters or {}).get("path", location)
        if more.get("transactional", "").lower() == "true":
            serde = "transactional"
        is_known = provider is None or tuple(columns) != _SPARK_PLACEHOLDER
        return cls(
            name,
            location or "",
            more.get("table_type") or provider or serde or "",
            tuple(columns) if is_known else None,
            tuple(partition_columns),
            descriptor,
        )


class PartitionCatalog(Protocol):
    """An open catalog. Its methods raise errors of the library, which `opened` converts."""

    def table(self, name: TableName) -> CatalogTable | None:
        """Return a table; None if it does not exist."""
        ...

    def locations(
        self, table: CatalogTable, partitions: Sequence[Partition]
    ) -> Mapping[tuple[str, ...], str]:
        """Return the locations of those of the partitions that exist, by their values."""
        ...

    def add(self, table: CatalogTable, partitions: Mapping[str, Partition]) -> None:
        """Add partitions, by their locations. Those that exist already stay as they are."""
        ...
