"""The query of `penstock.lake`: one write into a Delta table and an Iceberg table of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...committers.contract import PlannedBatch, TaskWriterFactory
from ...committers.errors import ConfigurationError
from ...writers.bad_rows import with_bad_rows
from ...writers.changes.change_files import ChangeFilesConfig
from ...writers.delta.filesystem import open_filesystem
from ...writers.parquet.write_config import WriteConfig
from ...writers.parts import PartWriters
from ..delta.options import DeltaOptions
from ..delta.sink import DeltaSink
from ..iceberg.options import IcebergOptions
from ..iceberg.sink import IcebergSink
from ..options.parsing import check
from ..query import PartOf, Query
from ..sink import Sink
from .options import NAME, LakeOptions
from .pair import TablePair
from .sink import LakeDeltaSink, LakeIcebergSink


def lake_query(given: Mapping[str, str]) -> Query:
    """Make the sinks of both tables from the options that Spark passes.

    Raises:
        ConfigurationError: lists all problems of both.
    """
    options = LakeOptions.parse(given)
    problems: list[str] = []
    try:
        delta = DeltaSink(DeltaOptions.parse(options.of_delta(given)))
    except ConfigurationError as error:
        problems.append(f"Target delta: {error}")
    try:
        iceberg = IcebergSink(IcebergOptions.parse(options.of_iceberg(given)))
    except ConfigurationError as error:
        problems.append(f"Target iceberg: {error}")
    check(NAME, problems)
    if set(delta.table_uri) & set("%?#\n"):
        problems.append(
            f"path {delta.table_uri!r} has a '%', '?', '#' or line break, which readers of Iceberg "
            "tables interpret as parts of a URL. Use another path."
        )
    if "://" in delta.table_uri and iceberg.catalog.is_embedded:
        problems.append(
            "path is in an object store, which the embedded catalog in warehouse cannot open. Give "
            "catalog or catalog.*, with the catalog.s3.* that it needs."
        )
    check(NAME, problems)
    pair = TablePair(delta, iceberg)
    sinks: dict[str, Any] = {
        # first, because Iceberg is the stricter one about names, and no Delta table is left over then
        "iceberg": LakeIcebergSink(iceberg.options, pair=pair),
        "delta": LakeDeltaSink(delta.options, pair=pair),
    }
    storage = dict(options.storage_options)
    return Query(
        options,
        f"lake:{','.join(sinks)}",
        sinks,
        lambda location: open_filesystem(location, storage),
        SharedFiles(pair),
    )


@dataclass(frozen=True, slots=True)
class SharedFiles:
    """The files are written once for both tables, also if one of them has the batch already."""

    pair: TablePair

    def of(
        self,
        planned: Mapping[str, PlannedBatch[Any, Any]],
        targets: Mapping[str, Sink[Any, Any]],
        writers_of: Callable[[str], TaskWriterFactory[Any]],
    ) -> tuple[tuple[PartWriters, ...], PartOf]:
        """See `Parts`."""
        delta, iceberg = (
            planned[name].writers if name in planned else writers_of(name) for name in ("delta", "iceberg")
        )
        of_delta, of_iceberg = (
            writers.data if isinstance(writers, ChangeFilesConfig) else writers
            for writers in (delta, iceberg)
        )
        assert isinstance(of_delta, WriteConfig), "the plan of a file table"
        assert isinstance(of_iceberg, WriteConfig), "the plan of a file table"
        files = self.pair.write_config(of_delta, of_iceberg)
        joined: TaskWriterFactory[Any] = files
        if isinstance(delta, ChangeFilesConfig):
            joined = replace(delta, data=files, may_keep=False)
        bad_rows = targets["delta"].options.bad_rows  # a bad row of one table is one of both
        part = PartWriters(", ".join(planned), with_bad_rows(joined, bad_rows))
        return (part,), dict.fromkeys(planned, 0)
