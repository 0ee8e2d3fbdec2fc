"""Penstock reads the intervals in a Delta table's properties as Spark does, which Delta asks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from py4j.java_gateway import get_field  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from penstock.committers.delta.intervals import parse_interval

pytestmark = pytest.mark.spark

READ = "7 days,interval 7 days,168 hours,+7 days,7  days,interval 1 week 2 days,7 day ,INTERVAL 7 DAYS,0 days"
READ += ",5 milliseconds,5 microseconds 1 minute,interval  1 second,7\tdays"
UNREAD = (
    "interval,,7days,7 dayss,1.5 days,1 h,1 day1 hour,5 nanoseconds,interval interval 7 days,1 second ago"
)
UNREAD += ",\uff12 days,1_000 days,interval\t7 days,7\xa0days,1 month,interval 1 year,1 month 2 days,-1 day"


def as_spark_reads(spark: SparkSession, text: str) -> timedelta | None:
    """What `DeltaConfigs.parseCalendarInterval` makes of the text; None if Delta refuses it."""
    jvm: Any = spark._jvm
    lower = text.strip().lower()
    interval = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.safeStringToInterval(
        jvm.org.apache.spark.unsafe.types.UTF8String.fromString(
            lower if lower.startswith("interval ") else f"interval {lower}"
        )
    )
    if interval is None or get_field(interval, "months"):
        return None
    read = timedelta(days=get_field(interval, "days"), microseconds=get_field(interval, "microseconds"))
    return read if read >= timedelta() else None


def test_intervals_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    for text in READ.split(","):
        assert parse_interval(text) == as_spark_reads(spark, text) is not None, text
    for text in UNREAD.split(","):
        assert parse_interval(text) is as_spark_reads(spark, text) is None, text
