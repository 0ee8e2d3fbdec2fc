"""The Spark session of `penstock deliver --spark`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OwnSpark:
    """Begins a session when a stream first needs one, and another when that one answers no more.

    If Spark's own process beside this one has died, PySpark begins none: this one has to be started again.

    What Spark reads by itself says where it runs: spark-submit, `SPARK_REMOTE`, `SPARK_CONF_DIR`,
    `PYSPARK_SUBMIT_ARGS`. Begun in a thread of the deliveries: in the main one, Spark would take SIGINT.
    """

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """
        Raises:
            Exception: whatever Spark raises if it cannot be had now.
        """
        from pyspark.sql import SparkSession

        with self._lock:
            if self._session is not None and not _answers(self._session):
                self._end()
            if self._session is None:
                self._session = SparkSession.builder.getOrCreate()
            return self._session

    def stop(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception):
                session.stop()


def _answers(session: SparkSession) -> bool:
    try:
        session.sql("SELECT 1").collect()
    except Exception:  # noqa: BLE001 - whatever it is, the session is of no use
        return False
    return True
