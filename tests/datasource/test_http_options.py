"""Options of `penstock.http` and what they make of rows; of all services: `test_service_options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.contract import Batch, StreamKey
from penstock.committers.errors import ConfigurationError
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.http.options import HttpOptions
from penstock.datasource.http.sink import DESTINATION
from penstock.datasource.http.source import HttpDataSource
from penstock.datasource.stored.table_access import TableAccess

GIVEN = {"url": "https://api.example.com/rows"}
IDS = pa.schema({"id": pa.int64()})
STREAM = StreamKey("q", GIVEN["url"])


@pytest.mark.parametrize(("delivery", "tasks"), [("coupled", 4), ("decoupled", 1)])
def test_a_delivery_has_the_rate_of_all_tasks(delivery: str, tasks: int) -> None:
    rate = {"maxRowsPerSecond": "100", "parallelTasks": "4"}
    settings = HttpOptions.parse({**GIVEN, **rate, "delivery": delivery}).writer_settings
    assert (settings.rows_s_max, settings.tasks) == (100, tasks)


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
    assert ids == ["a%20b/c", "%C3%A9%0D%0AX:%20y", "100%25"]


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


@pytest.mark.parametrize(
    ("stored", "url", "is_sent"),
    [
        ("https://api.example.com/rows/{id}", "https://api.example.com/rows", True),
        ("https://api.example.com/rows/{id}", "https://api.example.com/rows/{id}", True),
        ("https://api.example.com/{id}", "https://api.example.com/rows", False),
    ],
)
def test_secrets_are_sent_below_their_url_whatever_the_columns_are(
    stored: str, url: str, is_sent: bool
) -> None:
    access = TableAccess.parse(["bearerToken=geheim", f"url={url}"], None)
    sink: Any = DESTINATION.sink(StreamKey("q", stored), {"url": stored, "format": "row"}, access)
    assert (sink.options.bearer_token == "geheim") == is_sent


@pytest.mark.parametrize("path", ["../admin", "%2e%2E/admin", "./x", "a/.."])
def test_the_store_cannot_name_a_url_that_leaves_the_one_for_the_secrets(path: str) -> None:
    """Clients resolve these parts of a path before they send."""
    stored = f"{GIVEN['url']}/{path}"
    access = TableAccess.parse(["bearerToken=geheim", f"url={GIVEN['url']}"], None)
    with pytest.raises(ConfigurationError, match=r"in the manifest store.*must not have \. or") as failure:
        DESTINATION.sink(StreamKey("q", stored), {"url": stored}, access)
    assert "geheim" not in str(failure.value)


@pytest.mark.parametrize(
    "host", ["https://api.example.com{x}/", "https://{x}/", "https://api.example.com:{x}/"]
)
def test_the_store_cannot_let_rows_choose_the_host(host: str) -> None:
    access = TableAccess.parse(["bearerToken=geheim", "url=https://api.example.com/"], None)
    with pytest.raises(ConfigurationError, match="url"):
        DESTINATION.sink(StreamKey("q", host), {"url": host, "format": "row"}, access)


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
