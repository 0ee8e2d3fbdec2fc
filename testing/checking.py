"""Check the invariant on a real table, its source and its store."""

from __future__ import annotations

import posixpath
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..committers.errors import ConfigurationError
from . import duckdb_reader
from .extra import load
from .invariant import Observation
from .table import Table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from ..committers.store.sql import SqlManifestStore


def check(
    table: Table,
    source: str,
    *,
    store: str | Path | None = None,
    columns: str = "id",
    connection: DuckDBPyConnection | None = None,
) -> Observation:
    """Compare a table with the source of its stream, after the stream has recovered and stopped.

    Everything is read through duckdb, which is independent of the code that wrote the table. If the table
    references missing files, no engine can read its rows: then all rows of the source count as lost.

    Args:
        table: a `DeltaTable` or an `IcebergTable`
        source: the input of the stream, as a relation in duckdb's SQL, such as `read_parquet('in/*.parquet')`
            or `(SELECT range AS id FROM range(5000))`, or a name on `connection`
        store: the manifest store, to find pending batches: the checkpoint directory with the store in it, or
            the URL in the sink's option `store`; None skips that
        columns: what identifies a row in source and table: one or more columns or SQL expressions, separated
            by commas. They need not be unique: rows are compared as a multiset.
        connection: a duckdb connection with what your tables need, such as a secret for an object store. It
            stays open and keeps the extensions that are loaded. By default a new one.

    Returns:
        the observation; its `problems` are empty if the invariant holds, and its `str` is readable text

    Raises:
        ConfigurationError: the table, store, source or columns do not exist, or packages are missing.
        RetryableError: the Iceberg catalog or the store does not answer now.
    """
    with duckdb_reader.connect() if connection is None else nullcontext(connection) as reader:
        version = table.read(reader)
        missing = duckdb_reader.missing(reader, version.live, version.stored)
        relation = f"(FROM {version.relation} LIMIT 0)" if missing else version.relation
        rows, lost, doubled = _count_rows(reader, relation, source, columns)
    return Observation(
        rows=rows,
        lost=lost,
        doubled=doubled,
        added=version.added,
        missing=missing,
        orphans=len(version.stored - {*version.added, *version.live}),
        tokens=version.tokens,
        pending=[] if store is None else _pending(store, table.uri),
    )


# Rows ---------------------------------------------------------------------------------------------------


def _count_rows(
    connection: DuckDBPyConnection, relation: str, source: str, columns: str
) -> tuple[int, int, int]:
    """Return the number of rows in the table, lost rows of the source, and doubled rows in the table."""
    _check_columns(connection, source, columns, f"source {source}")
    _check_columns(connection, relation, columns, "table")
    counts = f"""
        SELECT coalesce(sum(written), 0),
               coalesce(sum(greatest(given - written, 0)), 0),
               coalesce(sum(greatest(written - given, 0)), 0)
        FROM (
            SELECT * EXCLUDE (_penstock_given),
                   count(*) FILTER (_penstock_given) AS given,
                   count(*) FILTER (NOT _penstock_given) AS written
            FROM (
                SELECT {columns}, true AS _penstock_given FROM {source}
                UNION ALL
                SELECT {columns}, false FROM {relation}
            )
            GROUP BY ALL
        )"""
    duckdb = load("duckdb")
    try:
        ((rows, lost, doubled),) = duckdb_reader.rows(connection, counts)
    except (duckdb.BinderException, duckdb.ConversionException) as error:
        raise ConfigurationError(
            f"Source and table cannot be compared by {columns!r}: {duckdb_reader.in_short(error)}. Give "
            "check() columns or SQL expressions that have the same types in both."
        ) from None
    return int(rows), int(lost), int(doubled)


def _check_columns(connection: DuckDBPyConnection, relation: str, columns: str, where: str) -> None:
    try:
        connection.execute(f"SELECT {columns} FROM {relation} LIMIT 0")
    except load("duckdb").Error as error:
        raise ConfigurationError(
            f"The columns {columns!r} cannot be read from the {where}: {duckdb_reader.in_short(error)}. Give "
            "check() columns or SQL expressions that exist in both source and table."
        ) from None


# The store ----------------------------------------------------------------------------------------------


def _pending(store: str | Path, table_uri: str) -> list[str]:
    """Return the PREPARED batches of this table."""
    with _open(str(store)) as opened:
        streams = [stream.key for stream in opened.streams()]
        ours = [stream for stream in streams if stream.table_uri == table_uri]
        if not ours:
            known = ", ".join(sorted({stream.table_uri for stream in streams})) or "none"
            raise ConfigurationError(
                f"The store {opened.name} has no stream into {table_uri}. It has streams into: {known}. Name "
                "the table as in the sink's options, or give check() the store of its stream."
            )
        return [
            f"batch {record.batch.batch_id} of query {stream.query_id}"
            for stream in ours
            for record in opened.pending(stream)
        ]


def _open(store: str) -> SqlManifestStore:
    from ..committers.store.sql import open_store, sqlite_url
    from ..datasource.spark.checkpoint import STORE_FILE
    from ..writers.local_path import local_path

    folder = local_path(store)
    if folder is None:
        return open_store(store, must_exist=True)
    path = posixpath.join(folder, STORE_FILE)
    if not Path(path).is_file():
        raise ConfigurationError(
            f"There is no manifest store {STORE_FILE} in {folder}. Give check() the stream's checkpoint "
            "directory, or the URL in the sink's option `store`."
        )
    return open_store(sqlite_url(path), must_exist=True)
