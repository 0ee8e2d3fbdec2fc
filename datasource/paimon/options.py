"""Options of `penstock.paimon`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ...committers.errors import ConfigurationError
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.paimon.address import PaimonAddress, parse_table_name
from ...committers.paimon.catalog import problems_of_catalog
from ...writers.local_path import local_path
from ..delta.options import parse_location
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import option_of, optional, options_of, passed_on, prefixes_of
from ..options.delivery import TARGET_FILE_BYTES, DeliveryOptions
from ..options.file_tables import FileTableOptions, partition_columns
from ..options.stream import normalized_location, parse_as

NAME = "penstock.paimon"


def _location(path: str) -> str:
    if local_path(path) is None:
        raise ValueError(
            "must be on a disk that driver and executors share: in an object store, a commit of Paimon's "
            "file-system catalog writes over the snapshot of another writer, whose rows would be lost"
        )
    return parse_location(path)


def _table_name(name: str) -> str:
    return ".".join(parse_table_name(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonOptions(ChangeOptions, DeliveryOptions):
    """Options of `penstock.paimon`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    path: str | None = optional(
        "path",
        _location,
        "Without a catalog: the folder of the table, on a disk that driver and executors share. In a "
        "warehouse of Paimon's file-system catalog: `<warehouse>/<database>.db/<table>`.",
    )
    table: str | None = optional(
        "table",
        _table_name,
        "With a REST catalog, in place of the path: the name of the table, `database.table`.",
    )
    partition_by: tuple[str, ...] | None = partition_columns()
    table_properties: Mapping[str, str] = option_of(FileTableOptions, "table_properties")
    target_file_bytes: int | None = option_of(FileTableOptions, "target_file_bytes")
    buffer_bytes_max: int = option_of(FileTableOptions, "buffer_bytes_max")
    catalog_properties: Mapping[str, str] = passed_on(
        "catalog.",
        str.lower,
        "Options of the REST catalog, as in pypaimon: `catalog.uri`, `catalog.warehouse`, the name of its "
        "warehouse, `catalog.token`, …",
    )

    @property
    def deliver_after_bytes_default(self) -> int:
        return self.target_file_bytes or TARGET_FILE_BYTES

    @property
    def table_uri(self) -> str:
        """The absolute path on the local disk, or the address in the catalog."""
        address = self.address
        return normalized_location(self.path or "") if address is None else address.uri

    @property
    def address(self) -> PaimonAddress | None:
        """The table in the catalog, if there is one."""
        if self.table is None:
            return None
        return PaimonAddress.of(self.catalog_properties["warehouse"], self.table)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> PaimonOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        given = {name.lower() for name, value in options.items() if value}
        return parse_as(
            cls,
            NAME,
            options,
            refused=_REFUSED,
            problems_of_values=lambda values: _problems(values, given),
        )


_READS_NOTHING = (
    "a commit to a Paimon table adds rows, which readers merge by key, and does not read the rows that they "
    "replace"
)
_REFUSED = {
    "updateColumns": f"updateColumns is not supported by {NAME}: {_READS_NOTHING}. Give whole rows.",
    "history": f"history is not supported by {NAME}: {_READS_NOTHING}. To keep all versions, append the "
    "changes to a table without a primary key: leave writeMode out.",
    "merge": f"merge: readers of a Paimon table always merge its rows by key ({NAME}). Leave the option out.",
}
"""Options of other tables, which users may expect here."""


def _problems(values: Mapping[str, Any], given: set[str]) -> list[str]:
    problems = [*_problems_of_place(values, given), *problems_of_changes(values)]
    if values.get("schema_evolution") is SchemaEvolution.ADD_COLUMNS:
        problems.append(
            "schemaEvolution=addColumns is not supported by penstock.paimon: add the columns with Paimon, "
            "for example with ALTER TABLE in Spark or Flink. Later batches have them."
        )
    return problems


def _problems_of_place(values: Mapping[str, Any], given: set[str]) -> list[str]:
    """Problems of the options that say which table it is.

    Args:
        given: names of all options, in lower case: also of those with a wrong value
    """
    catalog = values.get("catalog_properties")
    if {"path", "table"} <= given:
        return ["path and table are both given. Give table with a REST catalog, and path without one."]
    if "table" not in given:
        if catalog:
            return ['catalog.* is given without table: name it with .option("table", "database.table").']
        if "path" not in given:
            return [
                'path is missing: say where the table is with .option("path", ...) or .start(path). In a '
                'REST catalog, tables have names: give .option("table", "database.table") and catalog.*.'
            ]
        return []
    problems = problems_of_catalog(catalog or {})
    warehouse = (catalog or {}).get("warehouse")
    if not warehouse:
        return [*problems, "catalog.warehouse is missing: the name of the warehouse in the catalog."]
    try:
        PaimonAddress(warehouse, "database", "table")
    except ConfigurationError as error:
        problems.append(str(error))
    return problems


OPTIONS = options_of(PaimonOptions)
PREFIXES = prefixes_of(PaimonOptions)
