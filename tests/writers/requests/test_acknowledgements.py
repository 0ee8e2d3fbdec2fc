"""A row is delivered only by an acknowledgement of its own, in the form that its service documents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.answering import PAGE, Answer, AnsweringServer, answering, replying
from tests.support.service_places import PLACE, rows_of, service_of

from penstock.committers.errors import RetryableError
from penstock.datasource.plug_ins import BUILT_IN
from penstock.writers.nats.errors import result_of as of_nats
from penstock.writers.redis.fence import Fenced, results_of
from penstock.writers.requests.acknowledgements import UNACKNOWLEDGED, result_of_each
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.results import (
    DELIVERED,
    Acknowledged,
    DeadLetter,
    Dropped,
    Failure,
    Fatal,
    Retry,
    Split,
)
from penstock.writers.requests.retry_budget import RetryBudget
from penstock.writers.requests.sender import RequestSender

ROWS = 5
KEYS = {"accessKeyId": "key", "secretAccessKey": "secret", "region": "eu-west-1"}
PLACES = {
    "kinesis": {"stream": "s", **KEYS},
    "firehose": {"stream": "s", **KEYS},
    "dynamodb": {"table": "rows", "keyColumns": "id", **KEYS},
    "sqs": {"queue": "q", **KEYS},
    "opensearch": {"index": "i"},
    "elasticsearch": {"index": "i"},
    "http": {},
}
IDS = [{"Id": str(number)} for number in range(ROWS)]
RECORD = {"SequenceNumber": "1", "ShardId": "s"}
OK = {"index": {"status": 201}}
DOCUMENTED: dict[str, Any] = {
    "kinesis": {"FailedRecordCount": 0, "Records": [RECORD] * ROWS},
    "firehose": {"FailedPutCount": 0, "RequestResponses": [{"RecordId": "1"}] * ROWS},
    "dynamodb": {"UnprocessedItems": {}},
    "sqs": {"Successful": [{**one, "MessageId": "m"} for one in IDS]},
    "opensearch": {"errors": False, "items": [OK] * ROWS},
    "elasticsearch": {"errors": False, "items": [OK] * ROWS},
    "http": "anything",
}
RECORDS: list[Any] = [[], [RECORD], [RECORD] * 6, [{}] * ROWS, ["x"] * ROWS, RECORD]
LEFT: list[Any] = [[], {"t": {}}, {"t": [{}]}, {"t": [{"PutRequest": {"Item": {}}}]}]
ITEMS: list[Any] = [
    *([], [OK], [OK] * 6, ["x"] * ROWS, [{"delete": {"status": 200}}] * ROWS),
    *([{"index": {"status": status}}] * ROWS for status in (None, "x", True, 0, 302, 503)),
]
WRONG: dict[str, list[Any]] = {
    "kinesis": [{"FailedRecordCount": 0, "Records": some} for some in RECORDS],
    "firehose": [{"FailedPutCount": 0, "RequestResponses": some} for some in RECORDS],
    "dynamodb": [{"UnprocessedItems": some} for some in LEFT],
    "sqs": [
        {"Successful": [], "Failed": []},
        {"Successful": IDS},
        {"Successful": [{"Id": "17", "MessageId": "m"}] * ROWS},
        {"Failed": IDS},
    ],
    "opensearch": [{"errors": False, "items": some} for some in ITEMS],
}
WRONG["elasticsearch"] = WRONG["opensearch"]
OF_ANY_SERVICE = [
    PAGE,
    Answer(),
    *map(Answer.json, ("{}", "[]", "17", "null")),
    Answer(b"OK", headers={"Content-Type": "text/plain"}),
]
OF_HTTP = [
    PAGE,
    Answer(b"\n <HTML><BODY>Log in</BODY></HTML>"),
    Answer(b"[]", status=207),
    Answer(b"[]", status=206),
]
QUEUE = Answer.json('{"QueueUrl": "http://localhost/1/q"}')


@pytest.fixture(scope="module")
def started() -> Iterator[AnsweringServer]:
    with answering() as server:
        yield server


@pytest.fixture
def server(started: AnsweringServer) -> AnsweringServer:
    started.requests.clear()
    started.exceptions, started.answers = {"GetQueueUrl": QUEUE}, []
    return started


def requests_of(kind: str, url: str) -> Any:
    endpoint = "endpointUrl" if "region" in PLACES[kind] else "url"
    return service_of(kind).sink({"checkpointLocation": "/c", endpoint: url, **PLACES[kind]}).requests


def by(kind: str, answer: Any) -> Answer:
    """The answer as this service gives it."""
    made = answer if isinstance(answer, Answer) else Answer.json(json.dumps(answer))
    of_product = {"X-Elastic-Product": "Elasticsearch"} if kind == "elasticsearch" else {}
    return replace(made, headers={**made.headers, **of_product})


def sent(
    requests: Any, *, attempts: int = 2, on_done: Callable[[], None] = lambda: None
) -> list[tuple[int, Acknowledged]]:
    """Send five rows in one request, and return what is acknowledged.

    Raises:
        PenstockError: they are not delivered.
    """
    found: list[tuple[int, Acknowledged]] = []

    def observe(done: Sequence[tuple[Any, Acknowledged]]) -> None:
        found.extend((entry.position, result) for entry, result in done)
        on_done()

    async def send() -> None:
        sender: RequestSender[Any] = RequestSender(
            requests.new_client(),
            replace(Limits(), request_timeout_s=10.0),
            retries=RetryBudget(attempts_max=attempts, backoff_first_s=0.001, backoff_max_s=0.001),
            observer=observe,
        )
        try:
            await sender.write(requests.entries(rows_of(*range(ROWS)), PLACE))
            await sender.flush()
        finally:
            await sender.abort()

    try:
        asyncio.run(send())
    except Exception:
        assert found == [], "nothing is acknowledged"
        raise
    return sorted(found, key=lambda one: one[0])


@pytest.mark.parametrize("kind", DOCUMENTED)
def test_an_answer_that_acknowledges_nothing_delivers_nothing(server: AnsweringServer, kind: str) -> None:
    """The rows are sent again until the answer is the one that the service documents."""
    wrong = [
        by(kind, one) for one in (*(OF_HTTP if kind == "http" else OF_ANY_SERVICE), *WRONG.get(kind, ()))
    ]
    if kind == "elasticsearch":
        wrong.append(PAGE)  # without the header of the product
    server.answers, server.answer = list(wrong), by(kind, DOCUMENTED[kind])
    delivered_by: list[int] = []
    done = sent(
        requests_of(kind, server.url),
        attempts=len(wrong) + 1,
        on_done=lambda: delivered_by.append(len(wrong) - len(server.answers)),
    )
    assert delivered_by == [len(wrong)], "the first answer after the wrong ones"
    assert done == [(number, DELIVERED) for number in range(ROWS)]


def test_each_request_destination_has_wrong_answers_here() -> None:
    of_requests = {kind for kind, place in BUILT_IN.items() if _has_service(place)}
    assert of_requests - {"kafka"} == {*DOCUMENTED, "redis", "nats"}, "kafka answers with a transaction"


def _has_service(place: str) -> bool:
    """Without importing the module, which takes seconds for some."""
    spec = find_spec(place.partition(":")[0])
    assert spec is not None
    assert spec.origin is not None
    return "\nSERVICE = " in Path(spec.origin).read_text()


def test_after_the_retries_a_missing_acknowledgement_is_an_error(server: AnsweringServer) -> None:
    server.answer = PAGE
    with pytest.raises(RetryableError, match=r"UNACKNOWLEDGED\. Not delivered in 2 .*check the address"):
        sent(requests_of("kinesis", server.url))


def test_the_http_status_204_delivers_without_a_body(server: AnsweringServer) -> None:
    server.answer = Answer(status=204)
    assert len(sent(requests_of("http", server.url))) == ROWS


@pytest.mark.parametrize("kind", ["kinesis", "firehose", "dynamodb", "sqs"])
def test_a_check_notices_the_answer_of_another_service(server: AnsweringServer, kind: str) -> None:
    requests, server.exceptions = requests_of(kind, server.url), {}
    for answer in (PAGE, Answer.json("{}"), Answer.json("[]")):
        server.answer = answer
        with pytest.raises(RetryableError, match=r"cannot be checked.*The answer cannot be read"):
            requests.check_destination(rows_of(1).schema)


# By other protocols -----------------------------------------------------------------------------------

REDIS = {"set": {"key": "rows:{id}"}, "hash": {"key": "rows", "field": "{id}"}}
REPLIES = {
    "set": [b"$-1\r\n", b":0\r\n", b"$2\r\nok\r\n", b"*0\r\n", b"<html>\r\n", b":x\r\n"],
    "hash": [b"$-1\r\n", b":-1\r\n", b"+OK\r\n", b"<html>\r\n"],
    "list": [b"$-1\r\n", b":0\r\n", b"+OK\r\n"],
    "stream": [b"$-1\r\n", b":1\r\n", b"+OK\r\n", b"$0\r\n\r\n"],
}
ACKNOWLEDGED = {"set": b"+OK\r\n", "hash": b":0\r\n", "list": b":7\r\n", "stream": b"$3\r\n1-0\r\n"}


def redis_requests(port: int, structure: str, **more: str) -> Any:
    place = {"url": f"redis://127.0.0.1:{port}/0", "structure": structure, "key": "rows"}
    given = {**place, **REDIS.get(structure, {}), **more}
    return service_of("redis").sink({"checkpointLocation": "/c", **given}).requests


def replied(structure: str, reply: bytes, **more: str) -> list[tuple[int, Acknowledged]]:
    with replying(reply, to=b"\r\nrows") as port:
        return sent(redis_requests(port, structure, **more))


@pytest.mark.parametrize(
    ("structure", "reply"), [(structure, reply) for structure, some in REPLIES.items() for reply in some]
)
def test_a_reply_of_redis_that_acknowledges_nothing_delivers_nothing(structure: str, reply: bytes) -> None:
    with pytest.raises(RetryableError, match="Not delivered in 2 attempts"):
        replied(structure, reply)


@pytest.mark.parametrize("structure", ACKNOWLEDGED)
def test_the_reply_that_a_command_documents_delivers(structure: str) -> None:
    assert len(replied(structure, ACKNOWLEDGED[structure])) == ROWS


FENCED = [Fenced("fence", "rows", str(number), str(number), b"{}") for number in range(ROWS)]


@pytest.mark.parametrize(
    "reply",
    [None, 0, b"OK", [], [5, 0], [4, 0, b""], [6, 0, b""], [5, 0, b"OOM full"], [5, 2, b""], [5, 0, 0]],
)
def test_a_script_that_does_not_say_what_it_has_done_delivers_nothing(reply: object) -> None:
    results, is_between = results_of(FENCED, reply, is_between=True, has_columns=False)
    assert result_of_each(results, ROWS) == [UNACKNOWLEDGED] * ROWS
    assert is_between, "as before"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"+OK", b"{}", b"[]", b"5", b'"error"', b'{"ok": true}', b'{"error": 5}', b'{"error": {}}'),
        *(b'{"stream": "ROWS"}', b'{"seq": 1}', b'{"stream": "", "seq": 1}', b'{"stream": "ROWS", "seq": 0}'),
        *(b'{"stream": 5, "seq": 1}', b'{"stream": "ROWS", "seq": 1, "error": {"x": 1}}', b"[" * 100_000),
    ],
)
def test_a_response_of_nats_that_is_no_puback_delivers_nothing(data: bytes) -> None:
    response: Any = SimpleNamespace(data=data, headers=None)
    assert isinstance(of_nats(response, "rows.1"), Retry)


# The contract of clients ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "results",
    [
        None,
        True,
        DELIVERED,
        Dropped(),
        DeadLetter("400", "Bad."),
        [],
        [DELIVERED],
        [DELIVERED] * 4,
        {},
        "abc",
    ],
)
def test_results_that_are_not_one_for_each_entry_deliver_none(results: object) -> None:
    assert {type(result) for result in result_of_each(results, 3)} == {Retry}


@pytest.mark.parametrize("failure", [Retry("503"), Split("400", ""), Fatal("401", "")])
def test_a_failure_can_be_the_result_of_all_entries(failure: Failure) -> None:
    assert result_of_each(failure, 3) == [failure] * 3


def test_an_entry_without_a_result_is_sent_again_alone() -> None:
    assert result_of_each([DELIVERED, None, True], 3) == [DELIVERED, UNACKNOWLEDGED, UNACKNOWLEDGED]
