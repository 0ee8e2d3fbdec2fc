"""Sinks for comparison. Runs in the driver program of a benchmark.

Each stream has a separate folder, and each sink a separate session for its settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from benchmarks.spark.python_sinks import EmptyDataSource, FilesDataSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock
from penstock.datasource.spark.arrow_batches import BYTES_MAX, NO_BOUND, ROWS_MAX

JVM_EXTENSIONS = "io.delta.sql.DeltaSparkSessionExtension"
"""delta-spark needs this extension for the whole Spark."""


PARTITION = "p"


def partition_columns(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if name == PARTITION]


ROWS_OF_BATCHES = (250, 500, 1000, 2000, 10_000)


class Sink(ABC):
    """A sink with its default settings, unless its docstring describes others."""

    keeps_rows = True
    """False: the sink drops the rows, or stores them outside of the folder."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Settings of its session."""

    def set_up(self, spark: SparkSession) -> None:
        """Called once, in the sink's session."""
        for key, value in self.settings.items():
            spark.conf.set(key, value)

    @abstractmethod
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        """Return a writer into a new table in the folder, partitioned by `PARTITION` if the rows have it."""

    def start(self, writer: DataStreamWriter, folder: Path) -> Any:
        """Start a streaming query."""
        return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


class Noop(Sink):
    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return rows.writeStream.format("noop")


class EmptyPython(Sink):
    """A Python sink that drops all Arrow batches; measures the transfer from the JVM."""

    keeps_rows = False

    def set_up(self, spark: SparkSession) -> None:
        super().set_up(spark)
        spark.dataSource.register(EmptyDataSource)

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return rows.writeStream.format("empty")


class EmptyPythonTuned(EmptyPython):
    """Without the size check of a batch after every row, and the search of archives before every task."""

    settings: ClassVar = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        return super().writer(rows, folder).option("tuned", "true")


class FilesPython(EmptyPythonTuned):
    """Only writes files with Arrow; measures transfer and encoding."""

    keeps_rows = True

    def set_up(self, spark: SparkSession) -> None:
        super().set_up(spark)
        spark.dataSource.register(FilesDataSource)

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        files = rows.writeStream.format("files").option("tuned", "true")
        return files.option("path", str(folder / "table"))


class Parquet(Sink):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        writer = rows.writeStream.partitionBy(*partition_columns(rows))
        return writer.format("parquet").option("path", str(folder / "table"))


class ParquetZstd(Parquet):
    """With the codec of all other sinks except delta-spark."""

    settings: ClassVar = {"spark.sql.parquet.compression.codec": "zstd"}


class DeltaSpark(Sink):
    """Keeps its state in one partition per core. Its default of 50 would take most of its time."""

    settings: ClassVar = {
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        writer = rows.writeStream.partitionBy(*partition_columns(rows))
        return writer.format("delta").option("path", str(folder / "table"))


class IcebergSpark(Sink):
    settings: ClassVar = {
        "spark.sql.catalog.jvm": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.jvm.type": "hadoop",
    }

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        spark = rows.sparkSession
        spark.conf.set("spark.sql.catalog.jvm.warehouse", str(folder.parent))
        columns = ", ".join(f"`{one.name}` {one.dataType.simpleString()}" for one in rows.schema)
        partitioned = "".join(f" PARTITIONED BY ({name})" for name in partition_columns(rows))
        spark.sql(f"CREATE TABLE {self._table(folder)} ({columns}) USING iceberg{partitioned}")
        # Recommended for streams by Iceberg's documentation; keeps a file open for each partition.
        return rows.writeStream.format("iceberg").option("fanout-enabled", "true")

    def start(self, writer: DataStreamWriter, folder: Path) -> Any:
        return writer.option("checkpointLocation", str(folder / "checkpoint")).toTable(self._table(folder))

    @staticmethod
    def _table(folder: Path) -> str:
        return f"jvm.`{folder.name}`.rows"


class ForeachDeltalake(Sink):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        from deltalake import write_deltalake

        def write(batch: DataFrame, _batch_id: int) -> None:
            by = partition_columns(batch) or None
            write_deltalake(folder / "table", batch.toArrow(), mode="append", partition_by=by)

        return rows.writeStream.foreachBatch(write)


class ForeachPyiceberg(Sink):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog(
            "bench", uri=f"sqlite:///{folder / 'catalog.sqlite'}", warehouse=f"file://{folder}"
        )
        catalog.create_namespace("bench")

        def write(batch: DataFrame, batch_id: int) -> None:
            arrow: pa.Table = batch.toArrow()
            if batch_id == 0:
                table = catalog.create_table_if_not_exists("bench.rows", arrow.schema)
                for name in partition_columns(batch):
                    table.update_spec().add_identity(name).commit()
            catalog.load_table("bench.rows").append(arrow)

        return rows.writeStream.foreachBatch(write)


class Penstock(Sink):
    def set_up(self, spark: SparkSession) -> None:
        super().set_up(spark)
        penstock.register(spark)


class PenstockDelta(Penstock):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        writer = rows.writeStream.format("penstock.delta").option("path", str(folder / "table"))
        for name in partition_columns(rows):
            writer = writer.option("partitionBy", name)
        return writer


class PenstockAsSparkCuts(PenstockDelta):
    """Arrow batches of at most 10,000 rows and 64 MiB; Spark checks the size after every row."""

    settings: ClassVar = {ROWS_MAX: "10000"}


def cut_by_rows(rows: int) -> type[Sink]:
    """penstock.delta with Arrow batches of this number of rows, without a size limit."""
    settings = {BYTES_MAX: str(NO_BOUND), ROWS_MAX: str(rows)}
    return type(f"PenstockCutAt{rows}", (PenstockDelta,), {"settings": settings})


class PenstockIceberg(Penstock):
    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {"warehouse": str(folder / "warehouse"), "table": "bench.rows"}
        writer = rows.writeStream.format("penstock.iceberg").options(**options)
        for name in partition_columns(rows):
            writer = writer.option("partitionSpec", name)
        return writer


SINKS: dict[str, type[Sink]] = {
    "noop": Noop,
    "empty-python": EmptyPython,
    "empty-python-tuned": EmptyPythonTuned,
    "files-python": FilesPython,
    "parquet": Parquet,
    "parquet-zstd": ParquetZstd,
    "delta-spark": DeltaSpark,
    "iceberg-spark": IcebergSpark,
    "foreach-deltalake": ForeachDeltalake,
    "foreach-pyiceberg": ForeachPyiceberg,
    "penstock.delta": PenstockDelta,
    "penstock.iceberg": PenstockIceberg,
    "as Spark cuts": PenstockAsSparkCuts,
    **{f"{rows:,} rows": cut_by_rows(rows) for rows in ROWS_OF_BATCHES},
}
