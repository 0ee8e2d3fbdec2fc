"""Options of `penstock.lake`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..delta.options import parse_path
from ..iceberg.options import table_name
from ..options.changes import FileChangeOptions, problems_of_changes
from ..options.declaring import optional, options_of, passed_on, prefixes_of
from ..options.file_tables import FileTableOptions, partition_columns
from ..options.parsing import text
from ..options.stream import parse_as

NAME = "penstock.lake"
PREFIX = "target."
FORMATS = ("delta", "iceberg")

_OF_ONE_TARGET = {
    "delta": ("tableProperties",),
    "iceberg": (
        "tableProperties",
        "sortOrder",
        "formatVersion",
        "expireSnapshots",
        "keepSnapshots",
        "snapshotGrace",
    ),
}
"""Options that only one of the tables has."""

_REFUSED = {
    "routeBy": "each row goes to both tables; use penstock.delta or penstock.iceberg",
    "compactWith": "the tables are delivered at different times, each from the files of the tasks. Small "
    "files are compacted afterwards, in both tables (compactEverySeconds)",
    "tableProperties": "each format has its own. Give target.delta.tableProperties or "
    "target.iceberg.tableProperties",
    "branch": "a Delta table has no branches",
    "partitionSpec": "Delta has no hidden partitions. Give partitionBy, and compute a column such as "
    "to_date(ts) in the query",
    "sortOrder": "a Delta table has no sort order. Give sortWithin, or target.iceberg.sortOrder",
}

_S3 = {
    "AWS_ENDPOINT_URL": "s3.endpoint",
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "s3.region",
}
"""Options of the Delta library and of pyiceberg with the same meaning."""


def _formats(text: str) -> tuple[str, ...]:
    if sorted(name.strip().lower() for name in text.split(",")) != sorted(FORMATS):
        raise ValueError(
            "must be delta,iceberg. To write one table, use its own format, such as penstock.delta"
        )
    return FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions(FileChangeOptions, FileTableOptions):
    """Options of `penstock.lake`. Those of file tables are for both tables."""

    formats: tuple[str, ...] | None = optional(
        "formats", _formats, "The formats of the tables.", default="`delta,iceberg`, the only value"
    )
    path: str | None = optional(
        "path",
        parse_path,
        "Location of the Delta table, and of the data files of both: a local path, or a URL such as "
        "`s3://bucket/table`. Required.",
    )
    table: str | None = optional(
        "table", table_name, "Name of the Iceberg table in the catalog: `namespace.name`. Required."
    )
    catalog: str | None = optional("catalog", text, "As in `penstock.iceberg`.")
    warehouse: str | None = optional("warehouse", text, "As in `penstock.iceberg`.")
    partition_by: tuple[str, ...] | None = partition_columns("Partition columns of both new tables")
    target_options: Mapping[str, str] = passed_on(
        PREFIX,
        str.lower,
        "Options of one table: `target.delta.tableProperties`, and of Iceberg "
        "`target.iceberg.tableProperties`, `target.iceberg.sortOrder`, `.formatVersion`, `.expireSnapshots`, "
        "`.keepSnapshots` and `.snapshotGrace`.",
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.",
        str.upper,
        "Options of the Delta library's object store, such as `storage.AWS_REGION`. Those for S3 are for "
        "Iceberg, too, unless `catalog.s3.*` says something else.",
    )
    catalog_properties: Mapping[str, str] = passed_on(
        "catalog.", str.lower, "Properties of the catalog, as in `penstock.iceberg`."
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LakeOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        refused = {name: f"{name} is not an option of {NAME}: {why}." for name, why in _REFUSED.items()}
        parsed = parse_as(cls, NAME, options, refused=refused, problems_of_values=_problems)
        return parsed if "delivery" in parsed.given else replace(parsed, is_decoupled=True)

    def of_delta(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of `penstock.delta`.

        Args:
            given: the options that Spark has passed
        """
        return self._of_both("delta", given, ("table", "catalog", "warehouse", "catalog."))

    def of_iceberg(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the options of `penstock.iceberg`; `given` as in `of_delta`."""
        own = self._of_both("iceberg", given, ("path", "partitionby", "storage."))
        parts = [f"`{name.replace('`', '``')}`" for name in self.partition_by or ()]
        spec = {"partitionspec": ", ".join(parts)} if parts else {}
        s3 = {
            f"catalog.{name}": self.storage_options[key]
            for key, name in _S3.items()
            if key in self.storage_options and (self.catalog or self.catalog_properties)
        }
        return {**s3, **own, **spec}

    def _of_both(self, name: str, given: Mapping[str, str], others: tuple[str, ...]) -> dict[str, str]:
        """
        Args:
            others: options of the other table; with a dot at the end, prefixes
        """
        own = {
            key.lower(): value
            for key, value in given.items()
            if key.lower() not in ("formats", *others)
            and not key.lower().startswith((PREFIX, *(other for other in others if other.endswith("."))))
        }
        prefix = f"{name}."
        of_target = {
            key.removeprefix(prefix): value
            for key, value in self.target_options.items()
            if key.startswith(prefix)
        }
        named = {"queryname": f"{self.query_name}.{name}"} if self.query_name else {}
        fixed = {"delivery": "decoupled", "compactwith": "none"}
        return {**own, **of_target, **named, **fixed}


def _problems(values: Mapping[str, Any]) -> list[str]:
    return [
        *_missing(values),
        *problems_of_changes(values),
        *_problems_of_merge(values),
        *_problems_of_computed_rows(values),
        *_problems_of_targets(values.get("target_options", {})),
    ]


def _problems_of_computed_rows(values: Mapping[str, Any]) -> list[str]:
    given = {"updateColumns": values.get("update_columns"), "history": values.get("has_history")}
    return [
        f"{name} is not supported by {NAME}: each table would write its rows of a commit into files of its "
        "own, which the other one does not have. Write both tables with penstock.fanout."
        for name, value in given.items()
        if value
    ]


def _problems_of_merge(values: Mapping[str, Any]) -> list[str]:
    if values.get("merge") != "on-write":
        return []
    return [
        "merge=on-write: files that are written again would belong to one of the tables. Leave the option "
        "out, or give merge=on-read for tables that exist."
    ]


def _missing(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if not values.get("path"):
        problems.append('path is missing: say where the Delta table is with .option("path", ...).')
    if not values.get("table"):
        problems.append('table is missing: name the Iceberg table with .option("table", "namespace.name").')
    if not {"catalog", "catalog_properties", "warehouse"} & set(values):
        problems.append(
            "Neither catalog nor warehouse is given for the Iceberg table. Give warehouse=/path for an "
            "embedded catalog in a local directory, or catalog=name or catalog.* for an existing one."
        )
    if "penstock.data-path" in values.get("catalog_properties", {}):
        problems.append(
            "catalog.penstock.data-path: the data files are those of the Delta table, too, so that Iceberg "
            "must not delete them. Remove the option."
        )
    return problems


def _problems_of_targets(given: Mapping[str, str]) -> list[str]:
    problems = []
    for key in sorted(given):
        name, _, option = key.partition(".")
        known = {one.lower() for one in _OF_ONE_TARGET.get(name, ())}
        if name not in _OF_ONE_TARGET:
            problems.append(f"{PREFIX}{key}: the tables are {PREFIX}delta and {PREFIX}iceberg.")
        elif option not in known:
            problems.append(
                f"{PREFIX}{key}: an option of both tables, or of neither. For {name} alone there are "
                f"{', '.join(_OF_ONE_TARGET[name])}."
            )
    return problems


OPTIONS = options_of(LakeOptions)
PREFIXES = prefixes_of(LakeOptions)
