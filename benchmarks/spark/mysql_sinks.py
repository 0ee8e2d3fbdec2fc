"""Sinks into a MariaDB table for comparison. The table has the name of the stream's folder."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pymysql
from benchmarks.spark.postgres_sinks import UPSERTS
from benchmarks.spark.sinks import Penstock, Sink
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

SERVER_SETTING = "spark.penstock.benchmark.mariadb"
"""Session setting with user, password, host, port and database of the server, as the beginning of a URL."""
JDBC_ROWS = 10_000
"""Rows per JDBC batch; Spark's default is 1000."""


class PenstockMySql(Penstock):
    keeps_rows = False  # the rows are not in the folder

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        url = f"mysql://{_place(rows)}"
        return rows.writeStream.format("penstock.mysql").option("url", url).option("dbtable", folder.name)


class PreparedMySql(PenstockMySql):
    """The same with `commit=prepared`."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).option("commit", "prepared")


class MySqlUpserts(PenstockMySql):
    """Into a table that is there, by its column `id`."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).options(**UPSERTS)


class ForeachMySqlJdbc(Sink):
    """Spark's JDBC sink. Each task is a transaction, so a repeated batch doubles rows."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {**_jdbc_options(_place(rows)), "dbtable": folder.name}

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("append").save()

        return rows.writeStream.foreachBatch(write)


class ForeachMySqlJdbcChanges(Sink):
    """Spark's JDBC sink into a staging table, and statements that change the table."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        place = _place(rows)
        options = {**_jdbc_options(place), "dbtable": f"{folder.name}_staged", "truncate": "true"}
        statements = change_statements(folder.name, options["dbtable"], rows.columns)

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("overwrite").save()
            with connect(place) as connection, connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                connection.commit()

        return rows.writeStream.foreachBatch(write)


_LAST = """(
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY id ORDER BY lsn DESC) AS place FROM {staged}
    ) AS numbered
    WHERE place = 1
) AS s"""


def change_statements(table: str, staged: str, columns: Iterable[str]) -> list[str]:
    """
    Args:
        columns: of the staged rows, with `lsn` and `op`
    """
    names = [name for name in columns if name not in ("lsn", "op")]
    last = _LAST.format(staged=staged)
    sets = ", ".join(f"{name} = VALUES({name})" for name in names if name != "id")
    return [
        f"DELETE t FROM {table} AS t JOIN {last} ON t.id = s.id WHERE s.op = 'd'",
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(names)} FROM {last} WHERE s.op <> 'd' "
        f"ON DUPLICATE KEY UPDATE {sets}",
    ]


def connect(place: str) -> pymysql.Connection[Any]:
    """Open a connection without autocommit.

    Args:
        place: the setting
    """
    user, password, host, port, database = re.split("[:@/]", place)
    return pymysql.connect(
        host=host, port=int(port), user=user, password=password, database=database, charset="utf8mb4",
        local_infile=True,
    )  # fmt: skip


def _place(rows: DataFrame) -> str:
    place = rows.sparkSession.conf.get(SERVER_SETTING)
    assert place is not None
    return place


def _jdbc_options(place: str) -> dict[str, str]:
    account, _, server = place.rpartition("@")
    user, _, password = account.partition(":")
    return {
        "url": f"jdbc:mysql://{server}?permitMysqlScheme&useBulkStmtsForInserts=true",
        "user": user,
        "password": password,
        "driver": "org.mariadb.jdbc.Driver",
        "batchsize": str(JDBC_ROWS),
    }


MYSQL_SINKS: dict[str, type[Sink]] = {
    "penstock.mysql": PenstockMySql,
    "penstock.mysql-prepared": PreparedMySql,
    "foreach-mysql-jdbc": ForeachMySqlJdbc,
    "penstock.mysql-upserts": MySqlUpserts,
    "foreach-mysql-jdbc-changes": ForeachMySqlJdbcChanges,
}
