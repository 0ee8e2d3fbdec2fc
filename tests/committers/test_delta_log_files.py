"""Files of the log of a Delta table on the local disk, in S3 and in Azure are read and created once."""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem
from servers.azure import azure_options

from penstock.committers.delta.log_files import LOG, LocalLogFiles, LogFiles, entry_name, open_log_files

S3_OPTIONS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


class Log:
    """A log, read by Penstock and by the library."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        files = open_log_files(uri, options)
        assert files is not None
        self.files: LogFiles = files
        self.library = PyFileSystem(DeltaStorageHandler(uri, options))

    def names(self) -> list[str]:
        selector = FileSelector(LOG, recursive=True, allow_not_found=True)
        return sorted(info.path for info in self.library.get_file_info(selector))


@pytest.fixture(params=["local", "s3", pytest.param("azure", marks=pytest.mark.slow)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    if request.param == "local":
        (tmp_path / "table" / LOG).mkdir(parents=True)
        return Log(str(tmp_path / "table"), {})
    server = request.getfixturevalue(request.param)
    options = server if request.param == "s3" else azure_options(server)
    return Log(f"{'s3' if request.param == 's3' else 'az'}://lake/{uuid.uuid4()}/a%20table", options)


def test_an_entry_is_read_as_it_was_put(log: Log) -> None:
    identity = log.files.put(7, b'{"txn":{}}')
    found = log.files.read(7)
    assert found is not None
    assert (found.content, found.identity) == (b'{"txn":{}}', identity)
    assert log.files.identity(7) == identity
    with log.library.open_input_file(entry_name(7)) as file:
        assert file.read() == b'{"txn":{}}'
    assert log.names() == [entry_name(7)]


def test_a_missing_entry_is_none(log: Log) -> None:
    assert log.files.read(0) is None
    assert log.files.identity(0) is None


def test_an_entry_is_never_replaced(log: Log) -> None:
    log.files.put(0, b"first")
    with pytest.raises(FileExistsError):
        log.files.put(0, b"second")
    found = log.files.read(0)
    assert found is not None
    assert found.content == b"first"
    assert log.names() == [entry_name(0)]


def test_another_file_under_the_same_name_is_another(log: Log) -> None:
    before = log.files.put(0, b"one")
    log.library.delete_file(entry_name(0))
    assert log.files.put(0, b"two") != before


def test_of_racing_entries_exactly_one_is_put(log: Log) -> None:
    def put(content: bytes) -> bytes | None:
        try:
            log.files.put(0, content)
        except FileExistsError:
            return None
        return content

    with ThreadPoolExecutor(8) as threads:
        won = [one for one in threads.map(put, [b"%d" % number for number in range(8)]) if one is not None]
    found = log.files.read(0)
    assert found is not None
    assert won == [found.content]


def test_an_entry_that_cannot_be_put_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / LOG).mkdir()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        LocalLogFiles(str(tmp_path)).put(0, b"{}")
    assert list((tmp_path / LOG).iterdir()) == []


@pytest.mark.parametrize("uri", ["/lake/table", "file:///lake/table"])
def test_the_local_disk_needs_no_client(uri: str) -> None:
    assert isinstance(open_log_files(uri, {}), LocalLogFiles)


def test_s3_uses_a_key_of_the_environment(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    files = open_log_files(f"s3://lake/{uuid.uuid4()}", {})
    assert files is not None
    identity = files.put(0, b"{}")
    assert files.identity(0) == identity


def test_without_a_client_the_library_reads_the_log() -> None:
    assert open_log_files("uc://catalog.schema.table", S3_OPTIONS) is None
