"""Address of a Postgres table: server, database, schema and name, without user and password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

from ..database.fence import FENCE_TABLE
from ..errors import ConfigurationError, shown

IDENTIFIER_BYTES_MAX = 63
"""Postgres truncates longer names without an error."""

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_TABLE_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """Normalized: one address per table."""

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

    @classmethod
    def parse(cls, uri: str) -> PostgresAddress:
        """Parse the result of `uri`."""
        parts = urlsplit(uri)
        host, _, port = parts.netloc.rpartition(":")
        names = [unquote(name) for name in parts.path.split("/")[1:]]
        if parts.scheme != "postgresql" or not host or len(names) != 3:
            raise ConfigurationError(f"{shown(uri)} is not the address of a Postgres table.")
        return cls(unquote(host), unquote(port), *names)

    @property
    def uri(self) -> str:
        """`postgresql://host:port/database/schema/table`"""
        host, port, *names = (
            quote(part, safe="") for part in (self.host, self.port, self.database, self.schema, self.table)
        )
        return f"postgresql://{host}:{port}/{'/'.join(names)}"

    @property
    def title(self) -> str:
        return f"Postgres table {self.uri}"

    @property
    def settings(self) -> dict[str, str]:
        """libpq parameters. User and password come from libpq's environment (`PGUSER`, `~/.pgpass`)."""
        return {"host": self.host, "port": self.port, "dbname": self.database}

    @property
    def sql(self) -> str:
        return qualified(self.schema, self.table)

    @property
    def fence_sql(self) -> str:
        """The table with the tokens of all queries that write to this schema."""
        return qualified(self.schema, FENCE_TABLE)


def quoted(name: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string for SQL, where a parameter is not possible."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def qualified(schema: str, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}"


def parse_table_name(text: str) -> tuple[str, str]:
    """Parse `table`, `schema.table` or `"Schema"."Table"` to (schema, table). As in SQL, only quotes preserve
    capitals.

    Raises:
        ValueError: it is not a table name.
    """
    match = _TABLE_NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError('must be table, schema.table or "Schema"."Table"')
    schema, table = (_plain(part) for part in (match[1] or "public", match[2]))
    return schema, table


def parse_schema_name(text: str) -> str:
    """Parse a schema name, by the rules of `parse_table_name`."""
    if not re.fullmatch(_PART, text.strip()):
        raise ValueError('must be a name, for example staging or "Staging"')
    return _plain(text.strip())


def _plain(part: str) -> str:
    name = part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
    if len(name.encode()) > IDENTIFIER_BYTES_MAX:
        raise ValueError(
            f"has a name longer than {IDENTIFIER_BYTES_MAX} bytes, which Postgres would truncate"
        )
    return name
