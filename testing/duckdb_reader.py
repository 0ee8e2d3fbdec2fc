"""duckdb as the engine that reads what others wrote: Delta tables with Delta's kernel, Iceberg tables with a
reader of its own. Its extensions come as Python packages, so nothing is downloaded at run time.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import TYPE_CHECKING, Any

from ..committers.errors import ConfigurationError
from .extra import load, not_installed

if TYPE_CHECKING:
    from types import ModuleType

    from duckdb import DuckDBPyConnection


def connect() -> DuckDBPyConnection:
    """A new connection to this process's database in memory, which keeps the extensions: each takes most of a
    second to load.

    Raises:
        ConfigurationError: duckdb is not installed.
    """
    return _database(load("duckdb")).cursor()


@cache
def _database(duckdb: ModuleType) -> DuckDBPyConnection:
    """It reads each file anew: tables are dropped, and others take their place."""
    connection: DuckDBPyConnection = duckdb.connect(config={"enable_external_file_cache": False})
    return connection


def load_extensions(connection: DuckDBPyConnection, *names: str) -> None:
    """Load the extensions, in this order, unless the connection has them.

    Raises:
        ConfigurationError: one is not installed, or is not for this duckdb.
    """
    loaded = {
        name for (name,) in rows(connection, "SELECT extension_name FROM duckdb_extensions() WHERE loaded")
    }
    for name in names:
        if name not in loaded:
            _load_extension(connection, name)


def _load_extension(connection: DuckDBPyConnection, name: str) -> None:
    try:
        package = distribution(f"duckdb-extension-{name}")
    except PackageNotFoundError:
        raise not_installed(f"duckdb-extension-{name}") from None
    (binary,) = (file for file in package.files or [] if file.suffix == ".duckdb_extension")
    try:
        connection.execute(f"LOAD {quoted(str(package.locate_file(binary)))}")
    except load("duckdb").Error as error:
        raise ConfigurationError(
            f"duckdb does not load its extension {name}: {in_short(error)}. duckdb and its extensions "
            "must have one version. Type:\n    pip install 'penstock[testing]'"
        ) from None


def rows(connection: DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()


def quoted(text: str) -> str:
    """As a literal in SQL."""
    return "'" + text.replace("'", "''") + "'"


def in_short(error: Exception) -> str:
    """The first line of duckdb's words: the others repeat the query."""
    return str(error).partition("\n")[0].rstrip(".")


def as_path(location: str) -> str:
    """One spelling for a file: no scheme on the local disk, `s3://` in S3."""
    for local in ("file://", "file:"):
        if location.startswith(f"{local}/"):
            return location.removeprefix(local)
    return location.replace("s3a://", "s3://", 1)


def stored_files(connection: DuckDBPyConnection, folder: str) -> set[str]:
    """The Parquet files in storage below the folder."""
    return _glob(connection, f"{glob.escape(folder)}/**/*.parquet")


def missing(connection: DuckDBPyConnection, paths: Iterable[str], stored: set[str]) -> list[str]:
    """Which of these files are not in storage; those in `stored` are."""
    return [path for path in sorted(paths) if path not in stored and not _exists(connection, path)]


def _exists(connection: DuckDBPyConnection, path: str) -> bool:
    """The last character is made a pattern: of a name without one duckdb only says it back, in S3."""
    return bool(_glob(connection, f"{glob.escape(path[:-1])}[{path[-1]}]"))


def _glob(connection: DuckDBPyConnection, pattern: str) -> set[str]:
    return {str(path) for (path,) in rows(connection, f"SELECT file FROM glob({quoted(pattern)})")}
