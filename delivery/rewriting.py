"""Rewrite small data files into a few of the target size: the rewriter, and its executors.

Runs in the delivery process, for the files of a delivery and for those of a table. Until the commit nothing
durable references the new files. If the process dies, they are orphans, which the clean-up finds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ..committers.contract import DataFile
from ..committers.errors import PenstockError, RetryableError
from ..writers.parquet.compaction import RewriteGroup, delete_files, rewrite_group
from ..writers.parquet.compaction_process import RewriteProcess, RewriteResult, try_rewrite
from ..writers.parquet.file_names import FileNames
from ..writers.parquet.write_config import WriteConfig
from .spark_job import given, in_short, returned, run_job

if TYPE_CHECKING:
    from .context import OpenSpark

INLINE_BYTES_MAX = 32 * 1024 * 1024
INLINE_FILES_MAX = 200
"""Up to this size, files are rewritten in the delivery process itself: starting other processes would take
longer,
and little memory is needed."""

PROCESSES_MAX = 4


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """The common settings of all groups of one compaction. Can be pickled, and runs on Spark's executors."""

    plan: WriteConfig
    names: FileNames

    def names_of(self, group: RewriteGroup) -> FileNames:
        return replace(self.names, partition=group.number)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rewrite the groups of one Spark task. Errors are results: Spark would retry a failed task."""
        from pyspark import TaskContext  # the delivery process itself needs no Spark

        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        for group in given(batches):
            names = replace(self.names_of(group), attempt=attempt)
            yield returned((group.number, try_rewrite(self.plan, names, group)))


RewrittenFiles: TypeAlias = "dict[int, tuple[DataFile, ...]]"
"""New files, by the number of the group that they replace."""

Steps: TypeAlias = "Generator[int, None, None]"
Executor: TypeAlias = Callable[[RewriteTask, Sequence[RewriteGroup], RewrittenFiles], Steps]
"""Rewrites groups and records the new files of each. Yields how many groups are done; closing the generator
stops
the work. It returns early if the remaining groups should stay as they are."""

OnProgress: TypeAlias = Callable[[int, int], None]
"""Called with (groups done, number of groups). An exception from it ends the rewriting."""


@dataclass(frozen=True, slots=True)
class GroupRewriter:
    """Rewrite groups of files. After an error the new files are deleted, if the storage answers."""

    execute: Executor
    on_progress: OnProgress = lambda done, groups: None

    def __call__(
        self, plan: WriteConfig, names: FileNames, groups: Sequence[RewriteGroup]
    ) -> Mapping[int, tuple[DataFile, ...]]:
        """Rewrite the groups. Return the new files by group number.

        Args:
            names: names of the new files; the group's number takes the place of the partition

        Raises:
            RetryableError: a file is missing, or the storage cannot be reached.
            PenstockError: a file is not the one that was written.
        """
        done: RewrittenFiles = {}
        try:
            with closing(self.execute(RewriteTask(plan, names), groups, done)) as steps:
                for count in steps:
                    self.on_progress(count, len(groups))
        except BaseException:
            delete_files(plan, [file for files in done.values() for file in files])
            raise
        return done


# Executors ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InlineExecutor:
    """Rewrite one group after the other in this process."""

    stop: Callable[[], bool] = lambda: False
    """Asked before each group; True leaves the remaining groups."""

    def __call__(self, task: RewriteTask, groups: Sequence[RewriteGroup], done: RewrittenFiles) -> Steps:
        for group in groups:
            if self.stop():
                return
            done[group.number] = rewrite_group(task.plan, task.names_of(group), group)
            yield len(done)


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Rewrite on this machine: in a few child processes or, if there is little to do, in this process.

    A process needs at most 450 MB of memory while it sorts, and less if it does not; more if `bufferSize` is
    raised.
    """

    processes: int = min(os.cpu_count() or 1, PROCESSES_MAX)
    """Maximum number of child processes. 0: always in this process."""

    def __call__(self, task: RewriteTask, groups: Sequence[RewriteGroup], done: RewrittenFiles) -> Steps:
        sources = sum(len(group.sources) for group in groups)
        is_little = sources <= INLINE_FILES_MAX and sum(g.size_bytes for g in groups) <= INLINE_BYTES_MAX
        execute = InlineExecutor() if self.processes == 0 or is_little else self._in_processes
        return execute(task, groups, done)

    def _in_processes(self, task: RewriteTask, groups: Sequence[RewriteGroup], done: RewrittenFiles) -> Steps:
        """Each thread waits for one process. After an error the others finish their group: otherwise the
        names of their files would be unknown.
        """
        free: SimpleQueue[RewriteProcess] = SimpleQueue()

        def work(group: RewriteGroup) -> None:
            process = free.get()
            try:
                done[group.number] = process.rewrite(task.plan, task.names_of(group), group)
            finally:
                free.put(process)

        with ExitStack() as stack:
            count = min(self.processes, len(groups))
            for _ in range(count):
                free.put(stack.enter_context(RewriteProcess()))
            threads = ThreadPoolExecutor(count)
            stack.callback(threads.shutdown, cancel_futures=True)
            for number, future in enumerate(as_completed([threads.submit(work, g) for g in groups]), 1):
                future.result()
                yield number


@dataclass(frozen=True, slots=True)
class SparkExecutor:
    """Rewrite as one Spark job, one group of files per task. Works with Spark Connect too.

    If the job fails, the files of its tasks are left to the clean-up.
    """

    open_spark: OpenSpark
    """Returns a session whose executors have Penstock installed."""
    supervised: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of the job, which may take any time: Spark supervises its own tasks."""

    def __call__(self, task: RewriteTask, groups: Sequence[RewriteGroup], done: RewrittenFiles) -> Steps:
        """Rewrite the groups. See `Executor`.

        Raises:
            RetryableError: also if Spark could not run the job.
        """
        with self.supervised():
            outcomes = self._run(task, groups)
        done.update((number, files) for number, files in outcomes if not isinstance(files, PenstockError))
        for _, error in outcomes:
            if isinstance(error, PenstockError):
                raise error
        yield len(done)

    def _run(self, task: RewriteTask, groups: Sequence[RewriteGroup]) -> list[tuple[int, RewriteResult]]:
        try:
            return run_job(self.open_spark, task, groups)
        except Exception as error:
            raise RetryableError(
                f"Spark could not compact the files of {task.names}: {in_short(error)}. Nothing was "
                "committed. Penstock will try again. See the job in Spark's UI. If the session's driver has "
                "died, restart it, or set compactWith=local."
            ) from error
