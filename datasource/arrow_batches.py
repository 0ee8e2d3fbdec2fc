"""How Spark cuts rows into Arrow batches for Python: by their number instead of by their size. Driver only.

By default a batch ends at 10,000 rows or at a size (64 MiB in Spark 4.3). To know the size, Spark asks every
column after *every row*, which takes almost half of the hand-over. It does not ask if the bound is the
largest there is. Then the number of rows alone bounds the executor's memory: 600 MB of wide rows in one batch
have ended a Spark of 1 GB. So that number is lowered.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

BYTES_MAX = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS_MAX = "spark.sql.execution.arrow.maxRecordsPerBatch"

NO_BOUND = 2**31 - 1
ROWS_PER_BATCH = 500
"""Rows of 1 MiB still fit into an executor of 1 GB, Spark's default."""


def cut_by_rows(spark: SparkSession) -> None:
    """Set both bounds in the session, unless either of them was set by whoever runs it.

    Works with Spark Connect. Queries that are started later get them; so do the session's own Python
    functions that take Arrow batches.
    """
    if any(spark.conf.get(key, None) is not None for key in (BYTES_MAX, ROWS_MAX)):
        return
    spark.conf.set(BYTES_MAX, str(NO_BOUND))
    spark.conf.set(ROWS_MAX, str(ROWS_PER_BATCH))
    logger.info(
        "%s=%d and %s=%d are set in this session: rows reach Python faster. Set either of them yourself, or "
        "say register(spark, tune=False), to have it otherwise.",
        BYTES_MAX,
        NO_BOUND,
        ROWS_MAX,
        ROWS_PER_BATCH,
    )
