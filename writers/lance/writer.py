"""Writes the rows of one task attempt into Lance data files of its own. Executors only."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.cleaning.deletion import local_root
from ...committers.cleaning.regular_files import sync
from ...committers.contract import AttemptId, DataFile, DataFiles
from ...committers.crash_points import reach
from ...committers.errors import PenstockError
from ...committers.file_tables.evolution import Narrowing
from ...committers.texts.safe_text import get_logger
from ..background import Background
from ..delta.filesystem import open_filesystem
from ..parquet.file_names import FileNames
from ..parquet.schema_projection import SchemaProjector
from ..partition import not_written
from .names import file_name
from .vectors import VectorConverter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lance.file import LanceFileWriter

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LanceWriters:
    """Opens task writers. Pickled to the executors, with the options of the object store."""

    location: str
    storage_options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema
    file_version: str
    target_file_bytes: int
    """Size of the rows in one file, as Arrow data."""
    buffer_bytes_max: int
    narrows: Narrowing = Narrowing.NONE
    """See `SchemaProjector`."""

    def open(self, attempt: AttemptId) -> LanceWriter:
        return LanceWriter(self, FileNames.of(attempt))

    # For the writer of changes: see `OpensDataFiles`

    @property
    def row_schema(self) -> pa.Schema:
        """See `DataFileConfig`. Vectors are nullable: `VectorConverter` has checked them."""
        return pa.schema(
            [one.with_nullable(True) if pa.types.is_fixed_size_list(one.type) else one for one in self.schema]
        )

    def open_location(self) -> tuple[FileSystem, str]:
        return open_filesystem(self.location, dict(self.storage_options))

    def projector(self, where: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        convert = VectorConverter(self.schema, where)
        project = SchemaProjector(self.row_schema, where, narrows=self.narrows)
        return lambda rows: project(convert(rows))

    def open_files(self, names: FileNames, location: tuple[FileSystem, str]) -> LanceWriter:
        return LanceWriter(self, names)


class LanceWriter:
    """See `TaskWriter`. The library encodes one batch while the task prepares the next, and holds at most
    `buffer_bytes_max`. So its errors are raised by the next `write` or by `finish`.
    """

    def __init__(self, plan: LanceWriters, names: FileNames) -> None:
        self._plan = plan
        self._names = names
        self._project = plan.projector(str(names))
        self._background = Background("penstock-lance")
        self._files: list[DataFile] = []
        self._paths: list[str] = []
        self._file: LanceFileWriter | None = None
        self._rows = self._bytes = 0
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None
        """The last batch that was checked, and its rows."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._checked = (batch, self._project(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        checked, self._checked = self._checked, None
        rows = checked[1] if checked is not None and checked[0] is batch else self._project(batch)
        self._background.start(
            self._append, pa.RecordBatch.from_arrays(rows.columns, schema=self._plan.schema)
        )

    def _append(self, rows: pa.RecordBatch) -> None:
        try:
            file = self._file or self._open()
            file.write_batch(rows)
        except Exception as error:
            raise self._failed(error) from error
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._bytes >= self._plan.target_file_bytes:
            self._close()

    def finish(self) -> DataFiles:
        self._background.wait()
        self._background.stop()
        if self._file is not None:
            self._close()
        if self._files:
            reach("write.files_closed", self._names.batch_id)
        return tuple(self._files)

    def abort(self) -> None:
        """Delete the files of this attempt."""
        self._background.stop()
        self._file = None
        for path in self._paths:
            try:
                self._delete(path)
            except Exception as error:  # noqa: BLE001  never raises
                logger.warning("The file %s is left to penstock gc: %s", path, error)

    def _open(self) -> LanceFileWriter:
        from lance.file import LanceFileWriter

        path = f"data/{file_name(self._names, len(self._paths))}"
        self._paths.append(path)
        self._file = LanceFileWriter(
            f"{self._plan.location}/{path}",
            self._plan.schema,
            version=self._plan.file_version,
            storage_options=dict(self._plan.storage_options) or None,
            data_cache_bytes=self._plan.buffer_bytes_max,
        )
        reach("write.file_open", self._names.batch_id)
        return self._file

    def _close(self) -> None:
        assert self._file is not None
        path = self._paths[-1]
        try:
            self._file.close()
            size = self._file.size_bytes or 0
            _sync(f"{self._plan.location}/{path}")
        except Exception as error:
            raise self._failed(error) from error
        self._files.append(DataFile(path, size, self._rows))
        self._file, self._rows, self._bytes = None, 0, 0

    def _delete(self, path: str) -> None:
        filesystem, root = open_filesystem(self._plan.location, dict(self._plan.storage_options))
        with suppress(FileNotFoundError):
            filesystem.delete_file(f"{root}/{path}" if root else path)

    def _failed(self, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        return not_written(error, self._names, self._plan.location)


def _sync(location: str) -> None:
    """Make a local file durable before a manifest names it."""
    local = local_root(location)
    if local is None:
        return
    for path in (local, posixpath.dirname(local)):
        sync(path)
