"""Address of a MySQL or MariaDB table: server, database and name, without user and password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from ..database.address import ServerAddress, SqlNames

IDENTIFIER_CHARS_MAX = 64


def _problem(name: str) -> str:
    is_long = len(name) > IDENTIFIER_CHARS_MAX
    return f"has a name longer than {IDENTIFIER_CHARS_MAX} characters" if is_long else ""


NAMES = SqlNames(
    ("database.table or `database`.`table`", "`my-staging`"),
    quote="`",
    word=r"[^\W\d][\w$]*",
    problem=_problem,
)
quoted, qualified = NAMES.quoted, NAMES.qualified
parse_table_name, parse_database_name = NAMES.parse_table, NAMES.parse_schema

_PARAMETERS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")
_SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")


@dataclass(frozen=True, slots=True)
class MySqlAddress(ServerAddress):
    """Normalized: one address per table. `mysql://host:port/database/table`"""

    names = NAMES
    kind_title = "MySQL table"
    scheme = "mysql"

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


def literal(text: str) -> str:
    """Quote a string for SQL, where a parameter is not possible."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
