"""Address of a ClickHouse table: server, database and name, without user and password."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ..database.address import ServerAddress, SqlNames

PORTS = {"http": "8123", "https": "8443"}
_FORM = (
    "must be http://user:password@host:8123/database, or https. Percent-encode special characters in user "
    "and password"
)


class ClickHouseNames(SqlNames):
    """See `SqlNames`. A backslash begins an escape sequence."""

    def quoted(self, name: str) -> str:
        """Quote an identifier for SQL."""
        return super().quoted(name.replace("\\", "\\\\"))


NAMES = ClickHouseNames(("database.table or `database`.`table`", "`my-lake`"), quote="`")
quoted, qualified = NAMES.quoted, NAMES.qualified
parse_table_name = NAMES.parse_table


@dataclass(frozen=True, slots=True)
class Settings:
    """How to connect to a server."""

    scheme: str
    """`http` or `https`"""
    host: str
    port: str
    database: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClickHouseAddress(ServerAddress):
    """One per table; names have case. `clickhouse://host:port/database/table`"""

    names = NAMES
    kind_title = "ClickHouse table"
    scheme = "clickhouse"

    host: str
    port: str
    schema: str
    """The database."""
    table: str

    @classmethod
    def of(cls, settings: Settings, table: tuple[str, str]) -> ClickHouseAddress:
        """
        Args:
            table: (database, name); the database of the settings if it is empty
        """
        database, name = table
        return cls(settings.host, settings.port, database or settings.database, name)


def literal(value: object) -> str:
    """A text or a number in SQL."""
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    assert isinstance(value, int), type(value)
    return str(value)


def settings_of(url: str) -> Settings:
    """Parse the option `url`.

    Raises:
        ValueError: it has another form. The message does not contain the URL.
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError(_FORM) from None
    database = unquote(parts.path.removeprefix("/").removesuffix("/"))
    if parts.scheme not in PORTS or not host or not database or "/" in database:
        raise ValueError(_FORM)
    if parts.query or parts.fragment:
        raise ValueError("must have no parameters. Settings of ClickHouse are options: setting.<name>")
    user, password = unquote(parts.username or "default"), unquote(parts.password or "")
    return Settings(parts.scheme, host, str(port or PORTS[parts.scheme]), database, user, password)
