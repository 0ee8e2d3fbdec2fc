"""Compares a table with its source: all columns of all rows as a multiset, in both directions.

DuckDB reads the tables with its own Delta and Iceberg readers, which share no code with the writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import duckdb

EXTENSIONS = ("delta", "avro", "iceberg")


@dataclass(frozen=True, slots=True)
class Proof:
    """Row counts. `lost`: in the source, not in the table. `added`: in the table, not in the source."""

    source_rows: int
    table_rows: int
    lost: int
    added: int
    """Doubled rows, or rows that the source does not have."""

    @property
    def holds(self) -> bool:
        return self.lost == self.added == 0


def compare(source: Path, relation: str) -> Proof:
    """Compare the Parquet files in `source` with a table, columns by name.

    Args:
        relation: `delta_scan('folder')`, or `iceberg_scan('location of the metadata file')`
    """
    with connect() as duck:
        duck.execute(f"CREATE VIEW source AS FROM read_parquet('{_quoted(source)}/*.parquet')")
        columns = ", ".join(f'"{row[0]}"' for row in duck.execute("DESCRIBE source").fetchall())
        duck.execute(f"CREATE VIEW written AS SELECT {columns} FROM {relation}")
        counts = duck.execute(
            """SELECT (SELECT count(*) FROM source), (SELECT count(*) FROM written),
                      (SELECT count(*) FROM (FROM source EXCEPT ALL FROM written)),
                      (SELECT count(*) FROM (FROM written EXCEPT ALL FROM source))"""
        ).fetchone()
    assert counts is not None
    return Proof(*counts)


def count_rows(relation: str) -> int:
    """Return the number of rows that a reader of the table finds."""
    with connect() as duck:
        counted = duck.execute(f"SELECT count(*) FROM {relation}").fetchone()
    assert counted is not None
    return int(counted[0])


def connect() -> duckdb.DuckDBPyConnection:
    """Open DuckDB with extensions from the packages `duckdb-extension-*`, without downloads."""
    duck = duckdb.connect(config={"allow_unsigned_extensions": True})
    for extension in EXTENSIONS:
        package = distribution(f"duckdb-extension-{extension}")
        (binary,) = (file for file in package.files or [] if file.suffix == ".duckdb_extension")
        duck.execute(f"LOAD '{_quoted(Path(str(package.locate_file(binary))))}'")
    return duck


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
