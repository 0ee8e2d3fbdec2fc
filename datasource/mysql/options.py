"""Options of `penstock.mysql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.mysql.address import parse_database_name, parse_table_name, settings_of
from ..database.prepared_options import PreparedOptions, commit_option
from ..options.changes import ChangeOptions
from ..options.declaring import declared, optional, options_of, prefixes_of
from ..options.parsing import text


def _url(url: str) -> str:
    settings_of(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions(ChangeOptions, PreparedOptions):
    """Options of `penstock.mysql`."""

    data_source = "penstock.mysql"
    examples: ClassVar[Mapping[str, str]] = {"url": "mysql://user@host:3306/database", "dbtable": "events"}
    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE  # MODIFY COLUMN forgets what it does not repeat: default, collation, comment
    }
    url: str = field(
        repr=False,
        metadata=declared(
            "url",
            _url,
            "The database: `mysql://user:password@host:3306/database`. Parameters of TLS: "
            "`?ssl_mode=verify_identity&ssl_ca=/path/ca.pem`, `ssl_cert` and `ssl_key`; without `ssl_mode`, "
            "TLS is used if the server has it, and not verified.",
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
    staging_schema: str | None = optional(
        "stagingSchema",
        parse_database_name,
        "Database of the staging tables, on the same server.",
        default="the database of the table",
    )
    commit: str = commit_option(
        "Needs MariaDB 10.5 or MySQL 8, without Galera; only coupled streams that append. See [Prepared "
        "transactions](destinations/mysql.md#prepared-transactions)."
    )


def require_driver() -> None:
    """See `check_installed`."""
    check_installed("penstock.mysql needs", "pymysql", "penstock[mysql]")


OPTIONS = options_of(MySqlOptions)
PREFIXES = prefixes_of(MySqlOptions)
