"""Address of a MySQL or MariaDB table: server, database and name, without user and password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ..database.fence import FENCE_TABLE
from ..errors import ConfigurationError, shown

IDENTIFIER_CHARS_MAX = 64
REFUSED_TABLE = "penstock_refused"

_PART = r"(?:`(?:[^`]|``)+`|[^\W\d][\w$]*)"
_TABLE_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


@dataclass(frozen=True, slots=True)
class MySqlAddress:
    """Normalized: one address per table."""

    host: str
    port: str
    schema: str
    """The database."""
    table: str

    @classmethod
    def of(cls, settings: Mapping[str, str], table: tuple[str, str]) -> MySqlAddress:
        """
        Args:
            settings: from `settings_of`
            table: (database, name); the database of the settings if it is empty
        """
        database, name = table
        return cls(settings["host"], settings["port"], database or settings["database"], name)

    @classmethod
    def parse(cls, uri: str) -> MySqlAddress:
        """Parse the result of `uri`."""
        parts = urlsplit(uri)
        host, _, port = parts.netloc.rpartition(":")
        names = [unquote(name) for name in parts.path.split("/")[1:]]
        if parts.scheme != "mysql" or not host or len(names) != 2:
            raise ConfigurationError(f"{shown(uri)} is not the address of a MySQL table.")
        return cls(unquote(host), unquote(port), *names)

    @property
    def uri(self) -> str:
        """`mysql://host:port/database/table`"""
        host, port, *names = (
            quote(part, safe="") for part in (self.host, self.port, self.schema, self.table)
        )
        return f"mysql://{host}:{port}/{'/'.join(names)}"

    @property
    def title(self) -> str:
        return f"MySQL table {self.uri}"

    @property
    def sql(self) -> str:
        return qualified(self.schema, self.table)

    @property
    def fence_sql(self) -> str:
        """The table with the tokens of all queries that write to this database."""
        return qualified(self.schema, FENCE_TABLE)

    @property
    def refused_sql(self) -> str:
        """The table with the rows that commits have refused, until they are in the manifest store."""
        return qualified(self.schema, REFUSED_TABLE)


def settings_of(url: str) -> dict[str, str]:
    """How to connect, from a URL: host, port, database, and as far as given user, password and TLS.

    Raises:
        ValueError: it is no such URL. The message does not contain it.
    """
    try:
        parts = urlsplit(url)
        port, host = str(parts.port or 3306), parts.hostname or ""
    except ValueError:
        raise ValueError(_FORM) from None
    database = unquote(parts.path[1:])
    scheme = parts.scheme.removesuffix("+pymysql")
    if scheme not in ("mysql", "mariadb") or not host or not database or "/" in database:
        raise ValueError(_FORM)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(set(given) - set(_PARAMETERS)):
        raise ValueError(f"has the unknown parameter {unknown[0]}: only {', '.join(_PARAMETERS)} are known")
    if given.get("ssl_mode", "preferred").lower() not in _SSL_MODES:
        raise ValueError(f"has an unknown ssl_mode: it is one of {', '.join(_SSL_MODES)}")
    settings = {"host": host, "port": port, "database": database, **given}
    if parts.username:
        settings["user"] = unquote(parts.username)
    if parts.password is not None:
        settings["password"] = unquote(parts.password)
    return settings


_FORM = "must contain host and database: mysql://user:password@host:3306/database"


def quoted(name: str) -> str:
    """Quote an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def qualified(schema: str, name: str) -> str:
    return f"{quoted(schema)}.{quoted(name)}"


def literal(text: str) -> str:
    """Quote a string for SQL, where a parameter is not possible."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def parse_table_name(text: str) -> tuple[str, str]:
    """Parse `table`, `database.table` or `` `data-base`.`my table` `` to (database, table); no database is
    empty.

    Raises:
        ValueError: it is not a table name.
    """
    match = _TABLE_NAME.fullmatch(text.strip())
    if match is None:
        raise ValueError("must be table, database.table or `database`.`table`")
    return _plain(match[1] or ""), _plain(match[2])


def parse_database_name(text: str) -> str:
    """Parse the name of a database, by the rules of `parse_table_name`."""
    if not re.fullmatch(_PART, text.strip()):
        raise ValueError("must be a name, for example staging or `my-staging`")
    return _plain(text.strip())


def _plain(part: str) -> str:
    name = part[1:-1].replace("``", "`") if part.startswith("`") else part
    if len(name) > IDENTIFIER_CHARS_MAX:
        raise ValueError(f"has a name longer than {IDENTIFIER_CHARS_MAX} characters")
    return name
