"""What Spark calls to read a stream of a table's rows. Runs on the driver, in one process for each run of a
query; `read` on executors.

The offsets in Spark's checkpoint are all that lasts: see `readers.streaming.plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from ...readers.scan import ScanFile
from ...readers.streaming.plan import Limits, StreamPlan
from ...readers.streaming.positions import INITIAL, Offset, is_initial
from ...readers.table import StreamScanner, TableScan
from ..spark.worker_errors import message_first
from .formats import stream_options
from .options import OpensStream, ReadOptions
from .spark_schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StreamSource:
    """The table that a stream reads, opened once for each run of the query."""

    options: OpensStream
    table: TableScan
    plan: StreamPlan[Any]
    scan: StreamScanner

    @classmethod
    def open(cls, name: str, options: Mapping[str, str], schema: StructType) -> StreamSource:
        parsed = stream_options(name, options)
        table = TableScan.of(parsed.open(), schema.names, parsed.where)
        check_schema(table, schema)
        history = parsed.history(table)
        plan = StreamPlan(history, parsed.start, parsed.skips, lambda: datetime.now(timezone.utc))
        scan = cast("StreamScanner", table.scan(arrow_schema(schema)))
        scan = scan.named(f"{history.name[0].lower()}{history.name[1:]}")
        return cls(parsed, table, plan, scan.in_a_task())


@dataclass
class StreamPartition(InputPartition):
    """What one task reads."""

    scan: StreamScanner
    files: Sequence[ScanFile]


class TableStreamReader(DataSourceStreamReader):
    """Reads the rows of a table and those that commits add, for Spark 4.0 and 4.1.

    Spark asks for the end of a batch and does not say where it begins. It does so before: with the offsets of
    the last batch if a query goes on, and with those of each batch that it plans. If it did neither, the
    query is new.
    """

    def __init__(self, name: str, options: Mapping[str, str], schema: StructType) -> None:
        self._name = name
        self._options = dict(options)
        self._schema = schema
        self._planned: Offset | None = None

    @cached_property
    def _source(self) -> StreamSource:
        return StreamSource.open(self._name, self._options, self._schema)

    def initialOffset(self) -> dict[str, Any]:
        return dict(INITIAL)

    @message_first()
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return self._end(self._planned, self._source.options.limits)

    def _end(self, start: Offset | None, limits: Limits) -> dict[str, Any]:
        return self._source.plan.end_of_batch(start, limits).to_dict()

    @message_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the files of each task."""
        if is_initial(end):
            return []
        begin, until = offset_of(start), Offset.of(end)
        self._planned = until
        if begin == until:
            return []
        source, options = self._source, self._source.options
        assert isinstance(options, ReadOptions)
        files = source.plan.files(begin, until)
        return [StreamPartition(source.scan, part) for part in options.split(files)]

    @message_first()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor: return the rows of a partition."""
        assert isinstance(partition, StreamPartition)
        return self._rows(partition)

    def _rows(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        with message_first():
            yield from partition.scan.read(partition.files)

    def __getstate__(self) -> dict[str, object]:
        """Executors get all that they need with each partition, and nothing of the options."""
        return {}


def offset_of(content: Mapping[str, Any]) -> Offset | None:
    """Return the offset; None before the first batch.

    Raises:
        ConfigurationError: another source or a newer version of Penstock has written it.
    """
    return None if is_initial(content) else Offset.of(content)
