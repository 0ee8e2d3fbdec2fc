"""Address of a table in a database that SQLAlchemy reaches, without user and password."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from ..database.address import DatabaseAddress, SqlNames, lower_ascii
from ..errors import ConfigurationError, shown
from .backends import BACKENDS, REFUSED, Backend

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

NAME_CHARS_MAX = 63
"""Characters of a name that every supported database has."""

_SCHEME = "sql+"
_FORM = (
    "must be a URL of SQLAlchemy, such as sqlite:////data/lake.db or mssql+pyodbc://user:password@host/db. "
    "Percent-encode special characters in the password"
)


def _problem(name: str) -> str:
    return f"has a name longer than {NAME_CHARS_MAX} characters" if len(name) > NAME_CHARS_MAX else ""


NAMES = SqlNames(
    ('schema.table or "my schema"."my table"', '"my schema"'), unquoted=lower_ascii, problem=_problem
)
quoted, qualified, parse_table_name = NAMES.quoted, NAMES.qualified, NAMES.parse_table


@dataclass(frozen=True, slots=True)
class SqlAddress(DatabaseAddress):
    """Normalized, but for the default schema: `t` and `schema.t` may be one table."""

    names = NAMES

    backend_name: str
    """See `backends`."""
    server: str
    """`host:port`; empty for a file."""
    database: str
    """For a file its path, absolute and without links."""
    schema: str
    """Empty: the default of the user."""
    table: str

    @classmethod
    def of(cls, url: URL, table: tuple[str, str]) -> SqlAddress:
        """
        Args:
            url: from `parse_url`
            table: (schema, name)
        """
        name = url.get_backend_name()
        if BACKENDS[name].is_file:  # its names ignore the case of ASCII letters
            return cls(name, "", url.database or "", "", lower_ascii(table[1]))
        port = url.port or url.query.get("port") or BACKENDS[name].default_port
        return cls(name, f"{_host_of(url)}:{port}", url.database or "", *table)

    @classmethod
    def parse(cls, uri: str) -> SqlAddress:
        """Parse the result of `uri`.

        Raises:
            ConfigurationError: it is no address of such a table.
        """
        scheme, separator, rest = uri.partition("://")
        name, (server, _, path) = scheme.removeprefix(_SCHEME), rest.partition("/")
        database, _, names = path.rpartition("/")
        schema, _, table = names.rpartition(".")
        is_ours = scheme.startswith(_SCHEME) and name in BACKENDS and separator
        if not is_ours or not database or not table or bool(server) == BACKENDS[name].is_file:
            raise ConfigurationError(f"{shown(uri)} is not the address of a table of penstock.sql.")
        root = "/" if BACKENDS[name].is_file else ""
        return cls(name, unquote(server), root + unquote(database), unquote(schema), unquote(table))

    @property
    def uri(self) -> str:
        """`sql+sqlite:///path/of/file.db/table`, `sql+mssql://host:1433/database/schema.table`"""
        names = [_encoded(name) for name in (self.schema, self.table) if name]
        database = quote(self.database.removeprefix("/") if self.backend.is_file else self.database)
        return f"{_SCHEME}{self.backend_name}://{quote(self.server, safe=':')}/{database}/{'.'.join(names)}"

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.backend_name]

    @property
    def title(self) -> str:
        return f"{self.backend.title} table {self.uri}"


def _host_of(url: URL) -> str:
    """The host, or the folder of a socket, which is a parameter."""
    host = url.host or url.query.get("host", "")
    return host if isinstance(host, str) else ""


def _encoded(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")


def parse_url(text: str) -> URL:
    """Parse a URL of SQLAlchemy to one with a driver, and with an absolute path without links for a file.

    Raises:
        ValueError: it is none, or of a database that Penstock refuses. The message does not contain the URL.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import ArgumentError

    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError(_FORM) from None
    name, has_driver = url.get_backend_name(), "+" in url.drivername
    if name in REFUSED:
        raise ValueError(f"names {name}, which Penstock refuses: {REFUSED[name]}")
    if name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise ValueError(f"names a database that Penstock does not know ({name:.30}). It knows {known}")
    driver = BACKENDS[name].driver
    if has_driver and url.get_driver_name() != driver:
        raise ValueError(f"names the driver {url.get_driver_name():.30}, but Penstock knows only {driver}")
    url = url.set(drivername=f"{name}+{driver}")
    if BACKENDS[name].is_file:
        return url.set(database=_path(url))
    if not _host_of(url) or not url.database or "@" in _host_of(url):
        raise ValueError(_FORM)
    return url


def _path(url: URL) -> str:
    path = url.database or ":memory:"
    if ":memory:" in path or "mode" in url.query:
        raise ValueError("names a database in memory, which ends with its process. Give the path of a file")
    if url.query or path.startswith("file:"):
        raise ValueError("must have no parameters: sqlite:////data/lake.db")
    if not Path(path).is_absolute():
        raise ValueError("must have an absolute path, with four slashes: sqlite:////data/lake.db")
    if Path(path).is_dir():
        raise ValueError("names a folder, not a file")
    return os.path.realpath(path)
