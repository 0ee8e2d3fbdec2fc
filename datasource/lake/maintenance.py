"""Maintenance of a Delta table and an Iceberg table that share their files. Runs for the Delta stream.

Each step takes care of both tables: new files are for both, and a file that one of them needs is not deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from ...committers.contract import DataFile, StreamKey
from ...committers.delta.compaction import DeltaCompactableTable
from ...committers.delta.maintenance import vacuum
from ...committers.errors import ConfigurationError, shown
from ...committers.file_tables.compaction import RECENT_BATCHES, CompactionPolicy, Rewritten
from ...committers.file_tables.manifest import LakeManifest
from ...committers.file_tables.shared_compaction import SharedCompaction, TableOfPair
from ...committers.iceberg.compaction import IcebergCompactableTable
from ...committers.maintenance import Step
from ...writers.delta.partitions import serialize
from ...writers.lake.table_format import files_of_delta, files_of_iceberg
from ...writers.parquet.compaction import SMALL
from ..iceberg.sink import IcebergSink
from ..options.delivery import TARGET_FILE_BYTES
from .cleanup import PartnerFiles
from .pair import DeltaOfPair, TablePair

if TYPE_CHECKING:
    from ...writers.parquet.write_config import WriteConfig
    from ..sink import MaintenanceContext


def shared_compaction(delta: DeltaOfPair, partner: str, context: MaintenanceContext) -> Step:
    """Return the step that gives both tables the same larger files.

    Args:
        partner: from the property of the Delta table
    """
    compactions: list[SharedCompaction] = []  # opened once: it remembers files that cannot be rewritten

    def compact() -> str:
        if not compactions:
            compactions.append(_compaction(pair_of(delta, partner, context), context))
        return compactions[0].run().summary()

    return Step("compact", context.policy.compact_s, compact)


def shared_vacuum(delta: DeltaOfPair, partner: str, context: MaintenanceContext) -> Callable[[], str]:
    """Return what deletes files that the Delta table has removed and that the Iceberg table does not need.

    Args:
        partner: from the property of the Delta table
    """

    def remove() -> str:
        files = PartnerFiles(partner, context.store, context.access)
        known: set[str] = set()

        def protected() -> Collection[str]:
            known.update(context.pending_names(), *files.names())
            return known

        storage = delta.options.storage_options
        count = vacuum(delta.table_uri, storage, context.now(), protected, protects_partner=True)
        return f"deleted {count:,} files that both tables have removed" if count else ""

    return remove


def pair_of(delta: DeltaOfPair, partner: str, context: MaintenanceContext) -> TablePair:
    """Return the Delta table and the Iceberg table that its property names.

    Raises:
        ConfigurationError: the store does not know the Iceberg table, or options are missing to open it.
    """
    sink = context.sink_of(StreamKey(context.stream.query_id, partner.partition(":")[2]))
    if not isinstance(sink, IcebergSink):
        raise ConfigurationError(
            f"The Delta table {delta.table_uri} shares its files with {shown(partner)}, which the manifest "
            f"store does not know as a table of query {context.stream.query_id}. Neither was compacted."
        )
    return TablePair(delta, sink)


def _compaction(pair: TablePair, context: MaintenanceContext) -> SharedCompaction:
    delta, iceberg, stream = pair.delta, pair.iceberg, context.stream
    of_delta = DeltaCompactableTable(
        delta.table_uri, delta.options.storage_options, stream.query_id, serialize
    )
    of_iceberg = IcebergCompactableTable(iceberg.catalog, iceberg.address, stream.query_id)
    target_file_bytes = delta.options.target_file_bytes or TARGET_FILE_BYTES
    return SharedCompaction(
        stream,
        TableOfPair("Delta", of_delta, files_of_delta),
        TableOfPair("Iceberg", of_iceberg, files_of_iceberg),
        _PairRewriter(pair, context),
        CompactionPolicy(target_file_bytes, small_file_bytes=int(target_file_bytes * SMALL)),
        context.store.compactions,
        recent=lambda: context.store.history(stream, RECENT_BATCHES),
    )


class _PairRewriter:
    """See `PairRewriter`."""

    def __init__(self, pair: TablePair, context: MaintenanceContext) -> None:
        self._pair = pair
        self._rewrite = context.rewriter(self._write_config)
        self._of_iceberg: LakeManifest | None = None

    def __call__(
        self,
        first: LakeManifest,
        second: LakeManifest,
        groups: Sequence[tuple[DataFile, ...]],
        batch_id: int,
    ) -> Sequence[Rewritten]:
        self._of_iceberg = second
        return self._rewrite(first, groups, batch_id)

    def _write_config(self, of_delta: LakeManifest) -> WriteConfig | None:
        assert self._of_iceberg is not None, "set by `__call__`"
        pair = self._pair
        delta = pair.delta.open_shared(pair.name_of_iceberg).rewrite_config(of_delta)
        iceberg = pair.iceberg.open_shared(pair.name_of_delta).rewrite_config(self._of_iceberg)
        return None if delta is None or iceberg is None else pair.write_config(delta, iceberg)
