"""Let Spark limit Arrow batches for Python by the number of rows instead of by size. Driver only.

By default a batch ends at 10,000 rows or at a size (64 MiB in Spark 4.3). To compute the size, Spark asks
every column after *every row*, which takes almost half of the time to hand over rows. It does not compute the
size if the limit is the largest possible one. Then only the number of rows limits the executor's memory: a
batch of 600 MB of wide rows killed a Spark executor of 1 GB. So the number of rows is set by the size of the
heap.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from ...committers.texts.safe_text import get_logger

logger = get_logger(__name__)

BYTES_MAX = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_MAX = "spark.sql.execution.arrow.maxRecordsPerBatch"

NO_BOUND = 2**31 - 1
ROWS_PER_GIB = 500
"""Rows for each GiB of heap: rows of 1 MiB still fit into an executor of 1 GB, Spark's default."""
ROWS_PER_BATCH_MAX = 2000
"""More rows are not faster: their columns leave the processor's caches before they are sent."""


def cut_by_rows(spark: SparkSession) -> None:
    """Set both limits in the session, unless the user has set one of them.

    The number of rows depends on the heap of an executor or, in local mode, of the driver.

    Works with Spark Connect. The limits apply to queries that start later, and to the session's own Python
    functions that take Arrow batches.
    """
    if any(spark.conf.get(key, None) is not None for key in (BYTES_MAX, ROWS_MAX)):
        return
    rows = rows_per_batch(spark)
    try:
        spark.conf.set(BYTES_MAX, str(NO_BOUND))
        spark.conf.set(ROWS_MAX, str(rows))
    except PySparkException as error:
        if "SESSION_MUTATION_IN_DECLARATIVE_PIPELINE" not in str(error):
            raise
        logger.info(
            "Spark refuses settings in a file of a declarative pipeline. To let rows reach Python faster, "
            "set in the pipeline's spec: configuration: {%s: '%d', %s: '%d'}",
            *(BYTES_MAX, NO_BOUND, ROWS_MAX, rows),
        )
        return
    logger.info(
        "Penstock has set %s=%d and %s=%d in this session, so that rows reach Python faster. To keep your "
        "own values, set one of them before register(spark), or call register(spark, tune=False).",
        BYTES_MAX,
        NO_BOUND,
        ROWS_MAX,
        rows,
    )


def rows_per_batch(spark: SparkSession) -> int:
    """Return the maximum rows of a batch: ROWS_PER_GIB for each whole GiB of the heap, within limits."""
    master = spark.conf.get("spark.master", "") or ""
    is_local = master.startswith("local") and not master.startswith("local-cluster")
    heap = spark.conf.get("spark.driver.memory" if is_local else "spark.executor.memory", "1g")
    return min(max(heap_mib(heap or "") // 1024, 1) * ROWS_PER_GIB, ROWS_PER_BATCH_MAX)


def heap_mib(size: str) -> int:
    """Return the MiB of a Spark size: 2g, 512m, or a number of MiB; 0 if it is not a size."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", size.strip().lower())
    if match is None:
        return 0
    return int(int(match[1]) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2}[match[2]])
