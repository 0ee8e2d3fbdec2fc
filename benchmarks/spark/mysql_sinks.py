"""Sinks into a MariaDB table for comparison. The table has the name of the stream's folder."""

from __future__ import annotations

from pathlib import Path

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
        url = f"mysql://{rows.sparkSession.conf.get(SERVER_SETTING)}"
        return rows.writeStream.format("penstock.mysql").option("url", url).option("dbtable", folder.name)


class PreparedMySql(PenstockMySql):
    """The same with `commit=prepared`."""

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).option("commit", "prepared")


class ForeachMySqlJdbc(Sink):
    """Spark's JDBC sink. Each task is a transaction, so a repeated batch doubles rows."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        server = rows.sparkSession.conf.get(SERVER_SETTING)
        assert server is not None
        account, _, place = server.rpartition("@")
        user, _, password = account.partition(":")
        options = {
            "url": f"jdbc:mysql://{place}?permitMysqlScheme&useBulkStmtsForInserts=true",
            "user": user,
            "password": password,
            "driver": "org.mariadb.jdbc.Driver",
            "batchsize": str(JDBC_ROWS),
            "dbtable": folder.name,
        }

        def write(batch: DataFrame, _batch_id: int) -> None:
            batch.write.format("jdbc").options(**options).mode("append").save()

        return rows.writeStream.foreachBatch(write)


MYSQL_SINKS: dict[str, type[Sink]] = {
    "penstock.mysql": PenstockMySql,
    "penstock.mysql-prepared": PreparedMySql,
    "foreach-mysql-jdbc": ForeachMySqlJdbc,
}
