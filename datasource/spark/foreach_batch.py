"""Exactly-once writes in a function of `foreachBatch`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...committers.errors import ConfigurationError, shown
from ..options.stream import normalized_location
from .calling_batch import OPTION, CallingBatch
from .registration import data_source_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..query import Query
    from .base_source import QueryDataSource

MODES = ("append", "overwrite")

_TEMPORARY = re.compile(r".*/temporary-[0-9a-f-]{36}")
"""Where Spark keeps the checkpoint of a query that has none, until the query ends."""


class BatchFunction(Protocol):
    """What `foreachBatch` takes."""

    def __call__(self, rows: DataFrame, batch_id: int) -> None: ...


def foreach_batch(
    format: str,  # noqa: A002  as in Spark's own writers
    options: Mapping[str, object] | None = None,
    /,
    *,
    mode: str = "append",
    **more_options: object,
) -> BatchFunction:
    """Return a function that writes DataFrames in a function of `foreachBatch`, exactly once.

        write = penstock.foreach_batch("penstock.delta", path="/lake/counts")
        audit = penstock.foreach_batch("penstock.postgres", {"url": url, "dbtable": "audit"})

        def process(rows, batch_id):
            write(rows.groupBy("kind").count(), batch_id)
            audit(rows.where("amount < 0"), batch_id)

        events.writeStream.foreachBatch(process).option("checkpointLocation", checkpoint).start()

    Each write is committed once per (query, batch, target), as that of a sink: if Spark repeats the batch, a
    target that has it gets nothing. The function may also be given to `foreachBatch` itself. It runs in the
    driver program, in the thread in which Spark calls, and returns when the batch is committed or, with
    `delivery=decoupled`, prepared. It does not work with Spark Connect.

    A target has one write in a batch: rows for it are joined with `unionByName` first. Not guaranteed: that
    a repeated batch has the same rows in a target that does not have it yet, if the function computes others
    then, such as with `rand()` or the clock; that all targets have a batch at the same time; that a target
    gets the batches for which the function does not write.

    Args:
        format: of the data source, such as `penstock.delta`, or of a plug-in
        options: of the data source, by name. Those of the query need not be repeated: its checkpoint and its
            name are known
        mode: `append` adds the rows of the batch, `overwrite` replaces all rows of the table by them, as the
            output mode `complete` does
        more_options: other options

    Raises:
        ConfigurationError: there is no such format or mode. The returned function raises it if it is called
            outside of a function of `foreachBatch`, with another batch id, or twice for one target, and if
            options are wrong. Its other errors are those of a sink. An error must end the query; a restart
            repeats the batch.
    """
    if mode not in MODES:
        raise ConfigurationError(f"foreach_batch(): mode={shown(mode)} must be {' or '.join(MODES)}.")
    given = {**(options or {}), **more_options}
    texts = {name: _text(value) for name, value in given.items() if value is not None}
    return ForeachBatch(data_source_of(format), mode, texts)


def _text(value: object) -> str:
    """Return the value of an option as Spark's writers do."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ForeachBatch:
    """See `foreach_batch`."""

    source: type[QueryDataSource]
    mode: str
    options: Mapping[str, str] = field(repr=False)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        called, found = _calling(rows, batch_id)
        given = {name.lower() for name in self.options}
        missing = {name: text for name, text in found.items() if name.lower() not in given}
        options = {**self.options, **missing}
        if "checkpointlocation" not in {name.lower() for name in options}:
            raise ConfigurationError(_NO_CHECKPOINT)
        _WRITTEN.add(called, _targets(self.source(dict(options)).query()))
        _activate(rows.sparkSession)
        writer = rows.write.format(self.source.name()).mode(self.mode).options(**options)
        writer.option(OPTION, called.encoded()).save()


_NO_CHECKPOINT = (
    "checkpointLocation is missing: this version of Spark does not tell a function of foreachBatch where the "
    "checkpoint of its query is. Nothing was written. Give it as an option of penstock.foreach_batch, the "
    "same as on the stream writer."
)


def _activate(spark: Any) -> None:
    """Let this thread find the data source: Spark looks in the active session, which a thread of the user has
    not.
    """
    with suppress(Exception):  # no part of Spark's interface
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


# The batch that calls ---------------------------------------------------------------------------------------


def _calling(rows: DataFrame, batch_id: int) -> tuple[CallingBatch, dict[str, str]]:
    """Return the batch of the streaming query whose function runs in this thread, and the options that Spark
    passes to a sink but not to a function.

    Raises:
        ConfigurationError: there is none, or it is another batch, or the query's checkpoint is temporary.
    """
    spark = rows.sparkSession
    if getattr(spark, "_sc", None) is None:
        raise ConfigurationError(
            "penstock.foreach_batch does not work with Spark Connect: there the function runs in a process "
            "that Spark does not tell of which query the batch is, so a repeated batch could not be found in "
            "the table. Nothing was written. Write with a sink, .writeStream.format(...), which works with "
            "Spark Connect; or run the query in a program with a classic Spark session."
        )
    context = spark.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    running_id = context.getLocalProperty("streaming.sql.batchId")
    if not query_id or not running_id:
        raise ConfigurationError(
            "A function of penstock.foreach_batch was called outside of a function of foreachBatch, or there "
            "in a thread of your own, which does not know the batch. Nothing was written. Start threads as "
            "pyspark.InheritableThread. To write a DataFrame without a query, use df.write.format(...)."
        )
    if rows.isStreaming:
        raise ConfigurationError(
            "A function of penstock.foreach_batch was called with a streaming DataFrame. Nothing was "
            "written. Give it the DataFrame that Spark passes to the function of foreachBatch, or one made "
            "of it."
        )
    if int(running_id) != batch_id:
        raise ConfigurationError(
            f"A function of penstock.foreach_batch was called with batch id {batch_id}, but Spark runs batch "
            f"{running_id}. Nothing was written. Give it the batch id that Spark passes to the function of "
            "foreachBatch."
        )
    running = _running_query(spark, query_id)
    if running is None:  # the options have to be given
        return CallingBatch(query_id, context.getLocalProperty("spark.jobGroup.id") or "", batch_id), {}
    return CallingBatch(query_id, running.run_id, batch_id), running.options()


@dataclass(frozen=True, slots=True)
class RunningQuery:
    run_id: str
    name: str
    checkpoint: str

    def options(self) -> dict[str, str]:
        """
        Raises:
            ConfigurationError: the query has no checkpoint that outlives it.
        """
        if _TEMPORARY.fullmatch(self.checkpoint):
            raise ConfigurationError(
                "checkpointLocation is missing: Spark keeps a temporary checkpoint for this query, and would "
                "not continue it after a restart. Nothing was written. Set it on the stream writer: "
                '.option("checkpointLocation", ...).'
            )
        return {"checkpointLocation": self.checkpoint, **({"queryName": self.name} if self.name else {})}


def _running_query(spark: Any, query_id: str) -> RunningQuery | None:
    """Return what Spark knows of a running query; None if it does not tell.

    The session of the function is a clone, which does not have the query among its `streams`. All sessions
    share the map in which Spark looks for a query that is started twice.
    """
    try:
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        found = queries.get(spark._jvm.java.util.UUID.fromString(query_id))
        checkpoint = normalized_location(found.resolvedCheckpointRoot())
        return RunningQuery(found.runId().toString(), found.name() or "", checkpoint)
    except Exception:  # noqa: BLE001  no part of Spark's interface
        return None


# One write for each target ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    address: str
    is_template: bool = False
    """The rows say which tables it is."""

    def may_be(self, other: Target) -> bool:
        """Return True if a write to one may be a write to a table of the other."""
        own, others = self._beginning, other._beginning
        return (
            self.address == other.address
            or (other.is_template and own.startswith(others))
            or (self.is_template and others.startswith(own))
        )

    @property
    def _beginning(self) -> str:
        """What the addresses of all its tables begin with, without case, as in some catalogs."""
        return (self.address.partition("{")[0] if self.is_template else self.address).lower()


def _targets(query: Query) -> list[Target]:
    return [Target(sink.table_uri, query.routes is not None) for sink in query.targets.values()]


class Written:
    """The targets of the running batch of each query that its function has written in this process.

    A second write to a target would be taken for a replay of the first, and its rows would be lost. It is
    refused at each start, because a restart does not know which of the two was committed. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: dict[str, tuple[CallingBatch, list[Target]]] = {}

    def add(self, called: CallingBatch, targets: list[Target]) -> None:
        """
        Raises:
            ConfigurationError: the function has written one of the targets already.
        """
        with self._lock:
            batch, written = self._batches.get(called.query_id, (called, []))
            if batch != called:
                written = []
            twice = next(_pairs(targets, written), None)
            if twice is not None:
                raise ConfigurationError(_twice(called, *twice))
            self._batches[called.query_id] = (called, [*written, *targets])


_WRITTEN = Written()


def _pairs(targets: list[Target], written: list[Target]) -> Iterator[tuple[Target, Target]]:
    return ((one, other) for one in targets for other in written if one.may_be(other))


def _twice(called: CallingBatch, target: Target, other: Target) -> str:
    to = target.address if target == other else f"{target.address} (may be a table of {other.address})"
    return (
        f"The function of foreachBatch writes batch {called.batch_id} twice to {to}, or again after a failed "
        "write. Nothing more was written: a target has one write in a batch, and a second one would be taken "
        "for its repetition. Join the rows, write(a.unionByName(b), batch_id), or write to another target. "
        "After a failed write let the function fail: a restart repeats the batch."
    )
