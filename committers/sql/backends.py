"""What is particular to each database that `penstock.sql` writes. Importable on executors.

Statements are standard SQL, or made by SQLAlchemy. A database is only in this list if a transaction with rows
and the query's token is enough: statements that create tables must not commit, and keys must be enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    """A database. Its name is that of SQLAlchemy's dialect."""

    title: str
    driver: str
    """The only one of SQLAlchemy's drivers whose errors are known."""
    default_port: int = 0
    is_tested: bool = False
    """False: Penstock's tests do not run on it."""
    is_file: bool = False
    """True: one transaction writes at a time, so tasks end theirs after each batch of rows."""
    has_zones: bool = True
    """False: one type of column has timestamps with and without time zone."""
    decimal_digits_max: int = 38
    """Decimals with more digits are changed."""
    refused_numbers: str = ""
    """Floating-point numbers that it does not store: `NaN`, or `NaN or infinite`; empty: none."""
    stores_nul: bool = True
    """False: its texts have no NUL characters."""
    add_column: str = "ADD COLUMN"
    for_update: str = ""
    """Locks the rows that a query selects, and does not wait for rows that others have locked."""
    now: str = "CURRENT_TIMESTAMP"
    week_ago: str = ""
    """The time of `now` a week ago."""
    seconds_later: str = ""
    """The time of `now` some seconds later, as a format. Empty: rows are only appended."""


_WEEK_AGO = "CURRENT_TIMESTAMP - INTERVAL '7 days'"
_LATER = "CURRENT_TIMESTAMP + INTERVAL '{} seconds'"
_SQLITE_TIME = "strftime('%Y-%m-%d %H:%M:%f', 'now'{})"

BACKENDS: Mapping[str, Backend] = {
    "sqlite": Backend(
        "SQLite",
        "pysqlite",
        is_tested=True,
        is_file=True,
        has_zones=False,
        decimal_digits_max=15,  # it has only binary floating-point numbers
        refused_numbers="NaN",  # which it stores as NULL
        now=_SQLITE_TIME.format(""),
        week_ago=_SQLITE_TIME.format(", '-7 days'"),
        seconds_later=_SQLITE_TIME.format(", '+{} seconds'"),
    ),
    "postgresql": Backend(
        "PostgreSQL",
        "psycopg",
        5432,
        is_tested=True,
        stores_nul=False,
        for_update=" FOR UPDATE SKIP LOCKED",
        week_ago=_WEEK_AGO,
        seconds_later=_LATER,
    ),
    "cockroachdb": Backend(
        "CockroachDB", "psycopg", 26257, stores_nul=False, week_ago=_WEEK_AGO, seconds_later=_LATER
    ),
    "mssql": Backend(
        "SQL Server",
        "pyodbc",
        1433,
        refused_numbers="NaN or infinite",
        add_column="ADD",
        week_ago="DATEADD(day, -7, CURRENT_TIMESTAMP)",
    ),
}

_COMMITS = "its statements that create or drop tables commit, and Penstock needs them in a transaction"
_UNENFORCED = "it does not enforce primary keys, so a query could have two tokens"
_NONE = "it has no transactions over several tables"
REFUSED: Mapping[str, str] = {
    "bigquery": _UNENFORCED,
    "clickhouse": _NONE,
    "clickhousedb": _NONE,
    "databricks": _NONE,
    "duckdb": "use penstock.duckdb",
    "hive": _NONE,
    "impala": _NONE,
    "mariadb": f"{_COMMITS}; use penstock.mysql",
    "mysql": f"{_COMMITS}; use penstock.mysql",
    "oracle": f"{_COMMITS}, and it stores an empty text as NULL",
    "presto": _NONE,
    "redshift": _UNENFORCED,
    "snowflake": _UNENFORCED,
    "trino": _NONE,
}
"""Databases that SQLAlchemy reaches, and why Penstock refuses them."""
