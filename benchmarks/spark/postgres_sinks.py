"""Sinks into a Postgres table for comparison. The table has the name of the stream's folder."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import psycopg
from benchmarks.spark.sinks import Penstock, Sink
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

SERVER_SETTING = "spark.penstock.benchmark.postgres"
"""Session setting with host and port of the server; user and database are `postgres`."""
JDBC_ROWS = 10_000
"""Rows per JDBC batch; Spark's default is 1000."""
UPSERTS = {
    "writeMode": "upsert",
    "keys": "id",
    "orderBy": "lsn",
    "deleteWhen": "op = 'd'",
    "dropColumns": "lsn, op",
}
"""Options of Penstock."""


class PenstockPostgres(Penstock):
    keeps_rows = False  # the rows are not in the folder

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        url = f"postgresql://postgres@{rows.sparkSession.conf.get(SERVER_SETTING)}/postgres"
        return rows.writeStream.format("penstock.postgres").option("url", url).option("dbtable", folder.name)


class PreparedPostgres(PenstockPostgres):
    """Tasks write the table itself, in transactions that they prepare."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).option("commit", "prepared")


class ForeachJdbc(Sink):
    """Spark's JDBC sink. Each task is a transaction, so a repeated batch doubles rows."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        server = rows.sparkSession.conf.get(SERVER_SETTING)
        assert server is not None
        options = {**jdbc_options(server), "dbtable": folder.name}

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("append").save()

        return rows.writeStream.foreachBatch(write)


class PenstockUpserts(PenstockPostgres):
    """Into a table that is there, by its column `id`."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).options(**UPSERTS)


class ForeachJdbcMerge(Sink):
    """Spark's JDBC sink into a staging table, and MERGE. A batch that is repeated changes nothing more."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        server = rows.sparkSession.conf.get(SERVER_SETTING)
        assert server is not None
        options = {**jdbc_options(server), "dbtable": f"{folder.name}_staged", "truncate": "true"}
        statement = merge_statement(folder.name, options["dbtable"], rows.columns)
        host, _, port = server.partition(":")

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("overwrite").save()
            with psycopg.connect(host=host, port=port, user="postgres", dbname="postgres") as connection:
                connection.execute(statement)

        return rows.writeStream.foreachBatch(write)


MERGE = """
MERGE INTO {table} AS t
USING (SELECT DISTINCT ON (id) * FROM {staged} ORDER BY id, lsn DESC) AS s ON t.id = s.id
WHEN MATCHED AND s.op = 'd' THEN DELETE
WHEN MATCHED THEN UPDATE SET {sets}
WHEN NOT MATCHED AND s.op <> 'd' THEN INSERT ({names}) VALUES ({values})
"""


def merge_statement(table: str, staged: str, columns: Iterable[str]) -> str:
    """
    Args:
        columns: of the staged rows, with `lsn` and `op`
    """
    names = [name for name in columns if name not in ("lsn", "op")]
    return MERGE.format(
        table=table,
        staged=staged,
        names=", ".join(names),
        values=", ".join(f"s.{name}" for name in names),
        sets=", ".join(f"{name} = s.{name}" for name in names if name != "id"),
    )


def jdbc_options(server: str) -> dict[str, str]:
    return {
        "url": f"jdbc:postgresql://{server}/postgres?reWriteBatchedInserts=true",
        "user": "postgres",
        "driver": "org.postgresql.Driver",
        "batchsize": str(JDBC_ROWS),
    }


POSTGRES_SINKS: dict[str, type[Sink]] = {
    "penstock.postgres": PenstockPostgres,
    "penstock.postgres-prepared": PreparedPostgres,
    "foreach-jdbc": ForeachJdbc,
    "penstock.postgres-upserts": PenstockUpserts,
    "foreach-jdbc-merge": ForeachJdbcMerge,
}
