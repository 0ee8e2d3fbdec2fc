"""Compaction: rewrite small files into a few large ones.

Runs in the delivery process. `DeliveryCompactor` rewrites the files of a delivery before it is prepared, so
that readers never see the small ones. `TableFileRewriter` rewrites files that the table already contains.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ..committers.cleaning.regular_files import open_input
from ..committers.contract import DataFile, Manifest
from ..committers.crash_points import reach
from ..committers.errors import ConfigurationError, PenstockError, RetryableError
from ..committers.file_tables.compaction import Rewritten
from ..committers.file_tables.manifest import LakeManifest
from ..committers.texts.safe_text import get_logger
from ..writers.parquet.compaction import RewriteGroup, choose_groups
from ..writers.parquet.file import Encodings, OpenParquetFile
from ..writers.parquet.file_names import FileNames
from ..writers.parquet.write_config import WriteConfig
from .rewriting import GroupRewriter

if TYPE_CHECKING:
    from ..datasource.file_table import Compactable, DeliveryFiles

logger = get_logger(__name__)


# Files of a delivery ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliveryCompactor:
    """Compact the files of a delivery. See `deliverer.Compactor`."""

    table: Compactable
    """The target, from `open_table`."""
    rewrite: GroupRewriter

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        """Return the manifest with its small files rewritten; None if there are no files worth rewriting.

        Args:
            run_id: unique to this attempt; part of the file names

        Raises:
            PenstockError: see `GroupRewriter`.
        """
        old = self.table.delivery_files(manifest)
        plan = self._plan(manifest, old) if old.required or len(old.files) > 1 else None
        groups = [] if plan is None else choose_groups(old.files, plan.target_file_bytes, old.required)
        if plan is None or not groups:
            return None
        batch = manifest.batch
        names = FileNames(batch.stream.query_id, run_id, batch.batch_id, partition=0, attempt=0)
        reach("compact.start", batch.batch_id)
        new_files = self.rewrite(plan, names, groups)
        reach("compact.done", batch.batch_id)
        return _with_files(manifest, old, groups, new_files)

    def _plan(self, manifest: Manifest, old: DeliveryFiles) -> WriteConfig | None:
        """Return how to write the new files; None if they stay as they are."""
        try:
            return old.rewrite_config()
        except ConfigurationError as error:
            uri = manifest.batch.stream.table_uri
            logger.warning("The files of %s are delivered without compaction: %s", uri, error)
            return None


def _with_files(
    manifest: Manifest,
    old: DeliveryFiles,
    groups: Sequence[RewriteGroup],
    new_files: Mapping[int, tuple[DataFile, ...]],
) -> Manifest:
    """Return the manifest with the new files in place of the rewritten ones."""
    replaced = {source.path for group in groups for source in group.sources}
    kept = [file for file in old.files if file.path not in replaced]
    new = [file for group in groups for file in new_files[group.number]]
    compacted = old.manifest_with([*kept, *new])
    if compacted.rows != manifest.rows:
        raise PenstockError(
            f"The compacted files of {manifest.batch.stream} have {compacted.rows} rows instead of "
            f"{manifest.rows}. Nothing was committed. This is a bug in Penstock: please report it."
        )
    return compacted.in_place_of(manifest)


# Files of the table -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFileRewriter:
    """Rewrite the small files of a table. See `file_tables.compaction.Rewriter`.

    Files whose Parquet schema differs from the table's current one are skipped: they are older than a new
    column, or written by another writer.
    """

    query_id: str
    plan_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to write files for this schema and partitioning; None if the table refuses them."""
    rewrite: GroupRewriter
    stop: Callable[[], bool] = lambda: False
    """Asked before each group; True ends the rewriting."""
    new_run_id: Callable[[], str] = lambda: uuid.uuid4().hex
    _unfit: set[str] = field(default_factory=set, init=False, repr=False)
    """Paths of files whose schema differs from the current one."""
    _layouts: list[str] = field(default_factory=list, init=False, repr=False)

    def __call__(
        self,
        content: LakeManifest,
        groups: Sequence[tuple[DataFile, ...]],
        batch_id: int,
        deleted: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> Sequence[Rewritten]:
        plan = self.plan_of(content)
        if plan is None:
            return ()
        looked_at = takewhile(lambda _: not self.stop(), groups)
        fitting = {number: self._fitting(plan, files) for number, files in enumerate(looked_at)}
        names = FileNames(self.query_id, self.new_run_id(), batch_id, partition=0, attempt=0)
        chosen = [
            RewriteGroup(number, sources[0].partition_values, sources, rows)
            for number, sources in fitting.items()
            for rows in ({file.path: deleted[file.path] for file in sources if file.path in deleted},)
            if len(sources) > 1 or rows
        ]
        return [
            Rewritten(fitting[number], files) for number, files in self.rewrite(plan, names, chosen).items()
        ]

    def _fitting(self, plan: WriteConfig, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """Return the files that have the schema of the plan.

        Raises:
            RetryableError: a file cannot be read now.
        """
        wanted = _layout_of(plan)
        if self._layouts != [wanted]:
            self._layouts[:] = [wanted]
            self._unfit.clear()
        filesystem, root = plan.table_format.open_filesystem(plan.location, plan.storage_options)
        fitting = []
        for file in files:
            if file.path in self._unfit:
                continue
            if _layout_in(filesystem, posixpath.join(root, file.path)) == wanted:
                fitting.append(file)
            else:
                self._unfit.add(file.path)
        return tuple(fitting)


def _layout_in(filesystem: FileSystem, path: str) -> str:
    """Return the Parquet schema of a file, with nullability and field ids; empty if it is none."""
    try:
        with open_input(filesystem, path) as content:
            return _in_words(pq.ParquetFile(content).schema)
    except pa.ArrowException:
        return ""
    except OSError as error:
        raise RetryableError(
            f"The data file {path} cannot be read: {error}. Nothing was compacted. Check that the storage is "
            "reachable. Penstock will try again."
        ) from error


def _layout_of(plan: WriteConfig) -> str:
    """Return the Parquet schema of the files that the writer makes."""
    sink = pa.BufferOutputStream()
    OpenParquetFile(sink, plan.file_schema, plan, Encodings([], [], [], rows=0)).close()
    return _in_words(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)


def _in_words(schema: pq.ParquetSchema) -> str:
    """Return the schema as text, without its first line, which contains a memory address."""
    return str(schema).partition("\n")[2]
