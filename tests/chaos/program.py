"""The driver program of the campaign: a stream of ids whose query is started again whenever it fails.

A supervisor does that in production; here it saves the eight seconds that a new Spark takes. Exit codes:

    0                  told to finish, and all files of the source are streamed
    TAKEN_OVER         another run of the query has taken over
    NEEDS_OPERATOR     the sink asks for a decision of an operator
    any other code     its Spark has ended
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

_CONCURRENT = "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using"
"""Spark's error if another query has written its checkpoint meanwhile."""
_EXIT_CODES = {
    "FencedError": TAKEN_OVER,
    "CheckpointMismatchError": NEEDS_OPERATOR,
    "TableChangedError": NEEDS_OPERATOR,
    "TableNotSupportedError": NEEDS_OPERATOR,
    "SchemaMismatchError": NEEDS_OPERATOR,
    "ManifestCorruptError": NEEDS_OPERATOR,
}
"""By the error of the sink. After any other error the query is started again."""
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
    parser.add_argument("--request", type=Path, required=True, help="the query starts once this file exists")
    parser.add_argument("--finish", type=Path, required=True, help="the program ends once this file exists")
    parser.add_argument("--events", type=Path, required=True, help="gets one JSON object for each event")
    arguments = parser.parse_args()

    parent = os.getppid()
    builder = SparkSession.builder.master(arguments.master)
    for pair in arguments.conf:
        builder = builder.config(*pair.split("=", 1))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    while not arguments.request.exists():
        _end_with(parent)
        time.sleep(0.02)
    request = json.loads(arguments.request.read_text())
    if request["point"]:
        # Workers get it with the data source that is registered next.
        spark.sparkContext.environment["PENSTOCK_PAUSE_AT"] = request["point"]
    penstock.register(spark)

    def log(event: str, detail: str) -> None:
        with arguments.events.open("a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, "detail": detail}) + "\n")

    return supervise(lambda: start(spark, arguments, request), arguments.finish, log, parent)


def start(spark: SparkSession, arguments: argparse.Namespace, request: Mapping[str, Any]) -> StreamingQuery:
    rows = (
        spark.readStream.schema("id LONG, day STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(arguments.source)
        .selectExpr("*", *request["columns"])
        .repartition(request["partitions"])
    )
    writer = rows.writeStream.format(arguments.format).queryName("ids")
    writer = writer.option("checkpointLocation", arguments.checkpoint)
    for pair in arguments.option:
        writer = writer.option(*pair.split("=", 1))
    return writer.start()


def supervise(
    start: Callable[[], StreamingQuery], finish: Path, log: Callable[[str, str], None], parent: int
) -> int:
    """Keep the query running until `finish` exists and the source is exhausted."""
    while True:
        try:
            query = start()
            log("started", str(query.runId))
            while not finish.exists():
                _end_with(parent)
                query.awaitTermination(FINISH_POLL_S)
            query.processAllAvailable()
            query.stop()
        except Py4JNetworkError:
            raise  # the JVM has ended
        except (PySparkException, Py4JError) as error:
            exit_code, message = summary(_with_causes(error))
            log("failed", message)
            if exit_code:
                return exit_code
            time.sleep(RETRY_S)
        else:
            return 0


def summary(error: str) -> tuple[int | None, str]:
    """Return the exit code for an error, None if the query may start again; and the error in one line."""
    if found := re.search(f".*({_CONCURRENT}).*", error):
        return TAKEN_OVER, found[0]
    if raised := [*_RAISED.finditer(error)]:
        return _EXIT_CODES.get(raised[-1][1]), raised[-1][0]
    lines = [*_LAST_LINE.finditer(error)]
    return None, lines[-1][0] if lines else " ".join(error.split())[:1000]


def _with_causes(error: BaseException | None) -> str:
    """Return the messages of an error and its causes: Spark's own only says that the commit failed."""
    text = ""
    while error is not None:
        text += f"{error}\n"
        error = getattr(error, "_cause", None) or error.__cause__
    return text


def _end_with(parent: int) -> None:
    """End if the campaign was killed."""
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
