"""Options for reading with `penstock.postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..options.declaring import option, option_of, optional, options_of, prefixes_of
from ..options.parsing import count, text
from ..reading.options import ReadOptions, parse_read_options
from .options import PostgresOptions, require_driver

if TYPE_CHECKING:
    from ...readers.postgres.scan import PostgresTableReader

_PARTS_MAX = 10_000
_REFUSED = {
    **dict.fromkeys(
        ("versionAsOf", "timestampAsOf", "snapshotId", "branch", "tag"),
        "a Postgres table has no earlier versions: leave the option out",
    ),
    "splitSize": "a Postgres table has no files: divide it with numPartitions",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresReadOptions(ReadOptions):
    """Options for reading with `penstock.postgres`."""

    url: str = option_of(PostgresOptions, "url")
    table: tuple[str, str] = option_of(PostgresOptions, "table")
    parts: int = option(
        "numPartitions",
        count(1, _PARTS_MAX),
        "Number of tasks that read the table, each a part of its pages. More than 1 only for tables, not for "
        "views and partitioned tables. See [Postgres tables](#postgres-tables).",
        default="1",
    )
    where: str | None = optional(
        "where",
        text,
        "Condition on the rows, such as `day >= '2026-01-01' AND (amount > 5 OR note IS NULL)`. The server "
        "sends no other rows where it compares as Spark does.",
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> PostgresReadOptions:
        """
        Raises:
            ConfigurationError: lists all problems, or psycopg is not installed.
        """
        require_driver()
        refused = {name: f"{name}: {problem}." for name, problem in _REFUSED.items()}
        return parse_read_options(cls, PostgresOptions.data_source, options, lambda values: [], refused)

    def open(self) -> PostgresTableReader:
        """See `Opens`."""
        from ...committers.postgres.address import PostgresAddress
        from ...committers.postgres.connection import PostgresServer, settings_of
        from ...readers.postgres.scan import PostgresTableReader

        settings = settings_of(self.url)
        address = PostgresAddress.of(settings, *self.table)
        advice = "Fix the url, or grant USAGE on the schema and SELECT on the table to its user."
        server = PostgresServer(settings, address.uri, advice, next_try="Then read again.")
        return PostgresTableReader.open(server, address, self.parts)


OPTIONS = options_of(PostgresReadOptions)
PREFIXES = prefixes_of(PostgresReadOptions)
