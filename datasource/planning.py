"""Plan one batch: everything that is checked or decided before any data moves. Driver only."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..committers.contract import Batch, StreamKey
from ..committers.delta.committer import DeltaTableCommitter
from ..committers.delta.manifest import KIND
from ..committers.delta.schema import DeltaTarget
from ..committers.errors import ConfigurationError
from ..committers.store.sql import SqlManifestStore, open_store, sqlite_url
from ..committers.two_phase import Decision, Retry, TwoPhaseCommitter
from ..writers.filesystem import local_path, open_filesystem
from ..writers.partitions import check_partition_columns
from ..writers.plan import WritePlan
from .batch_plan import BatchPlan
from .checkpoint import STORE_FILE, Checkpoint
from .options import DeltaOptions
from .types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def plan_stream_batch(options: DeltaOptions, schema: StructType, overwrite: bool) -> BatchPlan:
    """Recover what is pending, decide whether to write the running batch, and say how.

    Raises:
        PenstockError: see its subclasses; no data has moved.
    """
    rows = arrow_schema(schema)
    running = open_checkpoint(options).running_batch()
    stream = StreamKey(running.query_id, table_uri(options.path))
    batch = Batch(stream, running.batch_id, running.digest)
    table = DeltaTableCommitter(stream.table_uri, options.storage_options)
    with open_store(store_url(options)) as store:
        _check_same_table(store, table, stream)
        if TwoPhaseCommitter(store, table, retry(options)).begin(batch) is Decision.SKIP:
            return BatchPlan(batch)
        target = _plan_table(table, options, rows, overwrite, batch.batch_id)
        store.register(stream, KIND, query_name=options.query_name, table_id=target.table_id)
    return _batch_plan(batch, options, target, overwrite)


def plan_batch_write(options: DeltaOptions, schema: StructType, overwrite: bool) -> BatchPlan:
    """Plan a batch write: a stream of one batch, under an id that no other write has."""
    rows = arrow_schema(schema)
    write_id = str(uuid.uuid4())
    batch = Batch(StreamKey(write_id, table_uri(options.path)), 0, uuid.UUID(write_id).hex)
    table = DeltaTableCommitter(batch.stream.table_uri, options.storage_options)
    target = _plan_table(table, options, rows, overwrite, batch.batch_id)
    return _batch_plan(batch, options, target, overwrite, write_id)


def _plan_table(
    table: DeltaTableCommitter, options: DeltaOptions, rows: pa.Schema, overwrite: bool, batch_id: int
) -> DeltaTarget:
    partition_by = _as_spelt(options.partition_by, rows)
    check_partition_columns(rows, partition_by or ())
    target = table.plan(
        rows,
        partition_by=partition_by,
        create=options.create_table,
        properties=options.table_properties,
        evolve=options.add_columns,
        overwrite=overwrite,
        batch_id=batch_id,
    )
    check_partition_columns(target.schema, target.partition_by)
    return target


def _as_spelt(names: Sequence[str] | None, rows: pa.Schema) -> tuple[str, ...] | None:
    """Column names as the query spells them: Spark compares names without case."""
    if names is None:
        return None
    spelt = {name.lower(): name for name in rows.names}
    return tuple(spelt.get(name.lower(), name) for name in names)


def _check_same_table(store: SqlManifestStore, table: DeltaTableCommitter, stream: StreamKey) -> None:
    """The table must be the one that the stream's committed batches went into."""
    written = store.written_table(stream)
    if written is not None:
        table.check_unchanged(written.table_id, written.table_version)


def _batch_plan(
    batch: Batch, options: DeltaOptions, target: DeltaTarget, overwrite: bool, run_id: str = ""
) -> BatchPlan:
    files = WritePlan(
        table_uri=batch.stream.table_uri,
        storage_options=dict(options.storage_options),
        schema=target.schema,
        partition_by=target.partition_by,
        target_file_bytes=options.target_file_bytes,
        row_group_rows=options.row_group_rows,
        compression=options.compression,
        max_open_partitions=options.max_open_partitions,
        buffer_bytes_max=options.buffer_bytes_max,
        sort_within=_as_spelt(options.sort_within, target.schema) or (),
        statistics_columns=target.statistics_columns,
        statistics_columns_max=target.statistics_columns_max,
    )
    return BatchPlan(batch, files, target.content((), "overwrite" if overwrite else "append"), run_id)


def retry(options: DeltaOptions) -> Retry:
    return Retry(attempts_max=options.commit_attempts_max)


def table_uri(path: str) -> str:
    """One spelling for one table: absolute without a scheme on the local disk, no trailing slash."""
    local = local_path(path)
    if local is not None:
        return posixpath.normpath(local)
    return path.replace("s3a://", "s3://", 1).rstrip("/")


def open_checkpoint(options: DeltaOptions) -> Checkpoint:
    """The query's checkpoint; a remote one is read with the options given as `storage.*`."""
    location = options.checkpoint_location
    if location is None:
        raise ConfigurationError(
            "checkpointLocation is not among the options of the stream writer. Spark does not show the "
            "configuration spark.sql.streaming.checkpointLocation or a temporary checkpoint to Python sinks; "
            "without the checkpoint a replayed batch cannot be told from a new one: give "
            '.option("checkpointLocation", ...).'
        )
    filesystem, root = open_filesystem(location, dict(options.storage_options))
    return Checkpoint(filesystem, root, location)


def store_url(options: DeltaOptions) -> str:
    """Where the manifests are; by default they live and die with the checkpoint."""
    if options.store is not None:
        return options.store
    directory = local_path(options.checkpoint_location or "")
    if directory is None:
        raise ConfigurationError(
            f"checkpointLocation {options.checkpoint_location!r} is not on a local disk, where the default "
            "store could be. Name a database that every driver of this query can reach: "
            '.option("store", "postgresql+psycopg://user@host/database").'
        )
    return sqlite_url(posixpath.join(directory, STORE_FILE))
