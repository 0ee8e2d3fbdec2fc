"""Readers that share no code with what writes, for tests that are about a table's rows alone."""

from __future__ import annotations

import duckdb

from penstock.testing.duckdb_reader import connect, load_extensions


def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """A connection that knows `iceberg_scan('metadata location')`."""
    connection = connect()
    load_extensions(connection, "avro", "iceberg")
    return connection


def iceberg_rows(metadata_location: str, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The rows of an Iceberg table, at this version of its metadata, as duckdb reads them."""
    with duckdb_with_iceberg() as connection:
        return connection.execute(
            f"SELECT {columns} FROM iceberg_scan('{metadata_location}') ORDER BY {order}"
        ).fetchall()
