"""What Spark shows of an error that ends a Python worker: the message first, without a traceback.

Spark quotes a worker's exception in its own (`[PYTHON_DATA_SOURCE_ERROR] ...`), with the Python traceback
before the message. Penstock's errors say what is wrong and what to do; the lines of code that raised them
help nobody. Runs on the driver and on executors.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ...committers.errors import PenstockError

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
"""Read by pyspark when an exception ends a worker. The setting
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets it for all workers.
"""


@contextmanager
def message_first() -> Iterator[None]:
    """Let Spark show a `PenstockError` without its traceback. Put it around each method that Spark calls.

    A plain `PenstockError` is a contradiction within Penstock and keeps its traceback, as do all other
    exceptions. The variable stays set: the exception ends the worker.
    """
    try:
        yield
    except PenstockError as error:
        if type(error) is not PenstockError and _in_a_worker():
            os.environ[HIDE_TRACEBACK] = "1"
        raise


def _in_a_worker() -> bool:
    """Spark starts its Python workers as `python -m pyspark.daemon` or another module of pyspark."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
