"""Files of Iceberg tables on the local disk: read and written without Arrow as pyiceberg does it with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io import PY_IO_IMPL, InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.file_io import TableFileIO
from penstock.committers.iceberg.local_files import local_path


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b%20c?d", "/a/b%20c?d"),
        ("file:///a/b#c", "/a/b#c"),
        ("file:/a/b:c", "/a/b:c"),
        ("a/b:c", str(Path("a/b:c").absolute())),
        ("s3://bucket/a", None),
        ("hdfs://host/a", None),
    ],
)
def test_locations_are_no_urls(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_each_reads_and_deletes_what_the_other_has_written(tmp_path: Path, prefix: str) -> None:
    location, ours, theirs = f"{prefix}{tmp_path}/new/folder/file", TableFileIO(), PyArrowFileIO()
    for writing, reading in ((ours, theirs), (theirs, ours)):
        with writing.new_output(location).create() as stream:
            assert isinstance(stream, OutputStream)
            stream.write(b"12345")
        file = reading.new_input(location)
        assert (file.exists(), len(file), file.location) == (True, 5, location)
        with file.open() as stream:
            assert isinstance(stream, InputStream)
            stream.seek(1)
            assert (stream.read(2), stream.tell()) == (b"23", 3)
        reading.delete(location)
        assert not writing.new_input(location).exists()


def test_a_file_is_replaced_on_request_only(tmp_path: Path) -> None:
    output = TableFileIO().new_output(str(tmp_path / "file"))
    output.create().close()

    with pytest.raises(FileExistsError):
        output.create()
    output.create(overwrite=True).close()


def test_what_is_not_there_is_said_to_be_not_there(tmp_path: Path) -> None:
    """Deleting twice is no error, but only where it is told from others."""
    with pytest.raises(FileNotFoundError):
        TableFileIO().delete(str(tmp_path / "file"))
    with pytest.raises(FileNotFoundError):
        TableFileIO().new_input(str(tmp_path / "file")).open()


def test_files_elsewhere_go_through_pyicebergs_own_file_io(tmp_path: Path) -> None:
    """A property of a table may put its data or metadata there."""
    catalog = open_catalog(CatalogConfig.of(None, {}, warehouse=str(tmp_path)))
    assert catalog.properties[PY_IO_IMPL].endswith("TableFileIO")
    properties = {**catalog.properties, "s3.region": "eu-west-1", "s3.endpoint": "http://localhost:1"}

    assert isinstance(TableFileIO(properties).new_input("s3://bucket/a"), PyArrowFile)
    assert isinstance(TableFileIO(properties).new_output("s3://bucket/a"), PyArrowFile)
