"""How Spark cuts rows into Arrow batches for Python: by their number instead of by their size. Driver only.

By default a batch ends at 10,000 rows or at a size (64 MiB in Spark 4.3). To know the size, Spark asks every
column after *every row*, which takes almost half of the hand-over. It does not ask if the bound is the
largest there is. Then the number of rows alone bounds the executor's memory: 600 MB of wide rows in one batch
have ended a Spark of 1 GB. So that number is lowered, the less the larger the heap.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from ..committers.safe_text import get_logger

logger = get_logger(__name__)

BYTES_MAX = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_MAX = "spark.sql.execution.arrow.maxRecordsPerBatch"

NO_BOUND = 2**31 - 1
ROWS_PER_GIB = 500
"""Of the heap: rows of 1 MiB still fit into an executor of 1 GB, Spark's default."""
ROWS_PER_BATCH_MAX = 2000
"""More gain nothing: their columns leave the processor's caches before they are sent."""


def cut_by_rows(spark: SparkSession) -> None:
    """Set both bounds in the session, unless either of them was set by whoever runs it.

    The number of rows goes by the heap of an executor, or in local mode of the driver.

    Works with Spark Connect. Queries that are started later get them; so do the session's own Python
    functions that take Arrow batches.
    """
    if any(spark.conf.get(key, None) is not None for key in (BYTES_MAX, ROWS_MAX)):
        return
    rows = rows_per_batch(spark)
    spark.conf.set(BYTES_MAX, str(NO_BOUND))
    spark.conf.set(ROWS_MAX, str(rows))
    logger.info(
        "%s=%d and %s=%d are set in this session: rows reach Python faster. Set either of them yourself, or "
        "say register(spark, tune=False), to have it otherwise.",
        BYTES_MAX,
        NO_BOUND,
        ROWS_MAX,
        rows,
    )


def rows_per_batch(spark: SparkSession) -> int:
    """How many rows a batch may have: ROWS_PER_GIB for each whole GiB of the heap, within bounds."""
    master = spark.conf.get("spark.master", "") or ""
    is_local = master.startswith("local") and not master.startswith("local-cluster")
    heap = spark.conf.get("spark.driver.memory" if is_local else "spark.executor.memory", "1g")
    return min(max(heap_mib(heap or "") // 1024, 1) * ROWS_PER_GIB, ROWS_PER_BATCH_MAX)


def heap_mib(size: str) -> int:
    """MiB of a size as Spark takes it: 2g, 512m, or a number of MiB; 0 if it is none."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", size.strip().lower())
    if match is None:
        return 0
    return int(int(match[1]) * {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2}[match[2]])
