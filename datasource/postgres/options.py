"""Options of `penstock.postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.dead_letters import BadRows
from ...committers.errors import check_installed
from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.postgres.address import parse_schema_name, parse_table_name
from ..database.options import DatabaseOptions
from ..options.changes import TableChangeOptions, problems_of_changes
from ..options.declaring import declared, option, optional, options_of, prefixes_of
from ..options.parsing import one_of, text

PREPARED = "prepared"
_NOT_PREPARED = {
    "is_upsert": "writeMode=upsert",
    "is_decoupled": "delivery=decoupled",
    "route_by": "routeBy",
    "schema_evolution": "schemaEvolution",
    "renames": "renameColumns",
    "bad_rows": "badRows",
    "staging_schema": "stagingSchema",
}
"""Fields of options that need staging tables, and their names."""
_UNSET = (None, False, (), SchemaEvolution.FAIL, BadRows.FAIL)


def _url(url: str) -> str:
    from ...committers.postgres.connection import settings_of

    settings_of(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions(TableChangeOptions, DatabaseOptions):
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
    commit: str = option(
        "commit",
        one_of({name: name for name in ("staged", "prepared")}),
        "`staged`: tasks write staging tables, and one transaction moves the rows and sets the token. "
        "`prepared`: tasks write the table itself in transactions that they prepare, and the driver commits "
        "these; each row is written once, and rows become visible task by task. Needs "
        "`max_prepared_transactions`; only coupled streams that append. See [Prepared "
        "transactions](postgres.md#prepared-transactions).",
        default="staged",
    )

    @property
    def only_for_streams(self) -> str:
        """See `StreamOptions`."""
        if self.commit != PREPARED:
            return ""
        return "commit=prepared: nobody rolls back the transactions of a batch write that has failed"

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> list[str]:
        """See `DatabaseOptions`."""
        problems = problems_of_changes(values)
        if values.get("commit") == PREPARED:
            given = [name for of_field, name in _NOT_PREPARED.items() if values.get(of_field) not in _UNSET]
            problems += [f"{name}: a query with commit=prepared cannot have it." for name in given]
        return problems


def require_driver() -> None:
    """See `check_installed`."""
    check_installed("penstock.postgres needs", "psycopg", "penstock[postgres]")


OPTIONS = options_of(PostgresOptions)
PREFIXES = prefixes_of(PostgresOptions)
