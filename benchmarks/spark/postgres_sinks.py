"""Sinks into a Postgres table for comparison. The table has the name of the stream's folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.spark.sinks import Penstock, Sink
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

SERVER_SETTING = "spark.penstock.benchmark.postgres"
"""Session setting with host and port of the server; user and database are `postgres`."""
JDBC_ROWS = 10_000
"""Rows per JDBC batch; Spark's default is 1000."""


class PenstockPostgres(Penstock):
    keeps_rows = False  # the rows are not in the folder

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        url = f"postgresql://postgres@{rows.sparkSession.conf.get(SERVER_SETTING)}/postgres"
        return rows.writeStream.format("penstock.postgres").option("url", url).option("dbtable", folder.name)


class ForeachJdbc(Sink):
    """Spark's JDBC sink. Each task is a transaction, so a repeated batch doubles rows."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        server = rows.sparkSession.conf.get(SERVER_SETTING)
        options = {
            "url": f"jdbc:postgresql://{server}/postgres?reWriteBatchedInserts=true",
            "user": "postgres",
            "driver": "org.postgresql.Driver",
            "dbtable": folder.name,
            "batchsize": str(JDBC_ROWS),
        }

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("append").save()

        return rows.writeStream.foreachBatch(write)


POSTGRES_SINKS: dict[str, type[Sink]] = {"penstock.postgres": PenstockPostgres, "foreach-jdbc": ForeachJdbc}
