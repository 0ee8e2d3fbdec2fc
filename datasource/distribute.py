"""Distribute rows by the partitions of a table, so that each batch writes as few files as it can.

Spark gives Python sinks no way to ask for that: every task writes a file for each table partition that it has
rows of, tasks times partitions in all. Brought together before the write, it is one file for each partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..committers.contract import PartitionField
from ..committers.errors import ConfigurationError
from ..committers.iceberg.terms import parse_partition_spec
from .partition_terms import partition_term, quoted, salt_term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def distribute(
    rows: DataFrame,
    by: str | Sequence[str] | None = None,
    *,
    format: str | None = None,  # noqa: A002 - as in Spark's own writers
    options: Mapping[str, str] | None = None,
    partitions: int | None = None,
    files_per_partition: int = 1,
) -> DataFrame:
    """Repartition a streaming or batch DataFrame by a table's partitions. Works with Spark Connect.

    Give either `by`, or `format` and `options` as for the sink: then the table is looked at where this is
    called, and one that is not there yet counts as partitioned as the options say. The rows of one table
    partition come together in one task, so a batch writes one data file for each table partition (more only
    if they grow beyond `targetFileSize`). Rows of a batch DataFrame are also sorted by the partitions within
    each task, so that one file is open at a time; Spark sorts no streams, whose tasks keep up to
    `maxOpenPartitions` files open.

        rows = penstock.distribute(rows, "day(ts), bucket(16, id)", partitions=4)
        rows = penstock.distribute(rows, format="penstock.delta", options={"path": "/lake/flights"})

    Args:
        by: columns, or a partitioning as in the option `partitionSpec`
        partitions: tasks that write; default: `spark.sql.shuffle.partitions`, far too many for small batches
        files_per_partition: tasks that share the rows of one table partition at most, where one is too slow

    Raises:
        ConfigurationError: what is given does not make a partitioning of these rows.
    """
    if (by is None) == (format is None):
        raise ConfigurationError("distribute() takes either `by`, or `format` with `options`.")
    for name, count in (("partitions", partitions), ("files_per_partition", files_per_partition)):
        if count is not None and count < 1:
            raise ConfigurationError(f"distribute(): {name}={count} must be at least 1.")
    fields = _explicit(by) if format is None else _of_table(format, options or {})
    terms = list(_terms(rows, fields))
    if not terms:  # all rows are of one partition
        return rows.repartition(min(files_per_partition, partitions or files_per_partition))
    salt = [salt_term(rows, files_per_partition)] if files_per_partition > 1 else []
    keys = [*terms, *salt]
    spread = rows.repartition(*keys) if partitions is None else rows.repartition(partitions, *keys)
    return spread if rows.isStreaming else spread.sortWithinPartitions(*terms)


def _terms(rows: DataFrame, fields: Sequence[PartitionField]) -> Iterator[Column]:
    for field in fields:
        if field.transform != "void":
            yield partition_term(field, rows.select(quoted(field.column)).schema[0].dataType)


def _explicit(by: str | Sequence[str] | None) -> tuple[PartitionField, ...]:
    if isinstance(by, str):
        return parse_partition_spec(by)
    return tuple([PartitionField(name, (name,), "identity") for name in by or ()])


def _of_table(format: str, options: Mapping[str, str]) -> tuple[PartitionField, ...]:  # noqa: A002
    """The partitioning of the table, or the one that it would be created with."""
    from .registration import data_sources
    from .sink import Partitioned

    for data_source in data_sources():
        if data_source.name() == format:
            sink = data_source(dict(options)).sink()
            if isinstance(sink, Partitioned):
                return sink.partitioning()
    raise ConfigurationError(
        f"distribute() does not know how tables of the format {format!r} are partitioned. Say it with `by`."
    )
