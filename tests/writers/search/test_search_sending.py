"""Rows arrive in OpenSearch, whatever the service and the network do meanwhile.

Elasticsearch's library sends to OpenSearch, too, through a proxy that translates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.lossy_proxy import Fault, LossyProxy
from servers.opensearch import OpenSearchServer, SearchProxy, elasticsearch_proxy
from tests.support.lossy_requests import ProxyOf
from tests.support.search import KINDS, SearchPlace
from tests.support.service_places import result_of_failure, rows_of, service_of

from penstock.committers.contract import AttemptId
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.target import ChecksConnection
from penstock.datasource.checked import ChecksBatches
from penstock.writers.requests.direct import DirectWriters
from penstock.writers.requests.results import Retry

ROWS = 60
SMALL = {"maxBatchSize": "5", "maxInFlightRequests": "4"}

BOTH = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def proxy(opensearch: OpenSearchServer, proxy_of: ProxyOf) -> LossyProxy:
    return proxy_of(opensearch.url)


@pytest.fixture(scope="module")
def translating(opensearch: OpenSearchServer, proxy_of: ProxyOf) -> Iterator[SearchProxy]:
    with elasticsearch_proxy(proxy_of(opensearch.url).url) as started:
        yield started


@pytest.fixture
def place(
    request: pytest.FixtureRequest, opensearch: OpenSearchServer, proxy: LossyProxy, translating: SearchProxy
) -> SearchPlace:
    """Behind a proxy that loses requests."""
    is_parametrized = "kind" in request.fixturenames
    kind = request.getfixturevalue("kind") if is_parametrized else "opensearch"
    return SearchPlace.new(opensearch, kind, translating.url if kind == "elasticsearch" else proxy.url)


# Faults ---------------------------------------------------------------------------------------------


@BOTH
def test_rows_arrive_with_their_values_and_ids(kind: str, place: SearchPlace) -> None:
    place.write(rows_of(*range(ROWS)), **SMALL)
    place.write(rows_of(*range(ROWS)), **SMALL)
    hits = {hit["_id"]: hit["_source"] for hit in place.server.hits(place.index)}
    assert hits == {f"q1-0-0-{one}": {"id": one, "text": f"é-{one}"} for one in range(ROWS)}


@BOTH
@pytest.mark.parametrize("operation", ["index", "create"])
@pytest.mark.parametrize(
    "fault",
    [
        *("request lost", "response lost", "response cut", "sent twice", "answered 500", "answered 503"),
        *("committed, answered 502", "committed, answered 503"),
    ],
)
def test_a_lost_request_or_response_loses_and_doubles_nothing(
    kind: str, place: SearchPlace, proxy: LossyProxy, fault: Fault, operation: str
) -> None:
    proxy.spend(fault, on="_bulk")
    counters = place.write(rows_of(1, 2, 3), operation=operation, idColumn="id")

    assert len(proxy.spent()) == 1
    assert place.ids() == [1, 2, 3]
    assert counters.retried == (0 if fault == "sent twice" else 3)
    assert counters.throttled_requests == ("503" in fault)


@BOTH
def test_a_wait_that_the_service_asks_for_is_read(kind: str, place: SearchPlace, proxy: LossyProxy) -> None:
    proxy.spend("asked to wait", on="_bulk")
    result = result_of_failure(place.sink().requests, rows_of(1, 2))
    assert isinstance(result, Retry)
    assert (result.retry_after_s, result.is_throttled) == (2, True)


def test_a_request_that_arrives_late_doubles_nothing(place: SearchPlace, proxy: LossyProxy) -> None:
    proxy.spend("request late", on="_bulk")
    place.write(rows_of(1, 2), idColumn="id")
    assert proxy.deliver_late() == [200]
    assert place.ids() == [1, 2]


@BOTH
def test_a_task_that_runs_twice_with_its_rows_in_another_order_loses_none(
    kind: str, place: SearchPlace, proxy: LossyProxy
) -> None:
    """As with speculation. A request of the first attempt arrives after all requests of the second one."""
    options = {"maxBatchSize": "1", "maxInFlightRequests": "1", "retryFor": "1s"}
    writers = DirectWriters(place.sink(**options).requests)
    proxy.spend("request late", *["request lost"] * 50, on="_bulk")  # type: ignore[arg-type]
    first = writers.open(AttemptId("q1", "r1", 0, 0, 1))
    first.write(rows_of(1, 2))
    with pytest.raises(RetryableError):
        first.finish()
    first.abort()
    assert place.ids() == []

    proxy.spend()
    second = writers.open(AttemptId("q1", "r1", 0, 0, 2))
    second.write(rows_of(2, 1))
    assert second.finish().rows == 2
    assert proxy.deliver_late() == [200]
    assert place.ids() == [1, 1, 2], "row 1 is there twice, as Spark has given it two places"


@BOTH
def test_a_task_that_runs_again_with_the_same_rows_doubles_none(kind: str, place: SearchPlace) -> None:
    writers = DirectWriters(place.sink().requests)
    for number in (1, 2):
        writer = writers.open(AttemptId("q1", "r1", 0, 0, number))
        writer.write(rows_of(1, 1, 2))
        writer.finish()
    assert place.ids() == [1, 1, 2]


@BOTH
def test_documents_that_are_refused_for_good_are_dropped_or_stop_the_writer(
    kind: str, place: SearchPlace
) -> None:
    """The others of their request are delivered."""
    rows = pa.record_batch({"id": ["1", "no number", "3"]})
    with pytest.raises(
        SchemaMismatchError, match=r"q1-0-0-1.* for good: mapper_parsing_exception.*no number"
    ):
        place.write(rows)
    counters = place.write(rows, badRows="drop")
    assert (counters.delivered, counters.dead_letters) == (2, 1)
    assert sorted(row["id"] for row in place.server.rows(place.index)) == ["1", "3"]


@BOTH
def test_a_request_that_is_too_large_is_split(
    kind: str, opensearch: OpenSearchServer, place: SearchPlace
) -> None:
    """The limit of this server is 20 MB (`http.max_content_length`), by default 100 MB."""
    text = "x" * 8 * 1024 * 1024
    rows = pa.record_batch({"id": [1, 2, 3], "text": [text] * 3})
    limits = {"maxRecordBytes": "30mb", "maxBatchBytes": "30mb", "maxBufferedBytes": "60mb"}
    direct = replace(place, url=opensearch.url) if kind == "opensearch" else place
    opensearch.ask(
        "PUT", f"{place.index}/_mapping", {"properties": {"text": {"type": "object", "enabled": False}}}
    )
    counters = direct.write(rows, **limits)
    assert counters.requests >= 3
    assert place.ids() == [1, 2, 3]


def test_a_full_disk_is_waited_for(place: SearchPlace) -> None:
    """The service blocks its indexes then, with status 429."""
    place.server.set(place.index, **{"index.blocks.read_only_allow_delete": True})
    with pytest.raises(PenstockError, match="cluster_block_exception"):
        place.write(rows_of(1), retryFor="1s")
    place.server.set(place.index, **{"index.blocks.read_only_allow_delete": None})
    place.write(rows_of(1))
    assert place.ids() == [1]


@BOTH
def test_rows_of_one_id_are_written_in_their_order(kind: str, place: SearchPlace, proxy: LossyProxy) -> None:
    """The last one wins, whatever is lost."""
    proxy.spend("answered 503", "response lost", "answered 500", on="_bulk")
    numbers = list(range(80))
    rows = pa.record_batch({"id": [one % 4 for one in numbers], "number": numbers})
    place.write(rows, idColumn="id", **SMALL)
    assert {row["id"]: row["number"] for row in place.server.rows(place.index)} == {
        0: 76,
        1: 77,
        2: 78,
        3: 79,
    }


@BOTH
def test_create_keeps_the_first_document(kind: str, place: SearchPlace) -> None:
    for text in ("first", "second"):
        rows = pa.record_batch({"id": [1], "text": [text]})
        place.write(rows, operation="create", idColumn="id")
    assert place.server.rows(place.index) == [{"id": 1, "text": "first"}]


# What is not there ----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"index": "missing"}, 'The index missing does not exist.*option\\("createIndex", "true"\\)'),
        ({"pipeline": "missing"}, "The ingest pipeline missing does not exist"),
        ({"index": "events-1"}, 'events-1 is or belongs to a data stream.*option\\("operation", "create"\\)'),
        ({"index": ".ds-events-1-000001"}, "belongs to a data stream, which only accepts new documents"),
    ],
)
def test_what_is_missing_is_reported_before_any_row_moves(
    kind: str, place: SearchPlace, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    template = {"index_patterns": ["events-*"], "data_stream": {}}
    place.server.ask("PUT", "_index_template/events", template)
    place.server.ask("DELETE", "_data_stream/events-1")
    place.server.ask("PUT", "_data_stream/events-1")
    for delivery in ("coupled", "decoupled"):
        given = place.options(delivery=delivery, rowLog=str(tmp_path / "log")) | options
        with pytest.raises(ConfigurationError, match=said):
            service_of(kind).sink(given).open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_a_missing_index_is_created_if_allowed(kind: str, place: SearchPlace) -> None:
    place.server.delete(place.index)
    for _ in range(2):
        place.sink(createIndex="true").open_table().plan_batch(rows_of(0).schema, "append", 0)
        assert place.server.ask("GET", place.index) is not None


@BOTH
def test_a_check_before_the_start_creates_no_index(kind: str, place: SearchPlace) -> None:
    place.server.delete(place.index)
    target = place.sink(createIndex="true").open_table()
    assert isinstance(target, ChecksBatches)
    assert isinstance(target, ChecksConnection)
    assert not target.check_batch(rows_of(0).schema, "append")
    assert target.check_connection()
    assert place.server.ask("GET", place.index) is None


@BOTH
def test_an_index_that_another_query_creates_meanwhile_is_used(
    kind: str, place: SearchPlace, proxy: LossyProxy
) -> None:
    """The request arrives twice, and the second one is refused."""
    place.server.delete(place.index)
    proxy.spend("sent twice", on=f"PUT /{place.index}")
    place.sink(createIndex="true").open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert len(proxy.spent()) == 1
    assert place.server.ask("GET", place.index) is not None


@BOTH
def test_an_index_that_cannot_be_created_is_an_error(
    kind: str, place: SearchPlace, proxy: LossyProxy
) -> None:
    place.server.delete(place.index)
    proxy.spend("denied", on=f"PUT /{place.index}")
    with pytest.raises(PenstockError, match="cannot be checked"):
        place.sink(createIndex="true").open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert place.server.ask("GET", place.index) is None


def test_a_pipeline_that_may_not_be_read_is_not_called_missing(place: SearchPlace, proxy: LossyProxy) -> None:
    proxy.spend("denied", on="GET /_ingest/pipeline")
    with pytest.raises(PenstockError, match="cannot be checked"):
        place.sink(pipeline="some").open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert len(proxy.spent()) == 1


def test_a_data_stream_takes_each_document_once(place: SearchPlace) -> None:
    server, name = place.server, f"logs-{place.index}"
    server.ask("PUT", "_index_template/logs", {"index_patterns": ["logs-*"], "data_stream": {}})
    server.ask("PUT", f"_data_stream/{name}")
    rows = pa.record_batch({"@timestamp": ["2026-01-02T03:04:05.000006Z"], "id": [1]})
    for _ in range(2):
        replace(place, index=name).write(rows, operation="create", idColumn="id")
    assert [hit["_id"] for hit in server.hits(name)] == ["1"]
    server.ask("DELETE", f"_data_stream/{name}")


@BOTH
def test_a_service_that_does_not_answer_is_reported(kind: str, place: SearchPlace) -> None:
    nowhere = replace(place, url="http://127.0.0.1:1")
    given = {"username": "me", "password": "geheim"}
    with pytest.raises(RetryableError, match="cannot be checked") as failure:
        nowhere.sink(**given).open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert "geheim" not in str(failure.value)
    with pytest.raises(PenstockError) as while_sending:
        nowhere.write(rows_of(1), retryFor="1s", **given)
    assert "geheim" not in str(while_sending.value)


@BOTH
def test_refused_credentials_stop_the_writer(kind: str, place: SearchPlace, proxy: LossyProxy) -> None:
    given = {"username": "me", "password": "geheim"}
    proxy.spend("denied", on="_bulk")
    with pytest.raises(AccessRefusedError, match="Check the permissions of these credentials") as failure:
        place.write(rows_of(1), **given)
    assert len(proxy.spent()) == 1
    proxy.spend("denied")
    with pytest.raises(AccessRefusedError, match=r"cannot be checked.*Check the permissions"):
        place.sink(**given).open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert "geheim" not in str(failure.value)


# What is sent ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"username": "ü", "password": "p:é"}, "Basic w7w6cDrDqQ=="),
        ({"apiKey": "abc=="}, "ApiKey abc=="),
    ],
)
def test_credentials_pipeline_and_routing_are_sent(
    kind: str, opensearch: OpenSearchServer, options: dict[str, str], header: str
) -> None:
    if kind == "opensearch" and "apiKey" in options:
        return
    opensearch.ask("PUT", "_ingest/pipeline/nothing", {"processors": []})
    with elasticsearch_proxy(opensearch.url) as seen:
        place = SearchPlace.new(opensearch, kind, seen.url)
        more: Any = {**options, "pipeline": "nothing", "routing": "text"}
        place.sink(**more).open_table().plan_batch(rows_of(0).schema, "append", 0)
        place.write(rows_of(1), **more)
        assert {headers["authorization"] for _, headers in seen.seen} == {header}
    assert "pipeline=nothing" in seen.seen[-1][0]
    assert [hit["_routing"] for hit in opensearch.hits(place.index)] == ["é-1"]


def test_elasticsearch_is_not_opensearch(opensearch: OpenSearchServer) -> None:
    place = SearchPlace.new(opensearch, "elasticsearch", opensearch.url)
    with pytest.raises(
        ConfigurationError, match=r"not Elasticsearch\. For OpenSearch, use penstock\.opensearch"
    ):
        place.sink().open_table().plan_batch(rows_of(0).schema, "append", 0)
