"""Compaction before visibility: the small files of a delivery become a few before the table names any.

Runs in the delivery process, between the merging of batches and the delivery's prepare. Nothing durable names
the new files until then: those of a process that dies are orphans, which clean-up finds.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ..committers.contract import DataFile, Manifest
from ..committers.crash_points import reach
from ..committers.errors import ConfigurationError, PenstockError, RetryableError
from ..committers.file_tables.manifest import LakeManifest, build_manifest, decode
from ..committers.safe_text import get_logger
from ..writers.parquet.compaction import RewriteGroup, choose_groups, delete_files, rewrite_group
from ..writers.parquet.compaction_process import Outcome, RewriteProcess, try_rewrite
from ..writers.parquet.plan import FileNames, WritePlan

if TYPE_CHECKING:
    from ..datasource.file_table import Compactable
    from .turns import OpenSpark

logger = get_logger(__name__)

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with (groups done, groups in all). What it raises ends the compaction, and deletes what was made."""

NewFiles: TypeAlias = Mapping[int, "tuple[DataFile, ...]"]
"""By the number of the group that they take the place of."""

_Rewrite: TypeAlias = Callable[[WritePlan, Sequence[RewriteGroup], FileNames], NewFiles]

HERE_BYTES_MAX = 32 * 1024 * 1024
HERE_FILES_MAX = 200
"""Up to so much is rewritten in the delivery process itself: starting others takes longer, and it is little
memory."""

PROCESSES_MAX = 4

TASKS_MAX = 10_000
"""Of one Spark job."""


class LocalCompactor:
    """Compacts on this machine, in a few processes of its own. See `deliverer.Compactor`.

    Memory: a process takes 450 MB at most while it sorts, less if it does not; more if `bufferBytes` is
    raised.

    Args:
        table: the target, from `open_table`
        processes: at a time; by default as many as there are processors, four at most. 0: in this process
        on_progress: see `OnProgress`
    """

    def __init__(
        self,
        table: Compactable,
        *,
        processes: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._table = table
        self._processes = min(os.cpu_count() or 1, PROCESSES_MAX) if processes is None else processes
        self._on_progress = on_progress or _no_progress

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        """The manifest with its small files rewritten; None if nothing is worth rewriting.

        Args:
            run_id: unique to this try: it makes the names of the files

        Raises:
            RetryableError: a file is gone, or the storage cannot be reached. The new files were deleted.
            PenstockError: a file is not what was written. The new files were deleted.
        """
        return _compact(self._table, manifest, run_id, self._rewrite)

    def _rewrite(self, plan: WritePlan, groups: Sequence[RewriteGroup], names: FileNames) -> NewFiles:
        sources = sum(len(group.sources) for group in groups)
        is_little = sources <= HERE_FILES_MAX and sum(g.size_bytes for g in groups) <= HERE_BYTES_MAX
        if self._processes == 0 or is_little:
            return self._here(plan, groups, names)
        return self._in_processes(plan, groups, names)

    def _here(self, plan: WritePlan, groups: Sequence[RewriteGroup], names: FileNames) -> NewFiles:
        done: dict[int, tuple[DataFile, ...]] = {}
        with _taken_back_on_error(plan, done):
            for group in groups:
                done[group.number] = rewrite_group(plan, _of_group(names, group), group)
                self._on_progress(len(done), len(groups))
        return done

    def _in_processes(self, plan: WritePlan, groups: Sequence[RewriteGroup], names: FileNames) -> NewFiles:
        """Each thread waits for one process. After an error those that are at work finish their group, or
        nobody would know the names of their files.
        """
        done: dict[int, tuple[DataFile, ...]] = {}
        count = min(self._processes, len(groups))
        free: SimpleQueue[RewriteProcess] = SimpleQueue()

        def work(group: RewriteGroup) -> None:
            process = free.get()
            try:
                done[group.number] = process.rewrite(plan, _of_group(names, group), group)
            finally:
                free.put(process)

        with _taken_back_on_error(plan, done), ExitStack() as stack:
            for _ in range(count):
                free.put(stack.enter_context(RewriteProcess()))
            threads = ThreadPoolExecutor(count)
            stack.callback(threads.shutdown, cancel_futures=True)
            for number, future in enumerate(as_completed([threads.submit(work, g) for g in groups]), 1):
                future.result()
                self._on_progress(number, len(groups))
        return done


class SparkCompactor:
    """Compacts as one Spark job, a group of files per task. Works with Spark Connect too.

    When the job itself fails, what its tasks have made so far is left to clean-up.

    Args:
        table: the target, from `open_table`
        open_spark: gives a session whose executors have Penstock; called when there is something to rewrite
        on_progress: see `OnProgress`; called once, after the job
    """

    def __init__(
        self,
        table: Compactable,
        open_spark: OpenSpark,
        *,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._table = table
        self._open_spark = open_spark
        self._on_progress = on_progress or _no_progress

    def __call__(self, manifest: Manifest, run_id: str) -> Manifest | None:
        """See `LocalCompactor`.

        Raises:
            RetryableError: also when Spark could not run the job.
        """
        return _compact(self._table, manifest, run_id, self._rewrite)

    def _rewrite(self, plan: WritePlan, groups: Sequence[RewriteGroup], names: FileNames) -> NewFiles:
        outcomes = self._run(_SparkTask(plan, names), groups)
        done = {number: outcome for number, outcome in outcomes if not isinstance(outcome, PenstockError)}
        with _taken_back_on_error(plan, done):
            errors = [outcome for _, outcome in outcomes if isinstance(outcome, PenstockError)]
            if errors:
                raise errors[0]
            self._on_progress(len(done), len(groups))
        return done

    def _run(self, task: _SparkTask, groups: Sequence[RewriteGroup]) -> list[tuple[int, Outcome]]:
        """From one partition the groups are dealt out in turn, so that no task gets several by chance."""
        tasks = min(len(groups), TASKS_MAX)
        try:
            spark = self._open_spark()
            given = spark.createDataFrame([(pickle.dumps(group),) for group in groups], "data binary")
            done = given.coalesce(1).repartition(tasks).mapInArrow(task, "data binary").collect()
        except Exception as error:
            raise RetryableError(
                f"Spark could not compact the files of {task.names}: {_first_line(error)}. Nothing was "
                "committed; it is tried again. See the job in Spark's UI; if the session has died with its "
                "driver, start that again; or set compactWith=local."
            ) from error
        return [pickle.loads(row["data"]) for row in done]  # noqa: S301  from our own tasks


@dataclass(frozen=True, slots=True)
class _SparkTask:
    """Runs on executors. Errors are outcomes there: Spark would try a task anew that cannot succeed."""

    plan: WritePlan
    names: FileNames

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # the delivery process itself needs no Spark

        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        for batch in batches:
            for pickled in batch.column(0).to_pylist():
                group: RewriteGroup = pickle.loads(pickled)  # noqa: S301  from our own driver
                names = replace(_of_group(self.names, group), attempt=attempt)
                outcome = (group.number, try_rewrite(self.plan, names, group))
                yield pa.record_batch([pa.array([pickle.dumps(outcome)], pa.binary())], ["data"])


def _compact(table: Compactable, manifest: Manifest, run_id: str, rewrite: _Rewrite) -> Manifest | None:
    content = decode(manifest)
    plan = _plan(table, manifest, content)
    groups = [] if plan is None else choose_groups(content.files, plan.target_file_bytes)
    if plan is None or not groups:
        return None
    batch = manifest.batch
    names = FileNames(batch.stream.query_id, run_id, batch.batch_id, partition=0, attempt=0)
    reach("compact.start", batch.batch_id)
    new_files = rewrite(plan, groups, names)
    reach("compact.done", batch.batch_id)
    return _with_files(manifest, content, groups, new_files)


def _plan(table: Compactable, manifest: Manifest, content: LakeManifest) -> WritePlan | None:
    """None if nothing can be rewritten: that is no reason not to deliver the files as they are."""
    if len(content.files) < 2:
        return None
    try:
        return table.rewrite_plan(content)
    except ConfigurationError as error:
        uri = manifest.batch.stream.table_uri
        logger.warning("The files of %s are delivered as they are, not compacted: %s", uri, error)
        return None


def _with_files(
    manifest: Manifest, content: LakeManifest, groups: Sequence[RewriteGroup], new_files: NewFiles
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


@contextmanager
def _taken_back_on_error(plan: WritePlan, done: NewFiles) -> Iterator[None]:
    try:
        yield
    except BaseException:
        delete_files(plan, [file for files in done.values() for file in files])
        raise


def _of_group(names: FileNames, group: RewriteGroup) -> FileNames:
    return replace(names, partition=group.number)


def _no_progress(done: int, groups: int) -> None:
    pass


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
