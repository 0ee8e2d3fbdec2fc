"""Failures of brokers and of the network, with three brokers or with a proxy that loses requests."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from servers.kafka import KafkaServer, kafka_server
from servers.kafka_cluster import NODES, KafkaNodes, kafka_nodes
from servers.lossy_tcp import Fault, lossy_tcp
from servers.ports import free_ports
from tests.support.kafka_processes import another_process, before
from tests.support.kafka_topic import KafkaHarness
from tests.support.unreachable import skipped_if_unreachable

from penstock import RetryableError, TableChangedError
from penstock.committers.errors import CommitStateUnknownError
from penstock.committers.kafka.clients import close_all
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query, ids
from penstock.testing.faults import at_point

pytestmark = [pytest.mark.slow, pytest.mark.campaign]

SEEN_S = 60
STEPS = ("start", "mark", "commit")
"""Of `Session`, before which a broker is killed; and behind the commit."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNodes]:
    with skipped_if_unreachable(), kafka_nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes
        close_all()


def run_until_done(query: Query, store: SqlManifestStore, batch_id: int, *rows: pa.Table) -> None:
    """Run a batch as a query that is started again after errors."""
    for run in range(30):
        try:
            query.run(store, query.batch(batch_id), *(rows or [ids(batch_id)]), run_id=f"r{batch_id}-{run}")
        except (RetryableError, CommitStateUnknownError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"batch {batch_id} cannot be written")


def seen(harness: KafkaHarness, expected: Sequence[int]) -> list[int]:
    """Return the ids that a consumer sees, once there are as many as expected. The brokers end a transaction
    in its partitions after the answer to the commit.
    """
    deadline = time.monotonic() + SEEN_S
    while len(found := sorted(harness.ids())) < len(expected) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.timeout(900)
def test_killed_brokers_lose_and_double_nothing(
    nodes: KafkaNodes,
    tmp_path: Path,
    store: SqlManifestStore,
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
) -> None:
    """Each of three brokers is killed at each step: the leaders of the rows, of the markers, and the
    coordinator of the transactions among them. It starts again for the next step.
    """
    nodes.start_all()
    harness = KafkaHarness(tmp_path, nodes)
    nodes.create(harness.topic, 6)
    query = Query(harness, store=store).with_options(parallelTransactions=str(parts), requestTimeout="30s")
    query.run(store, query.batch(0), ids(0, 1000))
    expected, batch_id = [0, 1000], 0
    for step in (*STEPS, "landed"):
        for number in range(NODES):
            batch_id += 1
            left = [number]

            def kill(left: list[int] = left) -> None:
                if left:
                    nodes.kill(left.pop())

            at = at_point("commit.landed", kill) if step == "landed" else before(step, kill, monkeypatch)
            with at:
                run_until_done(query, store, batch_id, ids(batch_id, 1000 + batch_id))
            assert not left
            nodes.start(number)
            expected += [batch_id, 1000 + batch_id]

    assert seen(harness, expected) == sorted(expected)
    assert sorted(row["id"] for row in nodes.rows_in_java(harness.topic)) == sorted(expected)


@pytest.mark.timeout(300)
def test_all_brokers_are_killed_at_once(
    nodes: KafkaNodes, tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the marker and the commit. Nothing was flushed to disk by a shutdown."""
    nodes.start_all()
    harness = KafkaHarness(tmp_path, nodes)
    nodes.create(harness.topic, 6)
    query = Query(harness, store=store).with_options(requestTimeout="10s")
    query.run(store, query.batch(0), ids(0))
    kills = 0

    def kill_all() -> None:
        nonlocal kills
        kills += 1
        if kills == 1:
            for number in range(NODES):
                nodes.kill(number)
            nodes.start_all()

    with before("commit", kill_all, monkeypatch):
        run_until_done(query, store, 1)
    assert kills
    assert seen(harness, [0, 1]) == [0, 1]


@pytest.mark.timeout(300)
def test_a_proxy_that_loses_requests_and_responses(tmp_path: Path, store: SqlManifestStore) -> None:
    """Of any kind: those that fence, add partitions, write and end a transaction."""
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    with ExitStack() as started, skipped_if_unreachable():
        (own_port,) = free_ports(1)
        proxy = started.enter_context(lossy_tcp(own_port))
        server = started.enter_context(kafka_server(tmp_path / "broker", proxied=(own_port, proxy.port)))
        started.callback(close_all)
        harness = KafkaHarness(tmp_path, server)
        server.create(harness.topic)
        query = Query(harness, store=store).with_options(
            requestTimeout="20s",
            **{"kafka.socket.timeout.ms": "1000", "kafka.reconnect.backoff.max.ms": "200"},
        )
        query.run(store, query.batch(0), ids(0))
        hits = 0
        for batch_id in range(1, 31):
            faults: list[Fault] = chance.choices(("request lost", "response lost", "response held"), k=3)
            proxy.spend(*faults[: chance.randint(1, 3)], on=b"penstock-q1")
            run_until_done(query, store, batch_id)
            hits += proxy.hit()
            proxy.spend()
        assert hits > 20, f"seed {seed}"
        assert seen(harness, range(31)) == list(range(31)), f"seed {seed}"


@pytest.mark.timeout(300)
def test_a_broker_with_a_full_disk(tmp_path: Path, store: SqlManifestStore) -> None:
    """It cannot write, and stops. When it has room again, the batch is there once."""
    with ExitStack() as started, skipped_if_unreachable():
        broker = started.enter_context(ExitStack())
        folder = tmp_path / "broker"
        server = broker.enter_context(kafka_server(folder, file_bytes_max=11 * 1024 * 1024))
        started.callback(close_all)
        harness = KafkaHarness(tmp_path, server)
        server.create(harness.topic, 1)
        query = Query(harness, store=store)
        query.run(store, query.batch(0), ids(0))
        has_stopped = threading.Event()

        def make_room() -> None:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", server.port)).close()
                    time.sleep(0.1)
                except OSError:
                    break
            has_stopped.set()
            broker.close()
            broker.enter_context(kafka_server(folder))

        operator = threading.Thread(target=make_room)
        operator.start()
        large = pa.table({"id": range(1, 401), "text": ["x" * 50_000] * 400})
        run_until_done(query, store, 1, large)
        operator.join()

        assert has_stopped.is_set()
        assert seen(harness, range(401)) == list(range(401))


def test_markers_that_retention_has_removed_stop_the_query(
    kafka_process: KafkaServer, tmp_path: Path, store: SqlManifestStore
) -> None:
    """The topic had another `cleanup.policy` for a while."""
    harness = KafkaHarness(tmp_path, kafka_process)
    kafka_process.create(harness.topic)
    topic = f"progress-{harness.topic}"
    kafka_process.create(topic, 16, cleanup_policy="compact")
    query = Query(harness, store=store).with_options(progressTopic=topic)
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), ids(batch_id))
    set_policy(kafka_process, topic, "delete")
    ends = [TopicPartition(topic, number, -1) for number in range(16)]
    for future in kafka_process.admin.delete_records(ends).values():
        future.result(30)
    set_policy(kafka_process, topic, "compact")
    with another_process(), pytest.raises(TableChangedError, match="has no batch of query q1, which has"):
        query.plan(store, query.batch(2))

    assert kafka_process.records(topic) == []
    assert sorted(harness.ids()) == [0, 1]


def set_policy(server: KafkaServer, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    asked = server.admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]
    )
    for future in asked.values():
        future.result(30)
