"""Make the data sources known to a Spark session."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from .arrow_batches import cut_by_rows
from .delta import DeltaDataSource
from .iceberg import IcebergDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATA_SOURCES = (DeltaDataSource, IcebergDataSource)


def register(spark: SparkSession, *, tune: bool = True) -> None:
    """Register every data source of Penstock with the session, once per session.

    In local mode Spark's Python workers shall be this very Python, where Penstock is installed, unless
    something else was asked for: Spark's own default is the `python3` on the PATH. On a cluster Penstock
    has to be installed for the workers' Python.

    Args:
        tune: have Spark cut rows into Arrow batches by number and not by size, which makes the hand-over to
            Python about twice as fast (see `arrow_batches`); what the session has set already stays
    """
    _use_this_python_in_local_mode(spark)
    for data_source in DATA_SOURCES:
        spark.dataSource.register(data_source)
    if tune:
        cut_by_rows(spark)


def _use_this_python_in_local_mode(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a Spark Connect session has none
    if context is None or not context.master.startswith("local"):
        return
    asked_for = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not asked_for:
        context.pythonExec = sys.executable
