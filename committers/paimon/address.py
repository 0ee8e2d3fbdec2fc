"""Address of a table in a REST catalog: the warehouse and the table's name. Used as `StreamKey.table_uri`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ConfigurationError, shown

_RESERVED = re.compile(r"[.:/\\@$\s]")
"""Not allowed in names: they would make the address ambiguous, or name a branch or a system table."""


@dataclass(frozen=True, slots=True)
class PaimonAddress:
    """
    Raises:
        ConfigurationError: raised on creation if the address could not be parsed back.
    """

    warehouse: str
    """Its name in the catalog."""
    database: str
    table: str

    def __post_init__(self) -> None:
        if not self.warehouse.strip() or self.warehouse.startswith("/") or "://" in self.warehouse:
            raise ConfigurationError(
                f"The warehouse {shown(self.warehouse)} is not a name. A REST catalog knows its warehouses "
                "by names: set catalog.warehouse to one of them. For a folder, give its tables by their path."
            )

    @property
    def name(self) -> str:
        return f"{self.database}.{self.table}"

    @property
    def uri(self) -> str:
        """`warehouse:database.table`."""
        return f"{self.warehouse}:{self.name}"

    @classmethod
    def of(cls, warehouse: str, name: str) -> PaimonAddress:
        """Return the address of `database.table`. Raises ConfigurationError."""
        return cls(warehouse, *parse_table_name(name))

    @classmethod
    def parse(cls, uri: str) -> PaimonAddress | None:
        """Parse an address returned by `uri`; None for the path of a folder."""
        if uri.startswith("/"):
            return None
        warehouse, _, name = uri.rpartition(":")
        return cls.of(warehouse, name)


def parse_table_name(name: str) -> tuple[str, str]:
    """Split a table name into database and table.

    Raises:
        ConfigurationError: it has not two parts, or one is empty or has a reserved character.
    """
    parts = name.strip().split(".")
    if len(parts) != 2 or not all(parts) or any(_RESERVED.search(part) for part in parts):
        raise ConfigurationError(
            f"The table name {shown(name)} is not database.table. Write both names, without colon, slash, @, "
            "$ or whitespace, e.g. table=sales.orders. Branches and system tables cannot be written."
        )
    return parts[0], parts[1]
