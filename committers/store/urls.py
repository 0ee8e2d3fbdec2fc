"""URLs of manifest stores."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL

from ..errors import ConfigurationError

SUPPORTED = "sqlite:////path/to/store.db or postgresql+psycopg://user:password@host/database"


def parsed_url(url: str) -> URL:
    """Parse the URL and set its driver. Errors do not show an unreadable URL: it may contain a password."""
    try:
        parsed = sa.make_url(url)
    except (exc.ArgumentError, ValueError):
        raise ConfigurationError(
            f"The store URL cannot be parsed. Write it as {SUPPORTED}, and percent-encode special "
            "characters in the password (@ as %40, / as %2F)."
        ) from None
    is_file = parsed.get_backend_name() == "sqlite"
    if "@" in (parsed.host or "") or (not is_file and "@" in (parsed.database or "")):
        raise ConfigurationError(
            "The store URL has an @ or / in its user or password. Percent-encode special characters there "
            "(@ as %40, / as %2F)."
        )
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite+pysqlite", "postgresql+psycopg"):
        return parsed
    if parsed.drivername != "sqlite":
        raise ConfigurationError(
            f"The store URL names the driver {parsed.drivername!r}, which Penstock does not support. "
            f"Use {SUPPORTED}."
        )
    return parsed


def file_of(url: URL) -> Path | None:
    """Return the file of a SQLite database; None for in-memory databases and servers."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    name = str(url.database)
    return Path(unquote(name.removeprefix("file:")) if "uri" in url.query else name)


def has_file(url: URL) -> bool:
    """Return False if the file of a SQLite database does not exist."""
    path = file_of(url)
    return path is None or path.is_file()


def displayed_url(url: str) -> str:
    """Return the URL without its secrets: the name of the store.

    Raises:
        ConfigurationError: the URL cannot be parsed.
    """
    return without_secrets(parsed_url(url))


def without_secrets(url: URL) -> str:
    """Remove the password and the query parameters, which may contain passwords too."""
    shown = {key: value for key, value in url.query.items() if key in ("host", "port")}
    return url.set(query=shown).render_as_string(hide_password=True)
