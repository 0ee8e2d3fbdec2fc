"""Options of `penstock.mysql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.mysql.address import parse_database_name, parse_table_name, settings_of
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import declared, optional, options_of, passed_on, prefixes_of
from ..options.delivery import DeliveryOptions
from ..options.file_tables import refused_file_options
from ..options.parsing import text
from ..options.stream import parse_as

NAME = "penstock.mysql"


def _url(url: str) -> str:
    settings_of(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlOptions(ChangeOptions, DeliveryOptions):
    """Options of `penstock.mysql`."""

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
    storage_options: Mapping[str, str] = passed_on(
        "storage.", str.upper, "For a checkpoint in an object store, such as `storage.AWS_REGION`."
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> MySqlOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        return parse_as(
            cls,
            NAME,
            options,
            examples={"url": "mysql://user@host:3306/database", "dbtable": "events"},
            refused=refused_file_options(NAME, OPTIONS, "dbtable"),
            problems_of_values=problems_of_changes,
        )


def require_driver() -> None:
    """See `check_installed`."""
    check_installed("penstock.mysql needs", "pymysql", "penstock[mysql]")


OPTIONS = options_of(MySqlOptions)
PREFIXES = prefixes_of(MySqlOptions)
