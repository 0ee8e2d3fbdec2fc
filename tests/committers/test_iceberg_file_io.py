"""Metadata files of Iceberg tables on disk, in S3 and in Azure: read and written as pyiceberg does it."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from benchmarks.streams import Stream, named_files
from pyiceberg.catalog import load_catalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from servers.azure import ACCOUNT, CONTAINER, KEY, azure_names, azure_properties
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.request_log import RequestLog
from servers.s3 import BUCKET, logged_s3_server, s3_properties

from penstock.committers.errors import ConfigurationError
from penstock.committers.iceberg.catalog import FILE_IO, CatalogConfig, io_properties, open_catalog
from penstock.committers.iceberg.file_io import TableFileIO
from penstock.committers.iceberg.files import iceberg_files
from penstock.committers.iceberg.local_files import local_path
from penstock.committers.iceberg.object_store import open_object_store
from penstock.committers.iceberg.object_store_files import KEPT_FILE_BYTES_MAX, KeptFiles, ObjectStoreFile
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a/b%20c?d", "/a/b%20c?d"),
        ("file:///a/b#c", "/a/b#c"),
        ("file:/a/b:c", "/a/b:c"),
        ("a/b:c", str(Path("a/b:c").absolute())),
        ("s3://bucket/a", None),
        ("gs://bucket/a", None),
    ],
)
def test_locations_are_no_urls(location: str, path: str | None) -> None:
    assert local_path(location) == (None if path is None else Path(path))


@pytest.mark.parametrize("scheme", ["", "file://", "s3://", "s3a://", "s3n://"])
def test_each_reads_and_deletes_what_the_other_has_written(s3: S3, tmp_path: Path, scheme: str) -> None:
    properties: dict[str, str] = {}
    location = f"{scheme}{tmp_path}/new/folder/file"
    if scheme.startswith("s3"):
        properties, location = s3.properties, f"{scheme}{BUCKET}/{uuid.uuid4()}/a b%20c.json"
    ours, theirs = TableFileIO(properties), PyArrowFileIO(properties)
    for number, (writing, reading) in enumerate(((ours, theirs), (theirs, ours))):
        name = f"{location}-{number}"
        put(writing, name, b"12345")
        file = reading.new_input(name)
        assert (file.exists(), len(file), file.location) == (True, 5, name)
        with file.open() as stream:
            assert isinstance(stream, InputStream)
            stream.seek(1)
            assert (stream.read(2), stream.tell()) == (b"23", 3)
        reading.delete(name)
        assert not writing.new_input(name).exists()


@pytest.mark.parametrize("storage", ["local disk", "S3"])
def test_a_file_is_replaced_on_request_only(s3: S3, tmp_path: Path, location: str, storage: str) -> None:
    if storage == "local disk":
        location = str(tmp_path / "file")
    put(s3.ours, location, b"1")
    with pytest.raises(FileExistsError):
        s3.ours.new_output(location).create()
    with s3.ours.new_output(location).create(overwrite=True) as stream:
        assert isinstance(stream, OutputStream)
        stream.write(b"22")
    assert s3.ours.new_input(location).open().read() == b"22"
    assert PyArrowFileIO(s3.properties).new_input(location).open().read() == b"22"


@pytest.mark.parametrize("storage", ["local disk", "S3"])
def test_a_deleted_file_is_missing(s3: S3, tmp_path: Path, location: str, storage: str) -> None:
    """The caller decides whether that is an error."""
    if storage == "local disk":
        location = str(tmp_path / "file")
    put(s3.ours, location, b"1")
    s3.ours.delete(location)
    with pytest.raises(FileNotFoundError):
        s3.ours.new_input(location).open()
    with pytest.raises(FileNotFoundError):
        s3.ours.delete(location)


def test_files_elsewhere_go_through_pyicebergs_own_file_io(tmp_path: Path) -> None:
    """A property of a table may put its data or metadata there."""
    catalog = open_catalog(CatalogConfig.of(None, {}, warehouse=str(tmp_path)))
    assert catalog.properties[PY_IO_IMPL].endswith("TableFileIO")
    properties = {**catalog.properties, "gcs.service.host": "http://localhost:1"}

    assert type(TableFileIO(properties).new_input("gs://bucket/a")) is PyArrowFile
    assert type(TableFileIO(properties).new_output("gs://bucket/a")) is PyArrowFile


# S3 -----------------------------------------------------------------------------------------------


DENIED: list[Fault] = ["denied"] * 20


class S3(NamedTuple):
    properties: dict[str, str]
    network: LossyProxy
    log: RequestLog

    @property
    def ours(self) -> TableFileIO:
        return TableFileIO(self.properties)

    def requests(self) -> list[str]:
        """Methods of the requests since the last time."""
        return self.log.methods()


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with (
        logged_s3_server(tmp_path_factory.mktemp("server")) as (options, log),
        lossy_proxy(options["AWS_ENDPOINT_URL"]) as network,
    ):
        yield S3(s3_properties({**options, "AWS_ENDPOINT_URL": network.url}), network, log)


@pytest.fixture
def location() -> str:
    return f"s3://{BUCKET}/{uuid.uuid4()}/a b%20c.json"


def put(io: FileIO, location: str, content: bytes) -> None:
    with io.new_output(location).create() as stream:
        stream.write(content)


def test_what_was_written_or_read_is_not_asked_for_again(s3: S3, location: str) -> None:
    s3.requests()
    put(s3.ours, location, b"12345")
    assert s3.requests() == ["HEAD", "PUT"]
    file = s3.ours.new_output(location).to_input_file()
    assert (len(file), file.open().read()) == (5, b"12345")
    assert s3.requests() == []

    put(PyArrowFileIO(s3.properties), location + "2", b"67")
    s3.requests()
    assert [s3.ours.new_input(location + "2").open().read() for _ in range(3)] == [b"67"] * 3
    assert s3.requests() == ["HEAD", "GET"]


def test_whether_a_file_is_there_is_asked_each_time(s3: S3, location: str) -> None:
    put(s3.ours, location, b"1")
    PyArrowFileIO(s3.properties).delete(location)
    s3.requests()
    assert not s3.ours.new_input(location).exists()
    assert s3.requests() == ["HEAD"]


def test_what_is_not_whole_is_not_sent(s3: S3, location: str) -> None:
    with suppress(ZeroDivisionError), s3.ours.new_output(location).create() as stream:
        stream.write(bytes(1 // 0))
    s3.ours.new_output(location).create().write(b"never closed")
    assert not s3.ours.new_input(location).exists()


def test_a_file_that_could_not_be_written_is_not_kept(s3: S3) -> None:
    location = f"s3://no-such-bucket/{uuid.uuid4()}"
    stream = s3.ours.new_output(location).create(overwrite=True)
    stream.write(b"1")
    with pytest.raises(OSError, match="no-such-bucket"):
        stream.close()
    stream.close()
    with pytest.raises(OSError, match=r"bucket|exist"):
        s3.ours.new_input(location).open()


@pytest.mark.parametrize("fault", ["response lost", "committed, answered 500", "answered 503"])
def test_a_lost_answer_loses_no_file(s3: S3, location: str, fault: Fault) -> None:
    s3.network.spend(fault, on="PUT")
    put(s3.ours, location, b"12345")
    assert s3.network.spent()
    assert PyArrowFileIO(s3.properties).new_input(location).open().read() == b"12345"


def test_a_file_that_is_refused_is_neither_there_nor_kept(s3: S3, location: str) -> None:
    s3.network.spend(*DENIED, on="PUT")
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        put(s3.ours, location, b"12345")
    s3.network.spend()
    with pytest.raises(FileNotFoundError):
        s3.ours.new_input(location).open()


def test_files_are_counted_once_however_many_threads_keep_them() -> None:
    kept = KeptFiles(bytes_max=1000)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: kept.keep("same", bytes(n % 400)), range(40_000)))
    finally:
        sys.setswitchinterval(0.005)
    assert kept._bytes == len(kept.get("same") or b"")


@pytest.mark.parametrize("name", ["s3.access-key-id", "s3.endpoint"])
def test_what_one_user_has_read_is_not_shown_to_another(s3: S3, location: str, name: str) -> None:
    put(s3.ours, location, b"1")
    s3.requests()
    other = TableFileIO({**s3.properties, name: s3.properties[name].replace("127.0.0.1", "localhost") + "/"})
    assert len(other.new_input(location)) == 1
    assert s3.requests() != []


def test_the_longest_unused_go_first() -> None:
    kept = KeptFiles(bytes_max=10)
    for name in ("a", "b", "c"):
        kept.keep(name, bytes(3))
    kept.get("a")
    kept.keep("c", bytes(4))
    kept.keep("d", bytes(1))
    assert [name for name in "abcd" if kept.get(name) is not None] == ["a", "c", "d"]
    kept.keep("e", bytes(KEPT_FILE_BYTES_MAX + 1))
    kept.forget("e")
    kept.forget("c")
    kept.keep("f", bytes(6))
    assert [name for name in "abcdef" if kept.get(name) is not None] == ["a", "d", "f"]


def test_a_batch_takes_few_requests(s3: S3, tmp_path: Path) -> None:
    """Of one file, once the table is there: two manifests, and metadata under a name that is new."""
    properties = {
        **s3.properties,
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{BUCKET}/{uuid.uuid4()}",
    }
    options = IcebergOptions(
        table="db.t", store=f"sqlite:///{tmp_path}/store.db", catalog_properties=properties
    )
    stream, file = Stream(IcebergSink(options)), named_files("iceberg", 1)
    for _ in range(2):
        stream.run(file)
    s3.requests()
    stream.run(file)
    assert sorted(s3.requests()) == ["HEAD", "PUT", "PUT", "PUT"]
    with_pyiceberg_alone = load_catalog("default", **properties).load_table("db.t")
    assert len(with_pyiceberg_alone.metadata.snapshots) == 3


def test_old_metadata_is_deleted_later(
    s3: S3, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the local disk it is deleted at once."""
    may_go, tried = threading.Event(), threading.Semaphore(0)
    delete = ObjectStoreFile.delete

    def late(file: ObjectStoreFile) -> None:
        may_go.wait(30)
        try:
            delete(file)
        finally:
            tried.release()

    monkeypatch.setattr(ObjectStoreFile, "delete", late)
    local = str(tmp_path / "old.json")
    for name in (location, local):
        put(s3.ours, name, b"1")
    s3.ours.delete_soon([location, local, f"{location}-missing", f"{local}-missing"])
    assert [s3.ours.new_input(name).exists() for name in (location, local)] == [True, False]
    may_go.set()
    assert all(tried.acquire(timeout=30) for _ in range(2))
    assert not s3.ours.new_input(location).exists()


def test_a_file_io_of_the_users_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what nobody has chosen is ours; and executors, which get data files' properties, need none."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    ours = open_catalog(CatalogConfig.of(None, properties))
    assert ours.properties[PY_IO_IMPL] == FILE_IO
    own = "pyiceberg.io.pyarrow.PyArrowFileIO"
    by_option = open_catalog(CatalogConfig.of(None, {**properties, PY_IO_IMPL: own}))
    monkeypatch.setenv("PYICEBERG_CATALOG__PROD__PY_IO_IMPL", own)
    by_environment = open_catalog(CatalogConfig.of("prod", properties))
    assert by_option.properties[PY_IO_IMPL] == by_environment.properties[PY_IO_IMPL] == own
    ours.create_namespace("db")
    table = ours.create_table("db.t", schema=pa.schema([("v", pa.int64())]))
    assert isinstance(table.io, TableFileIO)
    assert io_properties(table) == {}


# Azure --------------------------------------------------------------------------------------------


@pytest.mark.slow  # starts Azurite
def test_files_in_azure_are_where_iceberg_says(azure: str) -> None:
    """`container@account`, which pyiceberg's file I/O takes for a container's name."""
    properties, path = azure_properties(azure), f"{uuid.uuid4()}/metadata/a b%20c.json"
    location = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{path}"
    ours, theirs = TableFileIO(properties), PyArrowFileIO(properties)
    assert not ours.new_input(location).exists()
    with pytest.raises(FileNotFoundError):
        ours.new_input(location).open()

    put(ours, location, b"12345")

    assert azure_names(azure, path) == [path]
    with theirs.new_input(f"abfss://{CONTAINER}/{path}").open() as stream:
        assert stream.read() == b"12345"
    with pytest.raises(FileExistsError):
        ours.new_output(location).create()
    files = iceberg_files(location.rpartition("/")[0], properties)
    assert files.missing(["a b%20c.json", "missing"]) == ["missing"]
    assert [name for name, _, _ in files.walk()] == ["a b%20c.json"]
    ours.delete(location)
    assert not ours.new_input(location).exists()
    assert path not in azure_names(azure, path)


@pytest.mark.parametrize(
    ("location", "properties", "expected"),
    [
        (
            "abfss://lake@acct.dfs.core.windows.net/a",
            {},
            {
                "account_name": "acct",
                "account_key": KEY,
                "blob_storage_authority": ".blob.core.windows.net",
                "dfs_storage_authority": ".dfs.core.windows.net",
            },
        ),
        (
            "wasbs://lake@acct.blob.core.chinacloudapi.cn/a",
            {},
            {
                "account_name": "acct",
                "blob_storage_authority": ".blob.core.chinacloudapi.cn",
                "dfs_storage_authority": ".dfs.core.chinacloudapi.cn",
            },
        ),
        ("abfs://lake/a", {"adls.account-name": "other"}, {"account_name": "other", "account_key": KEY}),
        (
            "abfss://lake@acct.dfs.core.windows.net/a",
            {"adls.account-name": "other"},
            {"account_name": "other"},
        ),
    ],
)
def test_an_account_is_in_the_location(
    location: str, properties: dict[str, str], expected: dict[str, str]
) -> None:
    filesystem, path = open_object_store(location, {"adls.account-key": KEY, **properties})
    assert path == "lake/a"
    assert expected.items() <= filesystem.__reduce__()[1][0].items()


@pytest.mark.parametrize("host", ["acct.dfs.example.com", "acct.dfs.core.windows.net.example.com", "a.net"])
def test_a_location_names_no_host_outside_of_azure(host: str) -> None:
    """It comes from the store or from table metadata, and the host would receive the credentials."""
    with pytest.raises(ConfigurationError, match=f"{host}.*does not belong to Azure"):
        open_object_store(f"abfss://lake@{host}/a", {"adls.account-key": KEY})


def test_a_host_outside_of_azure_is_taken_from_the_operator() -> None:
    own = {f"adls.{kind}-storage-authority": ".azure.example.com" for kind in ("blob", "dfs")}
    assert open_object_store("abfss://lake@acct.dfs.example.com/a", own)[1] == "lake/a"


@pytest.mark.slow
def test_other_storages_have_no_account() -> None:
    assert open_object_store("s3://a@b/c", {})[1] == "a@b/c"


@pytest.mark.parametrize("owner", ["acct", "acct.dfs.core.windows.net"])
def test_a_signature_that_a_catalog_hands_out_is_taken(owner: str) -> None:
    handed_out = {f"adls.sas-token.{owner}": "sv=1&sig=2", "adls.sas-token.another": "sv=1&sig=3"}
    filesystem, _ = open_object_store("abfss://lake@acct.dfs.core.windows.net/a", handed_out)
    assert filesystem.__reduce__()[1][0]["sas_token"] == "sv=1&sig=2"
