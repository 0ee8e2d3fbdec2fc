"""Dead letters of a query, from the refused row to the dead-letter table, and crashes on the way.

Each bad row must be in the dead-letter table once, and each other row in the destination.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from prometheus_client import generate_latest
from pyspark.sql.types import LongType, StructField, StructType
from servers.http_rows import HttpRows
from servers.redis import RedisServer
from tests.support.cli import Ended
from tests.support.dead_letters import BAD, CRAFTED, EVERY_KIND, KINDS, ROWS, Letters, letters_of, rows_with
from tests.support.lakes import DeltaLake
from tests.support.request_streams import Service

from penstock.committers import crash_points, dead_letters
from penstock.committers.contract import ManifestState
from penstock.committers.dead_letters import joined, row_in
from penstock.committers.errors import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.store.progress import SqlProgress
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.dead_letters import deliver_letters, letter_sink_of, try_to_deliver_letters
from penstock.datasource.destinations import stored_table
from penstock.datasource.planning import plan as planning
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.metrics import Metrics
from penstock.testing.conformance.query import Query
from penstock.testing.faults import at_point, crash_at
from penstock.writers.redis.client import RedisClient

OF_A_COMMIT = (
    *("write.files_closed", "prepare.start", "prepare.done"),
    *("commit.start", "commit.landed", "mark.done"),
)
OF_LETTERS = crash_points.LETTER_POINTS


@pytest.fixture
def letters(
    request: pytest.FixtureRequest, tmp_path: Path, store: SqlManifestStore, http_server: HttpRows
) -> Letters:
    """A query into each kind of destination, by default Delta with a Delta table for its dead letters."""
    return letters_of(request, tmp_path, store, http_server)


@EVERY_KIND
def test_bad_rows_go_to_the_dead_letter_table_and_the_others_to_the_destination(letters: Letters) -> None:
    letters.run(0, rows_with(1, 2, 3, 4), rows_with(5, 6, 7))
    letters.run(1, rows_with(8, 9))
    letters.run(2, rows_with(12))

    letters.check(*range(1, 10), 12)
    first, second, third = letters.read()
    assert [one["batch_id"] for one in (first, second, third)] == [0, 0, 2]
    assert {one["query_id"] for one in (first, second, third)} == {"q1"}
    assert {one["table_uri"] for one in (first, second, third)} == {letters.query.stream.table_uri}
    assert json.loads(first["row"]) == {"id": 3, "name": None}
    assert joined([row_in(one["content"]) for one in (first, second)]).equals(rows_with(3, 7))
    stage = "send" if letters.is_http else "write"
    assert [one["letter_id"] for one in (first, second)] == [
        f"{stage}-00000-000000000002",
        f"{stage}-00001-000000000002",
    ]
    if stage == "write":
        assert first["code"] == "does_not_fit"
        assert "NULL in name" in first["message"]
    else:
        assert first["code"] == "422"
        assert first["row_id"].startswith("q1-0-0-2-")


@KINDS
@pytest.mark.parametrize("point", [*OF_A_COMMIT, *OF_LETTERS])
@pytest.mark.parametrize("of_letters", [False, True], ids=["of the batch", "of its dead letters"])
def test_a_crash_of_a_driver_leaves_each_dead_letter_once(
    letters: Letters, point: str, of_letters: bool
) -> None:
    """The replay finishes the batch. A commit of dead letters has the same points as that of the batch."""
    batch = rows_with(1, 2, 3), rows_with(7, 8)
    is_task = point == "write.files_closed"
    times = (2 if is_task else 1) if point in OF_A_COMMIT else 0
    if is_task and letters.is_http:
        times = 0  # its tasks have no files
    if of_letters or times:
        with crash_at(point, times + 1 if of_letters else 1):
            letters.run(0, *batch)
    letters.replay(0, *batch)
    letters.run(1, rows_with(11, 12))

    letters.check(1, 2, 3, 7, 8, 11, 12)


@pytest.mark.parametrize("damage", [b"", b"noise", CRAFTED], ids=["empty", "noise", "offsets"])
def test_a_dead_letter_that_is_damaged_in_the_store_holds_up_no_other(
    letters: Letters, damage: bytes
) -> None:
    """Arrow itself reads memory of the process for crafted offsets, or ends it."""
    letters.decouple()
    letters.run(0, rows_with(1, 3), rows_with(7, 2))
    with letters.store.engine.begin() as connection:
        change = "UPDATE penstock_dead_letters SET content = :new WHERE letter_id LIKE 'write-00000-%'"
        connection.execute(sa.text(change), {"new": damage})
    letters.deliver()

    damaged, other = letters.read()
    assert json.loads(damaged["row"]).startswith("damaged in the manifest store: it is")
    assert damaged["content"] == damage
    assert json.loads(other["row"])["id"] == 7
    assert letters.waiting() == []


@KINDS
@pytest.mark.parametrize(
    "point",
    ["deliver.start", "deliver.prepared", "commit.start", "commit.landed", "deliver.done", *OF_LETTERS],
)
def test_a_crash_of_a_delivery_process_leaves_each_dead_letter_once(letters: Letters, point: str) -> None:
    letters.decouple()
    for batch_id in range(3):
        first = 4 * batch_id
        letters.run(batch_id, rows_with(first, first + 1), rows_with(first + 2, first + 3))
    assert letters.read() == []
    with crash_at(point):
        letters.deliver()
    letters.deliver()
    letters.run(3, rows_with(12, 13))
    letters.deliver()

    letters.check(*range(14))


@pytest.mark.parametrize("letters", [("http", "delta")], indirect=True)
@pytest.mark.parametrize("crashes_after", range(0, 12, 2))
def test_a_delivery_that_dies_at_any_row_stores_its_dead_letters_with_its_progress(
    letters: Letters, crashes_after: int
) -> None:
    """The progress never passes a dead letter that is not stored, and none is stored twice."""
    letters.decouple(maxInFlightRequests="1")
    letters.run(0, rows_with(*range(8)), rows_with(*range(8, 14)))
    write, calls = SqlProgress.write, []

    def write_and_die(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > crashes_after:
            raise RetryableError("the process is gone")
        return write(*args, **kwargs)

    with mock.patch.object(SqlProgress, "write", write_and_die):
        letters.deliver()
    half = letters.store.progress.read(letters.query.stream).in_delivery
    assert half is not None or crashes_after == 0
    passed = 0 if half is None else half.position
    assert letters.stored() == sum(row_id in BAD for row_id in range(passed))
    assert letters.waiting() == [], "the batch is not committed"
    assert letters.read() == []
    letters.deliver()

    letters.check(*range(14))


def test_dead_letters_wait_while_their_destination_is_down(
    letters: Letters, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The batches are committed nevertheless, and a later one takes them along. Metrics count them."""
    blocked = tmp_path / "refused" / "_delta_log"
    blocked.parent.mkdir()
    blocked.write_text("a file where the log of the table should be")
    metrics, store = Metrics(), letters.store

    def counted() -> list[float | None]:
        metrics.on_poll(store.name, store.streams(), datetime.now(timezone.utc))
        labels = {"query_name": letters.query.stream.query_id, "table": letters.query.stream.table_uri}
        names = ("penstock_dead_letters_total", "penstock_dead_letters_waiting")
        return [metrics.registry.get_sample_value(name, labels) for name in names]

    with caplog.at_level(logging.WARNING):
        letters.run(0, rows_with(1, 3))
        letters.run(1, rows_with(7))
    assert letters.ids() == [1]
    assert letters.waiting() == [0, 1]
    assert [one.letters for one in store.dead_letters.counts(letters.query.stream)] == [2]
    assert [store.dead_letters.count(letters.query.stream, first) for first in (0, 1, 2)] == [2, 1, 0]
    assert counted() == [0, 2], "the alert needs the counter before the first one"
    assert "wait in the manifest store" in caplog.text
    blocked.unlink()
    letters.run(2, rows_with(2))

    letters.check(1, 2, 3, 7)
    assert counted() == [2, 0]


def test_dead_letters_that_wait_keep_the_record_of_their_batch(letters: Letters, tmp_path: Path) -> None:
    blocked = tmp_path / "refused" / "_delta_log"
    blocked.parent.mkdir()
    blocked.write_text("a file where the log of the table should be")
    for batch_id, row_id in enumerate((3, 2, 1)):
        letters.run(batch_id, rows_with(row_id))
    assert letters.store.prune(letters.query.stream, 0, 1, 1000) == 1
    assert letters.waiting() == [0]
    blocked.unlink()
    letters.run(3, rows_with(4))
    assert letters.store.prune(letters.query.stream, 0, 1, 1000) == 2

    letters.check(1, 2, 3, 4)


def test_two_drivers_deliver_a_dead_letter_once(letters: Letters) -> None:
    """The other one delivers it while this one is about to prepare it, and once more afterwards."""
    sink = letter_sink_of(letters.query.sink())
    assert sink is not None

    def deliver_too() -> None:
        deliver_letters(letters.store, letters.query.stream, sink)

    with crash_at("letters.start"):
        letters.run(0, rows_with(1, 3))
    with at_point("prepare.start", deliver_too):
        try_to_deliver_letters(letters.store, letters.query.stream, sink)
    deliver_too()

    letters.check(1, 3)


@KINDS
def test_a_batch_that_is_written_again_with_other_rows_takes_its_dead_letters_along(letters: Letters) -> None:
    """Its first rows were prepared, and never committed. The checkpoint has other offsets now."""
    with crash_at("prepare.done"):
        letters.run(0, rows_with(1, 3))
    assert (letters.stored(), letters.waiting()) == (1, [])
    batch = letters.query.batch(0, "other offsets")
    letters.query.run(letters.store, batch, rows_with(2, 7, 12), run_id="later")
    if not letters.is_http:  # which cannot take back what was sent
        assert letters.ids() == [2]
    assert sorted(letters.bad_ids()) == [7, 12]


@pytest.mark.parametrize("limit", ["1", "20%"])
@KINDS
def test_a_batch_with_too_many_bad_rows_is_not_committed(letters: Letters, limit: str) -> None:
    letters.query = letters.query.with_options(deadLetterMax=limit)
    letters.run(0, rows_with(3, 1, 2, 4, 5))
    with pytest.raises(SchemaMismatchError, match=r"3 of 6 rows of batch 1 of q1 .* more than deadLetterMax"):
        letters.run(1, rows_with(7, 12, 3), rows_with(8, 9, 10))

    assert letters.query.state(letters.store, 1) is None
    assert letters.bad_ids() == [3]
    assert letters.stored() == 0
    if not letters.is_http:
        assert letters.ids() == [1, 2, 4, 5]
        lake: Any = letters.query.harness
        assert len(lake.data_files()) == 1, "the files of the tasks are deleted"


@pytest.mark.parametrize("letters", [("http", "delta")], indirect=True)
@pytest.mark.parametrize("limit", ["1", "25%"])
def test_a_delivery_of_too_many_bad_rows_is_parked(letters: Letters, limit: str) -> None:
    letters.decouple(deadLetterMax=limit, deliveryTries="1", maxInFlightRequests="1")
    letters.run(0, rows_with(1, 3, 4, 5))
    letters.run(1, rows_with(7, 8, 9, 12))
    for _ in range(3):
        letters.deliver()
    state = letters.store.deliveries.state(letters.query.stream)
    assert state.parked_at is not None
    assert "2 of 4 rows of batch 1 of q1 " in state.error
    assert letters.query.state(letters.store, 1) is ManifestState.PREPARED
    assert letters.bad_ids() == [3]
    assert letters.waiting() == []

    letters.query = letters.query.with_options(deadLetterMax="2")
    letters.store.deliveries.retry(letters.query.stream, "me", "it is true")
    letters.replay(1, rows_with(7, 8, 9, 12))  # the query's next start
    letters.deliver()
    letters.check(1, 3, 4, 5, 7, 8, 9, 12)


@pytest.mark.parametrize("letters", [("http", "delta")], indirect=True)
@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_values_that_cannot_be_sent_are_dead_letters_too(letters: Letters, delivery: str) -> None:
    """Next to rows that the service refuses, at the same place."""
    letters.decouple(delivery=delivery)
    times = pa.array([2**62, 0, 0, -(2**62)], pa.timestamp("us"))
    letters.run(0, pa.table({"id": pa.array([1, 3, 2, 4], pa.int64()), "at": times}))
    if delivery == "decoupled":
        letters.deliver()

    assert letters.ids() == [2]
    assert sorted(letters.bad_ids()) == [1, 3, 4]
    codes = {json.loads(one["row"])["id"]: one["code"] for one in letters.read()}
    assert codes == {1: "does_not_fit", 3: "422", 4: "does_not_fit"}
    assert joined([row_in(one["content"]) for one in letters.read()]).num_rows == 3


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@pytest.mark.parametrize("letters", [("postgres", "postgres")], indirect=True)
def test_values_that_do_not_fit_a_column_of_postgres_are_dead_letters(
    letters: Letters, delivery: str
) -> None:
    """The server itself would refuse each of them, and with it all rows of the task or the batch."""
    table: Any = letters.query.harness
    table.sql("DROP TABLE events")
    table.sql(
        "CREATE TABLE events (id bigint, small smallint, price numeric(5,2), short varchar(3), key uuid)"
    )
    letters.decouple(delivery=delivery)
    key = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    rows = pa.table(
        {
            "id": pa.array(range(9), pa.int64()),
            "small": pa.array([1, 2**15, -(2**15), None, 4, 5, 6, 7, 8], pa.int64()),
            "price": pa.array(map(Decimal, ["1.50", "0", "999.99", "1", "1000", "0.005", "1", "1", "1"])),
            "short": ["äöü", "a", None, "", "a", "a", "abcd", "abc   ", "a"],
            "key": [key, key, f"{{{key}}}", None, key, key, key, key, key.replace("a0", "z0")],
        }
    )
    letters.run(0, rows)
    if delivery == "decoupled":
        letters.deliver()

    assert [row[:4] for row in table.sql("SELECT * FROM events ORDER BY id")] == [
        (0, 1, Decimal("1.50"), "äöü"),
        (2, -(2**15), Decimal("999.99"), None),
        (3, None, Decimal("1.00"), ""),
    ]
    assert letters.bad_ids() == [1, 4, 5, 6, 7, 8]
    assert {one["code"] for one in letters.read()} == {"does_not_fit"}


@pytest.mark.parametrize("kind", ["json", "jsonb"])
@pytest.mark.parametrize("letters", [("postgres", "postgres")], indirect=True)
def test_texts_that_the_server_does_not_take_as_json_are_dead_letters(letters: Letters, kind: str) -> None:
    table: Any = letters.query.harness
    table.sql("DROP TABLE events")
    table.sql(f"CREATE TABLE events (id bigint, value {kind})")
    texts = [
        None,
        "null",
        ' {"a": [1, -2.5e3]}',
        '"\\\\u0000 \\ud83d\\ude00"',
        "9" * 5000,
        f'"{"x" * 100_000}"',
    ]
    texts += ["", "[1, 2", "{'a': 1}", "NaN", "-Infinity", "01", '"\t"', "[1,]", "1 2"]
    texts += ['"\\u0000"', '"\\ud83d"', "1e999999", "1e131071", "1e131072"]
    rows = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "value": texts})
    letters.run(0, rows)

    refused = []
    for number, text in enumerate(texts[1:], start=1):
        try:
            table.sql(f"SELECT length($text${text}$text$::{kind}::text)")
        except psycopg.DataError:
            refused.append(number)
    assert len(refused) == {"json": 9, "jsonb": 13}[kind]
    assert letters.bad_ids() == refused
    assert {one["code"] for one in letters.read()} == {"does_not_fit"}


REFUSES = {
    "check": ("ALTER TABLE events ADD CHECK (id NOT IN (13, 17))", "23514"),
    "foreign key": (
        "CREATE TABLE known (id bigint PRIMARY KEY); INSERT INTO known SELECT * FROM generate_series(0, 12); "
        "INSERT INTO known VALUES (14), (15), (16); ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES known",
        "23503",
    ),
    "deferred foreign key": (
        "CREATE TABLE known (id bigint PRIMARY KEY); INSERT INTO known SELECT * FROM generate_series(0, 12); "
        "INSERT INTO known VALUES (14), (15), (16); ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES known "
        "DEFERRABLE INITIALLY DEFERRED",
        "23503",
    ),
    "unique": ("CREATE UNIQUE INDEX u ON events ((CASE WHEN id IN (1, 13, 17) THEN 1 ELSE id END))", "23505"),
    "trigger": (
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.id IN (13, 17) THEN RAISE ''not this one''; END IF; RETURN NEW; END'; "
        "CREATE TRIGGER t BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION f()",
        "P0001",
    ),
}
"""What makes Postgres refuse the rows 13 and 17 in the commit, and the code of the error."""
OF_POSTGRES = pytest.mark.parametrize("letters", [("postgres", "postgres")], indirect=True)


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@pytest.mark.parametrize("refuses", REFUSES)
@OF_POSTGRES
def test_rows_that_postgres_refuses_in_the_commit_are_dead_letters(
    letters: Letters, refuses: str, delivery: str
) -> None:
    table: Any = letters.query.harness
    statements, code = REFUSES[refuses]
    table.sql(statements)
    letters.decouple(delivery=delivery)
    letters.run(0, rows_with(0, 1, 2), rows_with(3, 4))
    letters.run(1, rows_with(8, 13, 9, 7), rows_with(17, 14))
    letters.run(2, rows_with(15, 16))
    if delivery == "decoupled":
        letters.deliver()

    assert letters.ids() == [0, 1, 2, 4, 8, 9, 14, 15, 16]
    assert letters.bad_ids() == [3, 13, 17, 7]
    found = {json.loads(one["row"])["id"]: one for one in letters.read()}
    assert [found[13]["letter_id"], found[17]["letter_id"]] == [
        "commit-00000-000000000001",
        "commit-00001-000000000000",
    ]
    assert {found[row_id]["code"] for row_id in (13, 17)} == {code}
    assert found[13]["message"]
    assert pa.concat_tables([row_in(found[row_id]["content"]) for row_id in (3, 13)]).equals(rows_with(3, 13))
    assert letters.stored() == 0
    assert table.staged() == []
    assert letters.counted() == len(letters.ids())


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@pytest.mark.parametrize("point", ["commit.start", "commit.landed", "mark.done", "deliver.done", *OF_LETTERS])
@OF_POSTGRES
def test_a_crash_around_a_commit_that_refuses_rows_leaves_each_row_once(
    letters: Letters, point: str, delivery: str
) -> None:
    """Even if the table would accept the row, or another one not, when the batch is committed again."""
    if point == ("deliver.done" if delivery == "coupled" else "mark.done"):
        return
    table: Any = letters.query.harness
    table.sql("ALTER TABLE events ADD CONSTRAINT c CHECK (id NOT IN (13, 17))")
    letters.decouple(delivery=delivery)
    batch = rows_with(1, 13, 2), rows_with(17, 4)
    if delivery == "decoupled":
        letters.run(0, *batch)
        letters.run(1, rows_with(5, 6))
    with crash_at(point):
        if delivery == "coupled":
            letters.run(0, *batch)
        else:
            letters.deliver()
    table.sql("ALTER TABLE events DROP CONSTRAINT c; ALTER TABLE events ADD CHECK (id != 17) NOT VALID")
    if delivery == "coupled":
        letters.replay(0, *batch)
        letters.run(1, rows_with(5, 6))
    else:
        letters.deliver()
        letters.run(2, rows_with(8))
        letters.deliver()

    is_before = point == "commit.start"
    more = [] if delivery == "coupled" else [8]
    assert letters.ids() == sorted([1, 2, 4, 5, 6, *([13] if is_before else []), *more])
    assert letters.bad_ids() == [17] if is_before else [13, 17]
    assert (letters.stored(), letters.waiting()) == (0, [])
    assert letters.counted() == len(letters.ids())
    is_left = point in ("mark.done", "deliver.done")  # the table of refused rows, for clean-up
    assert len(table.staged()) == is_left


@OF_POSTGRES
def test_refused_rows_are_held_by_the_table_until_the_store_has_them(letters: Letters) -> None:
    """Clean-up does not delete them before."""
    table: Any = letters.query.harness
    table.sql("ALTER TABLE events ADD CHECK (id != 13)")
    with crash_at("commit.landed"):
        letters.run(0, rows_with(1, 13))
    (held,) = table.staged()
    ((comment,),) = table.sql("SELECT obj_description(%s::regclass)", held)
    old = re.sub(r"at \S+", "at 2020-01-01T00:00:00+00:00", comment)
    table.sql(f"COMMENT ON TABLE {held} IS '{old}'")
    access = TableAccess({}, {})
    (status, *_) = letters.store.streams()
    stored = stored_table(status, access)
    cleanable = stored.cleanable(letters.store)  # type: ignore[attr-defined]
    assert [file.path for file in cleanable.files() if file.path.endswith(held)] == []
    letters.replay(0, rows_with(1, 13))

    assert (letters.ids(), letters.bad_ids(), table.staged()) == ([1], [13], [])


@OF_POSTGRES
def test_rows_that_need_later_rows_of_their_batch_are_committed(letters: Letters) -> None:
    """Found by halving, they would be moved before the rows to which they refer."""
    table: Any = letters.query.harness
    table.sql("DROP TABLE events")
    table.sql(
        "CREATE TABLE events (id bigint PRIMARY KEY, parent bigint REFERENCES events, CHECK (id != 13))"
    )
    rows = pa.table({"id": [1, 2, 13, 4], "parent": [4, 1, None, None]})
    letters.run(0, rows, pa.table({"id": [5, 6], "parent": [6, 13]}))

    assert letters.ids() == [1, 2, 4]
    assert sorted(letters.bad_ids()) == [5, 6, 13]
    assert letters.stored() == 0


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@OF_POSTGRES
def test_more_refused_rows_than_the_limit_commit_nothing(letters: Letters, delivery: str) -> None:
    table: Any = letters.query.harness
    table.sql("ALTER TABLE events ADD CHECK (id < 13)")
    letters.decouple(delivery=delivery, deadLetterMax="1", deliveryTries="1")
    if delivery == "coupled":
        with pytest.raises(SchemaMismatchError, match=r"2 of 3 rows of batch 0 .* than deadLetterMax"):
            letters.run(0, rows_with(1, 13, 17))
    else:
        letters.run(0, rows_with(1, 13, 17))
        letters.deliver()
        assert letters.store.deliveries.state(letters.query.stream).parked_at is not None

    assert (letters.ids(), letters.read(), letters.stored()) == ([], [], 0)


@OF_POSTGRES
def test_rows_that_the_table_refuses_can_be_dropped(
    letters: Letters, caplog: pytest.LogCaptureFixture
) -> None:
    table: Any = letters.query.harness
    table.sql("ALTER TABLE events ADD CHECK (id != 13)")
    letters.query = letters.query.with_options(badRows="drop")
    letters.run(0, rows_with(1, 13, 2))

    assert (letters.ids(), letters.read(), table.staged()) == ([1, 2], [], [])
    assert "refused 1 of 3 rows of batches 0 to 0" in caplog.text
    assert letters.counted() == 2


@OF_POSTGRES
def test_a_row_that_the_table_refuses_is_named_with_its_key_and_the_way_out(letters: Letters) -> None:
    table: Any = letters.query.harness
    table.sql("ALTER TABLE events ADD PRIMARY KEY (id); ALTER TABLE events ADD CHECK (id != 13)")
    letters.query = Query(table, options={"delivery": "decoupled", "deliveryTries": "1"})
    letters.run(0, rows_with(1, 13, 2))
    letters.deliver()

    state = letters.store.deliveries.state(letters.query.stream)
    assert state.parked_at is not None
    assert "the row with id = '13' of batch 0" in state.error
    assert "badRows=deadLetter" in state.error
    assert "penstock show q1 0 --rows" in state.error
    assert letters.ids() == []


REDIS = {
    "hash": {"structure": "hash", "key": "rows:{id}", "field": "{id}"},
    "list": {"structure": "list", "key": "rows:{id}"},
    "stream": {"structure": "stream", "key": "rows:{id}"},
}
ONCE = {"exactlyOnce": "true", "delivery": "decoupled"}


def redis_letters(
    server: RedisServer, folder: Path, store: SqlManifestStore, structure: str, **options: str
) -> Letters:
    """A query into Redis, where the keys of the bad rows have another structure."""
    with server.connect() as client:
        for row_id in BAD:
            client.set(f"rows:{row_id}", "another structure")
    table = DeltaLake(folder / "refused")
    given = {"badRows": "deadLetter", "deadLetter": str(table.path), "maxBatchSize": "4", **options}
    place = Service("redis", {"url": f"redis://127.0.0.1:{server.port}/0", **REDIS[structure]})
    given["checkpointLocation"] = str(folder / "checkpoint")

    def ids() -> list[int]:
        found = []
        with server.connect() as client:
            for key in client.scan_iter("rows:*"):
                name = key.decode() if isinstance(key, bytes) else key
                row_id, kind = int(name.partition(":")[2]), client.type(key)
                size = {"list": client.llen, "hash": client.hlen, "stream": client.xlen}
                text = kind.decode() if isinstance(kind, bytes) else kind
                found += [row_id] * (size[text](key) if text in size else 0)
        return sorted(found)

    return Letters(Query(place, options=given, store=store), store, table, ids)


@pytest.mark.parametrize("delivery", ["coupled", "decoupled", "once"])
@pytest.mark.parametrize("structure", REDIS)
def test_keys_of_another_structure_in_redis_are_dead_letters(
    redis_service: RedisServer, tmp_path: Path, store: SqlManifestStore, structure: str, delivery: str
) -> None:
    if (structure, delivery) == ("hash", "once"):
        return
    options = ONCE if delivery == "once" else {"delivery": delivery}
    letters = redis_letters(redis_service, tmp_path, store, structure, **options)
    letters.run(0, rows_with(1, 3, 2, 7, 12, 5), rows_with(4, 6))
    letters.run(1, rows_with(12, 8))
    if delivery != "coupled":
        letters.deliver()

    assert letters.ids() == [1, 2, 4, 5, 6, 8]
    assert sorted(letters.bad_ids()) == [3, 7, 12, 12]
    assert {one["code"] for one in letters.read()} == {"WRONGTYPE"}
    assert {one["message"].partition(": ")[0].partition(",")[0] for one in letters.read()} == {
        f"Key 'rows:{row_id}'" for row_id in BAD
    }
    assert letters.waiting() == []


@pytest.mark.parametrize("steps", range(0, 24, 2))
def test_a_fenced_delivery_that_dies_at_any_step_keeps_its_dead_letters(
    redis_service: RedisServer, tmp_path: Path, store: SqlManifestStore, steps: int
) -> None:
    """A refused row is recorded before a later one moves the fence, or the next delivery would skip it."""
    letters = redis_letters(
        redis_service, tmp_path, store, "list", **ONCE, maxBatchSize="2", progressEverySeconds="300"
    )
    letters.run(0, rows_with(1, 3, 2, 7, 12, 5), rows_with(4, 6))
    done = 0
    submit, write = RedisClient.submit, SqlProgress.write

    def step() -> None:
        """Of the process that dies after so many: requests, responses, and records of the progress."""
        nonlocal done
        if done >= steps:
            raise RetryableError("the process is gone")
        done += 1

    async def submit_and_die(*args: Any) -> Any:
        step()
        results = await submit(*args)
        step()
        return results

    def write_and_die(*args: Any, **kwargs: Any) -> Any:
        step()
        return write(*args, **kwargs)

    with (
        mock.patch.object(RedisClient, "submit", submit_and_die),
        mock.patch.object(SqlProgress, "write", write_and_die),
    ):
        letters.deliver()
    letters.deliver()

    assert letters.ids() == [1, 2, 4, 5, 6]
    assert sorted(letters.bad_ids()) == [3, 7, 12]
    assert letters.waiting() == []


@pytest.mark.parametrize("letters", [("postgres", "postgres"), ("http", "delta")], indirect=True)
def test_the_rows_of_a_batch_that_waits_are_shown(letters: Letters, tmp_path: Path) -> None:
    letters.decouple()
    letters.run(0, rows_with(0, 1, 2), rows_with(4, 5))
    url = letters.store.engine.url.render_as_string(hide_password=False)
    arguments = ("show", "q1", "0", "--rows", "--store", url)
    shown = Ended(*arguments, "--json").json["waiting_rows"]
    assert [(one["part"], one["row"], one["values"]["id"]) for one in shown] == [
        (0, 0, 0),
        (0, 1, 1),
        (0, 2, 2),
        (1, 0, 4),
        (1, 1, 5),
    ]
    assert shown[0]["values"] == {"id": 0, "name": "name 0"}
    text = Ended(*arguments, "--limit", "4", columns=200).out
    assert "name 4" in text
    assert "and 1 more" in text


def test_bad_values_of_a_partition_column_are_dead_letters(letters: Letters, tmp_path: Path) -> None:
    """The writer meets them when it splits the rows, later than other values."""
    lake = DeltaLake(tmp_path / "by day")
    letters.query = Query(lake, options={**letters.query.options, "partitionBy": "day"})
    days = pa.array([0, 10**7, 1], pa.int32()).cast(pa.date32())
    letters.run(0, pa.table({"id": pa.array([1, 2, 5], pa.int64()), "day": days}))

    assert lake.ids() == [1, 5]
    assert letters.bad_ids() == [2]


@pytest.mark.parametrize("data_type", ["array", "map", "struct of arrays"])
def test_a_bad_value_in_a_nested_column_concerns_its_own_row(
    letters: Letters, tmp_path: Path, data_type: str
) -> None:
    """Rows of one Arrow batch share the buffers of their elements."""
    letters.query = Query(DeltaLake(tmp_path / "nested"), options=letters.query.options)
    texts = pa.array([b"a", b"b", b"\xff", b"c", b"d"], pa.binary()).view(pa.string())
    offsets, ids = pa.array([0, 1, 2, 3, 5], pa.int32()), pa.array(range(4), pa.int64())
    nested: pa.Array = pa.ListArray.from_arrays(offsets, texts)
    if data_type == "map":
        nested = pa.MapArray.from_arrays(offsets, pa.array(list("abcde")), texts)
    elif data_type == "struct of arrays":
        nested = pa.StructArray.from_arrays([nested], ["texts"])
    letters.run(0, pa.table({"id": ids, "nested": nested}))

    assert DeltaLake(tmp_path / "nested").ids() == [0, 1, 3]
    assert letters.bad_ids() == [2]


@KINDS
def test_bad_rows_can_be_dropped(letters: Letters, caplog: pytest.LogCaptureFixture) -> None:
    letters.query = letters.query.with_options(badRows="drop")
    with caplog.at_level(logging.WARNING):
        letters.run(0, rows_with(1, 3, 4))

    assert letters.ids() == [1, 4]
    assert letters.bad_ids() == []
    assert letters.is_http or "1 of 3 rows do not fit and were dropped" in caplog.text
    assert letters.counted() == 2


@KINDS
def test_a_bad_row_ends_the_query_by_default(letters: Letters) -> None:
    letters.query = letters.query.with_options(badRows="fail")
    with pytest.raises(SchemaMismatchError):
        letters.run(0, rows_with(1, 3, 4))
    assert letters.read() == []


def test_columns_that_do_not_fit_are_no_bad_rows(letters: Letters) -> None:
    """They concern all rows: the query stops."""
    plan = letters.query.plan(letters.store, letters.query.batch(0), ROWS)
    with pytest.raises(SchemaMismatchError, match="do not fit the table"):
        letters.query.write(plan, [pa.table({"id": ["one", "two"]})])


def test_dead_letters_of_a_task_are_bounded(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_BYTES_MAX", 5000)
    plan = letters.query.plan(letters.store, letters.query.batch(0), ROWS)
    with pytest.raises(SchemaMismatchError, match="dead letters of one task have more than 5,000 bytes"):
        letters.query.write(plan, [rows_with(*BAD * 10)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deadLetter": None}, "badRows=deadLetter needs deadLetter"),
        ({"deadLetterMax": "1 %x"}, "must be a number of rows such as 100, or a ratio such as 1%"),
        ({"deadLetterMax": "101%"}, "must be a number of rows"),
        ({"deadLetter": None, "deadLetter.format": "penstock.delta"}, "path is missing"),
        ({"deadLetter.path": "/x"}, "deadLetter and deadLetter.path are the same"),
        ({"deadLetter.format": "penstock.iceberg"}, "path is not an option"),
        ({"deadLetter.format": "penstock.nothing"}, "There is no destination 'penstock.nothing'"),
        ({"deadLetter.badRows": "drop"}, "deadLetter.badrows is not an option"),
        ({"deadLetter.delivery": "decoupled"}, "deadLetter.delivery is not an option"),
        ({"deadLetter": "the table itself"}, "to which the query writes its other rows"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    letters: Letters, options: dict[str, str | None], said: str
) -> None:
    lake: Any = letters.query.harness
    if options.get("deadLetter"):
        options = {"deadLetter": str(lake.path)}
    given = {**letters.query.options, **options}
    letters.query = Query(lake, options={key: text for key, text in given.items() if text is not None})
    with pytest.raises(ConfigurationError) as failure:
        letters.run(0, rows_with(1))
    assert said in str(failure.value)
    assert letters.ids() == []


def test_secrets_of_the_dead_letter_destination_are_not_stored(letters: Letters, tmp_path: Path) -> None:
    secret = {"deadLetter.storage.AWS_SECRET_ACCESS_KEY": "geheim"}
    letters.query = letters.query.with_options(**secret)
    letters.run(0, rows_with(1, 3))
    sink = letters.query.sink()
    assert "geheim" in dict(sink.options.dead_letter_options).values()
    assert "geheim" not in f"{sink!r}"

    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"geheim" not in kept


def test_a_stream_of_dead_letters_is_not_reported_as_silent(letters: Letters) -> None:
    """The alert PenstockQuerySilent uses the time of the newest batch."""
    letters.run(0, rows_with(1, 3))
    metrics, store = Metrics(), letters.store
    metrics.on_poll(store.name, store.streams(), datetime.now(timezone.utc))
    lines = generate_latest(metrics.registry).decode().splitlines()
    newest = [line for line in lines if line.startswith("penstock_last_prepare_timestamp_seconds{")]
    assert [str(letters.query.stream.table_uri) in line for line in newest] == [True]
    assert sum(line.startswith("penstock_committed_rows_total{") for line in lines) == 2


def test_batch_writes_keep_no_dead_letters(letters: Letters) -> None:
    with pytest.raises(ConfigurationError, match="badRows=deadLetter is only for streams"):
        planning.plan_batch_write(letters.query.sink(), StructType([StructField("id", LongType())]), False)


def test_the_page_has_a_row_for_each_crash_point() -> None:
    text = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text()
    assert tuple(re.findall(r"^\| `(letters\.\w+)` \|", text, re.MULTILINE)) == OF_LETTERS
