"""Row logs on S3 and Azure: queries and delivery processes, requests that are lost, and secrets."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from servers.azure import ACCOUNT, CONTAINER, KEY, azure_names, azure_options
from servers.http_rows import HttpRows
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.s3 import BUCKET, s3_client
from tests.support.cli import Ended
from tests.support.fanouts import Fanout, http_fanout
from tests.support.request_streams import ROWS, Stream, http_stream

from penstock.committers.errors import ConfigurationError, RetryableError
from penstock.testing.conformance.query import ids


@dataclass(frozen=True)
class RemoteLog:
    """A row log in a folder of its own, which is reached through the proxy, without retries of the client."""

    proxy: LossyProxy
    folder: str
    root: str
    storage: dict[str, str]
    secret: str
    requests: Mapping[str, str]
    """Words of the request lines."""
    listed: Callable[[str], list[str]]
    """Names of the objects with a prefix, without the proxy."""

    @property
    def location(self) -> str:
        return f"{self.root}/{self.folder}"

    def objects(self) -> list[str]:
        return [name.removeprefix(f"{self.folder}/") for name in self.listed(f"{self.folder}/")]

    def options(self) -> dict[str, str]:
        """Options of the query."""
        return {"rowLog": self.location, **{f"storage.{key}": value for key, value in self.storage.items()}}


READ = {"read": "GET .arrow", "size": "HEAD .arrow"}
S3_REQUESTS = {**READ, "list": "GET list-type", "delete": "POST delete", "complete": "POST uploadId"}
AZURE_REQUESTS = {
    **READ,
    "list": "GET comp=list",
    "delete": "POST comp=batch",
    "complete": "PUT comp=blocklist",
}
SECRET_ON_S3 = "geheim-0815"


@pytest.fixture(scope="module")
def s3_log(s3: dict[str, str]) -> Iterator[Callable[[str], RemoteLog]]:
    def listed(prefix: str) -> list[str]:
        found = s3_client(s3).list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", ())]

    with lossy_proxy(s3["AWS_ENDPOINT_URL"]) as proxy:
        own = {"AWS_ENDPOINT_URL": proxy.url, "AWS_SECRET_ACCESS_KEY": SECRET_ON_S3, "MAX_RETRIES": "0"}
        storage = {**s3, **own}
        root = f"s3://{BUCKET}"
        yield lambda folder: RemoteLog(proxy, folder, root, storage, SECRET_ON_S3, S3_REQUESTS, listed)


@pytest.fixture(scope="module")
def azure_log(azure: str) -> Iterator[Callable[[str], RemoteLog]]:
    with lossy_proxy(azure) as proxy:
        own = {name.upper(): value for name, value in azure_options(proxy.url).items()}
        storage, root = {**own, "MAX_RETRIES": "0"}, f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
        listed = partial(azure_names, azure)
        yield lambda folder: RemoteLog(proxy, folder, root, storage, KEY, AZURE_REQUESTS, listed)


@pytest.fixture(params=["s3", "azure"])
def log(request: pytest.FixtureRequest) -> RemoteLog:
    opened: RemoteLog = request.getfixturevalue(f"{request.param}_log")(f"logs/{uuid.uuid4()}")
    opened.proxy.spend()
    return opened


@pytest.fixture
def stream(tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows], log: RemoteLog) -> Iterator[Stream]:
    """Its checkpoint is not on a local disk, so that the row log cannot be there."""
    options = {
        "deliverAfterSeconds": "1",
        "checkpointLocation": f"{log.location}/checkpoint",
        **log.options(),
    }
    with http_stream(tmp_path, two_http_servers[0], options) as opened:
        yield opened


@pytest.fixture
def access(log: RemoteLog, tmp_path: Path) -> tuple[str, str]:
    """Arguments of the commands."""
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"storage": log.storage}))
    path.chmod(0o600)
    return "--options-file", str(path)


def test_each_row_arrives_once_and_the_log_is_empty(
    stream: Stream, log: RemoteLog, access: tuple[str, str]
) -> None:
    stream.prepare()
    assert len(log.objects()) == 6
    assert stream.server.ids() == []
    (waiting,) = Ended("status", "--store", stream.store_url, "--json").json["streams"]
    assert waiting["delivery"]["backlog_files"] == 6
    assert waiting["delivery"]["backlog_rows"] == ROWS

    delivered = stream.deliver("--json", *access)
    assert (delivered.code, delivered.err) == (0, "")
    assert stream.server.ids() == list(range(ROWS))
    assert log.objects() == []


LOST: list[Fault] = ["request lost", "response lost", "answered 503", "committed, answered 500"]


@pytest.mark.parametrize("fault", LOST)
def test_a_batch_whose_upload_has_failed_is_written_again(
    stream: Stream, log: RemoteLog, access: tuple[str, str], fault: Fault
) -> None:
    """What the upload has left is found by `penstock gc`."""
    log.proxy.spend(fault, on=f"PUT {log.folder} .arrow")
    with pytest.raises(RetryableError, match="Error performing PUT"):
        stream.prepare(1)
    assert len(log.proxy.spent()) == 1
    left = log.objects()
    stream.query.run(stream.store, stream.query.batch(0), ids(0), ids(1), run_id="r2")
    assert stream.deliver(*access).code == 0

    assert sorted(stream.server.ids()) == [0, 1]
    assert log.objects() == left
    assert gc(stream, *access) == len(left)
    assert log.objects() == []


def gc(stream: Stream, *access: str) -> int:
    """`penstock gc --delete` in ten days. Return the number of deleted files."""
    later = datetime.now(timezone.utc) + timedelta(days=10)
    with mock.patch("penstock.cli.commands.repair.utc_now", return_value=later):
        ended = Ended("gc", "--store", stream.store_url, "--delete", "--json", *access)
    assert ended.err == ""
    (table,) = ended.json["tables"]
    assert table["error"] is None
    deleted: int = table["deleted"]
    return deleted


@pytest.mark.parametrize("fault", ["request lost", "response cut", "answered 503"])
@pytest.mark.parametrize("failed", ["read", "size", "list", "delete"])
def test_a_failed_request_of_a_delivery_loses_nothing(
    stream: Stream, log: RemoteLog, access: tuple[str, str], fault: Fault, failed: str
) -> None:
    """It is repeated by the client or by a later delivery. Rows are not sent again."""
    stream.prepare()
    log.proxy.spend(fault, on=log.requests[failed])
    assert stream.deliver(*access).code == 0
    assert len(log.proxy.spent()) == 1

    assert stream.left == 0
    assert stream.server.ids() == list(range(ROWS))
    left = log.objects()
    assert not left or failed == "delete"
    assert gc(stream, *access) == len(left)
    assert log.objects() == []


def test_files_that_must_not_be_deleted_are_left_to_the_clean_up(
    stream: Stream, log: RemoteLog, access: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stream.prepare()
    log.proxy.spend("denied", "denied", "denied", on=log.requests["delete"])
    assert stream.deliver(*access).code == 0

    assert stream.left == 0
    assert "left to penstock gc" in caplog.text
    assert len(log.objects()) == 6
    log.proxy.spend()
    assert gc(stream, *access) == 6


def test_clean_up_keeps_what_waits_and_deletes_what_a_killed_driver_has_left(
    stream: Stream, log: RemoteLog, access: tuple[str, str]
) -> None:
    stream.prepare(1)
    stream.query.write(stream.query.plan(stream.store, stream.query.batch(1)), [ids(1)], "r2")
    stream.query.run(stream.store, stream.query.batch(1), ids(1000), run_id="r3")
    assert gc(stream, *access) == 0
    assert len(log.objects()) == 4
    assert stream.deliver(*access).code == 0
    assert sorted(stream.server.ids()) == [*range(ROWS // 3), 1000]

    assert gc(stream, *access) == 1
    assert log.objects() == []


@pytest.mark.parametrize("fault", [None, "request lost", "answered 503"])
def test_a_file_of_several_parts_is_uploaded_whole_or_not_at_all(
    stream: Stream, log: RemoteLog, access: tuple[str, str], fault: Fault | None
) -> None:
    noise = [os.urandom(1_000_000).hex() for _ in range(24)]  # half of it after compression
    rows = pa.table({"id": range(24), "noise": noise})
    stream.query = stream.query.with_options(maxRecordBytes="3mb")
    batch = stream.query.batch(0)
    if fault is not None:
        log.proxy.spend(fault, on=f"{log.folder} {log.requests['complete']}")
        with pytest.raises(RetryableError, match=r"Error performing (POST|PUT)"):
            stream.query.run(stream.store, batch, rows)
        assert len(log.proxy.spent()) == 1
        assert log.objects() == []
    stream.query.run(stream.store, batch, rows, run_id="r2")
    assert len(log.objects()) == 1
    assert stream.deliver(*access).code == 0

    assert sorted(stream.server.ids()) == list(range(24))
    assert log.objects() == []


# Secrets ----------------------------------------------------------------------------------------------


def test_secrets_are_neither_stored_nor_shown(
    stream: Stream, log: RemoteLog, access: tuple[str, str], tmp_path: Path
) -> None:
    stream.prepare()
    sink = stream.query.sink()
    shown = [
        repr(sink),
        repr(sink.open_table()),
        repr(stream.query.plan(stream.store, stream.query.batch(3))),
    ]
    log.proxy.spend("echoed", on=log.requests["read"])  # an error with the headers of the request
    for ended in (stream.deliver(*access), Ended("status", "--store", stream.store_url, "--delivery")):
        shown += [ended.out, ended.err]
    log.proxy.spend()
    assert stream.deliver(*access).code == 0

    assert stream.left == 0
    assert not [text for text in shown if log.secret in text]
    assert not [path for path in tmp_path.glob("store.db*") if log.secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("given", ["PENSTOCK_STORAGE", "of the storage"])
def test_the_delivery_process_takes_credentials_from_the_environment(
    stream: Stream, log: RemoteLog, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    stream.prepare(1)
    variables = {given: json.dumps(log.storage)} if given == "PENSTOCK_STORAGE" else log.storage
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert stream.deliver().code == 0
    assert (stream.server.ids(), log.objects()) == (list(range(ROWS // 3)), [])


def test_a_log_that_may_not_be_read_says_so_and_loses_nothing(
    stream: Stream, log: RemoteLog, access: tuple[str, str]
) -> None:
    stream.prepare(1)
    log.proxy.spend("denied", on=log.requests["size"])
    ended = stream.deliver(*access)
    state = stream.store.deliveries.state(stream.query.stream)

    assert (ended.code, stream.left, stream.server.ids()) == (1, 1, [])
    assert "Check the storage.* options" in state.error
    assert log.secret not in ended.out + ended.err + state.error
    assert Ended("retry", "q1", "--store", stream.store_url).code == 0
    assert stream.deliver(*access).code == 0
    assert stream.server.ids() == list(range(ROWS // 3))


# Several targets --------------------------------------------------------------------------------------


@pytest.fixture
def fanout(
    tmp_path: Path,
    two_http_servers: tuple[HttpRows, HttpRows],
    log: RemoteLog,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Fanout]:
    monkeypatch.setenv("PENSTOCK_STORAGE", json.dumps(log.storage))
    with http_fanout(tmp_path, two_http_servers) as opened:
        yield opened


def test_targets_of_a_fan_out_share_a_log_also_in_two_notations(fanout: Fanout, log: RemoteLog) -> None:
    """A file is deleted when the last of them has delivered it."""
    same = f"{log.location}/".replace("s3:", "s3a:")
    query = fanout.query("lake", "search", "events", **log.options(), **{"target.search.rowLog": same})
    query.run(fanout.store, query.batch(0), ids(0), ids(1))
    assert len(log.objects()) == 2
    assert fanout.deliver("events").code == 0
    assert len(log.objects()) == 2, "the other service needs them"
    assert fanout.deliver().code == 0

    assert [fanout.ids(name) for name in ("lake", "search", "events")] == [[0, 1]] * 3
    assert log.objects() == []


def test_a_log_with_two_addresses_is_refused(fanout: Fanout, azure_log: Callable[[str], RemoteLog]) -> None:
    log = azure_log(f"logs/{uuid.uuid4()}")
    other = f"az://{CONTAINER}/{log.folder}"
    query = fanout.query("search", "events", **log.options(), **{"target.search.rowLog": other})
    with pytest.raises(ConfigurationError, match="are the same place"):
        query.run(fanout.store, query.batch(0), ids(0))

    assert log.objects() == []


def test_logs_are_not_compared_while_the_storage_is_down(fanout: Fanout, log: RemoteLog) -> None:
    options = {**log.options(), "target.search.rowLog": f"{log.location}-of-search"}
    query = fanout.query("search", "events", **options)
    log.proxy.spend("answered 503", on=f"PUT {log.folder} probe")
    with pytest.raises(RetryableError, match="cannot be compared"):
        query.run(fanout.store, query.batch(0), ids(0))
    assert log.objects() == []
    query.run(fanout.store, query.batch(0), ids(0), run_id="r2")
    assert fanout.deliver().code == 0

    assert [fanout.ids(name) for name in ("search", "events")] == [[0]] * 2
