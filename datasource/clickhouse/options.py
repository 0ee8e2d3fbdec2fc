"""Options of `penstock.clickhouse`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.clickhouse.address import parse_table_name, settings_of
from ...committers.file_tables.evolution import SchemaEvolution
from ..database.options import DatabaseOptions
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
class ClickHouseOptions(DatabaseOptions):
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
    order_by: str | None = optional(
        "orderBy", _expression, "Sorting key of a new table, as in ClickHouse: `tenant, at`.", default="none"
    )
    partition_by: str | None = optional(
        "partitionBy",
        _expression,
        "Partitions of a new table, as in ClickHouse: `toYYYYMM(at)`. A batch becomes visible partition by "
        "partition.",
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

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[str]:
        """See `DatabaseOptions`."""
        for name, value in values.get("insert_settings", {}).items():
            if not _SETTING.fullmatch(name) or not _VALUE.fullmatch(value):
                yield f"setting.{name:.50} must be a number, or a text in single quotes."


OPTIONS = options_of(ClickHouseOptions)
PREFIXES = prefixes_of(ClickHouseOptions)
