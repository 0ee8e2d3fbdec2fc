"""Settings that let rows reach Python faster. They must be set before Spark starts."""

from __future__ import annotations

WITHOUT_BOUNDS_CHECKS = "-Darrow.enable_unsafe_memory_access=true"

START_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.extraJavaOptions": WITHOUT_BOUNDS_CHECKS,
    "spark.executor.extraJavaOptions": WITHOUT_BOUNDS_CHECKS,
}
"""For `SparkSession.builder.config(map=penstock.START_SETTINGS)`, or one `--conf` for each.

JVM and Python communicate through Unix domain sockets instead of TCP (Spark 4.1 and newer), and Arrow's Java
library does not check the bounds of its buffers. Spark allocates space before it writes a value, so only a
bug in Spark itself would go unnoticed. The checks are off in the whole JVM, also for reads: use these
settings only for your own application, not for a Spark Connect server or another one with several users.
`register` warns on a Spark Connect server. Append your own Java options to these values. Sinks that are not
in Python are not affected.
"""
