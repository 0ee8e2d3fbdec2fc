"""Address of a Postgres table: server, database, schema and name, without user and password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..database.address import ServerAddress, SqlNames

IDENTIFIER_BYTES_MAX = 63
"""Postgres truncates longer names without an error."""


def _problem(name: str) -> str:
    is_long = len(name.encode()) > IDENTIFIER_BYTES_MAX
    return (
        f"has a name longer than {IDENTIFIER_BYTES_MAX} bytes, which Postgres would truncate"
        if is_long
        else ""
    )


NAMES = SqlNames(
    ('schema.table or "Schema"."Table"', '"Staging"'),
    schema="public",
    word=r"[^\W\d][\w$]*",
    unquoted=str.lower,
    problem=_problem,
)
quoted, qualified = NAMES.quoted, NAMES.qualified
parse_table_name, parse_schema_name = NAMES.parse_table, NAMES.parse_schema


@dataclass(frozen=True, slots=True)
class PostgresAddress(ServerAddress):
    """Normalized: one address per table. `postgresql://host:port/database/schema/table`"""

    names = NAMES
    kind_title = "Postgres table"
    scheme = "postgresql"

    host: str
    """Hosts and ports may be comma-separated lists, as in libpq; a host may be a directory of sockets."""
    port: str
    database: str
    schema: str
    table: str

    @classmethod
    def of(cls, settings: Mapping[str, str], schema: str, table: str) -> PostgresAddress:
        """
        Args:
            settings: from `settings_of`; contain host, port and database
        """
        host = settings.get("host") or settings["hostaddr"]
        return cls(host, settings["port"], settings["dbname"], schema, table)

    @property
    def settings(self) -> dict[str, str]:
        """libpq parameters. User and password come from libpq's environment (`PGUSER`, `~/.pgpass`)."""
        return {"host": self.host, "port": self.port, "dbname": self.database}


def literal(text: str) -> str:
    """Quote a string for SQL, where a parameter is not possible."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
