"""A special file in place of one that Penstock reads back is an error: nothing waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from penstock.committers.cleaning.regular_files import open_new, read_file
from penstock.committers.contract import AttemptId, Batch, DataFile, StreamKey
from penstock.committers.delta.log_files import LocalLogFiles, entry_name
from penstock.committers.errors import PenstockError, RetryableError
from penstock.committers.files.local_folder import LocalFolder
from penstock.committers.hudi.storage import HudiStorage
from penstock.committers.iceberg.local_files import LocalFile
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.committers.row_log.names import row_log_path
from penstock.datasource.spark.checkpoint import Checkpoint
from penstock.writers.parquet.objects import objects_of

pytestmark = pytest.mark.timeout(20)

LOGGED = row_log_path(AttemptId("q1", "run", 0, 0, 0))


def read_row_log(folder: Path) -> object:
    batch = LoggedBatch.of(Batch(StreamKey("q1", "x"), 0, "d"), [DataFile(LOGGED, 1, 1)])
    return list(RowLog(str(folder), {}).read(batch))


def read_checkpoint(folder: Path) -> object:
    return Checkpoint(pafs.LocalFileSystem(), str(folder), str(folder)).running_batch()


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "row log": (LOGGED, read_row_log),
    "checkpoint": ("metadata", read_checkpoint),
    "journal": (".t.penstock/q1.journal", lambda folder: LocalFolder(str(folder / "t")).read_journal("q1")),
    "Delta log": (entry_name(3), lambda folder: LocalLogFiles(str(folder)).read(3)),
    "Iceberg": ("m.avro", lambda folder: LocalFile(str(folder / "m.avro")).open().read()),
    "Hudi": (".hoodie/x", lambda folder: HudiStorage(str(folder), {}).read(".hoodie/x")),
    "data file": (
        "a.parquet",
        lambda folder: objects_of(pafs.LocalFileSystem(), str(folder)).read("a.parquet"),
    ),
}


@pytest.fixture(params=["named pipe", "device", "folder"])
def special(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "named pipe":
            os.mkfifo(path)
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()

    return make


@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS)
def test_a_special_file_is_an_error(
    tmp_path: Path, special: Callable[[Path], None], name: str, read: Callable[[Path], object]
) -> None:
    special(tmp_path / name)
    with pytest.raises((OSError, PenstockError), match=r"not a regular file|directory|NotFound"):
        read(tmp_path)


def test_a_row_log_names_the_file(tmp_path: Path) -> None:
    (tmp_path / LOGGED).parent.mkdir()
    os.mkfifo(tmp_path / LOGGED)
    with pytest.raises(RetryableError, match=f"{LOGGED} of the row log .* is not a regular file"):
        read_row_log(tmp_path)


def test_a_new_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"kept")
    (tmp_path / "new").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        open_new(tmp_path / "new")
    assert read_file(tmp_path / "new") == b"kept", "reading follows a link"
