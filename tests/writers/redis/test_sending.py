"""The client of `penstock.redis` with a real server, behind a proxy that loses requests and responses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from redis import exceptions
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.redis import RedisServer
from tests.support.service_places import PLACE, send_rows, submit_once, with_quick_retries

from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.redis.sink import SERVICE
from penstock.writers.redis.errors import classify
from penstock.writers.redis.requests import RedisRequests
from penstock.writers.requests.results import DELIVERED, DeadLetter, Fatal, Retry

STRUCTURES = {
    "set": {"key": "rows:{id}"},
    "hash": {"key": "rows", "field": "{id}"},
    "stream": {"key": "rows"},
    "list": {"key": "rows"},
}
ONCE = {"exactlyOnce": "true", "delivery": "decoupled"}
SECRET = "geheim-4711"


@pytest.fixture
def proxy(redis_service: RedisServer) -> Iterator[LossyTcp]:
    with lossy_tcp(redis_service.port) as started:
        yield started


def requests(port: int, structure: str, **options: str) -> RedisRequests:
    given = {"url": f"redis://127.0.0.1:{port}/0", "structure": structure, **STRUCTURES[structure], **options}
    return SERVICE.sink({"checkpointLocation": "/c", **given}).requests  # type: ignore[return-value]


def send(sent: RedisRequests, ids: Sequence[int], first: int = 0, batch_id: int = 0, **columns: Any) -> None:
    """Send as a delivery that starts at this row of partition 0."""
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), **columns})
    send_rows(with_quick_retries(sent), rows, RowPlace("q1", batch_id, 0, first, first))


def found(server: RedisServer) -> list[int]:
    return [row["id"] for row in server.rows("rows*")]


@pytest.mark.parametrize("structure", STRUCTURES)
def test_rows_are_json_in_each_structure(redis_service: RedisServer, structure: str) -> None:
    send(requests(redis_service.port, structure), [1, 2], name=["é", None])
    rows = sorted(redis_service.rows(), key=lambda row: row["id"])
    assert rows == [{"id": 1, "name": "é"}, {"id": 2, "name": None}]
    with redis_service.connect() as client:
        keys = {"rows:1", "rows:2"} if structure == "set" else {"rows"}
        assert set(client.keys()) == keys
        if structure == "stream":
            assert [entry["id"] for _, entry in client.xrange("rows")] == ["q1-0-0-0", "q1-0-0-1"]


def test_a_stream_keeps_about_its_maximum_length(redis_service: RedisServer) -> None:
    for options in ({}, ONCE):
        send(requests(redis_service.port, "stream", maxLength="100", key="rows", **options), range(1000))
        with redis_service.connect() as client:
            assert 100 <= client.xlen("rows") < 300


@pytest.mark.parametrize("structure", ["set", "hash"])
def test_the_last_row_of_a_key_remains(redis_service: RedisServer, proxy: LossyTcp, structure: str) -> None:
    """Although one of its earlier rows is sent again."""
    proxy.spend("request lost", "response lost", on=b"rows")
    sent = requests(proxy.port, structure, maxBatchSize="1")
    send(sent, [7] * 8, version=pa.array(range(8)))
    assert proxy.spent()
    assert redis_service.rows() == [{"id": 7, "version": 7}]


@pytest.mark.parametrize("structure", ["stream", "list"])
@pytest.mark.parametrize("fault", ["request lost", "response lost", "response held"])
def test_with_the_fence_lost_requests_and_responses_double_nothing(
    redis_service: RedisServer, proxy: LossyTcp, structure: str, fault: Any
) -> None:
    proxy.spend(fault, fault, on=b"rows")
    send(requests(proxy.port, structure, maxBatchSize="5", requestTimeout="1s", **ONCE), range(32))
    assert proxy.spent()
    assert found(redis_service) == list(range(32)), "in their order"


@pytest.mark.parametrize("structure", ["stream", "list"])
def test_without_the_fence_a_lost_response_doubles_a_request(
    redis_service: RedisServer, proxy: LossyTcp, structure: str
) -> None:
    proxy.spend("response lost", on=b"rows")
    send(requests(proxy.port, structure, maxBatchSize="5"), range(10))
    assert set(found(redis_service)) == set(range(10))
    assert len(found(redis_service)) == 15


@pytest.mark.parametrize("structure", ["stream", "list"])
def test_a_delivery_that_starts_again_skips_what_has_arrived(
    redis_service: RedisServer, structure: str
) -> None:
    sent = requests(redis_service.port, structure, maxBatchSize="3", **ONCE)
    send(sent, range(10))
    send(sent, range(4, 20), first=4)
    send(sent, range(20, 25), batch_id=1)
    send(sent, range(25), first=25, batch_id=2)
    assert found(redis_service) == [*range(25), *range(25)]


def test_each_query_and_each_destination_has_a_fence_of_its_own(redis_service: RedisServer) -> None:
    for key in ("rows:a", "rows:b"):
        send(requests(redis_service.port, "list", key=key, **ONCE), range(3))
    assert found(redis_service) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("ids", "first"), [((0, 1, 99), 0), ((0, 1), 0)], ids=["other row", "fewer rows"])
def test_a_batch_whose_row_log_was_written_again_is_noticed(
    redis_service: RedisServer, ids: Sequence[int], first: int
) -> None:
    sent = requests(redis_service.port, "list", maxBatchSize="2", **ONCE)
    send(sent, range(3))
    with pytest.raises(ConfigurationError, match="delete the key penstock:fence:q1:"):
        resend(sent, ids)
    assert found(redis_service) == [0, 1, 2]


def resend(sent: RedisRequests, ids: Sequence[int]) -> None:
    """Send these rows of batch 0, and then one of batch 1, in one delivery."""
    writer = sent.open_writer()
    try:
        for batch_id, values in enumerate((ids, (5,))):
            rows = pa.record_batch({"id": pa.array(values, pa.int64())})
            writer.write(sent.entries(rows, RowPlace("q1", batch_id, 0, 0, batch_id * len(ids))))
        writer.flush()
    finally:
        writer.abort()


def test_a_failure_within_a_script_keeps_what_was_written_before(redis_service: RedisServer) -> None:
    """Scripts are not rolled back."""
    with redis_service.connect() as client:
        client.set("rows:2", "no list")
    sent = requests(redis_service.port, "list", key="rows:{id}", **ONCE)
    with pytest.raises(SchemaMismatchError, match=r"q1-0-0-2 \(key 'rows:2'\) .* WRONGTYPE"):
        send(sent, range(4))
    with redis_service.connect() as client:
        client.delete("rows:2")
    send(sent, range(4))
    assert found(redis_service) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("structure", "options"),
    [*((one, {}) for one in STRUCTURES), ("stream", ONCE), ("list", ONCE)],
    ids=[*STRUCTURES, "stream-once", "list-once"],
)
def test_a_full_server_is_throttling_and_loses_nothing(
    redis_service: RedisServer, structure: str, options: dict[str, str]
) -> None:
    sent = requests(redis_service.port, structure, **options)
    entries = sent.entries(pa.record_batch({"id": pa.array(range(5))}), PLACE)
    with redis_service.connect() as client:
        client.config_set("maxmemory", 1)
        results = submit_once(sent, entries)
        client.config_set("maxmemory", 0)
    assert [(one.code, one.is_throttled) for one in results if isinstance(one, Retry)] == [("OOM", True)] * 5
    send(sent, range(5))
    assert sorted(found(redis_service)) == list(range(5))


@pytest.mark.parametrize("options", [{}, ONCE], ids=["", "once"])
def test_the_library_does_not_send_again(
    redis_service: RedisServer, proxy: LossyTcp, options: dict[str, str]
) -> None:
    sent = requests(proxy.port, "list", **options)
    entries = sent.entries(pa.record_batch({"id": pa.array(range(3))}), PLACE)
    proxy.spend("request lost", on=b"rows")
    with pytest.raises(exceptions.ConnectionError):
        submit_once(sent, entries)
    assert proxy.requests == 1
    assert found(redis_service) == []


def test_the_results_of_a_pipeline_are_those_of_its_entries(redis_service: RedisServer) -> None:
    with redis_service.connect() as client:
        client.set("rows:1", "no list")
    sent = requests(redis_service.port, "list", key="rows:{id}")
    rows = pa.record_batch({"id": pa.array(range(3))})
    first, second, third = submit_once(sent, sent.entries(rows, PLACE))
    assert (first, third) == (DELIVERED, DELIVERED)
    assert isinstance(second, DeadLetter)
    assert second.code == "WRONGTYPE"
    assert "Key 'rows:1'" in second.message


@pytest.mark.parametrize("options", [{}, ONCE], ids=["", "once"])
def test_a_key_that_all_rows_have_is_no_matter_of_a_row(
    redis_service: RedisServer, options: dict[str, str]
) -> None:
    with redis_service.connect() as client:
        client.set("rows", "no list")
    sent = requests(redis_service.port, "list", **options)
    with pytest.raises(ConfigurationError, match=r"WRONGTYPE. Key 'rows': .* another structure"):
        send(sent, range(3))


@pytest.mark.parametrize("options", [{}, ONCE], ids=["", "once"])
def test_a_stream_that_has_no_more_ids_refuses_its_rows_only(
    redis_service: RedisServer, options: dict[str, str]
) -> None:
    with redis_service.connect() as client:
        client.xadd("rows:1", {"a": "b"}, id=f"{2**64 - 1}-{2**64 - 1}")
    sent = requests(redis_service.port, "stream", key="rows:{id}", **options)
    rows = pa.record_batch({"id": pa.array(range(2))})
    first, second = submit_once(sent, sent.entries(rows, PLACE))
    assert first == DELIVERED
    assert isinstance(second, DeadLetter)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (exceptions.ConnectionError("x"), "ConnectionError", Retry),
        (exceptions.TimeoutError("x"), "TimeoutError", Retry),
        (exceptions.BusyLoadingError("x"), "LOADING", Retry),
        (exceptions.ReadOnlyError("x"), "READONLY", Retry),
        (exceptions.TryAgainError("TRYAGAIN x"), "TRYAGAIN", Retry),
        (exceptions.ClusterDownError("CLUSTERDOWN x"), "CLUSTERDOWN", Retry),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), "BUSY", Retry),
        (exceptions.ResponseError("MISCONF disk"), "MISCONF", Retry),
        (exceptions.OutOfMemoryError("x"), "OOM", Retry),
        (exceptions.AuthenticationError("x"), "NOAUTH", AccessRefusedError),
        (exceptions.NoPermissionError("x"), "NOPERM", AccessRefusedError),
        (exceptions.MovedError("12 host:1"), "MOVED", ConfigurationError),
        (exceptions.ClusterCrossSlotError("x"), "CROSSSLOT", ConfigurationError),
        (exceptions.ResponseError("ERR x"), "ERR", ConfigurationError),
        (ValueError("x"), "UNACKNOWLEDGED", Retry),
        (exceptions.InvalidResponse("x"), "UNACKNOWLEDGED", Retry),
        (KeyError("x"), "KeyError", RetryableError),
    ],
)
def test_errors_are_classified(error: Exception, code: str, kind: type[Any]) -> None:
    result = classify(error)
    assert isinstance(result, (Retry, Fatal))
    assert result.code == code
    assert (kind is Retry) if isinstance(result, Retry) else result.error is kind
    if code in ("MOVED", "CROSSSLOT"):
        assert "does not support Redis Cluster" in result.message


# The check before any row moves -----------------------------------------------------------------------


def checked(port: int, **options: str) -> None:
    structure = options.pop("structure", "stream")
    requests(port, structure, **options).check_destination(pa.schema({"id": pa.int64()}))


def test_the_check_changes_nothing(redis_service: RedisServer) -> None:
    for structure in STRUCTURES:
        checked(redis_service.port, structure=structure)
    checked(redis_service.port, **ONCE)
    assert redis_service.rows() == []


@pytest.mark.parametrize(
    ("rules", "options", "error", "said"),
    [
        (("~*", "+@all", "-xadd"), {}, AccessRefusedError, "NOPERM"),
        (("~orders:*", "+@all"), {}, AccessRefusedError, "NOPERM"),
        (("~rows*", "+@all"), ONCE, AccessRefusedError, "NOPERM"),
        (("~*", "+@all", "-eval"), ONCE, AccessRefusedError, "NOPERM"),
        (("~*", "+@all"), {"password": "other"}, AccessRefusedError, "Check username and password"),
        (("~rows*", "+xadd", "+ping", "+multi", "+discard"), {}, None, ""),
        (("~*", "+@all"), ONCE, None, ""),
    ],
)
def test_a_missing_permission_is_said_before_any_row_moves(
    redis_service: RedisServer,
    rules: tuple[str, ...],
    options: dict[str, str],
    error: type[PenstockError] | None,
    said: str,
) -> None:
    redis_service.add_user("writer", SECRET, *rules)
    given = {"username": "writer", "password": SECRET, **options}
    if error is None:
        checked(redis_service.port, **given)
        return
    with pytest.raises(error, match=said) as failure:
        checked(redis_service.port, **given)
    assert "Nothing was written" in str(failure.value)
    assert ".." not in str(failure.value)
    assert SECRET not in str(failure.value)


@pytest.mark.parametrize(
    ("policy", "limit", "options", "is_refused"),
    [
        ("allkeys-lru", "1gb", ONCE, True),
        ("allkeys-random", "1gb", ONCE, True),
        ("allkeys-lru", "0", ONCE, False),
        ("volatile-lru", "1gb", ONCE, False),
        ("noeviction", "1gb", ONCE, False),
        ("allkeys-lru", "1gb", {}, False),
    ],
)
def test_a_server_that_may_evict_the_fence_is_refused(
    redis_service: RedisServer, policy: str, limit: str, options: dict[str, str], is_refused: bool
) -> None:
    with redis_service.connect() as client:
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", limit)
    if not is_refused:
        checked(redis_service.port, **options)
        return
    with pytest.raises(ConfigurationError, match=f"maxmemory-policy {policy}: Redis may evict the fence"):
        checked(redis_service.port, **options)


def test_a_policy_that_cannot_be_read_is_a_warning(
    redis_service: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_service.add_user("writer", SECRET, "~*", "+@all", "-info")
    checked(redis_service.port, username="writer", password=SECRET, **ONCE)
    assert "maxmemory-policy of Redis cannot be read" in caplog.text


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(RetryableError, match=r"Redis at 127.0.0.1:1 cannot be written"):
        checked(1)


def test_keys_need_values_and_columns(redis_service: RedisServer) -> None:
    sent = requests(redis_service.port, "set", key="rows:{id}:{name}")
    with pytest.raises(SchemaMismatchError, match="key names the column 'name'"):
        sent.check_schema(pa.schema({"id": pa.int64()}))
    send(sent, [1], name=["é"])
    with redis_service.connect() as client:
        assert client.keys() == ["rows:1:é"]
    check = sent.checker()
    with pytest.raises(SchemaMismatchError, match="NULL in the column 'name', which key names"):
        check(pa.record_batch({"id": [1], "name": pa.array([None], pa.string())}))
