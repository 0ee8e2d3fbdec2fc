"""The small files of a table that is there, rewritten in this process."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ..committers.contract import DataFile
from ..committers.errors import RetryableError
from ..committers.file_tables.compaction import Rewritten
from ..committers.file_tables.manifest import LakeManifest
from ..writers.parquet.compaction import RewriteGroup, delete_files, rewrite_group
from ..writers.parquet.file import Encodings, OpenParquetFile
from ..writers.parquet.plan import FileNames, WritePlan

PlanOf = Callable[[LakeManifest], "WritePlan | None"]
"""How files for exactly this schema and partitioning are written; None if the table takes them no longer."""


@dataclass(frozen=True, slots=True)
class VisibleRewriter:
    """Rewrites groups one after the other, see `compaction.Rewriter`. Runs in the delivery process.

    Files with other columns than the table has now, or with the same ones stored otherwise, stay as they are:
    of a time before a column was added, or by another writer.
    """

    query_id: str
    plan_of: PlanOf
    rewrite: Callable[[WritePlan, FileNames, RewriteGroup], tuple[DataFile, ...]] = rewrite_group
    new_run_id: Callable[[], str] = lambda: uuid.uuid4().hex
    stop: Callable[[], bool] = lambda: False
    """True leaves the groups that are not rewritten yet."""
    _unfit: set[str] = field(default_factory=set, init=False, repr=False)
    """Paths of files that were looked at in vain, for the present layout."""
    _layouts: list[str] = field(default_factory=list, init=False, repr=False)

    def __call__(
        self, content: LakeManifest, groups: Sequence[tuple[DataFile, ...]], batch_id: int
    ) -> Sequence[Rewritten]:
        plan = self.plan_of(content)
        if plan is None:
            return ()
        run_id = self.new_run_id()
        done: list[Rewritten] = []
        try:
            for number, files in enumerate(groups):
                if self.stop():
                    break
                sources = self._fitting(plan, files)
                if len(sources) > 1:
                    names = FileNames(self.query_id, run_id, batch_id, number, 0)
                    group = RewriteGroup(number, sources[0].partition_values, sources)
                    done.append(Rewritten(sources, self.rewrite(plan, names, group)))
        except Exception:
            delete_files(plan, [file for one in done for file in one.files])
            raise
        return done

    def _fitting(self, plan: WritePlan, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
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


def _layout_of(plan: WritePlan) -> str:
    """The Parquet schema that the writer gives its files."""
    sink = pa.BufferOutputStream()
    OpenParquetFile(sink, plan.file_schema, plan, Encodings([], [], [], rows=0)).close()
    return _in_words(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema)


def _in_words(schema: pq.ParquetSchema) -> str:
    """Without the first line, which has an address."""
    return str(schema).partition("\n")[2]
