"""The Spark session of `penstock deliver --spark`."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OwnSpark:
    """Start a session when a stream first needs one, and a new one when it no longer answers.

    If the JVM of this process has died, PySpark cannot start another session: restart the delivery process.

    Spark's own settings say where it runs: spark-submit, `SPARK_REMOTE`, `SPARK_CONF_DIR`,
    `PYSPARK_SUBMIT_ARGS`. The session starts in a delivery thread, because in the main thread Spark would
    handle SIGINT.
    """

    def __init__(self) -> None:
        self._session: SparkSession | None = None
        self._lock = threading.Lock()

    def __call__(self) -> SparkSession:
        """Return a session that answers.

        Raises:
            Exception: any error of Spark, if it is not available now.
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
    except Exception:  # noqa: BLE001  whatever the error, the session is unusable
        return False
    return True
