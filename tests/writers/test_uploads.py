"""New data files on an object store: how many requests, how many at a time, and never over another file."""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, cast

import polars as pl
import pyarrow as pa
import pytest
from pyarrow.fs import S3FileSystem
from servers.azure import (
    ACCOUNT,
    CONTAINER,
    azure_client,
    azure_names,
    azure_options,
    azure_properties,
    emulator_options,
    logged_azure_server,
)
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy, read_body
from servers.request_log import RequestLog
from servers.s3 import BUCKET, logged_s3_server, s3_client, s3_names, s3_options, s3_properties
from tests.support.plans import delta_plan, with_ids
from tests.support.unreachable import skipped_if_unreachable
from tests.writers.task import NAMES, write_all, write_as_task

from penstock.committers.contract import PartitionField
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.errors import RetryableError
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.iceberg.filesystem import open_iceberg_filesystem
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.compaction import RewriteGroup, rewrite_group
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.uploads import PART_BYTES, UPLOADS_MAX, Uploads
from penstock.writers.parquet.write_config import WriteConfig

DENIED: list[Fault] = ["denied"] * 20


@dataclass(frozen=True)
class Storage:
    """An object store: its addresses, its options by URL, and its content past the libraries."""

    root: str
    options: Callable[[str], dict[str, str]]
    """As the Delta library and polars name them."""
    properties: Callable[[str], dict[str, str]]
    """As Iceberg names them."""
    iceberg_requests: list[str]
    """Methods of the requests for a new, small file of an Iceberg table."""
    keys: Callable[[str, str], list[str]]
    """Lists the objects with a prefix."""
    uploads: Callable[[str, str], list[str]]
    """Lists the uploads with a prefix that are neither completed nor aborted."""


def _s3_uploads(url: str, prefix: str) -> list[str]:
    found = s3_client(s3_options(url)).list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    return [upload["Key"] for upload in found if upload["Key"].startswith(prefix)]


def _azure_uploads(url: str, prefix: str) -> list[str]:
    complete = azure_names(url, prefix)
    blobs = azure_client(url).list_blobs(prefix, include=["uncommittedblobs"])
    return [blob.name for blob in blobs if blob.name not in complete and not blob.name.endswith("/")]


S3 = Storage(
    f"s3://{BUCKET}",
    s3_options,
    lambda url: s3_properties(s3_options(url)),
    ["HEAD", "PUT"],
    lambda url, prefix: s3_names(s3_options(url), prefix),
    _s3_uploads,
)
AZURE = Storage(
    f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net",
    azure_options,
    azure_properties,
    # Arrow checks for a directory, creates an empty file, sends a part, and ends it.
    ["HEAD", "GET", "PUT", "PUT", "PUT"],
    azure_names,
    _azure_uploads,
)


class Lake:
    """A table in an object store, behind a proxy that loses requests."""

    def __init__(self, storage: Storage, server: Server, table_format: str) -> None:
        self.proxy = server.proxy
        self.is_delta = table_format == "delta"
        self.requests_for_a_file = ["PUT"] if self.is_delta else storage.iceberg_requests
        self._storage = storage
        self._url = server.url
        self._prefix = f"{table_format}/{uuid.uuid4()}/"
        self._log = server.log

    def keys(self) -> list[str]:
        """Return the data files."""
        return [key for key in self._storage.keys(self._url, self._prefix) if key.endswith(".parquet")]

    def uploads(self) -> list[str]:
        return self._storage.uploads(self._url, self._prefix)

    def requests(self) -> list[str]:
        """Return the methods of the requests for data files since the last call."""
        return self._log.methods(b".parquet")

    def plan(self, schema: pa.Schema, **options: Any) -> WriteConfig:
        location = f"{self._storage.root}/{self._prefix}".rstrip("/")
        if self.is_delta:
            storage = self._storage.options(self.proxy.url)
            return WriteConfig(location, storage, schema, DeltaFormat(("p",)), **options)
        table_format = IcebergFormat((PartitionField("p", ("p",), "identity"),))
        properties = self._storage.properties(self.proxy.url)
        return WriteConfig(location, properties, with_ids(schema), table_format, **options)

    def writer(self, rows: pa.Table, attempt: int = 12, **options: Any) -> DataFileWriter:
        """Return a writer that has these rows, but is not finished."""
        writer = DataFileWriter(self.plan(rows.schema, **options), replace(NAMES, attempt=attempt))
        write_all(writer, rows, 1000)
        return writer

    def values(self) -> list[Any]:
        """Return the column `v` of all files, sorted."""
        options = self._storage.options(self._url)
        files = [f"{self._storage.root}/{key}" for key in self.keys()]
        found = [pl.read_parquet(file, storage_options=options)["v"] for file in files]
        return pl.concat(found).sort().to_list()


class Server(NamedTuple):
    url: str
    proxy: LossyProxy
    log: RequestLog


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with logged_s3_server(tmp_path_factory.mktemp("s3")) as (options, log):
        url = options["AWS_ENDPOINT_URL"]
        with lossy_proxy(url) as proxy:
            yield Server(url, proxy, log)


@pytest.fixture(scope="module")
def logged_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with (
        skipped_if_unreachable(),
        logged_azure_server(tmp_path_factory.mktemp("azure")) as (url, log),
        lossy_proxy(url) as proxy,
    ):
        yield Server(url, proxy, log)


EVERYWHERE = ("delta on S3", "iceberg on S3", "delta on Azure", "iceberg on Azure")


@pytest.fixture(params=EVERYWHERE)
def lake(request: pytest.FixtureRequest) -> Lake:
    table_format, _, place = request.param.partition(" on ")
    storage, fixture = (S3, "s3") if place == "S3" else (AZURE, "logged_azure")
    lake = Lake(storage, request.getfixturevalue(fixture), table_format)
    lake.proxy.spend()
    lake.requests()
    return lake


def numbers(rows: int, partitions: int = 1) -> pa.Table:
    return pa.table({"v": range(rows), "p": [n % partitions for n in range(rows)]})


def noise(size_bytes: int) -> pa.Table:
    """Rows of one table partition that no codec makes smaller."""
    values = pa.array(memoryview(os.urandom(size_bytes)).cast("q"))
    return pa.table({"v": values, "p": [0] * len(values)})


@pytest.mark.parametrize("partitions", [1, 20])
def test_a_small_file_takes_a_request_or_two(lake: Lake, partitions: int) -> None:
    """Delta files are created atomically; Iceberg's file I/O cannot do that, so the writer checks first."""
    files = lake.writer(numbers(40, partitions)).finish()
    assert len(files) == partitions
    assert sorted(lake.requests()) == sorted(lake.requests_for_a_file * partitions)
    assert lake.values() == list(range(40))


def test_a_large_file_is_uploaded_in_parts(lake: Lake) -> None:
    rows = noise(3 * PART_BYTES)
    (file,) = lake.writer(rows, row_group_rows=500_000, buffer_bytes_max=1_000_000).finish()
    assert file.size_bytes > 2 * PART_BYTES
    requests = lake.requests()
    assert requests.count("HEAD") == 1
    assert requests.count("PUT") >= 3
    assert lake.values() == rows["v"].sort().to_pylist()


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
def test_an_existing_file_is_not_overwritten(lake: Lake, is_large: bool) -> None:
    rows = noise(2 * PART_BYTES) if is_large else numbers(40, 3)
    files = lake.writer(numbers(10, len(rows["p"].unique()))).finish()
    before = lake.values()
    second = lake.writer(rows)
    with pytest.raises(RetryableError, match=f"{files[0].path}|{files[-1].path}"):
        second.finish()
    second.abort()
    assert lake.values() == before == list(range(10))


def test_abort_leaves_a_file_that_may_be_anothers(lake: Lake) -> None:
    """Under the same name, with the same content: overwritten or not, it has to stay."""
    first, second = (lake.writer(numbers(10)) for _ in range(2))
    files = first.finish()
    if lake.is_delta:
        assert second.finish() == files
    else:
        with pytest.raises(RetryableError, match="already exists"):
            second.finish()
    second.abort()
    assert lake.values() == list(range(10))


@pytest.mark.parametrize(
    ("lake", "is_large"),
    [(lake, False) for lake in EVERYWHERE]
    + [(lake, True) for lake in EVERYWHERE if lake != "iceberg on Azure"],
    indirect=["lake"],
)
def test_abort_leaves_nothing(lake: Lake, is_large: bool) -> None:
    """Neither running uploads nor open files, nor parts that no listing shows.

    Without large files of Iceberg on Azure: after deleting one, Arrow has ended the process, once in about
    seventy times. See docs/storage.md.
    """
    rows = noise(2 * PART_BYTES) if is_large else numbers(40, 20)
    writer = lake.writer(rows, buffer_bytes_max=1, max_open_partitions=5, row_group_rows=200_000)
    writer.abort()
    assert lake.keys() == []
    assert lake.uploads() == []


def test_abort_after_close_leaves_nothing(lake: Lake) -> None:
    writer = lake.writer(numbers(40, 3))
    assert len(writer.finish()) == len(lake.keys()) == 3
    writer.abort()
    assert lake.keys() == []


@pytest.mark.parametrize("fault", ["response lost", "committed, answered 500", "answered 503"])
def test_a_lost_response_loses_no_file(lake: Lake, fault: Fault) -> None:
    """The client sends it again, to where its own file may be by now."""
    writer = lake.writer(numbers(40, 2))
    lake.proxy.spend(fault, on="PUT")
    files = writer.finish()
    assert lake.proxy.spent()
    assert len(files) == len(lake.keys()) == 2
    assert lake.values() == list(range(40))


def test_a_file_that_is_refused_is_an_error_of_the_system(lake: Lake) -> None:
    """In words, not in the client's internals."""
    writer = lake.writer(numbers(40, 2))
    lake.proxy.spend(*DENIED, on="PUT")
    with pytest.raises(OSError, match=r"(?i)403|denied") as raised:
        writer.finish()
    assert len(str(raised.value).splitlines()) < 5
    lake.proxy.spend()
    writer.abort()
    assert lake.keys() == []


def test_file_systems_are_kept_and_follow_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their connections are open already when the next batch comes."""
    key = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for open_it, options in (
        (open_delta_store, {**key, "AWS_ENDPOINT_URL": "http://a"}),
        (open_iceberg_store, {"s3.region": "eu-west-3"}),
    ):
        assert open_it(options) is open_it(dict(options))
        assert open_it(options) is not open_it({**key, "s3.region": "us-east-1"})
    store = open_delta_store(key)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another")
    assert open_delta_store(key) is not store


@pytest.mark.parametrize(
    ("variable", "open_it"),
    [
        ("AZURITE_BLOB_STORAGE_URL", lambda: open_object_store("az://lake/t", emulator_options())),
        ("AZURE_TENANT_ID", lambda: open_iceberg_filesystem("abfss://a@b/t", {})[0]),
    ],
)
def test_file_systems_in_azure_follow_the_environment(
    variable: str, open_it: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_it()
    assert open_it() is before is not None
    monkeypatch.setenv(variable, "http://another")
    assert open_it() is not before


def open_delta_store(options: dict[str, str]) -> object:
    return open_object_store("s3://lake/t", options)


def open_iceberg_store(properties: dict[str, str]) -> object:
    return open_iceberg_filesystem("s3://lake/t", properties)[0]


def test_the_copy_of_a_file_system_has_all_its_options() -> None:
    properties = {
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.session-token": "token",
        "s3.region": "eu-west-3",
        "s3.connect-timeout": "3.5",
        "s3.request-timeout": "4.5",
        "s3.proxy-uri": "http://127.0.0.1:2",
        "s3.force-virtual-addressing": "true",
    }
    from pyiceberg.io.pyarrow import PyArrowFileIO

    original = PyArrowFileIO(properties).fs_by_scheme("s3", "lake")
    copy = open_iceberg_filesystem("s3://lake/t", properties)[0]
    assert isinstance(copy, S3FileSystem)
    ours, theirs = (filesystem.__reduce__()[1][0] for filesystem in (copy, original))
    assert ours == {**theirs, "allow_delayed_open": True, "background_writes": False}
    assert (ours["session_token"], ours["region"], ours["request_timeout"]) == ("token", "eu-west-3", 4.5)


def test_small_files_are_read_whole_when_they_are_compacted(lake: Lake) -> None:
    """For Iceberg files, Arrow requests the size, although it is known."""
    rows = numbers(10)
    plan = lake.plan(rows.schema)
    files = [file for attempt in range(5) for file in lake.writer(rows, attempt).finish()]
    sources = tuple(replace(file, statistics="") for file in files)
    lake.requests()
    group = RewriteGroup(0, sources[0].partition_values, sources)
    rewrite_group(plan, replace(NAMES, batch_id=8), group)
    each = ["GET"] if lake.is_delta else ["HEAD", "GET"]
    assert sorted(lake.requests()) == sorted(each * 5 + lake.requests_for_a_file)


# In parallel ----------------------------------------------------------------------------------------


@pytest.fixture
def crowded() -> Iterator[str]:
    """An S3 server in the test's own process that answers a PUT once there are four of them."""
    four = threading.Barrier(4)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(404)

        def do_PUT(self) -> None:
            read_body(self)
            four.wait(timeout=30)
            self._answer(200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("ETag", '"1"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_files_are_uploaded_in_parallel_without_the_lock_of_python(kind: str, crowded: str) -> None:
    """At least four. The server, which is Python, could not answer a client that keeps the lock."""
    lake = Lake(S3, Server(crowded, LossyProxy(crowded), RequestLog(io.BytesIO())), kind)
    assert len(lake.writer(numbers(40, 4)).finish()) == 4


class Slow:
    """An object store that takes its time."""

    def __init__(self) -> None:
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.parts: list[SlowParts] = []
        self.sizes: list[int] = []
        self.at_once_max = self.bytes_max = 0
        self._now: list[int] = []
        self._lock = threading.Lock()

    def create(self, path: str, content: memoryview) -> bool:
        self.created.append(path)
        self.take(len(content))
        return True

    def create_in_parts(self, path: str) -> SlowParts:
        self.parts.append(SlowParts(self))
        return self.parts[-1]

    def read(self, path: str) -> pa.Buffer:
        raise AssertionError(path)

    def delete(self, path: str) -> None:
        self.deleted.append(path)

    def take(self, size: int) -> None:
        with self._lock:
            self.sizes.append(size)
            self._now.append(size)
            self.at_once_max = max(self.at_once_max, len(self._now))
            self.bytes_max = max(self.bytes_max, sum(self._now))
        time.sleep(0.02)
        with self._lock:
            self._now.remove(size)


class SlowParts:
    def __init__(self, storage: Slow) -> None:
        self._storage = storage
        self.content = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self._storage.take(len(data))
        self.content += data

    def close(self) -> None:
        self.is_closed = True


def write_to(storage: Slow, rows: pa.Table, **options: Any) -> int:
    """Into one file for each table partition, one after the other; how many there are."""
    plan = delta_plan("s3://nowhere/t", rows.schema, partition_by=("p",), max_open_partitions=1, **options)
    return len(write_as_task(plan, rows, batch_rows=200, filesystem=(storage, "")))


def test_running_uploads_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 files of 200 kB each, a megabyte at a time: five of them, not 16."""
    monkeypatch.setattr("penstock.writers.parquet.open_files.UPLOAD_BYTES_MIN", 1_000_000)
    rows = pa.table({"v": [os.urandom(1000) for _ in range(8000)], "p": [n // 200 for n in range(8000)]})
    storage = Slow()
    assert write_to(storage, rows, buffer_bytes_max=100) == len(storage.sizes) == 40
    assert storage.at_once_max > 1
    assert storage.bytes_max <= 1_000_000 + max(storage.sizes)


def test_a_file_that_may_be_anothers_is_not_deleted_after_an_error() -> None:
    """It is unknown whose file it is, if there is one."""

    class Broken(Slow):
        def create(self, path: str, content: memoryview) -> bool:
            raise OSError("no answer")

    storage = Broken()
    files = Uploads(cast("Any", storage), "")
    files.open("a").close()
    with pytest.raises(OSError, match="no answer"):
        files.finish()
    files.delete_all()
    assert storage.deleted == []


def test_uploads_in_parallel_are_bounded() -> None:
    storage = Slow()
    assert write_to(storage, numbers(100, 100)) == 100
    assert 1 < storage.at_once_max <= UPLOADS_MAX


def test_parts_of_a_file_are_uploaded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.writers.parquet.uploads.PART_BYTES", 1000)
    storage = Slow()
    content = os.urandom(10_500)
    files = Uploads(cast("Any", storage), "")
    with files.open("large") as file:
        for start in range(0, len(content), 300):
            file.write(content[start : start + 300])
            assert file.tell() == min(start + 300, len(content))
    files.finish()
    (parts,) = storage.parts
    assert (parts.content == content, parts.is_closed, storage.created) == (True, True, [])
    assert (storage.at_once_max, max(storage.sizes)) == (1, 1200)


def test_deleted_files_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither queued nor open files; uploaded parts are discarded."""
    monkeypatch.setattr("penstock.writers.parquet.uploads.PART_BYTES", 1000)
    storage = Slow()
    files = Uploads(cast("Any", storage), "")
    large, small = files.open("large"), files.open("small")
    large.write(bytes(1500))
    small.write(bytes(500))
    for number in range(200):
        with files.open(str(number)) as file:
            file.write(b"1")
    files.delete_all()
    small.write(bytes(5000))
    large.write(bytes(5000))
    small.close()
    large.close()
    (parts,) = storage.parts
    assert (len(parts.content), parts.is_closed) == (1500, True)
    assert len(storage.created) < 100
    assert sorted(storage.deleted) == sorted([*storage.created, "large"])
