"""Options of `penstock.iceberg`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ...committers.contract import PartitionField, SortField
from ...committers.iceberg.address import parse_table_name
from ...committers.iceberg.terms import parse_partition_spec, parse_sort_order
from ..options import common
from ..options.parsing import (
    Option,
    Prefix,
    check,
    count,
    duration_s,
    flag,
    one_of,
    parse_options,
    storable,
    text,
)

NAME = "penstock.iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergOptions(common.LakeOptions):
    """Options of `penstock.iceberg`."""

    table: str
    catalog: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    warehouse: str | None = None
    branch: str = "main"
    partition_spec: tuple[PartitionField, ...] | None = None
    sort_order: tuple[SortField, ...] | None = None
    format_version: int | None = None
    expire_snapshots: bool | None = None
    snapshots_max: int = 20
    snapshot_grace_s: float = 3600.0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> IcebergOptions:
        """Parse what Spark hands over.

        Raises:
            ConfigurationError: lists everything that is wrong, one sentence each.
        """
        given = {key: value for key, value in options.items() if key.lower() != "path"}
        values, problems = parse_options(OPTIONS, PREFIXES, given)
        if len(given) < len(options):
            problems.append(
                "path is not an option: an Iceberg table has a name in a catalog. Give "
                '.option("table", "namespace.name") and .start() without a path.'
            )
        if not values.get("table"):
            problems.append('table is missing: name it with .option("table", "namespace.name").')
        if not {"catalog", "catalog_properties", "warehouse"} & set(values):
            problems.append(
                "Neither catalog nor warehouse is given. With warehouse=/path the table is kept there, in a "
                "catalog that needs no server; catalog=name and catalog.* open one that you have."
            )
        stored = storable(OPTIONS, options)
        warehouse = values.get("catalog_properties", {}).get("warehouse", "")
        problems += common.problems_of(values, {"catalog.warehouse": warehouse, **stored}, PREFIXES)
        check(NAME, problems)
        return cls(**values, given=stored)


def _table_name(name: str) -> str:
    parse_table_name(name)
    return name


OPTIONS = (
    Option("table", "table", _table_name, "The table's name in the catalog: `namespace.name`."),
    Option(
        "catalog",
        "catalog",
        text,
        "Name of the catalog, as in `.pyiceberg.yaml` or `PYICEBERG_CATALOG__NAME__*`; with `catalog.*` any "
        "name.",
    ),
    Option(
        "warehouse",
        "warehouse",
        text,
        "Without a catalog: a local directory for tables and their catalog, which needs no server. "
        "With one: the catalog's warehouse.",
    ),
    Option(
        "branch",
        "branch",
        text,
        "Branch of the table to write; made from the main branch if there is none. Default `main`.",
    ),
    Option(
        "partitionSpec",
        "partition_spec",
        parse_partition_spec,
        "Partitioning of a new table: `day(ts), bucket(16, id), truncate(4, s), column`.",
    ),
    Option(
        "sortOrder",
        "sort_order",
        parse_sort_order,
        "Sort order of a new table, followed within each row group: `day(ts) DESC NULLS LAST, id`.",
    ),
    Option(
        "formatVersion",
        "format_version",
        one_of({"1": 1, "2": 2}),
        "Format version of a new table: 1 or 2. Default 2.",
    ),
    Option(
        "expireSnapshots",
        "expire_snapshots",
        flag,
        "Expire old snapshots and delete the files that only they need. Default: `true` for tables that "
        "Penstock "
        "created, `false` for all others.",
    ),
    Option(
        "keepSnapshots",
        "snapshots_max",
        count(1, 100_000),
        "Snapshots that stay when others are expired. Default 20.",
    ),
    Option(
        "snapshotGrace",
        "snapshot_grace_s",
        duration_s,
        "How long files of expired snapshots stay for readers that still use them. Default `1h`.",
    ),
    *common.OPTIONS,
)

PREFIXES = (
    Prefix(
        "catalog.",
        "catalog_properties",
        str.lower,
        "Properties of the catalog, as pyiceberg takes them: `catalog.type`, `catalog.uri`, "
        "`catalog.s3.region`, … With `catalog.penstock.data-path` and `catalog.penstock.metadata-path` "
        "Penstock also deletes the table's files in these folders, outside of its location.",
    ),
)

assert {known.field for known in (*OPTIONS, *PREFIXES)} | {"given"} == {
    f.name for f in fields(IcebergOptions)
}
