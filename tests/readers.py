"""Readers that share no code with what writes: duckdb with Delta's kernel and with its own Iceberg reader."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import duckdb


def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """A connection that knows `delta_scan('path')`. The extension comes with a package."""
    return _duckdb_with("delta")


def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """A connection that knows `iceberg_scan('metadata location')`. The extensions come with packages."""
    return _duckdb_with("avro", "iceberg")


def _duckdb_with(*extensions: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for extension in extensions:
        package = distribution(f"duckdb-extension-{extension}")
        (binary,) = (file for file in package.files or [] if file.suffix == ".duckdb_extension")
        connection.execute(f"LOAD '{package.locate_file(binary)}'")
    return connection


def delta_rows(table: Path, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The table's rows as duckdb reads them."""
    with duckdb_with_delta() as connection:
        return connection.execute(f"SELECT {columns} FROM delta_scan('{table}') ORDER BY {order}").fetchall()


def iceberg_rows(metadata_location: str, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The rows of an Iceberg table, at this version of its metadata, as duckdb reads them."""
    with duckdb_with_iceberg() as connection:
        return connection.execute(
            f"SELECT {columns} FROM iceberg_scan('{metadata_location}') ORDER BY {order}"
        ).fetchall()
