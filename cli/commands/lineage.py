"""`penstock lineage`: from a version of a table to the records of a topic, and back."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...committers.errors import ConfigurationError, shown
from ...datasource.stored.table_access import TableAccess
from . import options
from .common import opened_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...committers.lineage import SourceLineage, TableCommit
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import StreamStatus
    from ...datasource.stored.stored_table import StoredTable


def lineage(
    access: TableAccess,
    table: Annotated[
        str,
        typer.Argument(
            help="The table: path or URL of a Delta table, or CATALOG:NAMESPACE.TABLE of an Iceberg table. "
            "With a store, also the name of the query, or its id.",
            show_default=False,
        ),
    ],
    version: Annotated[
        int | None,
        typer.Argument(help="Version of a Delta table, snapshot id of an Iceberg table.", show_default=False),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="Find the version that has a record of this Kafka topic.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Its partition.")] = None,
    offset: Annotated[int | None, typer.Option("--offset", min=0, help="Its offset.")] = None,
    checkpoint: options.Checkpoint = None,
    store: options.Store = None,
    as_json: options.Json = False,
) -> None:
    """Show which offsets of its sources a version of a table has, or which version has an offset.

    The history of a Delta or Iceberg table is enough. With a store, the command also finds what the store
    keeps and the table does not: batches that are not committed yet, other kinds of tables, and offsets that
    are too long for the history of a table. "Until" is exclusive, as in Kafka.

    Example: `penstock lineage /lake/orders 41`

    Example: `penstock lineage /lake/orders --topic orders --partition 3 --offset 81512`
    """
    from .. import output

    record = _record(topic, partition, offset)
    if (version is None) == (record is None):
        raise ConfigurationError(
            "Give either a version of the table, or --topic, --partition and --offset of one record."
        )
    has_store = bool(checkpoint or store or os.environ.get("PENSTOCK_STORE"))
    opened = opened_store(checkpoint, store, access) if has_store else None
    with nullcontext() if opened is None else closing(opened):
        found = _find(opened, table, access, version, record)
    if as_json:
        output.print_json({"table": table, **_json(found)})
    else:
        _print(table, found, record)


def _record(topic: str | None, partition: int | None, offset: int | None) -> tuple[str, int, int] | None:
    given = (topic, partition, offset)
    if given == (None, None, None):
        return None
    if topic is None or partition is None or offset is None:
        raise ConfigurationError("--topic, --partition and --offset name one record: give all three.")
    return topic, partition, offset


def _find(
    store: SqlManifestStore | None,
    table: str,
    access: TableAccess,
    version: int | None,
    record: tuple[str, int, int] | None,
) -> TableCommit:
    from ...committers.lineage import holds

    best: TableCommit | None = None
    streams = () if store is None else _streams(store, table)
    for stream in streams:
        assert store is not None
        if record is not None:
            found = store.lineage.holding(stream.key, *record)
        else:
            assert version is not None
            found = store.lineage.of_version(stream.key, version)
        if found is not None and found.sources:
            return found
        best = best or found
    seen = 0
    for commit in _commits(streams, table, access, version):
        seen += 1
        if record is None or holds(commit.sources, *record):
            return commit
    if best is None:
        raise ConfigurationError(_not_found(table, version, record, seen))
    return best


def _streams(store: SqlManifestStore, table: str) -> list[StreamStatus]:
    """Return the streams of the table; none if the store does not know the address of a table."""
    from ...committers.store.selection import select

    try:
        return select(store.streams(), table)
    except ConfigurationError:
        if "/" in table or ":" in table:
            return []
        raise


def _commits(
    streams: list[StreamStatus] | tuple[()], table: str, access: TableAccess, version: int | None
) -> Iterator[TableCommit]:
    """Yield what the history of the table has, if its format keeps lineage."""
    from ...datasource.destinations import stored_table
    from ...datasource.stored.stored_table import HasLineage

    tables: dict[str, StoredTable] = {}
    for stream in streams:
        if stream.key.table_uri not in tables:
            tables[stream.key.table_uri] = stored_table(stream, access)
    for opened in tables.values() if streams else (_table(table, access),):
        if isinstance(opened, HasLineage):
            yield from opened.commits(version)


def _table(table: str, access: TableAccess) -> StoredTable:
    """Return the table with this address, without a store."""
    from ...committers.contract import StreamKey
    from ...committers.iceberg.address import IcebergAddress
    from ...datasource.destinations import destination_type
    from ...writers.local_path import local_path

    kind, path = "delta", local_path(table)
    if path is not None and (Path(path) / "_delta_log").is_dir():
        table = path
    elif "://" not in table:
        IcebergAddress.parse(table)
        kind = "iceberg"
    stream = StreamKey("", table)
    return destination_type(stream, kind).stored_table(stream, access)


def _not_found(table: str, version: int | None, record: tuple[str, int, int] | None, seen: int) -> str:
    if record is None:
        what = f"The history of {shown(table)} has no version {version}"
    else:
        topic, partition, offset = record
        what = (
            f"None of the {seen} versions in the history of {shown(table)} has offset {offset} of partition "
            f"{partition} of the topic {shown(topic)}"
        )
    return (
        f"{what}. Check the name. It may have been cleaned up, may have too many partitions for the history "
        "of a table, or may be from before Penstock recorded offsets. With --store or --checkpoint, the "
        "command looks in the store, too."
    )


# Output ---------------------------------------------------------------------------------------------


def _print(table: str, found: TableCommit, record: tuple[str, int, int] | None) -> None:
    from ...committers.texts.safe_text import one_line
    from .. import output

    if record is not None:
        topic, partition, offset = record
        output.print_line(one_line(f"Offset {offset} of partition {partition} of {topic}:"))
    if not found.query_id:
        output.print_line(f"Version {found.version} has no batch of Penstock: {one_line(found.operation)}.")
        return
    where = "Not committed yet" if found.version is None else f"Version {found.version}"
    if found.version is None and found.committed_at is not None:
        where = "Committed in a version that the store does not know"
    at = "" if found.committed_at is None else f", {output.time_text(found.committed_at)}"
    output.print_line(one_line(f"{where} of {table}{at}"))
    output.print_line(one_line(f"Query {found.query_id}, {_batches(found.batch_ids)}"))
    _print_sources(found.sources)


def _batches(batch_ids: tuple[int, ...]) -> str:
    if len(batch_ids) == 1:
        return f"batch {batch_ids[0]}"
    return f"batches {batch_ids[0]} to {batch_ids[-1]} ({len(batch_ids)})"


def _print_sources(sources: tuple[SourceLineage, ...]) -> None:
    from ...committers.texts.safe_text import one_line
    from .. import output

    if not sources:
        output.print_line("Offsets were not recorded.")
    listed = output.table("Source", "Topic", "Partition", "From", "Until", left=("Source", "Topic"))
    for read in sources:
        for one in read.partitions:
            start = "earliest" if one.from_offset is None else str(one.from_offset)
            listed.add_row(
                one_line(read.source), one_line(one.topic), str(one.partition), start, str(one.until_offset)
            )
    if listed.row_count:
        output.console().print(listed)
    for read in sources:
        if read.is_omitted:
            output.print_line(
                f"Source {one_line(read.source)}: too many offsets for the history of a table. Give --store "
                "or --checkpoint: the store has them."
            )
        elif read.end:
            start = read.start or "(the beginning)"
            output.print_line(one_line(f"Source {read.source}: from {start} to {read.end}"))
        elif not read.partitions:
            output.print_line(f"Source {one_line(read.source)}: no records")


def _json(found: TableCommit) -> dict[str, Any]:
    from ...delivery.listeners import version_json
    from ..output import time_text

    return {
        **version_json("version", found.version),
        "committed_at": time_text(found.committed_at),
        "query_id": found.query_id or None,
        "batch_ids": list(found.batch_ids),
        "operation": found.operation or None,
        "sources": [_source_json(one) for one in found.sources],
    }


def _source_json(read: SourceLineage) -> dict[str, Any]:
    if read.is_omitted:
        return {"source": read.source, "is_omitted": True}
    if read.end:
        return {"source": read.source, "start": read.start or None, "end": read.end}
    return {
        "source": read.source,
        "partitions": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "from_offset": one.from_offset,
                "until_offset": one.until_offset,
            }
            for one in read.partitions
        ],
    }
