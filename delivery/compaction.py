"""Compaction: small files become a few, before a table names any of them, or after.

Runs in the delivery process. `DeliveryCompactor` works between the merging of batches and the delivery's
prepare, `TableFileRewriter` for the maintenance of a table.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ..committers.contract import DataFile, Manifest
from ..committers.crash_points import reach
from ..committers.errors import ConfigurationError, PenstockError, RetryableError
from ..committers.file_tables.compaction import Rewritten
from ..committers.file_tables.manifest import LakeManifest, build_manifest, decode
from ..committers.safe_text import get_logger
from ..writers.parquet.compaction import RewriteGroup, choose_groups
from ..writers.parquet.file import Encodings, OpenParquetFile
from ..writers.parquet.write_config import FileNames, WriteConfig
from .rewriting import GroupRewriter

if TYPE_CHECKING:
    from ..datasource.file_table import Compactable

logger = get_logger(__name__)


# Before a table names the files -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliveryCompactor:
    """Compacts the files of a delivery. See `deliverer.Compactor`."""

    table: Compactable
    """The target, from `open_table`."""
    rewrite: GroupRewriter

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        """The manifest with its small files rewritten; None if nothing is worth rewriting.

        Args:
            run_id: unique to this try: it makes the names of the files

        Raises:
            PenstockError: see `GroupRewriter`.
        """
        content = decode(manifest)
        plan = self._plan(manifest, content)
        groups = [] if plan is None else choose_groups(content.files, plan.target_file_bytes)
        if plan is None or not groups:
            return None
        batch = manifest.batch
        names = FileNames(batch.stream.query_id, run_id, batch.batch_id, partition=0, attempt=0)
        reach("compact.start", batch.batch_id)
        new_files = self.rewrite(plan, names, groups)
        reach("compact.done", batch.batch_id)
        return _with_files(manifest, content, groups, new_files)

    def _plan(self, manifest: Manifest, content: LakeManifest) -> WriteConfig | None:
        """None if nothing can be rewritten: that is no reason not to deliver the files as they are."""
        if len(content.files) < 2:
            return None
        try:
            return self.table.rewrite_config(content)
        except ConfigurationError as error:
            uri = manifest.batch.stream.table_uri
            logger.warning("The files of %s are delivered as they are, not compacted: %s", uri, error)
            return None


def _with_files(
    manifest: Manifest,
    content: LakeManifest,
    groups: Sequence[RewriteGroup],
    new_files: Mapping[int, tuple[DataFile, ...]],
) -> Manifest:
    """The same batches and rows, with the new files in the place of the groups' sources."""
    replaced = {source.path for group in groups for source in group.sources}
    kept = [file for file in content.files if file.path not in replaced]
    new = [file for group in groups for file in new_files[group.number]]
    compacted = build_manifest(manifest.batch, content.with_files([*kept, *new]))
    if compacted.rows != manifest.rows:
        raise PenstockError(
            f"Compacting the files of {manifest.batch.stream} made {compacted.rows} rows of {manifest.rows}. "
            "Nothing was committed. This is a bug in Penstock: please report it."
        )
    return replace(compacted, merged=manifest.merged, oldest_event_at=manifest.oldest_event_at)


# Of a table that is there -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableFileRewriter:
    """Rewrites the small files of a table, see `file_tables.compaction.Rewriter`.

    Files with other columns than the table has now, or with the same ones stored otherwise, stay as they are:
    of a time before a column was added, or by another writer.
    """

    query_id: str
    plan_of: Callable[[LakeManifest], WriteConfig | None]
    """How files for exactly this schema and partitioning are written; None if the table takes none."""
    rewrite: GroupRewriter
    stop: Callable[[], bool] = lambda: False
    """True leaves the groups whose files were not looked at yet."""
    new_run_id: Callable[[], str] = lambda: uuid.uuid4().hex
    _unfit: set[str] = field(default_factory=set, init=False, repr=False)
    """Paths of files that were looked at in vain, for the present layout."""
    _layouts: list[str] = field(default_factory=list, init=False, repr=False)

    def __call__(
        self, content: LakeManifest, groups: Sequence[tuple[DataFile, ...]], batch_id: int
    ) -> Sequence[Rewritten]:
        plan = self.plan_of(content)
        if plan is None:
            return ()
        looked_at = takewhile(lambda _: not self.stop(), groups)
        fitting = {number: self._fitting(plan, files) for number, files in enumerate(looked_at)}
        names = FileNames(self.query_id, self.new_run_id(), batch_id, partition=0, attempt=0)
        chosen = [
            RewriteGroup(number, sources[0].partition_values, sources)
            for number, sources in fitting.items()
            if len(sources) > 1
        ]
        return [
            Rewritten(fitting[number], files) for number, files in self.rewrite(plan, names, chosen).items()
        ]

    def _fitting(self, plan: WriteConfig, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """
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
    """The Parquet schema: names, types, nullability and field ids, however deep. Empty: no Parquet file."""
    try:
        with filesystem.open_input_file(path) as content:
            return _in_words(pq.ParquetFile(content).schema)
    except pa.ArrowException:
        return ""
    except OSError as error:
        raise RetryableError(
            f"The data file {path} cannot be read: {error}. Nothing was compacted. Check that the storage is "
            "reachable; it is tried again."
        ) from error


def _layout_of(plan: WriteConfig) -> str:
    """The Parquet schema that the writer gives its files."""
    sink = pa.BufferOutputStream()
    OpenParquetFile(sink, plan.file_schema, plan, Encodings([], [], [], rows=0)).close()
    return _in_words(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)


def _in_words(schema: pq.ParquetSchema) -> str:
    """Without the first line, which has an address."""
    return str(schema).partition("\n")[2]
