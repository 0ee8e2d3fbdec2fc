"""Search of large tables for the rows that changes replace, as a Spark job.

Runs in the delivery process, in the commit of a batch of a query with `compactWith=spark`. The executors read
the key columns of the files, and return the numbers of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ..committers.changes.file_search import FileSearch, FoundRows, SearchedFile, search_here
from ..committers.changes.key_files import OpenFile
from ..committers.errors import PenstockError, RetryableError
from ..committers.file_tables.files import MissingFileError
from ..committers.file_tables.manifest import LakeManifest
from ..writers.changes.rewriting import open_data_file
from ..writers.parquet.write_config import WriteConfig
from .spark_job import given, in_short, returned, run_job

if TYPE_CHECKING:
    from .context import OpenSpark

HERE_BYTES_MAX = 4 * 1024**3
HERE_FILES_MAX = 1_000
"""Up to this size, files are searched in the delivery process: with two cores that takes about ten seconds,
for as many files in an object store too. A Spark job takes a second or two, and as long as that if executors
have to start first.
"""

TASK_BYTES = 512 * 1024**2
TASK_FILES_MAX = 25
"""Size of a task, which then takes some seconds."""

Files: TypeAlias = "tuple[int, Sequence[SearchedFile]]"
"""Some of the files of a search, and the place of the first one."""


@dataclass(frozen=True, slots=True)
class SearchTask:
    """Searches files on an executor. Spark sends the keys once to each."""

    config: WriteConfig
    search: FileSearch

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Errors are results: Spark would retry a failed task."""
        for first, files in given(batches):
            yield returned((first, self._found(files)))

    def _found(self, files: Sequence[SearchedFile]) -> list[FoundRows] | PenstockError:
        config = self.config
        location = config.table_format.open_filesystem(config.location, config.storage_options)

        def open_file(path: str) -> pa.NativeFile:
            try:
                return open_data_file(config, location, path)
            except FileNotFoundError as error:
                raise MissingFileError(f"The file {path} in {config.location} is missing.") from error

        try:
            return [self.search(file, open_file) for file in files]
        except PenstockError as error:
            return error


@dataclass(frozen=True, slots=True)
class SparkSearch:
    """See `SearchFiles`."""

    open_spark: OpenSpark
    """Returns a session whose executors have Penstock installed."""
    config_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to open files of the table; None if that is unknown."""
    supervised: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of the job, which may take any time: Spark supervises its own tasks."""

    def __call__(
        self, content: LakeManifest, search: FileSearch, files: Sequence[SearchedFile], open_file: OpenFile
    ) -> Sequence[FoundRows]:
        """
        Raises:
            RetryableError: also if Spark could not run the job.
        """
        size_bytes = sum(file.size_bytes for file in files)
        is_large = len(files) > HERE_FILES_MAX or size_bytes > HERE_BYTES_MAX
        config = self.config_of(content) if is_large else None
        if config is None:
            return search_here(content, search, files, open_file)
        try:
            with self.supervised():
                done = run_job(self.open_spark, SearchTask(config, search), list(_divided(files)))
        except Exception as error:
            raise RetryableError(
                f"Spark could not search the files of the table in {config.location} for the keys of a "
                f"batch: {in_short(error)}. Nothing was committed. Penstock will try again. See the job in "
                "Spark's UI. If the session's driver has died, restart it, or set compactWith=local."
            ) from error
        found: list[FoundRows] = []
        for _, some in sorted(done, key=lambda one: one[0]):
            if isinstance(some, PenstockError):
                raise some
            found += some
        return found


def _divided(files: Sequence[SearchedFile]) -> Iterator[Files]:
    """Yield files for one task each."""
    first, size_bytes = 0, 0
    for place, file in enumerate(files):
        if place > first and (size_bytes >= TASK_BYTES or place - first >= TASK_FILES_MAX):
            yield first, files[first:place]
            first, size_bytes = place, 0
        size_bytes += file.size_bytes
    yield first, files[first:]
