"""Settings with which rows reach Python faster, for whoever starts Spark: a running one takes none."""

from __future__ import annotations

WITHOUT_BOUNDS_CHECKS = "-Darrow.enable_unsafe_memory_access=true"

START_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": WITHOUT_BOUNDS_CHECKS,
    "spark.executor.extraJavaOptions": WITHOUT_BOUNDS_CHECKS,
}
"""For `SparkSession.builder.config(map=penstock.START_SETTINGS)`, or a `--conf` each.

JVM and Python talk by Unix domain sockets instead of TCP (Spark 4.1 and newer). And Arrow's Java library does
not compare each write with the bounds of its buffer: Spark makes room for every value before it writes it,
and only a mistake in Spark itself would go unnoticed there. The checks are off for the whole JVM, for reads
too: set them for an application of your own only, not for a Spark Connect server or another one that several
users share. `register` warns on a Spark Connect server. Java options of your own belong into the same
texts. Sinks that are no Python sinks go on as before.
"""
