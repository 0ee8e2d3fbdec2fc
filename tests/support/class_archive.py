"""Start Spark once and keep the classes that it loaded, so that the JVMs of the tests start in two thirds of
the time: `python -m tests.support.class_archive FILE`, which `make` does once for each environment.

See "Application Class-Data Sharing" in the documentation of the `java` command. The JVM ignores an archive of
another Java or of other jars.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""The archive of this Python's Spark. It is empty if this Java cannot make one."""

_COMPILE_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds=off -Xlog:cds+dynamic=off"


def java_options() -> str:
    """The options of a JVM that lives for seconds: it compiles fast rather than well, and takes the classes
    of the archive, if there is one.
    """
    is_there = ARCHIVE.is_file() and ARCHIVE.stat().st_size > 0
    return f"{_COMPILE_FAST} -XX:SharedArchiveFile={ARCHIVE}" if is_there else _COMPILE_FAST


def write_archive(path: Path) -> None:
    """Run a stream from Parquet files into a Delta table, and have the JVM write the archive when it ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    import penstock

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    options = f"{_COMPILE_FAST} -XX:ArchiveClassesAtExit={path}"
    spark = builder.config("spark.driver.extraJavaOptions", options).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    gateway = SparkContext._gateway
    penstock.register(spark)
    with tempfile.TemporaryDirectory() as folder:
        spark.range(10).write.parquet(f"{folder}/source")
        rows = spark.readStream.schema("id long").parquet(f"{folder}/source")
        writer = rows.writeStream.format("penstock.delta").option("path", f"{folder}/table")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()
        spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=300)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    new = target.with_suffix(".new").absolute()
    new.unlink(missing_ok=True)
    try:
        write_archive(new)
    finally:
        new.touch()
        new.rename(target)
