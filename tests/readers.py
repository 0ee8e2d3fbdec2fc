"""Readers that share no code with what writes: duckdb with its own Delta reader (delta-kernel)."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import duckdb


def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """A connection that knows `delta_scan('path')`. The extension comes with a package."""
    package = distribution("duckdb-extension-delta")
    (binary,) = (file for file in package.files or [] if file.suffix == ".duckdb_extension")
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute(f"LOAD '{package.locate_file(binary)}'")
    return connection


def delta_rows(table: Path, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The table's rows as duckdb reads them."""
    with duckdb_with_delta() as connection:
        return connection.execute(f"SELECT {columns} FROM delta_scan('{table}') ORDER BY {order}").fetchall()
