"""Options of `penstock.http`: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.http.options import HttpOptions, address_of
from penstock.datasource.http.sink import DESTINATION
from penstock.datasource.http.source import HttpDataSource
from penstock.datasource.table_access import TableAccess

GIVEN = {"url": "https://api.example.com/rows"}
IDS = pa.schema({"id": pa.int64()})
STREAM = StreamKey("q", GIVEN["url"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "url"),
        ({"url": "ftp://example.com/x"}, "url='ftp://example.com/x': must be a URL such as"),
        ({"url": "https:///x"}, "must be a URL such as"),
        ({"url": "https://example.com:port/"}, "must be a URL such as"),
        ({"url": "https://example.com/a b"}, "must be a URL such as"),
        ({"url": "https://example.com/#x"}, "must not have a fragment"),
        ({"url": "https://me@example.com/"}, "give them as username and password"),
        ({"url": "https://example.com/?token=geheim"}, "Give it as header.* or storage.* instead"),
        ({"method": "PO ST"}, "method='PO ST'"),
        ({"format": "xml"}, "must be one of json, ndjson, row"),
        ({"idempotencyHeader": "a b"}, "must be the name of a header"),
        ({"idempotencyHeader": "X-Id", "header.x-id": "1"}, "name the same header"),
        ({"header.a b": "c"}, "header.a b: must be a name"),
        ({"header.a": "c\r\nHost: x"}, "header.a: must be a name"),
        ({"password": "geheim"}, "password needs username"),
        ({"username": "me", "bearerToken": "geheim"}, "bearerToken and username contradict each other"),
        ({"bearerToken": "geheim", "header.Authorization": "x"}, "contradict each other"),
        ({"maxRecordBytes": "5mb"}, "maxRecordBytes (5,242,880 bytes) must not be larger than maxBatchBytes"),
        ({"maxBatchBytes": "64mb"}, "must not be larger than maxBufferedBytes"),
        ({"requestTimeout": "0s"}, "requestTimeout must be at least 1s"),
        ({"maxRowsPerSecond": "10"}, "parallelTasks is missing"),
        ({"badRows": "ignore"}, "must be one of fail, drop, deadLetter"),
        ({"targetFileSize": "1mb"}, "targetFileSize is an option of lake tables"),
        ({"partitionby": "a"}, "partitionBy is an option of lake tables"),
        ({"path": "/x"}, "path is not an option"),
        ({"ulr": "x"}, "Did you mean url"),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(options: Mapping[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as failure:
        HttpOptions.parse({**GIVEN, **options})
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


@pytest.mark.parametrize(("delivery", "tasks"), [("coupled", 4), ("decoupled", 1)])
def test_a_delivery_has_the_rate_of_all_tasks(delivery: str, tasks: int) -> None:
    rate = {"maxRowsPerSecond": "100", "parallelTasks": "4"}
    settings = HttpOptions.parse({**GIVEN, **rate, "delivery": delivery}).writer_settings
    assert (settings.rows_s_max, settings.tasks) == (100, tasks)


def test_an_endpoint_is_required() -> None:
    with pytest.raises(ConfigurationError, match="url is missing"):
        HttpOptions.parse({})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("HTTPS://API.Example.com:443", "https://api.example.com/"),
        ("http://h:80/A?b=C", "http://h/A?b=C"),
        ("http://h:8080/", "http://h:8080/"),
        ("http://[::1]:80/x", "http://[::1]/x"),
    ],
)
def test_an_endpoint_has_one_address(url: str, address: str) -> None:
    assert address_of(url) == address_of(address) == address


def test_secrets_are_not_shown_and_not_stored() -> None:
    secrets = {"header.x-key": "geheim", "username": "geheim", "password": "geheim", "storage.key": "geheim"}
    source = HttpDataSource({**GIVEN, **secrets, "checkpointLocation": "/c"})
    sink = source.sink()
    assert "geheim" not in repr(sink) + repr(sink.options) + repr(sink.open_table())
    assert sink.options.given == {**GIVEN, "checkpointLocation": "/c", "rowLog": "/c/row-log"}
    assert HttpOptions.parse(source.options).headers == {"x-key": "geheim"}


def test_the_place_of_the_row_log_is_known_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert HttpOptions.parse({**GIVEN, "checkpointLocation": "c"}).given["rowLog"] == f"{tmp_path}/c/row-log"
    assert HttpOptions.parse({**GIVEN, "rowLog": "log"}).given["rowLog"] == f"{tmp_path}/log"
    for spelled in ("s3://b/log", "s3://b/log/", "s3a://b/log"):
        assert HttpOptions.parse({**GIVEN, "rowLog": spelled}).given["rowLog"] == "s3://b/log"
    assert "rowLog" not in HttpOptions.parse({**GIVEN, "checkpointLocation": "s3://b/c"}).given


def test_decoupled_delivery_needs_a_row_log() -> None:
    options = {**GIVEN, "checkpointLocation": "s3://b/c", "delivery": "decoupled"}
    target = HttpDataSource(options).sink().open_table()
    with pytest.raises(ConfigurationError, match="rowLog is missing"):
        target.plan_batch(IDS, "append", 0)


def test_tasks_of_a_decoupled_query_get_no_secrets_of_the_endpoint(tmp_path: Path) -> None:
    options = {**GIVEN, "rowLog": str(tmp_path / "log"), "bearerToken": "geheim", "header.x": "geheim"}
    plans = [
        HttpDataSource({**options, "delivery": delivery}).sink().open_table().plan_batch(IDS, "append", 0)
        for delivery in ("coupled", "decoupled")
    ]
    assert [b"geheim" in pickle.dumps(plan) for plan in plans] == [True, False]


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, pa.schema({"m": pa.map_(pa.int64(), pa.int64())})),
        ({"idColumn": "id"}, pa.schema({"x": pa.int64()})),
    ],
)
@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_columns_that_do_not_fit_are_refused_before_any_row_moves(
    tmp_path: Path, options: Mapping[str, str], rows: pa.Schema, delivery: str
) -> None:
    given = {**GIVEN, **options, "delivery": delivery, "rowLog": str(tmp_path / "log")}
    with pytest.raises(SchemaMismatchError):
        HttpDataSource(given).sink().open_table().plan_batch(rows, "append", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_request_has_one_row_if_each_is_a_request_of_its_own() -> None:
    sinks = [HttpDataSource({**GIVEN, "format": body}).sink() for body in ("json", "ndjson", "row")]
    requests: list[Any] = [sink.requests for sink in sinks]
    assert [one.settings.limits.batch_entries_max for one in requests] == [500, 500, 1]
    assert [one.target.body for one in requests] == ["json_array", "ndjson", "row"]


def test_another_row_at_the_same_place_has_another_id() -> None:
    """Spark may run a batch again with other rows, and an endpoint drops the ids that it has."""
    requests = HttpDataSource(dict(GIVEN)).sink().requests
    place = RowPlace("q", 0, 0, 0, 0)
    first, again, other = (requests.entries(pa.record_batch({"id": [one]}), place)[0].id for one in (1, 1, 2))
    assert first == again != other
    assert first.startswith("q-0-0-0-")


def test_an_id_can_be_sent_in_a_header() -> None:
    """Whatever the column contains: line breaks would add headers."""
    requests: Any = HttpDataSource({**GIVEN, "idColumn": "id"}).sink().requests
    rows = pa.record_batch({"id": ["a b/c", "é\r\nX: y", "100%"]})
    ids = [entry.id for entry in requests.entries(rows, RowPlace("q", 0, 0, 0, 0))]
    assert ids == ["a b/c", "%C3%A9%0D%0AX: y", "100%25"]


def test_the_client_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'penstock\[http\]'"):
        HttpDataSource(dict(GIVEN)).sink()


# In the delivery process ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("https://api.example.com", True),
        ("https://api.example.com/rows", True),
        ("HTTPS://API.example.com:443/", True),
        ("https://api.example.com/row", False),
        ("https://api.example.com/rows/x", False),
        ("https://api.example.co", False),
        ("http://api.example.com/", False),
        ("https://api.example.com:8443/", False),
    ],
)
def test_secrets_are_sent_only_below_the_url_that_they_are_for(url: str, is_sent: bool) -> None:
    access = TableAccess.parse(["bearerToken=geheim", f"url={url}", "AWS_REGION=x"], None)
    sink: Any = DESTINATION.sink(STREAM, {**GIVEN, "delivery": "decoupled"}, access)
    assert (sink.options.bearer_token == "geheim") == is_sent
    assert sink.options.storage_options == {"AWS_REGION": "x"}
    assert sink.table_uri == STREAM.table_uri


@pytest.mark.parametrize("url", [None, "nonsense"])
def test_secrets_without_a_url_are_refused(url: str | None) -> None:
    given = ["header.X-Key=geheim", *([f"url={url}"] if url else [])]
    with pytest.raises(ConfigurationError, match="url=") as failure:
        DESTINATION.sink(STREAM, GIVEN, TableAccess.parse(given, None))
    assert "geheim" not in str(failure.value)


def test_files_of_a_manifest_are_those_of_the_row_log() -> None:
    target = HttpDataSource({**GIVEN, "rowLog": "/log"}).sink().open_table()
    manifest = target.manifest(Batch(STREAM, 0, "d"), "log", [()])
    assert list(DESTINATION.files_of(manifest)) == []
