"""A batch in several transactions of Kafka, with `parallelTransactions`."""

from __future__ import annotations

import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from servers.kafka import KafkaServer
from tests.support.kafka_processes import another_process, before
from tests.support.kafka_topic import PROGRESS, KafkaHarness

from penstock import CheckpointMismatchError, ConfigurationError, TableChangedError
from penstock.committers.contract import AlreadyCommitted, Committed, Conflict, Manifest
from penstock.committers.kafka.cluster import KafkaAddress, progress_partition
from penstock.committers.kafka.records import Chunk
from penstock.committers.kafka.split import WHOLE, Split
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.kafka.sink import KafkaTarget
from penstock.testing.conformance.query import Query
from penstock.testing.faults import Crash

slow = pytest.mark.slow
FIRST_PART = 4
"""Rows of `numbers` in the first of two parts. The transaction of the second one may hide some of them as
long as it is open: those behind its own rows in a partition.
"""


@pytest.fixture
def harness(tmp_path: Path, kafka_process: KafkaServer) -> KafkaHarness:
    harness = KafkaHarness(tmp_path, kafka_process)
    kafka_process.create(harness.topic, 4)
    return harness


@pytest.fixture
def query(harness: KafkaHarness, store: SqlManifestStore) -> Query:
    return divided(Query(harness, store=store), 2)


def divided(query: Query, parts: int, key: str = "id") -> Query:
    return query.with_options(parallelTransactions=str(parts), keyColumns=key)


def numbers(batch_id: int) -> pa.Table:
    """Rows with eight keys, which all parts get some of."""
    return pa.table({"id": range(8), "batch": [batch_id] * 8})


def seen(harness: KafkaHarness) -> dict[int, int]:
    """Return how many rows of each batch a consumer sees."""
    return dict(Counter(row["batch"] for row in harness._server.rows(harness.topic)))


def half_sent(
    query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool = True
) -> Manifest:
    """Commit batch 0, and of batch 1 the first part only. Then the process dies.

    Args:
        is_stored: batch 1 is prepared
    """
    query.run(store, query.batch(0), numbers(0))
    manifest = (query.prepare if is_stored else query.build)(store, query.batch(1), numbers(1))
    marks = 0

    def die() -> None:
        nonlocal marks
        marks += 1
        if marks == 2:
            raise Crash

    with before("mark", die, monkeypatch), pytest.raises(Crash):
        query.target().commit(manifest)
    return manifest


def test_rows_with_the_same_key_or_partition_are_in_one_part() -> None:
    split = Split(3, "key")
    records = [
        ("t", None, key, partition, 0, None)
        for key in (b"a", b"b", b"c", b"d", None)
        for partition in (-1, 0, 1, 2)
    ]
    chunk = Chunk(0, 1000, [*records[:10], None, *records[10:]])
    parts = split.divide(chunk)

    assert sum(map(len, parts)) == len(records)
    by_key: dict[bytes, int] = {}
    by_partition: dict[int, int] = {}
    for number, part in enumerate(parts):
        assert part
        for _, _, key, partition, _, _ in part:
            if partition >= 0:
                assert by_partition.setdefault(partition, number) == number
            elif key is not None:
                assert by_key.setdefault(key, number) == number
    assert WHOLE.divide(chunk) == [records]
    assert Split.parse(split.text) == split
    assert Split.parse(WHOLE.text) == WHOLE


@slow
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_that_are_committed_are_not_sent_again(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
) -> None:
    """Also if the next process has another number of parts: the batch is finished with the earlier one."""
    manifest = half_sent(query, store, monkeypatch)
    with another_process():
        token = query.target().token("q1")
        before_next = seen(harness)
        query = divided(query, parts)
        assert isinstance(query.target().commit(manifest), Committed)
        assert isinstance(query.target().commit(manifest), AlreadyCommitted)
        for batch_id in (2, 3):
            query.run(store, query.batch(batch_id), numbers(batch_id))

    assert token is not None
    assert token.batch_id == 0, "a batch of which a part is missing is not committed"
    assert before_next[0] == 8
    assert 0 < before_next[1] < 8
    assert seen(harness) == {0: 8, 1: 8, 2: 8, 3: 8}


@slow
def test_the_number_of_parts_can_change(query: Query, store: SqlManifestStore, harness: KafkaHarness) -> None:
    """Markers of parts that an earlier number had left are not believed."""
    for batch_id, parts in enumerate((1, 3, 3, 2, 1, 1, 3)):
        query = divided(query, parts)
        with another_process():
            query.run(store, query.batch(batch_id), numbers(batch_id))
        assert query.target().token("q1") == query.stored_committer().token("q1")

    assert seen(harness) == dict.fromkeys(range(7), 8)


@slow
def test_other_keys_are_refused_until_all_parts_have_the_batch(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = half_sent(query, store, monkeypatch)
    other = divided(query, 2, "batch")
    with another_process():
        with pytest.raises(
            ConfigurationError, match=r"batch 1 .*divided by keyColumns=id.* now say keyColumns=batch"
        ):
            other.target().commit(manifest)
        query.recover(store)
    with another_process():
        other.run(store, other.batch(2), numbers(2))

    assert seen(harness) == {0: 8, 1: 8, 2: 8}


@slow
def test_the_rest_of_a_batch_can_be_given_up(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_sent(query, store, monkeypatch)
    store.deliveries.skip(query.stream, 1, "ann", "broken")
    other = divided(query, 3, "batch")
    with another_process():
        other.run(store, other.batch(2), numbers(2))

    assert seen(harness) == {0: 8, 1: FIRST_PART, 2: 8}


@slow
def test_rows_that_were_written_again_are_refused_if_some_parts_have_the_batch(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_sent(query, store, monkeypatch, is_stored=False)
    with another_process():
        again = query.build(store, query.batch(1), numbers(1), run_id="r2")
        with pytest.raises(TableChangedError, match=r"has some parts of batch 1 .*penstock skip"):
            query.target().commit(again)
        moved = query.build(store, query.batch(1, "others"), numbers(1), run_id="r3")
        with pytest.raises(CheckpointMismatchError, match="other source offsets"):
            query.target().commit(moved)

    assert seen(harness) == {0: 8, 1: FIRST_PART}


@slow
def test_a_zombie_with_another_number_of_parts_is_fenced(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused while it takes the stream over: it has the id of the head, and not those of the parts."""
    query.run(store, query.batch(0), numbers(0))
    manifest = query.prepare(store, query.batch(1), numbers(1))
    zombie = divided(query, 3, "batch").target()
    opened = 0

    def pause() -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            with another_process(), monkeypatch.context() as patch:
                patch.undo()
                assert isinstance(query.target().commit(manifest), Committed)

    with another_process():
        with before("begin", pause, monkeypatch):
            assert isinstance(zombie.commit(manifest), Conflict)
        assert isinstance(zombie.commit(manifest), AlreadyCommitted)
    assert seen(harness) == {0: 8, 1: 8}


@slow
def test_a_zombie_does_not_send_the_rest_of_a_batch_that_was_given_up(
    query: Query, store: SqlManifestStore, harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paused between the ids of the head and of the part that does not have the batch."""
    manifest = half_sent(query, store, monkeypatch)
    zombie, opened = query.target(), 0

    def pause() -> None:
        nonlocal opened
        opened += 1
        if opened == 2:
            with another_process(), monkeypatch.context() as patch:
                patch.undo()
                store.deliveries.skip(query.stream, 1, "ann", "broken")
                whole = divided(query, 1)
                whole.run(store, whole.batch(2), numbers(2))

    with another_process(), before("begin", pause, monkeypatch):
        assert isinstance(zombie.commit(manifest), Conflict)
    assert seen(harness) == {0: 8, 1: FIRST_PART, 2: 8}


@slow
def test_a_lost_marker_of_a_part_stops_the_query(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    topic = f"progress-{uuid.uuid4().hex}"
    harness._server.create(topic, 16, cleanup_policy="compact")
    query = query.with_options(progressTopic=topic)
    query.run(store, query.batch(0), numbers(0))
    manifest = query.build(store, query.batch(1), numbers(1))
    key = KafkaAddress.parse(query.stream.table_uri).transactional_id("q1") + "-1"
    harness._server.produce(topic, b"", key=key.encode(), partition=progress_partition(key))
    with another_process(), pytest.raises(TableChangedError, match=rf"marker {key} .* is missing"):
        query.target().commit(manifest)

    assert seen(harness) == {0: 8}


@slow
def test_removing_a_query_deletes_the_markers_of_all_parts(
    query: Query, store: SqlManifestStore, harness: KafkaHarness
) -> None:
    for batch_id, parts in enumerate((3, 2)):
        query = divided(query, parts)
        query.run(store, query.batch(batch_id), numbers(batch_id))
    target = query.target()
    assert isinstance(target, KafkaTarget)
    target.remove("q1")

    last = {one.key(): one.value() for one in harness._server.records(PROGRESS)}
    key = KafkaAddress.parse(query.stream.table_uri).transactional_id("q1").encode()
    assert {one: value for one, value in last.items() if one.startswith(key)} == {
        key + ending: None for ending in (b"", b"-1", b"-2")
    }
    assert query.target().token("q1") is None
