"""Settings with which rows reach Python faster, for whoever starts Spark: a running one takes none."""

from __future__ import annotations

_WITHOUT_BOUNDS_CHECKS = "-Darrow.enable_unsafe_memory_access=true"

START_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": _WITHOUT_BOUNDS_CHECKS,
    "spark.executor.extraJavaOptions": _WITHOUT_BOUNDS_CHECKS,
}
"""For `SparkSession.builder.config(map=penstock.START_SETTINGS)`, or a `--conf` each.

JVM and Python talk by Unix domain sockets instead of TCP (Spark 4.1 and newer). And Arrow's Java library does
not compare each write with the bounds of its buffer: Spark makes room for every value before it writes it,
and only a mistake in Spark itself would go unnoticed there. Java options of your own belong into the same
texts. Sinks that are no Python sinks go on as before.
"""
