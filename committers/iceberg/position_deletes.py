"""Position deletes of format version 2: which rows of a data file are deleted.

Format: Iceberg's specification, "Position Delete Files". A delete file applies to the data files of its
partition that are not newer; one whose paths have equal bounds applies to that data file alone. Penstock
writes only these: readers find them by the path, and no more than one is needed for a data file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry

from ..arrow_values import numeric_array, string_array
from ..changes.key_files import OpenFile
from ..changes.keys import one_array
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, TableNotSupportedError
from .arrow import FIELD_ID_KEY

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""Field ids that the specification reserves."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID_KEY: str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID_KEY: str(POSITION_ID)}),
    ]
)
_NONE = numeric_array(())
_READ_THREADS = 8


def deletes_content(data_path: str, rows: pa.Array) -> bytes:
    """Return the content of a delete file for one data file.

    Args:
        data_path: location of the data file, as in its manifest
        rows: numbers of the deleted rows (int64), at least one, ascending
    """
    paths = string_array([data_path]).take(pc.multiply(rows, numeric_array([0])[0]))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([paths, rows], schema=_SCHEMA), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def deletes_entry(location: str, size_bytes: int, of: DataFile, rows: pa.Array) -> DataFile:
    """Return the metadata of a delete file for one data file.

    Args:
        of: the data file
        rows: see `deletes_content`
    """
    path, count = of.file_path.encode(), len(rows)
    first, last = (struct.pack("<q", rows[number].as_py()) for number in (0, -1))
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=count,
        file_size_in_bytes=size_bytes,
        value_counts={PATH_ID: count, POSITION_ID: count},
        null_value_counts={PATH_ID: 0, POSITION_ID: 0},
        lower_bounds={PATH_ID: path, POSITION_ID: first},
        upper_bounds={PATH_ID: path, POSITION_ID: last},
    )
    file.spec_id = of.spec_id
    return file


class DeleteFiles:
    """The delete files of a table, by what they apply to.

    Args:
        entries: of all live delete files
        table: for messages

    Raises:
        TableNotSupportedError: some of them cannot be read.
    """

    def __init__(self, entries: Iterable[ManifestEntry], table: str) -> None:
        self._by_path: dict[str, list[ManifestEntry]] = {}
        self._by_partition: dict[object, list[ManifestEntry]] = {}
        for entry in entries:
            check_readable(entry.data_file, table)
            path = _only_path(entry.data_file)
            if path is not None:
                self._by_path.setdefault(path, []).append(entry)
            else:
                self._by_partition.setdefault(_partition(entry.data_file), []).append(entry)

    def of_file(self, data: ManifestEntry) -> list[ManifestEntry]:
        """Return the delete files that apply to this data file alone."""
        found = self._by_path.get(data.data_file.file_path, ())
        return [entry for entry in found if _is_not_older(entry, data)]

    def applying_to(self, data: ManifestEntry) -> list[ManifestEntry]:
        """Return all delete files that may apply to a data file."""
        path = data.data_file.file_path
        shared = self._by_partition.get(_partition(data.data_file), ())
        return [
            *self.of_file(data),
            *(one for one in shared if _is_not_older(one, data) and _may_have(one.data_file, path)),
        ]

    def unneeded(self, data: Mapping[str, ManifestEntry]) -> list[ManifestEntry]:
        """Return the delete files whose only data file is not among these."""
        return [entry for path, entries in self._by_path.items() if path not in data for entry in entries]


def check_readable(file: DataFile, table: str) -> None:
    """
    Raises:
        TableNotSupportedError: which rows a delete file deletes cannot be found out.
    """
    if file.content == DataFileContent.EQUALITY_DELETES:
        raise TableNotSupportedError(
            f"{table} has equality deletes, for example {file.file_path}: which of its rows they delete is "
            "only known after reading all of them. Nothing was committed. Rewrite its data files, which "
            "removes them: CALL ... rewrite_data_files(table => '...', options => "
            "map('delete-file-threshold', '1')), and let its other writers write position deletes."
        )
    if file.content != DataFileContent.POSITION_DELETES or file.file_format is not FileFormat.PARQUET:
        raise TableNotSupportedError(
            f"{table} has deletes that Penstock cannot read: {file.file_path} ({file.file_format.value}). "
            "Nothing was committed. Rewrite its data files, which removes them: CALL ... "
            "rewrite_data_files(table => '...', options => map('delete-file-threshold', '1'))."
        )


def _partition(file: DataFile) -> object:
    values = file.partition
    return file.spec_id, tuple([values[number] for number in range(len(values))])


def _is_not_older(delete: ManifestEntry, data: ManifestEntry) -> bool:
    return (data.sequence_number or 0) <= (delete.sequence_number or 0)


def _path_bounds(file: DataFile) -> tuple[bytes, bytes] | None:
    lower, upper = (bounds or {} for bounds in (file.lower_bounds, file.upper_bounds))
    return (lower[PATH_ID], upper[PATH_ID]) if PATH_ID in lower and PATH_ID in upper else None


def _only_path(file: DataFile) -> str | None:
    """Return the only data file that a delete file applies to; None if there may be several."""
    bounds = _path_bounds(file)
    if bounds is None or bounds[0] != bounds[1]:
        return None
    try:
        return bounds[0].decode()
    except UnicodeDecodeError:
        return None


def _may_have(file: DataFile, path: str) -> bool:
    bounds = _path_bounds(file)
    return bounds is None or bounds[0] <= path.encode() <= bounds[1]


class DeletedRows:
    """Reads delete files. Keeps what it has read: files never change.

    Args:
        open_file: opens a file by its location
    """

    def __init__(self, open_file: OpenFile) -> None:
        self._open_file = open_file
        self._read: dict[str, Mapping[str, pa.Array]] = {}

    def load(self, entries: Iterable[ManifestEntry]) -> None:
        """Read several delete files at a time.

        Raises:
            PenstockError: one of them is damaged or missing.
            RetryableError: the storage cannot be reached now.
        """
        files = {entry.data_file.file_path: entry.data_file for entry in entries}
        new = [file for path, file in files.items() if path not in self._read]
        if len(new) < 2:
            read = [read_deletes(file.file_path, self._open_file) for file in new]
        else:
            with ThreadPoolExecutor(_READ_THREADS) as threads:
                read = list(threads.map(lambda file: read_deletes(file.file_path, self._open_file), new))
        self._read.update((file.file_path, rows) for file, rows in zip(new, read, strict=True))

    def of(self, data: DataFile, deletes: Sequence[ManifestEntry]) -> pa.Array:
        """Return the numbers of the rows of a data file that these delete files delete (int64, ascending)."""
        self.load(deletes)
        parts = [self._read[one.data_file.file_path].get(data.file_path, _NONE) for one in deletes]
        return union(parts)


def read_deletes(path: str, open_file: OpenFile) -> Mapping[str, pa.Array]:
    """Return the numbers of deleted rows (int64) in a delete file, by data file.

    Raises:
        PenstockError: it is damaged or missing.
        RetryableError: the storage cannot be reached now.
    """
    try:
        with open_file(path) as stream:
            rows = pq.read_table(stream, columns=["file_path", "pos"], use_threads=False)
        return _by_path(rows)
    except (pa.ArrowException, KeyError) as error:
        raise PenstockError(
            f"The delete file {path} cannot be read: {error}. Nothing was committed. Restore it from a "
            "backup of the storage."
        ) from error
    except OSError as error:
        raise retryable(error)(
            f"The delete file {path} cannot be read: {error}. Nothing was committed. Check that the "
            f"storage is reachable. {NEXT_TRY}"
        ) from error


def _by_path(rows: pa.Table) -> Mapping[str, pa.Array]:
    rows = rows.set_column(1, "pos", rows.column("pos").cast(pa.int64()))
    paths = pc.unique(rows.column("file_path")).to_pylist()
    if len(paths) == 1:
        return {paths[0]: one_array(rows.column("pos"))}
    grouped = rows.group_by("file_path", use_threads=False).aggregate([("pos", "list")])
    positions = one_array(grouped.column("pos_list"))
    return {
        path: positions[number].values for number, path in enumerate(grouped.column("file_path").to_pylist())
    }


def union(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the numbers in any of the arrays, ascending."""
    if not parts:
        return _NONE
    together = pc.unique(pa.concat_arrays(list(parts)))
    return together.take(pc.array_sort_indices(together))
