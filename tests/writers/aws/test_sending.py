"""Rows arrive in Kinesis, Firehose, DynamoDB and SQS, whatever the service and the network do meanwhile."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from servers.aws import SECRET, AwsServer
from servers.lossy_proxy import Fault, LossyProxy
from tests.support.aws import NAMED_BY, AwsPlace, given
from tests.support.lossy_requests import ProxyOf
from tests.support.service_places import PLACE, result_of_failure, rows_of, send_rows, service_of

from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.testing.conformance.echoes import echoing
from penstock.testing.conformance.request_harness import http_echo
from penstock.writers.aws.client import AwsClient
from penstock.writers.aws.dynamodb import DynamoDbClient
from penstock.writers.aws.sqs import SqsClient
from penstock.writers.requests.results import DELIVERED, Retry

ROWS = 60
SMALL = {"maxBatchSize": "5", "maxInFlightRequests": "4", "maxTimeInBuffer": "1s"}

KINDS = pytest.mark.parametrize("kind", list(NAMED_BY))


@pytest.fixture
def server(aws_service: AwsServer) -> AwsServer:
    return aws_service


@pytest.fixture
def proxy(aws_service: AwsServer, proxy_of: ProxyOf) -> LossyProxy:
    return proxy_of(aws_service.url)


# Faults ---------------------------------------------------------------------------------------------


@KINDS
def test_rows_arrive_with_their_values(server: AwsServer, kind: str) -> None:
    place = AwsPlace.new(server, kind)
    place.write(rows_of(*range(ROWS)))
    assert sorted((int(row["id"]), row["text"]) for row in place.rows()) == [
        (number, f"é-{number}") for number in range(ROWS)
    ]


@KINDS
def test_entries_that_are_throttled_are_sent_again_alone(server: AwsServer, kind: str) -> None:
    """The others of their requests are not."""
    place = AwsPlace.new(server, kind)
    server.throttle(entries_of=4)
    counters = place.write(rows_of(*range(ROWS)), **SMALL)

    assert place.ids() == list(range(ROWS))
    assert server.refused()["entries"] == 4
    assert (counters.retried, counters.throttled) == (4, 4)
    assert counters.delivered == ROWS


@KINDS
@pytest.mark.parametrize(
    "error", ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestThrottled"]
)
def test_requests_that_are_throttled_are_sent_again(server: AwsServer, kind: str, error: str) -> None:
    place = AwsPlace.new(server, kind)
    server.throttle(requests=3, error=error)
    counters = place.write(rows_of(*range(ROWS)), **SMALL)

    assert place.ids() == list(range(ROWS))
    assert (server.refused()["requests"], counters.throttled_requests, counters.retried) == (3, 3, 15)


@KINDS
@pytest.mark.parametrize(
    ("fault", "arrives_twice"),
    [
        ("request lost", False),
        ("response lost", True),
        ("response cut", True),
        ("answered 500", False),
        ("committed, answered 503", True),
        ("sent twice", True),
    ],
)
def test_a_lost_request_or_response_loses_nothing(
    server: AwsServer, proxy: LossyProxy, kind: str, fault: Fault, arrives_twice: bool
) -> None:
    """What has arrived arrives again; in DynamoDB it replaces itself."""
    place = AwsPlace.new(server, kind, proxy.url)
    place.write(rows_of(-1))  # the queue's URL is known
    requests = place.sink(**SMALL).requests
    writer: Any = requests.open_writer()
    writer.write(requests.entries(rows_of(0), PLACE))
    writer.flush()
    proxy.spend(fault)
    writer.write(requests.entries(rows_of(1, 2, 3), replace(PLACE, row=1, position=1)))
    writer.flush()
    writer.abort()

    assert len(proxy.spent()) == 1
    counts = Counter(place.ids())
    assert set(counts) == {-1, 0, 1, 2, 3}
    twice = 2 if arrives_twice and kind != "dynamodb" else 1
    assert [counts[one] for one in (1, 2, 3)] == [twice] * 3


# What is not there ----------------------------------------------------------------------------------


@KINDS
def test_a_destination_that_does_not_exist_is_reported_before_any_row_moves(
    server: AwsServer, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = AwsPlace.new(server, kind)
    server.delete(kind, place.name)
    folder = tmp_path_factory.mktemp("log")
    for delivery in ("coupled", "decoupled"):
        sink = place.sink(delivery=delivery, rowLog=str(folder / "log"))
        with pytest.raises(ConfigurationError, match=f"{place.name}.*cannot be checked.*Check its name"):
            sink.open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert list(folder.iterdir()) == []


@KINDS
def test_a_destination_that_disappears_stops_the_writer(server: AwsServer, kind: str) -> None:
    place = AwsPlace.new(server, kind)
    server.delete(kind, place.name)
    with pytest.raises(AccessRefusedError, match="Check its name, region and account") as failure:
        place.write(rows_of(1))
    assert "secret" not in str(failure.value)


@KINDS
def test_a_service_that_does_not_answer_stops_only_coupled_queries(
    server: AwsServer, proxy: LossyProxy, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = AwsPlace.new(server, kind, "http://127.0.0.1:1")
    options = {
        "rowLog": str(tmp_path_factory.mktemp("log")),
        "accessKeyId": "geheim",
        "secretAccessKey": "geheim",
    }
    with pytest.raises(RetryableError, match="cannot be checked") as failure:
        place.sink(**options).open_table().plan_batch(rows_of(0).schema, "append", 0)
    assert "geheim" not in str(failure.value)
    planned = (
        place.sink(**options, delivery="decoupled").open_table().plan_batch(rows_of(0).schema, "append", 0)
    )
    assert planned.content == "log"


@KINDS
def test_a_wait_that_the_service_asks_for_is_read(server: AwsServer, proxy: LossyProxy, kind: str) -> None:
    place = AwsPlace.new(server, kind, proxy.url)
    proxy.spend("asked to wait")
    result = result_of_failure(place.sink().requests, rows_of(1, 2))
    assert isinstance(result, Retry)
    assert (result.retry_after_s, result.is_throttled) == (2, True)


@KINDS
def test_an_outage_ends_when_the_time_for_retries_is_over(server: AwsServer, kind: str) -> None:
    place = AwsPlace.new(server, kind)
    server.throttle(requests=1000)
    with pytest.raises(PenstockError, match="Too fast"):
        place.write(rows_of(1), retryFor="1s")


# Each service ---------------------------------------------------------------------------------------


def test_items_of_one_key_are_written_in_their_order(server: AwsServer) -> None:
    """Never two in one request, which DynamoDB refuses, and the last row wins, whatever is throttled."""
    place = AwsPlace.new(server, "dynamodb")
    server.throttle(entries_of=6)
    numbers = list(range(80))
    rows = pa.record_batch({"id": [one % 4 for one in numbers], "number": numbers})
    place.write(rows, maxInFlightRequests="4")

    assert {int(row["id"]): int(row["number"]) for row in place.rows()} == {0: 76, 1: 77, 2: 78, 3: 79}
    assert server.refused()["writes"] >= 20


def test_a_key_is_the_same_however_its_number_is_written(server: AwsServer) -> None:
    place = AwsPlace.new(server, "dynamodb")
    server.throttle(entries_of=1)
    ids = pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("3.00")], pa.decimal128(10, 2))
    counters = place.write(pa.record_batch({"id": ids}))
    assert sorted(row["id"] for row in place.rows()) == [Decimal("1.5"), 2, 3]
    assert counters.retried == 1, "the others are acknowledged"


def test_an_unprocessed_item_of_an_unknown_key_repeats_the_request(server: AwsServer) -> None:
    """Rather than to acknowledge an item that is not written."""

    class Answers:
        async def batch_write_item(self, **_: Any) -> Any:
            return {"UnprocessedItems": {"t": [{"PutRequest": {"Item": {"id": {"N": "9"}}}}]}}

    requests: Any = AwsPlace.new(server, "dynamodb").sink().requests
    client = DynamoDbClient(requests.target, requests.settings.limits, requests.keys)
    result = asyncio.run(client.send(Answers(), requests.entries(rows_of(1, 2), PLACE)))
    assert isinstance(result, Retry)


@KINDS
def test_a_writer_opens_one_client(server: AwsServer, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = [], AwsClient._open

    async def counted(client: Any) -> Any:
        opened.append(client)
        return await real(client)

    monkeypatch.setattr(AwsClient, "_open", counted)
    counters = AwsPlace.new(server, kind).write(rows_of(*range(ROWS)), **SMALL)
    assert counters.requests > 1
    assert len(opened) == 1


def test_a_message_without_a_result_is_sent_again(server: AwsServer) -> None:
    class Answers:
        async def get_queue_url(self, **_: Any) -> Any:
            return {"QueueUrl": "q"}

        async def send_message_batch(self, **_: Any) -> Any:
            return {"Successful": [{"Id": "1", "MessageId": "m"}]}

    async def send() -> Any:
        await client.prepare(Answers())
        return await client.send(Answers(), requests.entries(rows_of(1, 2), PLACE))

    requests: Any = AwsPlace.new(server, "sqs").sink().requests
    client = SqsClient(requests.target, requests.settings.limits)
    lost, delivered = asyncio.run(send())
    assert isinstance(lost, Retry)
    assert delivered is DELIVERED


@pytest.mark.parametrize(
    ("keys", "ids", "said"),
    [
        (
            "id, text",
            pa.int64(),
            r'The key of the table .* is id, but keyColumns.*option\("keyColumns", "id"\)',
        ),
        ("id", pa.string(), "has the type N, but the column id is string. Cast it"),
    ],
)
def test_the_key_of_a_table_is_checked(server: AwsServer, keys: str, ids: pa.DataType, said: str) -> None:
    place = AwsPlace.new(server, "dynamodb")
    rows = pa.schema({"id": ids, "text": pa.string()})
    with pytest.raises((ConfigurationError, SchemaMismatchError), match=said):
        place.sink(keyColumns=keys).open_table().plan_batch(rows, "append", 0)


def test_another_row_at_the_same_place_is_another_message_of_a_fifo_queue(server: AwsServer) -> None:
    """Spark may run a batch again with its rows in another order, or with other rows."""
    place = AwsPlace.new(server, "sqs", suffix=".fifo")
    for numbers in ([1, 2], [2, 1], [3, 2]):
        place.write(pa.record_batch({"id": numbers}), messageGroupId="id")
    client = server.client("sqs")
    url = client.get_queue_url(QueueName=place.name)["QueueUrl"]
    counted = client.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    assert counted["Attributes"]["ApproximateNumberOfMessages"] == "5", "only the last 2 is there already"


def test_messages_of_a_group_arrive_in_their_order_and_once(server: AwsServer, proxy: LossyProxy) -> None:
    """A FIFO queue recognizes what is sent twice."""
    place = AwsPlace.new(server, "sqs", proxy.url, suffix=".fifo")
    server.throttle(entries_of=3, requests=1)
    numbers = list(range(20))
    rows = pa.record_batch({"id": numbers, "group": [f"g{one % 2}" for one in numbers]})
    requests = place.sink(messageGroupId="group").requests
    for _ in range(2):
        send_rows(requests, rows)

    client = server.client("sqs")
    url = client.get_queue_url(QueueName=place.name)["QueueUrl"]
    by_group: dict[str, list[int]] = {"g0": [], "g1": []}
    while read := client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in read:
            row = json.loads(message["Body"])
            by_group[row["group"]].append(row["id"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert by_group == {"g0": numbers[::2], "g1": numbers[1::2]}


def test_records_of_a_partition_key_can_be_kept_in_order(server: AwsServer) -> None:
    place = AwsPlace.new(server, "kinesis")
    server.throttle(entries_of=5, requests=2)
    numbers = list(range(60))
    rows = pa.record_batch({"id": numbers, "key": [f"k{one % 6}" for one in numbers]})
    place.write(rows, partitionKey="key", orderByKey="true", maxBatchSize="13", maxInFlightRequests="4")

    by_key: dict[str, list[int]] = {}
    for row in place.rows():
        by_key.setdefault(row["key"], []).append(row["id"])
    assert by_key == {f"k{one}": numbers[one::6] for one in range(6)}


def test_a_partition_key_is_sent_with_its_record(server: AwsServer) -> None:
    place = AwsPlace.new(server, "kinesis")
    place.write(rows_of(1, 2), partitionKey="text")
    client = server.client("kinesis")
    found = set()
    for shard in client.list_shards(StreamName=place.name)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=place.name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found |= {one["PartitionKey"] for one in client.get_records(ShardIterator=iterator)["Records"]}
    assert found == {"é-1", "é-2"}


def test_a_message_can_have_characters_that_xml_has_not(server: AwsServer) -> None:
    """SQS refuses U+FFFE and U+FFFF; JSON escapes them, and control characters too."""
    place = AwsPlace.new(server, "sqs")
    text = "a\ufffe\uffff\x01\U0001f600\\"
    requests = place.sink().requests
    rows = pa.record_batch({"id": [1], "text": [text]})
    (entry,) = requests.entries(rows, PLACE)
    assert not {"\ufffe", "\uffff", "\x01"} & set(entry.payload.body)
    place.write(rows)
    assert place.rows() == [{"id": 1, "text": text}]


def test_a_row_that_is_too_large_is_refused_or_dropped(server: AwsServer) -> None:
    place = AwsPlace.new(server, "sqs")
    rows = pa.record_batch({"id": [1, 2], "text": ["x" * 2000, "y"]})
    with pytest.raises(SchemaMismatchError, match=r"has 2,0.. bytes; maxRecordBytes allows 1,024"):
        place.write(rows, maxRecordBytes="1kb")
    place.write(rows, maxRecordBytes="1kb", badRows="drop")
    assert set(place.ids()) == {2}


# Secrets ----------------------------------------------------------------------------------------------


class Echo:
    greeting = b""

    def echo(self, request: bytes, *, is_of_row: bool) -> bytes:
        return http_echo(request, 403)


def test_credentials_of_the_default_chain_are_in_no_message_that_echoes_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither in that of a check nor in that of a request with rows."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "geheim-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "geheim-token+/==")
    with echoing(Echo()) as (port, service):
        options = {**given("kinesis"), "endpointUrl": f"http://127.0.0.1:{port}"}
        sink = service_of("kinesis").sink(options)
        for step in (
            lambda: sink.open_table().plan_batch(rows_of(1).schema, "append", 0),
            lambda: send_rows(sink.requests, rows_of(1)),
        ):
            with pytest.raises(AccessRefusedError, match=r"\*\*\*") as failure:
                step()
            assert "geheim" not in "".join(traceback.format_exception(failure.value)).lower()
        assert "geheim-token" in service.echoed
