"""Options of `penstock.sql`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...committers.file_tables.evolution import SchemaEvolution
from ...committers.sql.address import parse_table_name, parse_url
from ...committers.sql.backends import BACKENDS
from ..database.options import DatabaseOptions
from ..options.changes import ChangeOptions, problems_of_changes
from ..options.declaring import declared, option, options_of, prefixes_of
from ..options.parsing import flag, text


def _url(url: str) -> str:
    parse_url(text(url))
    return url


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlOptions(ChangeOptions, DatabaseOptions):
    """Options of `penstock.sql`."""

    data_source = "penstock.sql"
    examples: ClassVar[Mapping[str, str]] = {"url": "sqlite:////data/lake.db", "dbtable": "events"}
    schema_evolutions: ClassVar[frozenset[SchemaEvolution]] = frozenset(SchemaEvolution) - {
        SchemaEvolution.EVOLVE
    }
    url: str = field(
        repr=False,
        metadata=declared(
            "url",
            _url,
            "The database, as a URL of SQLAlchemy: `sqlite:////data/lake.db`, or "
            "`postgresql+psycopg://user:password@host:5432/database`. The file of a SQLite database is "
            "created if it does not exist.",
            is_secret=True,
        ),
    )
    table: tuple[str, str] = field(
        metadata=declared(
            "dbtable",
            parse_table_name,
            "The table: `table` in the default schema, `schema.table`, or in double quotes with other "
            "characters. Names without quotes are in lower case.",
        )
    )
    """(schema, name); the schema may be empty"""
    allows_untested: bool = option(
        "allowUntested",
        flag,
        "Use a database on which Penstock's tests do not run: SQL Server, CockroachDB.",
        default="false",
    )

    @classmethod
    def problems(cls, values: Mapping[str, Any]) -> Iterator[str]:
        """See `DatabaseOptions`."""
        yield from problems_of_changes(values)
        backend = BACKENDS[parse_url(values["url"]).get_backend_name()]
        if backend.is_file and values["table"][0]:
            yield "dbtable has a schema, but a SQLite database has none: give the name of the table only."
        if values.get("is_upsert") and not backend.seconds_later:
            yield (
                f"writeMode=upsert: Penstock only appends to tables of {backend.title}. Append the changes "
                "to a table of their own, or write to PostgreSQL."
            )
        if not backend.is_tested and not values.get("allows_untested"):
            yield (
                f"url names {backend.title}, on which no test of Penstock has run. Its statements are made "
                "for it, but the promise is not proven. To try it, set allowUntested=true; "
                "docs/destinations/sql.md says what is known."
            )


OPTIONS = options_of(SqlOptions)
PREFIXES = prefixes_of(SqlOptions)
