"""The driver program of the kill campaign: a stream of ids that is started again whenever its query fails.

That is what a supervisor does in production, without the eight seconds that a new Spark takes. It ends only

    0                  when it was told to finish, and has streamed all there is
    TAKEN_OVER         when another run of the query has taken over
    NEEDS_OPERATOR     when the sink says that somebody has to decide something
    any other code     when its Spark is gone

What happens to the query goes into a file, one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock

TAKEN_OVER, NEEDS_OPERATOR = 3, 4

_TWO_AT_ONCE = "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using"
"""What Spark says when another query has written its checkpoint meanwhile."""
_TAKEN_OVER = ("FencedError", "two at once")
_NEEDS_OPERATOR = (
    "CheckpointMismatchError",
    "TableChangedError",
    "TableNotSupportedError",
    "SchemaMismatchError",
    "ManifestCorruptError",
)
_LAST_LINE = re.compile(r"^(\w+Error|java[\w.]+): .*", re.MULTILINE)
_RAISED = re.compile(r"^penstock\.committers\.errors\.(\w+): .*", re.MULTILINE)
RETRY_S = 0.3
FINISH_POLL_S = 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", help="name of the data source")
    parser.add_argument("source")
    parser.add_argument("checkpoint")
    parser.add_argument("--option", action="append", default=[], help="key=value for the sink")
    parser.add_argument("--conf", action="append", default=[], help="key=value for Spark")
    parser.add_argument("--master", required=True)
    parser.add_argument("--orders", type=Path, required=True, help="the query starts once this file is there")
    parser.add_argument("--finish", type=Path, required=True, help="end once this file is there")
    parser.add_argument("--events", type=Path, required=True, help="what happens to the query")
    arguments = parser.parse_args()

    parent = os.getppid()
    builder = SparkSession.builder.master(arguments.master)
    for pair in arguments.conf:
        builder = builder.config(*pair.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    while not arguments.orders.exists():
        _end_with(parent)
        time.sleep(0.02)
    orders = json.loads(arguments.orders.read_text())
    if orders["point"]:
        # Workers get it with the data source that is registered next.
        spark.sparkContext.environment["PENSTOCK_PAUSE_AT"] = orders["point"]
    penstock.register(spark)
    events = Events(arguments.events)
    return supervise(lambda: start(spark, arguments, orders), arguments.finish, events, parent)


def start(spark: SparkSession, arguments: argparse.Namespace, orders: Mapping[str, Any]) -> StreamingQuery:
    rows = (
        spark.readStream.schema("id LONG, day STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(arguments.source)
        .selectExpr("*", *orders["columns"])
        .repartition(orders["partitions"])
    )
    writer = rows.writeStream.format(arguments.format).queryName("ids")
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    for pair in arguments.option:
        writer = writer.option(*pair.split("=", 1))
    return writer.start()


def supervise(start: Callable[[], StreamingQuery], finish: Path, events: Events, parent: int) -> int:
    """Keep the query running until `finish` is there and the source is exhausted."""
    while True:
        try:
            query = start()
            events.add("started", str(query.runId))
            while not finish.exists():
                _end_with(parent)
                query.awaitTermination(FINISH_POLL_S)
            query.processAllAvailable()
            query.stop()
        except Py4JNetworkError:
            raise  # the JVM is gone
        except (PySparkException, Py4JError) as error:
            kind, message = in_short(with_causes(error))
            events.add("failed", message)
            if kind in _NEEDS_OPERATOR:
                return NEEDS_OPERATOR
            if kind in _TAKEN_OVER:
                return TAKEN_OVER
            time.sleep(RETRY_S)
        else:
            return 0


def with_causes(error: BaseException | None) -> str:
    """What Spark says of a commit that failed is only that it failed: the reason is its cause."""
    text = ""
    while error is not None:
        text += f"{error}\n"
        error = getattr(error, "_cause", None) or error.__cause__
    return text


def in_short(error: str) -> tuple[str, str]:
    """What the query failed with: the name of the error, if it is one of the sink's, and its last line."""
    if found := re.search(f".*({_TWO_AT_ONCE}).*", error):
        return "two at once", found[0]
    if raised := [*_RAISED.finditer(error)]:
        return raised[-1][1], raised[-1][0]
    lines = [*_LAST_LINE.finditer(error)]
    return "", lines[-1][0] if lines else " ".join(error.split())[:1000]


class Events:
    """What happened to the query, for the process that watches this one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, event: str, detail: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, "detail": detail}) + "\n")


def _end_with(parent: int) -> None:
    """A campaign that was killed leaves no stream running."""
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
