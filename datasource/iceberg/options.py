"""Options of `penstock.iceberg`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.contract import PartitionField, SortField
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.iceberg.address import parse_table_name
from ...committers.iceberg.terms import parse_partition_spec, parse_sort_order
from ..options.changes import FileChangeOptions, problems_of_changes
from ..options.declaring import declared, option, optional, options_of, passed_on, prefixes_of
from ..options.file_tables import FileTableOptions
from ..options.parsing import count, duration_s, flag, one_of, text
from ..options.stream import parse_as, problems_of_urls

NAME = "penstock.iceberg"


def table_name(name: str) -> str:
    parse_table_name(name)
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergOptions(FileChangeOptions, FileTableOptions):
    """Options of `penstock.iceberg`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution)
    table: str = field(
        metadata=declared("table", table_name, "Name of the table in the catalog: `namespace.name`.")
    )
    catalog: str | None = optional(
        "catalog",
        text,
        "Name of the catalog in `.pyiceberg.yaml` or `PYICEBERG_CATALOG__NAME__*`. With the options "
        "`catalog.*`, any name.",
    )
    warehouse: str | None = optional(
        "warehouse",
        text,
        "Without a catalog: a local directory for tables and an embedded catalog, which needs no server. "
        "With a catalog: its warehouse.",
    )
    branch: str = option(
        "branch",
        text,
        "Branch to write to. If it does not exist, it is created from the main branch.",
        default="main",
    )
    partition_spec: tuple[PartitionField, ...] | None = optional(
        "partitionSpec",
        parse_partition_spec,
        "Partitioning of a new table: `day(ts), bucket(16, id), truncate(4, s), column`. "
        "Spark ignores `partitionBy()` of a stream writer for this sink.",
    )
    sort_order: tuple[SortField, ...] | None = optional(
        "sortOrder",
        parse_sort_order,
        "Sort order of a new table, by which each row group is sorted: `day(ts) DESC NULLS LAST, id`.",
    )
    format_version: int | None = optional(
        "formatVersion",
        one_of({"1": 1, "2": 2}),
        "Format version of a new table: 1 or 2.",
        default="2",
    )
    expire_snapshots: bool | None = optional(
        "expireSnapshots",
        flag,
        "Expire old snapshots, and delete the files that only they reference.",
        default="`true` for tables that Penstock created, `false` for all others",
    )
    snapshots_max: int = option(
        "keepSnapshots",
        count(1, 100_000),
        "Number of snapshots to keep when older ones expire.",
        default="20",
    )
    snapshot_grace_s: float = option(
        "snapshotGrace",
        duration_s,
        "How long to keep the files of expired snapshots, for readers that still use them.",
        default="1h",
    )
    catalog_properties: Mapping[str, str] = passed_on(
        "catalog.",
        str.lower,
        "Properties of the catalog, as in pyiceberg: `catalog.type`, `catalog.uri`, `catalog.s3.region`, … "
        "With `catalog.penstock.data-path` and `catalog.penstock.metadata-path`, Penstock also deletes files "
        "of the table in these folders, outside of the table's location.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> IcebergOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        no_path = (
            "path is not an option: an Iceberg table has a name in a catalog. Give "
            '.option("table", "namespace.name") and .start() without a path.'
        )
        return parse_as(
            cls,
            NAME,
            options,
            examples={"table": "namespace.name"},
            refused={"path": no_path},
            problems_of_values=_problems,
        )


def _problems(values: Mapping[str, Any]) -> list[str]:
    return [*problems_of_changes(values), *problems_of_catalog(values)]


def problems_of_catalog(values: Mapping[str, Any]) -> list[str]:
    """Return the problems of options that say where the table is."""
    warehouse = values.get("catalog_properties", {}).get("warehouse", "")
    problems = problems_of_urls({"catalog.warehouse": warehouse}, PREFIXES)
    if not {"catalog", "catalog_properties", "warehouse"} & set(values):
        problems.append(
            "Neither catalog nor warehouse is given. Give warehouse=/path for tables in a local directory, "
            "with an embedded catalog that needs no server. Give catalog=name or catalog.* to use an "
            "existing catalog."
        )
    return problems


OPTIONS = options_of(IcebergOptions)
PREFIXES = prefixes_of(IcebergOptions)
