"""Options of OpenSearch and Elasticsearch: what is missing or wrong is said before anything moves."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.search import KINDS, service_of

from penstock.committers.contract import StreamKey
from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.search.elasticsearch import ElasticsearchOptions
from penstock.datasource.table_access import TableAccess

GIVEN = {"url": "https://search.example.com:9200", "index": "flights"}
SECRETS = {"username": "geheim-1", "password": "geheim-2"}

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "ftp://h"}, "must be a URL such as https://search.example.com:9200"),
        ({"url": "https://geheim@h/"}, "must not contain a user or a password"),
        ({"url": "https://h/?a=b"}, "must have no query"),
        ({"index": "Flights"}, "must be the name of one index"),
        ({"index": "a,b"}, "must be the name of one index"),
        ({"index": "a*"}, "must be the name of one index"),
        ({"index": "_all"}, "must be the name of one index"),
        ({"index": ".."}, "must be the name of one index"),
        ({"index": "é" * 128}, "must be the name of one index"),
        ({"operation": "update"}, "must be one of index, create"),
        ({"operation": "create"}, "operation=create needs idColumn"),
        ({"pipeline": "_none"}, "must be the name of an ingest pipeline"),
        ({"username": "geheim"}, "username and password belong together"),
        ({"password": "geheim"}, "username and password belong together"),
        ({"maxRecordBytes": "11mb"}, "must not be larger than maxBatchBytes"),
        ({"path": "/x"}, "path is not an option"),
        ({"indx": "x"}, "Did you mean index"),
    ],
)
def test_a_wrong_option_is_named_and_no_secret_is_shown(
    kind: str, options: Mapping[str, str], said: str
) -> None:
    with pytest.raises(ConfigurationError) as failure:
        service_of(kind).options.parse({**GIVEN, **options})
    assert said in str(failure.value)
    assert "geheim" not in str(failure.value)


def test_url_and_index_are_required(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"url is missing(.|\n)*index is missing"):
        service_of(kind).options.parse({})


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("HTTPS://Search.example.com:9200/", "+https://search.example.com:9200/flights"),
        ("http://h:80", "+http://h/flights"),
        ("https://h/Proxy/", "+https://h/Proxy/flights"),
    ],
)
def test_an_index_has_one_address(kind: str, url: str, address: str) -> None:
    assert service_of(kind).sink({**GIVEN, "url": url, **SECRETS}).table_uri == kind + address


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://h", {"scheme": "https", "host": "h", "port": 443, "path": ""}),
        ("http://h", {"scheme": "http", "host": "h", "port": 80, "path": ""}),
        ("http://[::1]:9200/p/", {"scheme": "http", "host": "::1", "port": 9200, "path": "/p"}),
    ],
)
def test_a_url_without_a_port_has_that_of_its_scheme(kind: str, url: str, host: dict[str, Any]) -> None:
    """Not 9200, as in the libraries."""
    requests: Any = service_of(kind).sink({**GIVEN, "url": url}).requests
    assert requests.target.host == host


def test_secrets_are_not_shown_and_not_stored(kind: str) -> None:
    sink = load(load(BUILT_IN[kind]).data_source)({**GIVEN, **SECRETS}).sink()
    shown = repr(sink) + repr(sink.options) + repr(sink.open_table()) + repr(sink.requests)
    assert "geheim" not in shown
    assert sink.options.given == GIVEN


def test_the_api_key_is_a_secret_and_takes_the_place_of_a_user(kind: str) -> None:
    if kind == "opensearch":
        with pytest.raises(ConfigurationError, match="apiKey"):
            service_of(kind).sink({**GIVEN, "apiKey": "geheim"})
        return
    sink: Any = service_of(kind).sink({**GIVEN, "apiKey": "geheim"})
    assert sink.requests.target.headers == {"authorization": "ApiKey geheim"}
    assert "geheim" not in repr(sink) + repr(sink.options) + repr(sink.requests)
    with pytest.raises(ConfigurationError, match="apiKey and username contradict each other"):
        ElasticsearchOptions.parse({**GIVEN, **SECRETS, "apiKey": "geheim"})


def test_tasks_of_a_decoupled_query_get_no_credentials(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a coupled one do, as they send."""
    given = {**GIVEN, **SECRETS, "rowLog": str(tmp_path / "log")}
    monkeypatch.setattr(type(service_of(kind).sink(given).requests), "check_destination", lambda *_: None)
    plans = [
        service_of(kind)
        .sink({**given, "delivery": delivery})
        .open_table()
        .plan_batch(pa.schema({"id": pa.int64()}), "append", 0)
        for delivery in ("coupled", "decoupled")
    ]
    assert [b"geheim" in pickle.dumps(plan) for plan in plans] == [True, False]


@pytest.mark.parametrize(
    ("url", "is_sent"), [(GIVEN["url"], True), ("https://search.example.com", False), ("https://h", False)]
)
def test_the_delivery_process_sends_credentials_only_to_their_url(kind: str, url: str, is_sent: bool) -> None:
    access = TableAccess.parse([f"url={url}", *(f"{key}={value}" for key, value in SECRETS.items())], None)
    sink: Any = load(BUILT_IN[kind]).sink(StreamKey("q", f"{kind}+{GIVEN['url']}/flights"), GIVEN, access)
    assert (sink.requests.target.basic_auth == ("geheim-1", "geheim-2")) == is_sent


def test_the_client_is_an_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, service_of(kind).library, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'penstock\[{kind}\]'"):
        service_of(kind).sink(GIVEN)


@pytest.mark.parametrize(
    ("options", "rows", "said"),
    [
        ({"routing": "r"}, {"id": pa.int64()}, "routing names the column 'r'"),
        ({"idColumn": "i"}, {"id": pa.int64()}, "idColumn names the column 'i'"),
        ({}, {"_id": pa.int64()}, "The column '_id' cannot be a field"),
        ({}, {"a..b": pa.int64()}, "The column 'a..b' cannot be a field"),
        ({}, {" ": pa.int64()}, "The column ' ' cannot be a field"),
        ({}, {"m": pa.map_(pa.int64(), pa.int64())}, "m is a map whose keys"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_any_row_moves(
    kind: str, options: Mapping[str, str], rows: Mapping[str, pa.DataType], said: str
) -> None:
    with pytest.raises(SchemaMismatchError) as failure:
        service_of(kind).sink({**GIVEN, **options}).open_table().plan_batch(pa.schema(rows), "append", 0)
    assert said in str(failure.value)


@pytest.mark.parametrize(
    ("options", "rows", "said"),
    [
        ({"idColumn": "i"}, {"i": ["a", None]}, "NULL in the column 'i'"),
        ({"idColumn": "i"}, {"i": [""]}, "The id of a row has 0 bytes"),
        ({"idColumn": "i"}, {"i": ["é" * 257]}, "The id of a row has 514 bytes"),
        ({"routing": "r"}, {"r": ["a", None]}, "NULL in the column 'r'"),
        ({"routing": "r"}, {"r": [""]}, "empty text in the column 'r'"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_the_task(
    kind: str, options: Mapping[str, str], rows: Mapping[str, list[Any]], said: str
) -> None:
    """Decoupled, before they are in the row log."""
    check = service_of(kind).sink({**GIVEN, **options}).requests.checker()
    with pytest.raises(SchemaMismatchError) as failure:
        pickle.loads(pickle.dumps(check))(pa.record_batch(dict(rows)))
    assert said in str(failure.value)
