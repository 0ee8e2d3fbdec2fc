"""duckdb as an independent reader: Delta tables with Delta's kernel, Iceberg tables with its own reader.

Its extensions are Python packages, so nothing is downloaded at run time.
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
    """Open a connection to this process's in-memory database, which keeps loaded extensions.

    Loading an extension takes almost a second.

    Raises:
        ConfigurationError: duckdb is not installed.
    """
    return _database(load("duckdb")).cursor()


@cache
def _database(duckdb: ModuleType) -> DuckDBPyConnection:
    """Return the database. It caches no files, because tables are dropped and replaced."""
    connection: DuckDBPyConnection = duckdb.connect(config={"enable_external_file_cache": False})
    return connection


def load_extensions(connection: DuckDBPyConnection, *names: str) -> None:
    """Load the extensions, in this order, unless they are already loaded.

    Raises:
        ConfigurationError: an extension is not installed, or is not for this duckdb version.
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
            f"duckdb cannot load its extension {name}: {in_short(error)}. duckdb and its extensions must "
            "have the same version. Run:\n    pip install 'penstock[testing]'"
        ) from None


def rows(connection: DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return connection.execute(query).fetchall()


def quoted(text: str) -> str:
    """Return the text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def in_short(error: Exception) -> str:
    """Return the first line of an error of duckdb: the others repeat the query."""
    return str(error).partition("\n")[0].rstrip(".")


def as_path(location: str) -> str:
    """Return the normalized path of a file: no scheme on the local disk, `s3://` in S3."""
    for local in ("file://", "file:"):
        if location.startswith(f"{local}/"):
            return location.removeprefix(local)
    return location.replace("s3a://", "s3://", 1)


def stored_files(connection: DuckDBPyConnection, folder: str) -> set[str]:
    """Return the Parquet files in storage below the folder."""
    return _glob(connection, f"{glob.escape(folder)}/**/*.parquet")


def missing(connection: DuckDBPyConnection, paths: Iterable[str], stored: set[str]) -> list[str]:
    """Return the files that are not in storage. Those in `stored` are known to exist."""
    others = {path: f"{glob.escape(path[:-1])}[{path[-1]}]" for path in sorted(paths) if path not in stored}
    # Asked as patterns, because without one duckdb does not ask S3.
    return [path for path, pattern in others.items() if not _glob(connection, pattern)]


def _glob(connection: DuckDBPyConnection, pattern: str) -> set[str]:
    return {str(path) for (path,) in rows(connection, f"SELECT file FROM glob({quoted(pattern)})")}
