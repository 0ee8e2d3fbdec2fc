"""Options of `penstock.clickhouse`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ...committers.clickhouse.address import parse_table_name, settings_of
from ...committers.contract import Changes
from ...committers.file_tables.evolution import SchemaEvolution
from ...writers.changes.envelopes.events import POSITION
from ..changes.modes import FEEDS, EnvelopeChanges
from ..database.options import DatabaseOptions
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import declared, option, optional, options_of, passed_on, prefixes_of
from ..options.parsing import MIB, size, text

_SETTING = re.compile(r"\w+")
_VALUE = re.compile(r"-?\d+(\.\d+)?|'[^'\\]*'")


def _url(url: str) -> str:
    settings_of(text(url))
    return url


def _expression(given: str) -> str:
    """An expression goes into parentheses."""
    if ";" in given or given.count("(") != given.count(")"):
        raise ValueError("must be an expression of ClickHouse, such as tenant, toDate(at)")
    return text(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickHouseOptions(ChangeOptions, DatabaseOptions):
    """Options of `penstock.clickhouse`."""

    data_source = "penstock.clickhouse"
    examples: ClassVar[Mapping[str, str]] = {"url": "http://user@host:8123/database", "dbtable": "events"}
    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    url: str = field(
        repr=False,
        metadata=declared(
            "url",
            _url,
            "The HTTP interface of the server, and the database: "
            "`http://user:password@host:8123/database`, or `https` with port 8443. Special characters in "
            "user and password are percent-encoded.",
            is_secret=True,
        ),
    )
    table: tuple[str, str] = field(
        metadata=declared(
            "dbtable",
            parse_table_name,
            "The table: `table` in the database of the url, `database.table`, or in backticks with other "
            "characters.",
        )
    )
    """(database, name); the database may be empty"""
    sorting_key: str | None = optional(
        "sortingKey",
        _expression,
        "Sorting key of a new table, as in ClickHouse: `tenant, at`. With `writeMode=upsert` it is `keys`.",
        default="none",
    )
    partition_by: str | None = optional(
        "partitionBy",
        _expression,
        "Partitions of a new table, as in ClickHouse: `toYYYYMM(at)`. A batch becomes visible partition by "
        "partition. With `writeMode=upsert` they may only use columns of `keys`.",
        default="none",
    )
    buffer_bytes_max: int = option(
        "bufferSize",
        size(MIB // 16, 1024 * MIB),
        "Size of the rows that a task sends together.",
        default="32mb",
    )
    insert_settings: Mapping[str, str] = passed_on(
        "setting.",
        str,
        "Settings of ClickHouse for the INSERTs of tasks, such as `setting.max_partitions_per_insert_block`.",
    )

    @property
    def changes(self) -> Changes | None:
        """See `ChangeOptions`. With late rows ignored, messages are compared by their position in the log of
        the source, since the table has one column for that.
        """
        changes = super(ClickHouseOptions, self).changes
        is_late = changes is not None and changes.late_rows == "ignore"
        if isinstance(changes, EnvelopeChanges) and is_late and not changes.order_by:
            return replace(changes, order_by=(POSITION,))
        return changes

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[str]:
        """See `DatabaseOptions`."""
        yield from problems_of_changes(values, {"order_by"})
        yield from _problems_of_upserts(values) if values.get("is_upsert") else _problems_of_appends(values)
        for name, value in values.get("insert_settings", {}).items():
            if not _SETTING.fullmatch(name) or not _VALUE.fullmatch(value):
                yield f"setting.{name:.50} must be a number, or a text in single quotes."


def _problems_of_appends(values: Mapping[str, Any]) -> Iterator[str]:
    if "order_by" in values:
        yield (
            "orderBy: only a query with writeMode=upsert has it. The sorting key of a new table "
            "is sortingKey."
        )


def _problems_of_upserts(values: Mapping[str, Any]) -> Iterator[str]:
    if "sorting_key" in values:
        yield "sortingKey: with writeMode=upsert the sorting key of a new table is keys. Remove it."
    if values.get("late_rows") != "ignore":
        return
    if "tombstones_s" in values:
        yield "tombstonesFor: deletions are rows of the table, and do not expire. Remove it."
    if len(values.get("order_by", ())) > 1:
        yield (
            "lateRows=ignore with several columns in orderBy: ClickHouse compares rows by one column, the "
            "version column of the engine. Give one column."
        )
    if values.get("envelope") in FEEDS:
        yield (
            f"lateRows=ignore with changes={values['envelope']}: the order of its rows has several columns, "
            "and ClickHouse compares rows by one. Leave lateRows out."
        )


OPTIONS = options_of(ClickHouseOptions)
PREFIXES = prefixes_of(ClickHouseOptions)
