"""The row log: what tasks write comes back in the order of batch, partition and row."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.committers.contract import AttemptId, Batch, DataFile, StreamKey
from penstock.committers.errors import RetryableError, SchemaMismatchError, TableChangedError
from penstock.committers.row_log import log as log_module
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.committers.row_log.names import CHECKSUM, RowLogName, row_log_path
from penstock.testing.faults import crash_at
from penstock.writers.row_log import writer as writer_module
from penstock.writers.row_log.writer import RowLogWriter, RowLogWriters

STREAM = StreamKey("8d9a-1c", "https://x.example/rows")
BATCH = Batch(STREAM, 7, "d7")


def writer(folder: Path, partition: int = 0, attempt: int = 0, run_id: str = "r-1") -> RowLogWriter:
    config = RowLogWriters(str(folder), {}, lambda rows: None)
    return config.open(AttemptId(STREAM.query_id, run_id, BATCH.batch_id, partition, attempt))


def write(folder: Path, partition: int, *ids: range, attempt: int = 0) -> DataFile:
    one = writer(folder, partition, attempt)
    for some in ids:
        one.write(pa.record_batch({"id": pa.array(some), "other": pa.array(map(str, some))}))
    (file,) = one.finish()
    return file


def positions(log: RowLog, batch: LoggedBatch, start: int = 0) -> list[tuple[int, int, int]]:
    """(position in the batch, partition, row in the partition) of each row, checked against its id."""
    found = []
    for logged in log.read(batch, start):
        for number, row_id in enumerate(logged.rows.column("id").to_pylist()):
            found.append((logged.position + number, logged.partition, logged.row + number))
            assert row_id == 10_000 * logged.partition + logged.row + number
    return found


@pytest.fixture
def log(tmp_path: Path) -> RowLog:
    return RowLog(str(tmp_path), {})


@pytest.mark.parametrize("start", [0, 1, 999, 1000, 1001, 2499, 2500, 2501, 2509, 2510])
def test_rows_are_read_by_partition_and_row_from_any_position(
    tmp_path: Path, log: RowLog, start: int
) -> None:
    """Whichever task has ended first, and however large its Arrow batches were."""
    files = [
        write(tmp_path, 3, range(30_000, 30_010)),
        write(tmp_path, 0, range(1200), range(1200, 2500), attempt=9),
    ]
    batch = LoggedBatch.of(BATCH, files)
    wanted = [*((row, 0, row) for row in range(2500)), *((2500 + row, 3, row) for row in range(10))]

    assert batch.rows == 2510
    assert positions(log, batch, start) == wanted[start:]
    assert batch == LoggedBatch.of(BATCH, files[::-1])


def test_only_some_columns_can_be_read(tmp_path: Path, log: RowLog) -> None:
    batch = LoggedBatch.of(BATCH, [write(tmp_path, 0, range(5))])
    (logged,) = log.read(batch, columns=["other"])
    assert logged.rows.schema.names == ["other"]


def test_rows_that_are_written_again_have_another_id(tmp_path: Path) -> None:
    """A position that was recorded for the first ones means nothing for them."""
    first, second = (LoggedBatch.of(BATCH, [write(tmp_path, 0, range(5), attempt=one)]) for one in (1, 2))
    assert first.rows_id != second.rows_id


def test_a_large_arrow_batch_is_written_in_parts(
    tmp_path: Path, log: RowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BATCH_BYTES_MAX", 4000)
    monkeypatch.setattr(log_module, "DECODED_BYTES_MAX", 6000)
    batch = LoggedBatch.of(BATCH, [write(tmp_path, 0, range(2500))])
    assert positions(log, batch) == [(row, 0, row) for row in range(2500)]


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.write(pa.record_batch({"id": pa.array([], pa.int64())}))
    assert one.finish() == ()
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.write(pa.record_batch({"id": [1]}))
    one.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Spark shows a raw error of the storage with a traceback, and without the place."""
    location = tmp_path / "log"
    location.write_text("no directory")
    with pytest.raises(
        RetryableError, match=f"of the row log {location} cannot be written: .*start the query"
    ):
        write(location, 0, range(3))


def test_a_value_that_the_destination_refuses_is_not_written(tmp_path: Path) -> None:
    def refuse(rows: pa.RecordBatch) -> None:
        raise SchemaMismatchError("no")

    one = RowLogWriters(str(tmp_path), {}, refuse).open(AttemptId("q", "r", 0, 0, 0))
    with pytest.raises(SchemaMismatchError):
        one.write(pa.record_batch({"id": [1]}))
    one.abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("point", ["write.file_open", "write.files_closed"])
def test_a_task_that_dies_leaves_a_file_that_clean_up_recognizes(
    tmp_path: Path, log: RowLog, point: str
) -> None:
    with crash_at(point):
        write(tmp_path, 4, range(3))
    ((path, _, _),) = log.files.walk()
    assert RowLogName.parse(path) == RowLogName(STREAM.query_id, 7, 4)


def test_an_attempt_never_overwrites_the_file_of_another(tmp_path: Path) -> None:
    write(tmp_path, 0, range(3))
    with pytest.raises(RetryableError, match="already exists"):
        write(tmp_path, 0, range(3))


@pytest.mark.parametrize(
    "path",
    [
        "q/penstock-p-0000000007-00000-r-0.arrow",
        "q/penstock-q-7-00000-r-0.arrow",
        "penstock-q-0000000007-00000-r-0.arrow",
        "q/x/penstock-q-0000000007-00000-r-0.arrow",
        "q/penstock-q-0000000007-00000-r-0.parquet",
    ],
)
def test_other_files_are_not_of_the_log(path: str) -> None:
    assert RowLogName.parse(path) is None


@pytest.mark.parametrize("query_id", ["q", "a-0000000001-00002-x", "write-1700000000-abc-def"])
def test_a_name_has_query_batch_and_partition(query_id: str) -> None:
    path = row_log_path(AttemptId(query_id, "0000000009-00008-run", 12, 34, 56))
    assert RowLogName.parse(path) == RowLogName(query_id, 12, 34)


@pytest.mark.parametrize("in_memory_bytes_max", [0, 2**20])
@pytest.mark.parametrize("damage", ["cut off", "noise", "one bit", "of other rows"])
def test_a_damaged_file_is_told_as_damaged(
    tmp_path: Path, log: RowLog, damage: str, in_memory_bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "IN_MEMORY_BYTES_MAX", in_memory_bytes_max)
    file = write(tmp_path, 0, range(2000))
    path = tmp_path / file.path
    content = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(content[:-20])
    elif damage == "noise":
        path.write_bytes(b"x" * len(content))
    elif damage == "one bit":  # of the values
        at = len(content) // 2
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    else:
        file = DataFile(file.path, file.size_bytes, file.rows + 1)
    with pytest.raises(TableChangedError, match="is damaged"):
        list(log.read(LoggedBatch.of(BATCH, [file])))


@pytest.mark.parametrize("end", [2**31 - 1, -(2**30)])
def test_crafted_offsets_with_a_fitting_checksum_are_refused(tmp_path: Path, log: RowLog, end: int) -> None:
    """Arrow itself reads memory of the process then, or ends it."""
    rows = pa.record_batch({"text": ["x" * 4321]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as opened:
        opened.write_batch(rows)
    head, _, tail = sink.getvalue().to_pybytes().rpartition(struct.pack("<2i", 0, 4321))
    content = head + struct.pack("<2i", 0, end) + tail
    path = row_log_path(AttemptId(STREAM.query_id, "r-1", BATCH.batch_id, 0, 0))
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(content)
    file = DataFile(path, len(content), 1, statistics=f"{CHECKSUM}{zlib.crc32(content):08x}")
    with pytest.raises(TableChangedError, match="is damaged"):
        [one.rows.to_pylist() for one in log.read(LoggedBatch.of(BATCH, [file]))]


def test_a_file_that_is_gone_can_be_restored(tmp_path: Path, log: RowLog) -> None:
    file = write(tmp_path, 0, range(3))
    assert log.files.missing([file.path]) == []
    (tmp_path / file.path).unlink()
    assert log.files.missing([file.path]) == [file.path]
    with pytest.raises(RetryableError, match="cannot be read"):
        list(log.read(LoggedBatch.of(BATCH, [file])))


@pytest.mark.parametrize("path", ["other/penstock-other-0000000007-00000-r-0.arrow", "../x.arrow"])
def test_files_of_others_are_not_read(path: str) -> None:
    with pytest.raises(ValueError, match="not of the batch"):
        LoggedBatch.of(BATCH, [DataFile(path, 1, 1)])


def test_two_files_of_one_partition_are_not_one_batch(tmp_path: Path) -> None:
    files = [write(tmp_path, 0, range(3), attempt=one) for one in (1, 2)]
    with pytest.raises(ValueError, match="two files of the same rows"):
        LoggedBatch.of(BATCH, files)
