"""Transactions, fencing and markers of Kafka, against a real broker."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from servers.kafka import QUIET, SECRET, KafkaServer, kafka_server
from servers.oidc import token_endpoint
from tests.support.backlogs import wait_until
from tests.support.kafka_processes import another_process, before
from tests.support.kafka_topic import PROGRESS, KafkaHarness, secure_options
from tests.support.unreachable import skipped_if_unreachable

from penstock import CheckpointMismatchError, ConfigurationError, RetryableError, TableChangedError
from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import AccessRefusedError, CommitStateUnknownError, SchemaMismatchError
from penstock.committers.kafka import brokers, clients, markers
from penstock.committers.kafka.cluster import KafkaAddress, progress_partition
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.checked import ChecksBatches
from penstock.testing.conformance.query import Query, ids
from penstock.testing.faults import Crash

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(tmp_path: Path, kafka_process: KafkaServer) -> KafkaHarness:
    harness = KafkaHarness(tmp_path, kafka_process)
    kafka_process.create(harness.topic)
    return harness


@pytest.fixture
def query(harness: KafkaHarness, store: SqlManifestStore) -> Query:
    return Query(harness, store=store)


def key_of(query: Query) -> str:
    return KafkaAddress.parse(query.stream.table_uri).transactional_id(query.query_id)


# Fencing and time-outs ----------------------------------------------------------------------------------


def test_a_zombie_is_fenced_and_adds_nothing(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1))
    query = Query(harness)  # without the store, the files of the row log stay
    with another_process():
        assert isinstance(query.target().commit(manifest), Committed)

    first, again = (query.target().commit(manifest) for _ in range(2))
    assert isinstance(first, Conflict), "the zombie believed that batch 0 was the last"
    assert isinstance(again, AlreadyCommitted)
    assert sorted(harness.ids()) == [0, 1]


@pytest.mark.parametrize("method", ["mark", "commit"])
def test_a_process_that_dies_in_a_transaction_leaves_nothing_visible(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Its rows are in the topic, and belong to a transaction that the next process ends."""
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1, 2))

    def die() -> None:
        raise Crash

    with before(method, die, monkeypatch), pytest.raises(Crash):
        query.target().commit(manifest)
    seen = harness._server.records(harness.topic, is_committed=False)
    with another_process():
        assert isinstance(query.target().commit(manifest), Committed)

    assert len(seen) == 3
    assert sorted(harness.ids()) == [0, 1, 2]
    if method == "commit":  # as Kafka's own consumer sees it, too
        assert sorted(row["id"] for row in harness._server.rows_in_java(harness.topic)) == [0, 1, 2]


def test_a_transaction_that_takes_too_long_is_sent_again(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has ended it between the marker and the commit."""
    query = query.with_options(transactionTimeout="1s")
    pauses = [3.0]
    with before("commit", lambda: time.sleep(pauses.pop() if pauses else 0), monkeypatch):
        query.run(store, query.batch(0), ids(0))

    assert not pauses
    assert harness.ids() == [0]


def test_a_transaction_longer_than_the_brokers_allow_is_refused_at_the_start(
    query: Query, store: SqlManifestStore
) -> None:
    query = query.with_options(transactionTimeout="16min")
    with pytest.raises(ConfigurationError, match=r"allow 900 s \(transaction.max.timeout.ms\)"):
        query.plan(store, query.batch(0))


@pytest.mark.campaign
def test_a_broker_that_is_killed_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL before the rows, the marker and the commit. It starts again each time. Behind the commit, only
    a cluster with other brokers keeps the promise: see docs/destinations/kafka.md, "Limits".
    """
    with ExitStack() as started, skipped_if_unreachable():
        broker = started.enter_context(ExitStack())
        server = broker.enter_context(kafka_server(tmp_path / "broker"))
        harness = KafkaHarness(tmp_path, server)
        server.create(harness.topic)
        query = Query(harness, store=store)
        query.run(store, query.batch(0), ids(0))
        kills = 0

        def kill() -> None:
            nonlocal kills
            if kills < batch_id:
                kills += 1
                broker.close()
                broker.enter_context(kafka_server(tmp_path / "broker"))

        for batch_id, method in enumerate(("start", "mark", "commit"), 1):
            with before(method, kill, monkeypatch):
                _run_until_done(query, store, batch_id)
        assert kills == 3
        assert sorted(harness.ids()) == [0, 1, 2, 3]


def _run_until_done(query: Query, store: SqlManifestStore, batch_id: int) -> None:
    """Run a batch as a query that is started again after errors."""
    for run in range(20):
        try:
            query.run(store, query.batch(batch_id), ids(batch_id), run_id=f"r{batch_id}-{run}")
        except (RetryableError, CommitStateUnknownError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"batch {batch_id} cannot be written")


# Clients ------------------------------------------------------------------------------------------------


def test_streams_to_many_topics_share_clients(
    tmp_path: Path, kafka_process: KafkaServer, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client has threads and descriptors: a thousand topics would exhaust a process."""
    opened: list[str] = []

    def counted(module: Any, name: str) -> None:
        new = getattr(module, name)

        def called(config: dict[str, Any]) -> Any:
            opened.append(name)
            return new(config)

        monkeypatch.setattr(module, name, called)

    counted(brokers, "_new_admin")
    counted(markers, "_new_consumer")
    monkeypatch.setattr(clients, "SESSIONS_MAX", 2)
    with another_process():
        for number in range(3):
            harness = KafkaHarness(tmp_path / str(number), kafka_process)
            kafka_process.create(harness.topic)
            query = Query(harness, store=store)
            query.run(store, query.batch(0), ids(0))
            assert harness.ids() == [0]
            if number == 0:  # which may have created the progress topic, and opened clients again for it
                opened.clear()
        (kafka,) = clients._opened.values()
        assert len(kafka._sessions) == 2
    assert opened in ([], ["_new_consumer"]), "the first one may have found no marker to read"


def test_a_marker_that_is_hidden_does_not_hold_up_other_streams(
    query: Query, harness: KafkaHarness, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    names = (f"other{number}" for number in itertools.count())
    others = (Query(harness, name, store=store) for name in names)
    other = next(
        one for one in others if progress_partition(key_of(one)) != progress_partition(key_of(query))
    )
    waits, reads = (one.with_options(requestTimeout="20s").target() for one in (query, other))
    with another_process(), ThreadPoolExecutor(1) as pool:
        with open_transaction(harness, query):
            waiting = pool.submit(waits.token, "q1")
            wait_until(lambda: any(one.markers._lock.locked() for one in clients._opened.values()))
            assert reads.token(other.query_id) is None
        token = waiting.result()  # an error, if the other one has waited for it
    assert token is not None
    assert token.batch_id == 0


@contextmanager
def open_transaction(harness: KafkaHarness, query: Query) -> Iterator[None]:
    """Another producer has a transaction open in the partition of the query's marker."""
    other = Producer(
        {"bootstrap.servers": harness._server.servers, "transactional.id": f"o-{uuid.uuid4()}", **QUIET}
    )
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(PROGRESS, b"{}", b"other", progress_partition(key_of(query)))
    assert other.flush(30) == 0
    try:
        yield
    finally:
        other.abort_transaction(30)


# Markers ------------------------------------------------------------------------------------------------


def test_a_marker_behind_an_open_transaction_of_another_query_is_not_overlooked(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    """Consumers with read_committed see batch 0 as the last one, until that transaction ends."""
    impatient = query.with_options(requestTimeout="4s")
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1))
    with open_transaction(harness, query):
        query.target().commit(manifest)
        with another_process():
            for step in (lambda: impatient.target().token("q1"), lambda: impatient.target().commit(manifest)):
                with pytest.raises(RetryableError, match="a transaction of another query is open"):
                    step()
    with another_process():
        assert isinstance(query.target().commit(manifest), AlreadyCommitted)

    assert sorted(harness.ids()) == [0, 1]


def test_a_marker_far_from_the_end_of_its_partition_is_found(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.committers.kafka.markers.TAIL", 3)
    query.run(store, query.batch(0), ids(0))
    partition = progress_partition(key_of(query))
    harness._server.produce(PROGRESS, *[b"{}"] * 50, key=b"other", partition=partition)
    with another_process():
        token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 0


def test_compaction_keeps_the_last_marker(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    topic = f"progress-{uuid.uuid4().hex}"
    settings = {"cleanup_policy": "compact", "segment_ms": "50", "min_cleanable_dirty_ratio": "0.01"}
    harness._server.create(topic, 16, **settings)
    query = query.with_options(progressTopic=topic)
    for number in range(3):
        query.run(store, query.batch(number), ids(number))
        time.sleep(0.1)  # the next marker begins a segment
    deadline = time.monotonic() + 30
    while len(harness._server.records(topic)) > 2:
        assert time.monotonic() < deadline, "the topic is not compacted"
        time.sleep(0.1)
    with another_process():
        query.run(store, query.batch(2), ids(2), run_id="r2")
        query.run(store, query.batch(3), ids(3), run_id="r2")

    assert sorted(harness.ids()) == [0, 1, 2, 3]


def test_a_query_whose_markers_are_lost_stops(
    query: Query, store: SqlManifestStore, other_store: SqlManifestStore, harness: KafkaHarness
) -> None:
    topic = f"progress-{uuid.uuid4().hex}"
    query = query.with_options(progressTopic=topic)
    query.run(store, query.batch(0), ids(0))
    query.run(store, query.batch(1), ids(1))
    harness._server.delete(topic)
    with another_process():
        with pytest.raises(TableChangedError, match="has no batch of query q1, which has already committed"):
            query.plan(store, query.batch(2))
        with pytest.raises(CheckpointMismatchError, match="is new to the query q1"):
            query.plan(other_store, query.batch(2))  # the store is lost, too

    assert sorted(harness.ids()) == [0, 1]


@pytest.fixture
def other_store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    from penstock.committers.store.sql import open_store

    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        yield store


@pytest.mark.parametrize(
    ("partitions", "policy", "problem"),
    [
        (16, "compact,delete", "lose the markers"),
        (16, "delete", "lose the markers"),
        (15, "compact", "15 part"),
    ],
)
def test_a_progress_topic_that_would_lose_markers_is_refused(
    query: Query,
    store: SqlManifestStore,
    kafka_process: KafkaServer,
    partitions: int,
    policy: str,
    problem: str,
) -> None:
    topic = f"progress-{uuid.uuid4().hex}"
    kafka_process.create(topic, partitions, cleanup_policy=policy)
    query = query.with_options(progressTopic=topic)
    with pytest.raises(ConfigurationError, match=rf"(?s)topic {topic} .*{problem}.* --alter"):
        query.plan(store, query.batch(0))


def test_a_check_before_the_start_creates_no_progress_topic(query: Query, harness: KafkaHarness) -> None:
    topic = f"progress-{uuid.uuid4().hex}"
    target = query.with_options(progressTopic=topic).target()
    assert isinstance(target, ChecksBatches)
    assert target.check_batch(ids().schema, "append")
    assert topic not in harness._server.admin.list_topics(timeout=30).topics


# Topics and records -------------------------------------------------------------------------------------


def test_a_topic_that_does_not_exist_is_refused_and_not_created(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    missing = f"missing-{uuid.uuid4().hex}"
    other = query.with_options(topic=missing)
    with pytest.raises(AccessRefusedError, match=f"has no topic {missing}"):
        other.plan(store, other.batch(0))
    of_rows = query.with_options(topic="{name}")
    rows = pa.table({"id": [1], "name": [missing]})
    with pytest.raises(AccessRefusedError, match=f"has no topic {missing}"):
        of_rows.run(store, of_rows.batch(0), rows)
    assert missing not in harness._server.topics()

    harness._server.create(missing)
    of_rows.recover(store)
    assert [row["id"] for row in harness._server.rows(missing)] == [1]


def test_a_record_larger_than_the_topic_takes_is_refused_before_it_is_sent(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    small = f"small-{uuid.uuid4().hex}"
    harness._server.create(small, max_message_bytes="5000")
    query = query.with_options(topic=small)
    with pytest.raises(ConfigurationError, match="takes at most 5,000 bytes"):
        query.plan(store, query.batch(0))
    query = query.with_options(maxRecordBytes="4000", badRows="drop")
    rows = pa.table({"id": range(8), "text": ["x" * 3800, "x" * 5000] * 4})
    query.run(store, query.batch(0), rows)

    assert sorted(row["id"] for row in harness._server.rows(small)) == [0, 2, 4, 6]


def test_a_partition_that_does_not_exist_is_an_error(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    query = query.with_options(valueFormat="columns")
    rows = pa.table({"value": ["a"], "partition": pa.array([2], pa.int32())})
    with pytest.raises(SchemaMismatchError, match=r"partition 2 of the topic .*, which has 2"):
        query.run(store, query.batch(0), rows)
    assert harness._server.records(harness.topic) == []


JAVA_HASHES = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""From the tests of Kafka's Java client (`UtilsTest.testMurmur2`)."""


def test_a_key_has_the_partition_that_a_java_producer_gives_it(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    topic = f"keys-{uuid.uuid4().hex}"
    harness._server.create(topic, 7)
    query = query.with_options(topic=topic, keyColumns="name")
    query.run(store, query.batch(0), pa.table({"name": list(JAVA_HASHES)}))

    found = {one.key().decode(): one.partition() for one in harness._server.records(topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 7 for key, value in JAVA_HASHES.items()}


def test_a_null_value_is_a_tombstone(query: Query, store: SqlManifestStore, harness: KafkaHarness) -> None:
    query = query.with_options(valueFormat="columns")
    rows = pa.table({"value": pa.array([None], pa.binary()), "key": ["k"]})
    query.run(store, query.batch(0), rows)
    (record,) = harness._server.records(harness.topic)
    assert (record.key(), record.value()) == (b"k", None)


# Access -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_tls_and_sasl(query: Query, store: SqlManifestStore, harness: KafkaHarness, mechanism: str) -> None:
    query = query.with_options(**secure_options(harness._server, mechanism=mechanism))
    for number in range(2):
        query.run(store, query.batch(number), ids(number))
    assert sorted(harness.ids()) == [0, 1]


def test_a_wrong_password_is_an_error_at_once_that_does_not_show_it(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    wrong = {**secure_options(harness._server), "kafka.sasl.password": f"x{SECRET}"}
    started = time.monotonic()
    with pytest.raises(AccessRefusedError, match="_AUTHENTICATION") as failure:
        query.with_options(**wrong).plan(store, query.batch(0))
    assert time.monotonic() - started < 30
    assert SECRET not in str(failure.value)


def test_tokens_of_openid_connect(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SASL OAUTHBEARER: the client gets its tokens with its own credentials. They are not shown. The client
    reports once that it has got none, here before the first request.
    """

    opened = brokers.opened

    def open_slowly(*given: Any) -> Any:
        client = opened(*given)
        time.sleep(0.5)
        return client

    server = harness._server
    with token_endpoint(Path(server.ca_file).parent, {"writer": SECRET}) as endpoint:
        of_client = {
            **secure_options(server, mechanism="OAUTHBEARER"),
            "kafka.sasl.oauthbearer.method": "oidc",
            "kafka.sasl.oauthbearer.client.id": "writer",
            "kafka.sasl.oauthbearer.client.secret": SECRET,
            "kafka.sasl.oauthbearer.token.endpoint.url": endpoint.url,
        }
        given = {name: value for name, value in of_client.items() if name not in PASSWORD}
        accepted = query.with_options(**given)
        for number in range(2):
            accepted.run(store, accepted.batch(number), ids(number))
        wrong = {**given, "kafka.sasl.oauthbearer.client.secret": f"x{SECRET}", "requestTimeout": "20s"}
        monkeypatch.setattr(brokers, "opened", open_slowly)
        for _ in range(2):
            with pytest.raises(RetryableError, match="Check the options kafka") as failure:
                query.with_options(**wrong).plan(store, query.batch(2))

    assert endpoint.issued[:1] == ["writer"]
    assert sorted(harness.ids()) == [0, 1]
    assert SECRET not in str(failure.value)


PASSWORD = ("kafka.sasl.username", "kafka.sasl.password")


def test_a_certificate_of_an_unknown_authority_is_refused(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    unknown = {key: value for key, value in secure_options(harness._server).items() if "ssl.ca" not in key}
    with pytest.raises(AccessRefusedError, match=r"(?i)certificate"):
        query.with_options(**unknown).plan(store, query.batch(0))


def test_a_property_that_the_client_does_not_know_is_refused(query: Query, store: SqlManifestStore) -> None:
    query = query.with_options(**{"kafka.sasl.jaas.config": f"password={SECRET}"})
    with pytest.raises(ConfigurationError, match=r"sasl.username and sasl.password in place of") as failure:
        query.plan(store, query.batch(0))
    assert SECRET not in str(failure.value)


def test_the_acls_that_a_query_needs(query: Query, store: SqlManifestStore, harness: KafkaHarness) -> None:
    """And what is said if the user may not create the progress topic, or loses a right."""
    topic, server = f"progress-{uuid.uuid4().hex}", harness._server
    limited = query.with_options(progressTopic=topic, **secure_options(server, "limited"))
    of_rows = [AclOperation.WRITE, AclOperation.DESCRIBE]
    _allow(server, ResourceType.TOPIC, harness.topic, *of_rows)
    _allow(server, ResourceType.TRANSACTIONAL_ID, "penstock-", AclOperation.WRITE, AclOperation.DESCRIBE)
    _allow(server, ResourceType.TOPIC, topic, *of_rows, AclOperation.READ)
    with pytest.raises(
        AccessRefusedError, match=rf"kafka-topics.sh --create --topic {topic} --partitions 16"
    ):
        limited.plan(store, limited.batch(0))
    server.create(topic, 16, cleanup_policy="compact")
    limited.run(store, limited.batch(0), ids(0))
    assert harness.ids() == [0]

    manifest = limited.build(store, limited.batch(1), ids(1))
    taken = _acl(ResourceType.TOPIC, harness.topic, AclOperation.WRITE, AclBindingFilter)
    for future in server.admin.delete_acls([taken]).values():
        assert future.result(30)
    with pytest.raises(AccessRefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        limited.target().commit(manifest)
    assert harness.ids() == [0]


def _allow(server: KafkaServer, kind: ResourceType, name: str, *operations: AclOperation) -> None:
    for future in server.admin.create_acls([_acl(kind, name, one) for one in operations]).values():
        future.result(30)


def _acl(kind: ResourceType, name: str, operation: AclOperation, binding: Any = AclBinding) -> Any:
    pattern = ResourcePatternType.PREFIXED if name.endswith("-") else ResourcePatternType.LITERAL
    return binding(kind, name, pattern, "User:limited", "*", operation, AclPermissionType.ALLOW)
