"""Register the data sources with a Spark session."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError, shown
from ...committers.texts.safe_text import get_logger
from ..aws.sources import DynamoDbDataSource, FirehoseDataSource, KinesisDataSource, SqsDataSource
from ..clickhouse.source import ClickHouseDataSource
from ..delta.source import DeltaDataSource
from ..duckdb.source import DuckDbDataSource
from ..ducklake.source import DuckLakeDataSource
from ..fanout.source import FanoutDataSource
from ..files.source import FilesDataSource
from ..http.source import HttpDataSource
from ..hudi.source import HudiDataSource
from ..iceberg.source import IcebergDataSource
from ..kafka.source import KafkaDataSource
from ..lake.source import LakeDataSource
from ..lance.source import LanceDataSource
from ..mysql.source import MySqlDataSource
from ..nats.source import NatsDataSource
from ..paimon.source import PaimonDataSource
from ..plug_ins import BUILT_IN, load, plug_ins
from ..postgres.source import PostgresDataSource
from ..redis.source import RedisDataSource
from ..search.sources import ElasticsearchDataSource, OpenSearchDataSource
from ..sql.source import SqlDataSource
from .arrow_batches import cut_by_rows
from .base_source import QueryDataSource
from .notebook_errors import explain_in_notebooks, leave_to_ipython
from .start_settings import WITHOUT_BOUNDS_CHECKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = get_logger(__name__)

DATA_SOURCES: tuple[type[QueryDataSource], ...] = (
    DeltaDataSource,
    IcebergDataSource,
    HudiDataSource,
    PostgresDataSource,
    MySqlDataSource,
    SqlDataSource,
    ClickHouseDataSource,
    DuckDbDataSource,
    DuckLakeDataSource,
    HttpDataSource,
    KinesisDataSource,
    FirehoseDataSource,
    DynamoDbDataSource,
    SqsDataSource,
    FanoutDataSource,
    OpenSearchDataSource,
    ElasticsearchDataSource,
    NatsDataSource,
    KafkaDataSource,
    RedisDataSource,
    LakeDataSource,
    FilesDataSource,
    LanceDataSource,
    PaimonDataSource,
)


def register(spark: SparkSession, *, tune: bool = True, explain_errors: bool = True) -> None:
    """Register the data sources of Penstock and of installed plug-ins. Once per session is enough; a second
    call changes nothing.

    In local mode this also sets the Python of Spark's workers to the current one, where Penstock is
    installed, unless it is already set: Spark's default is the `python3` on the PATH. On a cluster, Penstock
    must be installed for the Python of the workers.

    Args:
        tune: let Spark limit Arrow batches by rows instead of by size, which makes the hand-over to Python
            about twice as fast (see `arrow_batches`). Values that the session has already set are kept.
        explain_errors: in IPython and notebooks, show the errors of queries as `penstock.explain` does, the
            useful lines first and without the stack of Java; `%tb` shows all of it. A handler that somebody
            else has set with `set_custom_exc` is kept instead. False also takes back an earlier call
    """
    _use_this_python_in_local_mode(spark)
    for data_source in data_sources():
        if not _is_registered(spark, data_source):
            spark.dataSource.register(data_source)
            _registered[_session_id(spark), data_source.name()] = data_source
    if tune:
        cut_by_rows(spark)
    _warn_of_a_shared_server(spark)
    if explain_errors:
        explain_in_notebooks()
    else:
        leave_to_ipython()


_registered: dict[tuple[str, str], type[QueryDataSource]] = {}
"""What this process has registered, by the id of a Spark Connect session ("" without one) and the name."""


def _session_id(spark: SparkSession) -> str:
    return str(getattr(spark, "session_id", ""))


def _is_registered(spark: SparkSession, data_source: type[QueryDataSource]) -> bool:
    """Return True if the session has this class: Spark logs a warning for each one that it replaces."""
    name = data_source.name()
    if _registered.get((_session_id(spark), name)) is not data_source:
        return False
    if _session_id(spark):
        return True
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Exception:  # noqa: BLE001  no part of Spark's interface: then it is registered again
        return False


def is_known(spark: SparkSession, name: str) -> bool:
    """Return False if the session certainly has no data source of this name. One of Spark Connect does not
    tell.
    """
    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Exception:  # noqa: BLE001  no part of Spark's interface
        return True


def data_sources() -> list[type[QueryDataSource]]:
    """Return the data sources of Penstock and of installed plug-ins."""
    return [*DATA_SOURCES, *_other_data_sources()]


def data_source_of(name: str) -> type[QueryDataSource]:
    """Return the data source with this name, such as `penstock.delta`.

    Raises:
        ConfigurationError: there is none.
    """
    known = data_sources()
    for data_source in known:
        if data_source.name() == name:
            return data_source
    raise ConfigurationError(
        f"There is no data source {shown(name)}. Known: {', '.join(one.name() for one in known)}."
    )


def _other_data_sources() -> list[type[QueryDataSource]]:
    """Return those of other packages. One that cannot be loaded is skipped with a warning."""
    found = []
    for entry in plug_ins():
        try:
            if entry.name not in BUILT_IN:
                found.append(load(entry.load().data_source))
        except Exception as error:  # noqa: BLE001  another package's code
            logger.warning("The destination %s (%s) cannot be loaded: %s", entry.name, entry.value, error)
    return found


def _use_this_python_in_local_mode(spark: SparkSession) -> None:
    context = getattr(spark, "_sc", None)  # a Spark Connect session has none
    if context is None or not context.master.startswith("local"):
        return
    asked_for = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not asked_for:
        context.pythonExec = sys.executable


def _warn_of_a_shared_server(spark: SparkSession) -> None:
    """Warn if a Spark Connect server, which may have several users, runs with `START_SETTINGS`."""
    if getattr(spark, "_sc", None) is not None:
        return
    options = (spark.conf.get(f"spark.{process}.extraJavaOptions", "") for process in ("driver", "executor"))
    if any(WITHOUT_BOUNDS_CHECKS in (text or "") for text in options):
        logger.warning(
            "This Spark Connect server runs with %s, which turns off Arrow's bounds checks in the whole JVM, "
            "also for other users' data. Start a shared server without penstock.START_SETTINGS.",
            WITHOUT_BOUNDS_CHECKS,
        )
