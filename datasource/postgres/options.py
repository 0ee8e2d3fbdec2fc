"""Options of `penstock.postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.postgres.address import parse_schema_name, parse_table_name
from ..database.prepared_options import PreparedOptions, commit_option
from ..options.changes import TableChangeOptions
from ..options.declaring import declared, optional, options_of, prefixes_of
from ..options.parsing import text


def _url(url: str) -> str:
    from ...committers.postgres.connection import settings_of

    settings_of(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(TableChangeOptions, PreparedOptions):
    """Options of `penstock.postgres`."""

    data_source = "penstock.postgres"
    examples: ClassVar[Mapping[str, str]] = {
        "url": "postgresql://user@host:5432/database",
        "dbtable": "schema.table",
    }
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
    commit: str = commit_option(
        "Needs `max_prepared_transactions`; only coupled streams that append. See [Prepared "
        "transactions](postgres.md#prepared-transactions)."
    )


def require_driver() -> None:
    """See `check_installed`."""
    check_installed("penstock.postgres needs", "psycopg", "penstock[postgres]")


OPTIONS = options_of(PostgresOptions)
PREFIXES = prefixes_of(PostgresOptions)
