"""The client of `penstock.nats` with a real server, behind a proxy that loses requests and responses."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nats import errors
from nats.js.errors import APIError
from servers.lossy_tcp import Fault, LossyTcp, lossy_tcp
from servers.nats import MAX_PAYLOAD, NKEY_SEED, SECRET, NatsServer, nats_server, signed_users
from tests.support.service_places import PLACE, send_rows, submit_once, with_quick_retries

from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.nats.sink import SERVICE
from penstock.writers.nats import checking
from penstock.writers.nats.errors import classify
from penstock.writers.nats.requests import NatsRequests
from penstock.writers.requests.results import DELIVERED, DeadLetter, Fatal, Result, Retry

IDS = pa.schema({"id": pa.int64()})


@pytest.fixture
def server(nats_service: NatsServer) -> NatsServer:
    nats_service.create("ROWS", "rows.*")
    return nats_service


@pytest.fixture
def proxy(server: NatsServer) -> Iterator[LossyTcp]:
    with lossy_tcp(server.port) as started:
        yield started


def requests(server: NatsServer | LossyTcp, **options: str) -> NatsRequests:
    given = {"url": f"nats://127.0.0.1:{server.port}", "subject": "rows.{id}", **options}
    return SERVICE.sink({"checkpointLocation": "/c", **given}).requests  # type: ignore[return-value]


def send(sent: NatsRequests, ids: Sequence[int], first: int = 0, **columns: Any) -> Any:
    """Send as a delivery that starts at this row of partition 0. Return the counters."""
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), **columns})
    return send_rows(with_quick_retries(sent), rows, RowPlace("q1", 0, 0, first, first))


def found(server: NatsServer) -> list[int]:
    return [row["id"] for row in server.rows("ROWS")]


def submitted(sent: NatsRequests, ids: Sequence[int] = range(3), **columns: Any) -> Sequence[Result]:
    """Send one request, once."""
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), **columns})
    return submit_once(sent, sent.entries(rows, PLACE))


def test_a_row_is_a_message_with_its_subject_and_headers(server: NatsServer) -> None:
    headers = '{"Country": "{name}", "kind": "row"}'
    sent = requests(server, headers=headers, expectedStream="ROWS")
    send(sent, [7], name=["é"])
    ((subject, found_headers, data),) = server.messages("ROWS")
    assert (subject, data) == ("rows.7", '{"id":7,"name":"é"}'.encode())
    message_id = found_headers.pop("Nats-Msg-Id")
    assert message_id.startswith("q1-0-0-0-")
    assert found_headers == {"Country": "é", "kind": "row", "Nats-Expected-Stream": "ROWS"}


def test_rows_that_are_sent_again_are_recognized_by_their_ids(server: NatsServer) -> None:
    send(requests(server), range(10))
    send(requests(server), range(4, 20), first=4)
    assert found(server) == list(range(20))


def test_another_row_at_the_same_place_is_another_message(server: NatsServer) -> None:
    """Spark may run a batch again with its rows in another order."""
    send(requests(server), [1, 2])
    send(requests(server), [2, 1])
    assert set(found(server)) == {1, 2}
    send(requests(server), [3, 2])
    assert set(found(server)) == {1, 2, 3}


def test_an_id_of_the_user_is_the_id_of_the_message(server: NatsServer) -> None:
    send(requests(server, idColumn="id"), [1, 2])
    send(requests(server, idColumn="id"), [2, 3], first=7)
    assert found(server) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["request lost", "response lost", "response held"])
def test_lost_requests_and_responses_lose_and_double_nothing(
    server: NatsServer, proxy: LossyTcp, fault: Fault
) -> None:
    proxy.spend(fault, fault, on=b"HPUB rows.")
    counters = send(
        requests(proxy, maxBatchSize="5", maxInFlightRequests="4", requestTimeout="1s"), range(60)
    )
    assert proxy.spent()
    assert sorted(found(server)) == list(range(60))
    assert counters.retried > 0


def test_without_a_duplicate_window_a_lost_response_doubles_rows(server: NatsServer, proxy: LossyTcp) -> None:
    server.change("ROWS", duplicate_window=0.1)

    proxy.spend("response held", on=b"HPUB rows.")
    send(requests(proxy, requestTimeout="1s"), range(5))
    assert sorted(found(server)) == sorted([*range(5), *range(5)])


@pytest.mark.parametrize("fault", ["request lost", "response lost"])
def test_the_library_does_not_send_again(server: NatsServer, proxy: LossyTcp, fault: Fault) -> None:
    proxy.spend(fault, on=b"HPUB rows.")
    results = submitted(requests(proxy))
    assert [type(one) for one in results] == [Retry] * 3
    assert proxy.requests == 1
    assert len(found(server)) == (0 if fault == "request lost" else 3)


def test_a_client_that_cannot_connect_says_why() -> None:
    with pytest.raises(ConnectionRefusedError):
        submitted(SERVICE.sink({"url": "nats://127.0.0.1:1", "subject": "rows"}).requests)  # type: ignore[arg-type]


# What the server refuses ------------------------------------------------------------------------------


def test_a_stream_that_is_full_is_throttling_and_loses_nothing(server: NatsServer) -> None:
    server.change("ROWS", max_msgs=2, discard="new")
    first, second, third = submitted(requests(server))
    assert (first, second) == (DELIVERED, DELIVERED)
    assert isinstance(third, Retry)
    assert third.is_throttled
    assert "maximum messages exceeded" in third.message
    server.change("ROWS", max_msgs=-1)
    send(requests(server), range(3))
    assert found(server) == [0, 1, 2]


def test_messages_that_are_too_large_are_refused_one_by_one(server: NatsServer) -> None:
    """By the server's limit, with their headers; and by the stream's."""
    texts = ["x", "x" * (MAX_PAYLOAD - 30), "x" * 2000]
    first, second, third = submitted(requests(server), text=texts)
    assert (first, third) == (DELIVERED, DELIVERED)
    assert isinstance(second, DeadLetter)
    assert second.code == "MAX_PAYLOAD"
    server.change("ROWS", max_msg_size=1000)
    first, _, third = submitted(requests(server, idColumn="id"), text=texts)
    assert first == DELIVERED
    assert third == DeadLetter("10054", "message size exceeds maximum allowed")


def test_another_stream_than_the_expected_one_is_fatal(server: NatsServer) -> None:
    first, *_ = submitted(requests(server, expectedStream="OTHER"))
    assert isinstance(first, Fatal)
    assert (first.code, first.error) == ("10060", ConfigurationError)
    assert found(server) == []


def test_a_subject_without_a_stream_is_tried_again(server: NatsServer) -> None:
    first, *_ = submitted(requests(server, subject="orders.{id}"))
    assert isinstance(first, Retry)
    assert first.code == "NO_RESPONDERS"
    assert "no stream takes the subject orders.0" in first.message


def test_a_response_that_is_not_of_jetstream_is_not_an_acknowledgment(server: NatsServer) -> None:
    async def submit() -> Result:
        sent = requests(server, subject="service.{id}")
        client, service = sent.new_client(), await sent.target.connect(_ignore, _closed)

        async def respond(message: Any) -> None:
            await message.respond(b'{"ok": true}')

        try:
            await service.subscribe("service.*", cb=respond)
            await service.flush()
            entries = sent.entries(pa.record_batch({"id": [1]}), RowPlace("q1", 0, 0, 0, 0))
            return (await client.submit(entries))[0]
        finally:
            await client.close()
            await service.close()

    result = asyncio.run(submit())
    assert isinstance(result, Retry)
    assert result.code == "NO_PUBACK"


async def _ignore(error: Exception) -> None: ...


async def _closed() -> None: ...


def test_a_subject_that_the_user_may_not_publish_to_is_fatal(server: NatsServer) -> None:
    """The server sends no response to the message."""
    results = submitted(requests(server, username="limited", password=SECRET), ids=(1, 2))
    assert isinstance(results[1], Fatal)
    assert results[1].error is AccessRefusedError
    assert 2 not in found(server)


BROKEN: tuple[type[Exception], ...] = (
    *(errors.ConnectionClosedError, errors.StaleConnectionError, errors.OutboundBufferLimitError),
    *(errors.TimeoutError, errors.UnexpectedEOF, ConnectionResetError),
)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        *[(kind(), kind.__name__, Retry) for kind in BROKEN],
        (errors.Error("nats: 'Authorization Violation'"), "Error", AccessRefusedError),
        (errors.Error("nats: 'User Authentication Expired'"), "Error", AccessRefusedError),
        (errors.AuthorizationError(), "AuthorizationError", AccessRefusedError),
        (errors.BadSubjectError(), "BadSubjectError", ConfigurationError),
        (APIError(503, "JetStream system temporarily unavailable", 10008), "10008", Retry),
        (APIError(500, "cluster can not handle request", 10009), "10009", Retry),
        (APIError(409, "duplicate message id is in process", 10158), "10158", Retry),
        (APIError(400, "resource limits exceeded for account", 10002), "10002", Retry),
        (APIError(503, "insufficient resources", 10023), "10023", Retry),
        (APIError(429, "too many requests", 10167), "10167", Retry),
        (APIError(503, "JetStream not enabled for account", 10039), "10039", ConfigurationError),
        (APIError(400, "invalid operation on sealed stream", 10109), "10109", ConfigurationError),
        (APIError(400, "bad request", 10003), "10003", ConfigurationError),
        (ValueError("x"), "ValueError", RetryableError),
    ],
)
def test_errors_are_classified(error: Exception, code: str, kind: type[Any]) -> None:
    result = classify(error)
    assert isinstance(result, (Retry, Fatal))
    assert result.code == code
    assert (kind is Retry) if isinstance(result, Retry) else result.error is kind
    if isinstance(result, Retry):
        assert result.is_throttled is (code in ("10002", "10023", "10167"))


# The check before any row moves -----------------------------------------------------------------------


def checked(server: NatsServer, **options: str) -> None:
    requests(server, **options).check_destination(IDS)


def test_the_check_changes_nothing(server: NatsServer) -> None:
    checked(server)
    assert found(server) == []


ONCE = {"exactlyOnce": "true", "idColumn": "id"}


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({}, {"subject": "orders.{id}"}, r"No stream of JetStream takes the subject orders\.\*"),
        ({}, {"expectedStream": "OTHER"}, "OTHER does not exist or does not take the subject .*ROWS"),
        ({"no_ack": True}, {}, "does not acknowledge messages"),
        ({"sealed": True}, {}, "is sealed"),
        ({"duplicate_window": 120}, ONCE, "for 120 s .* for 360 s .* --dupe-window 360s"),
    ],
)
def test_a_stream_that_cannot_take_the_rows_is_refused(
    server: NatsServer, config: dict[str, Any], options: dict[str, str], said: str
) -> None:
    if config:
        server.change("ROWS", **config)
    with pytest.raises(ConfigurationError, match=said):
        checked(server, **options)


def test_a_short_duplicate_window_is_a_warning_once(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    checking._WARNED.clear()
    server.change("ROWS", duplicate_window=120)
    with caplog.at_level(logging.WARNING):
        checked(server)
        checked(server)
        checked(server, retryFor="1min", idColumn="id", exactlyOnce="true")  # 120 s with requestTimeout
    (warning,) = caplog.records
    assert "for 120 s" in warning.getMessage()
    assert "for 360 s" in warning.getMessage()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        *[({"username": name, "password": SECRET}, None) for name in ("writer", "limited")],
        ({"nkeySeed": NKEY_SEED.decode()}, None),
        ({"username": "writer", "password": "other"}, AccessRefusedError),
        ({"token": "other"}, AccessRefusedError),
        ({"username": "blind", "password": SECRET}, AccessRefusedError),
    ],
)
def test_a_missing_permission_is_said_before_any_row_moves(
    server: NatsServer, options: dict[str, str], error: type[PenstockError] | None
) -> None:
    if error is None:
        checked(server, **options)
        return
    with pytest.raises(error, match="Check the credentials") as failure:
        checked(server, **options)
    assert "Nothing was written" in str(failure.value)
    assert SECRET not in str(failure.value)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(RetryableError, match=r"NATS at nats://127.0.0.1:1 cannot be written"):
        checked(NatsServer(1, 0))


# TLS and tokens ---------------------------------------------------------------------------------------


def test_a_token_is_sent_with_tls_and_not_without(
    server: NatsServer, proxy: LossyTcp, tmp_path: Path
) -> None:
    key = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out ca.pem"
    name = "-days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    made = ["openssl", *key.split(), *name.split()]
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    config = (
        f'tls {{cert_file: "{tmp_path}/ca.pem", key_file: "{tmp_path}/key.pem"}}\n'
        f"authorization {{token: {SECRET}}}\n"
    )
    given = {"token": SECRET, "caFile": f"{tmp_path}/ca.pem"}
    with nats_server(config) as secured:
        url = f"tls://127.0.0.1:{secured.port}"
        with pytest.raises(ConfigurationError, match="No stream"):
            checked(secured, url=url, **given)
        with pytest.raises(ConfigurationError, match="certificate verify failed"):
            checked(secured, url=url, token=SECRET)
    proxy.spend(on=SECRET.encode())
    with pytest.raises(ConfigurationError, match="does not offer TLS"):
        checked(server, url=f"tls://127.0.0.1:{proxy.port}", **given)
    assert proxy.requests == 0


def test_a_user_with_a_jwt_connects_with_credentials() -> None:
    config, credentials = signed_users()
    with nats_server(config) as signed:
        with pytest.raises(ConfigurationError, match="No stream"):
            checked(signed, credentials=credentials)
        with pytest.raises(AccessRefusedError, match="Check the credentials"):
            checked(signed)


# Values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name", "said"),
    [
        ({"subject": "rows.{name}"}, "a.b", "a token of a subject"),
        ({"subject": "rows.{name}"}, "", "a token of a subject"),
        ({"subject": "rows.{name}"}, ">", "a token of a subject"),
        ({"subject": "rows.{name}"}, None, "NULL in the column 'name', which subject names"),
        ({"headers": '{"name": "{name}"}'}, "a\nb", "control characters"),
        ({"headers": '{"name": "{name}"}'}, None, "NULL in the column 'name', which headers names"),
        ({"idColumn": "name"}, " a", "spaces around it"),
        ({"idColumn": "name"}, "", "an empty text in the column 'name', which idColumn"),
    ],
)
def test_values_that_would_change_a_message_are_refused_before_they_are_written(
    options: dict[str, str], name: str | None, said: str
) -> None:
    sent = requests(NatsServer(1, 0), **options)
    rows = pa.record_batch({"id": [1], "name": pa.array([name], pa.string())})
    sent.check_schema(rows.schema)
    with pytest.raises(SchemaMismatchError, match=said):
        sent.checker()(rows)


def test_columns_of_subject_and_headers_must_exist() -> None:
    for options in ({"subject": "rows.{name}"}, {"headers": '{"name": "{name}"}'}):
        with pytest.raises(SchemaMismatchError, match="names the column 'name'"):
            requests(NatsServer(1, 0), **options).check_schema(IDS)
