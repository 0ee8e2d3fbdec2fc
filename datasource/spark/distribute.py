"""Distribute rows by the partitions of a table, so that each batch writes as few files as possible.

A Python sink cannot request this from Spark: every task writes a file for each table partition of which it
has rows, so up to tasks times partitions. If the rows of a partition are in one task, it is one file for each
partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...committers.contract import PartitionField
from ...committers.errors import ConfigurationError
from ...committers.iceberg.terms import parse_partition_spec
from .partition_terms import partition_term, quoted, salt_term

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def distribute(
    rows: DataFrame,
    by: str | Sequence[str] | None = None,
    *,
    format: str | None = None,  # noqa: A002  as in Spark's own writers
    options: Mapping[str, str] | None = None,
    partitions: int | None = None,
    files_per_partition: int = 1,
) -> DataFrame:
    """Repartition a streaming or batch DataFrame by a table's partitions. Works with Spark Connect.

    Give either `by`, or the `format` and `options` of the sink. With the latter, this call reads the
    partitioning of the table, or of the options if the table does not exist yet. The rows of one table
    partition go to one task. So a batch writes one data file for each table partition, or more if they grow
    beyond `targetFileSize`. Rows of a batch DataFrame are also sorted by partition within each task, so one
    file is open at a time. Spark cannot sort streams: their tasks keep up to `maxOpenPartitions` files open.

        rows = penstock.distribute(rows, "day(ts), bucket(16, id)", partitions=4)
        rows = penstock.distribute(rows, format="penstock.delta", options={"path": "/lake/flights"})

    Args:
        by: columns, or a partitioning as in the option `partitionSpec`
        partitions: number of tasks that write; default `spark.sql.shuffle.partitions`, too many for small
            batches
        files_per_partition: maximum number of tasks for the rows of one table partition, if one is too slow

    Raises:
        ConfigurationError: the arguments are not a partitioning of these rows.
    """
    if (by is None) == (format is None):
        raise ConfigurationError("distribute() takes either `by`, or `format` and its options.")
    for name, count in (("partitions", partitions), ("files_per_partition", files_per_partition)):
        if count is not None and count < 1:
            raise ConfigurationError(f"distribute(): {name}={count} must be at least 1.")
    fields = _explicit(by) if format is None else _of_table(format, options or {})
    terms = list(_terms(rows, fields))
    if not terms:  # all rows belong to one partition
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
    """Return the partitioning of the table, or the one with which it would be created."""
    from ..sink import Partitioned
    from .registration import data_sources

    for data_source in data_sources():
        if data_source.name() == format:
            for sink in data_source(dict(options)).query().targets.values():
                if isinstance(sink, Partitioned):
                    return sink.partitioning()
    raise ConfigurationError(
        f"distribute() does not know the partitioning of tables of the format {format!r}. Give the columns "
        "with `by`."
    )
