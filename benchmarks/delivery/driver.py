"""Driver program of the benchmark: writes the same rows into several sinks, once per second, until killed.

The time of each batch goes into a file with one JSON object per line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import penstock


class Journal(StreamingQueryListener):
    """Records Spark's progress of each batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._add({"query": str(event.id), "ended": True, "error": event.exception or ""})

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        if progress.numInputRows:
            self._add(
                {
                    "query": progress.name,
                    "batch": progress.batchId,
                    "rows": progress.numInputRows,
                    "ms": progress.durationMs.get("triggerExecution", 0),
                    "add_batch_ms": progress.durationMs.get("addBatch", 0),
                }
            )

    def _add(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"time": time.time(), **line}) + "\n")


def main() -> None:
    """Arguments: a JSON object with `sinks`, `rows_per_second`, `tasks`, `journal`."""
    settings = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.numRecentProgressUpdates", "10")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    penstock.register(spark)
    spark.streams.addListener(Journal(Path(settings["journal"])))
    for name, sink in settings["sinks"].items():
        rows = (
            spark.readStream.format("rate")
            .option("rowsPerSecond", settings["rows_per_second"])
            .option("numPartitions", settings["tasks"])
            .load()
            .selectExpr("value AS id", "timestamp AS at", "CAST(value % 1000 AS STRING) AS text")
        )
        writer = rows.writeStream.format(sink["format"]).queryName(name)
        for key, value in sink["options"].items():
            writer = writer.option(key, value)
        writer.trigger(processingTime="1 second").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
