"""Checks of the invariant with DuckDB: after each fault, and at the end of a trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
from tests.chaos.deployments import Deployment
from tests.chaos.source import Progress, Source

from penstock import testing
from penstock.committers.errors import ConfigurationError
from penstock.committers.store.sql import open_store
from penstock.testing.duckdb_reader import connect
from penstock.testing.table import Table

ROW = "id, day"
"""Rows are compared whole, not by their id alone."""


@dataclass(frozen=True)
class Verdict:
    """The state of a table."""

    rows: int = 0
    lost: int = 0
    """Missing rows of the source that the table must have."""
    doubled: int = 0
    doubles_max: int = 0
    """So many may be doubled, as the destination promises."""
    files_twice: int = 0
    orphans: int = 0
    problems: Sequence[str] = ()


def check_during_trial(
    deployment: Deployment, source: Source, delivered: int | None = None, doubles_max: int = 0
) -> Verdict:
    """Check that no row is doubled or lost, no file is referenced twice, and tokens ascend.

    The driver may continue meanwhile: the required batches are determined before the table is read.

    Args:
        delivered: the last batch that the table must have; None: the last one that Spark has logged
        doubles_max: see `Verdict`
    """
    progress = Progress(deployment.checkpoint)
    required = progress.files_up_to(progress.committed() if delivered is None else delivered)
    try:
        return _verdict(deployment.read_table(), source, required, [], doubles_max)
    except (duckdb.Error, ConfigurationError) as error:
        return Verdict(problems=[f"the table cannot be read: {error}"])


def check_after_trial(deployment: Deployment, source: Source, doubles_max: int = 0) -> Verdict:
    """Check the whole invariant: each source row once, and no batch pending."""
    every_file = sorted(source.folder.glob("*.parquet"))
    pending = _pending(deployment.store_url)
    return _verdict(deployment.read_table(), source, every_file, pending, doubles_max)


def _verdict(
    table: Table, source: Source, required: Sequence[Path], pending: Sequence[str], doubles_max: int
) -> Verdict:
    with connect() as connection:
        if not required and not _has_rows(table, connection):
            return Verdict()
        found = testing.check(table, source.relation, columns=ROW, connection=connection)
        lost = 0 if found.missing else _lost(connection, _relation(required), table.relation(connection))
    found = replace(found, lost=lost, pending=pending)
    twice = sum(count > 1 for count in found.added.values())
    problems = replace(found, doubled=max(found.doubled - doubles_max, 0)).problems
    return Verdict(found.rows, found.lost, found.doubled, doubles_max, twice, found.orphans, problems)


def _has_rows(table: Table, connection: duckdb.DuckDBPyConnection) -> bool:
    """Return False before the first commit, when the table may not exist."""
    try:
        return bool(table.read(connection).live)
    except ConfigurationError:
        return False


def _lost(connection: duckdb.DuckDBPyConnection, source: str, table: str) -> int:
    query = f"SELECT count(*) FROM (SELECT {ROW} FROM {source} EXCEPT ALL SELECT {ROW} FROM {table})"
    ((count,),) = connection.execute(query).fetchall()
    return int(count)


def _pending(store_url: str) -> list[str]:
    with open_store(store_url) as store:
        return [
            f"batch {record.batch.batch_id} of query {stream.key.query_id}"
            for stream in store.streams()
            for record in store.pending(stream.key)
        ]


def _relation(files: Sequence[Path]) -> str:
    if not files:
        return "(SELECT 0 AS id, '' AS day LIMIT 0)"
    return "read_parquet([" + ", ".join(f"'{file}'" for file in files) + "])"
