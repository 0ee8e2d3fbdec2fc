"""Options of `penstock.postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.postgres.address import parse_schema_name, parse_table_name
from ..options.changes import TableChangeOptions, problems_of_changes
from ..options.declaring import declared, optional, options_of, passed_on, prefixes_of
from ..options.delivery import DeliveryOptions
from ..options.file_tables import refused_file_options
from ..options.parsing import text
from ..options.stream import parse_as

NAME = "penstock.postgres"


def _url(url: str) -> str:
    from ...committers.postgres.connection import settings_of

    settings_of(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(TableChangeOptions, DeliveryOptions):
    """Options of `penstock.postgres`."""

    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution)
    url: str = field(
        repr=False,
        metadata=declared(
            "url",
            _url,
            "The database, as a libpq URL: `postgresql://user:password@host:5432/database`. User and "
            "password may come from libpq's environment instead (`PGUSER`, `PGPASSWORD`, `~/.pgpass`), which "
            "then the executors need too.",
            is_secret=True,
        ),
    )
    table: tuple[str, str] = field(
        metadata=declared(
            "dbtable",
            parse_table_name,
            'The table: `table` in the schema `public`, `schema.table`, or `"Schema"."Table"` with capitals.',
        )
    )
    """(schema, name)"""
    staging_schema: str | None = optional(
        "stagingSchema", parse_schema_name, "Schema of the staging tables.", default="the schema of the table"
    )
    storage_options: Mapping[str, str] = passed_on(
        "storage.", str.upper, "For a checkpoint in an object store, such as `storage.AWS_REGION`."
    )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> PostgresOptions:
        """Parse the options that Spark passes; see `parse_as`."""
        return parse_as(
            cls,
            NAME,
            options,
            examples={"url": "postgresql://user@host:5432/database", "dbtable": "schema.table"},
            refused=refused_file_options(NAME, OPTIONS, "dbtable"),
            problems_of_values=problems_of_changes,
        )


def require_driver() -> None:
    """See `check_installed`."""
    check_installed("penstock.postgres needs", "psycopg", "penstock[postgres]")


OPTIONS = options_of(PostgresOptions)
PREFIXES = prefixes_of(PostgresOptions)
