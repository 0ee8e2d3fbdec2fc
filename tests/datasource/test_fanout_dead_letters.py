"""Bad rows of one target of a query: its dead letters, while the other targets get the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.aws import KEY, SECRET, AwsServer
from servers.http_rows import HttpRows
from servers.redis import RedisServer
from tests.support.aws import AwsPlace
from tests.support.fanouts import FanoutPlace
from tests.support.lakes import DeltaLake, IcebergLake, rows
from tests.support.postgres import PostgresTable

from penstock.committers import dead_letters
from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.errors import ConfigurationError, PenstockError, SchemaMismatchError
from penstock.committers.requests import delivery
from penstock.committers.store.progress import SqlProgress
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.faults import crash_at

ALL = tuple(range(10))
OVERFLOW, NO_NAME, NUL, FAR, REFUSED = 1, 2, 3, 4, 7
"""Ids of rows that some targets refuse. FAR is after the year 9999."""
BAD = {
    "lake": {OVERFLOW: "does_not_fit"},
    "ice": {NO_NAME: "does_not_fit"},
    "pg": {NUL: "does_not_fit", FAR: "does_not_fit"},
    "http": {FAR: "does_not_fit", REFUSED: "422"},
    "redis": {NO_NAME: "does_not_fit", FAR: "does_not_fit"},
    "dynamo": {NO_NAME: "does_not_fit", FAR: "does_not_fit"},
    "sqs": {FAR: "does_not_fit"},
}
"""Of each target: the rows that it refuses, with their codes."""


def rows_with(*ids: int) -> pa.Table:
    names = {NO_NAME: None, NUL: "a\0b"}
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "number": pa.array([2**40 if one == OVERFLOW else one for one in ids], pa.int64()),
            "name": pa.array([names.get(one, f"name {one}") for one in ids], pa.string()),
            "at": pa.array([2**60 if one == FAR else one for one in ids], pa.timestamp("us")),
        }
    )


@dataclass
class Targets:
    """A query with the targets of `given`, and what is in each of them."""

    folder: Path
    store: SqlManifestStore
    given: dict[str, dict[str, str]] = field(default_factory=dict)
    found: dict[str, Callable[[], list[int]]] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, source: str, options: dict[str, str], found: Callable[[], Any]) -> None:
        self.given[name] = {"": source, **options}
        self.found[name] = found

    @property
    def letter_table(self) -> DeltaLake:
        return DeltaLake(self.folder / "refused")

    @property
    def query(self) -> Query:
        options = {
            f"target.{name}.{key}".rstrip("."): value
            for name, of_target in self.given.items()
            for key, value in of_target.items()
        }
        options |= {
            "badRows": "deadLetter",
            "deadLetter": str(self.letter_table.path),
            "checkpointLocation": str(self.folder / "checkpoint"),
            "deliverAfterSeconds": "1",
            **self.options,
        }
        return Query(FanoutPlace(options))

    def stream(self, name: str) -> StreamKey:
        targets = self.query.with_targets().targets
        return StreamKey("q1", targets[name].table_uri)

    def run(self, batch_id: int, *parts: tuple[int, ...], run_id: str = "r1") -> None:
        query = self.query
        query.run(self.store, query.batch(batch_id), *(rows_with(*ids) for ids in parts), run_id=run_id)

    def ids(self, name: str) -> list[int]:
        return sorted(map(int, self.found[name]()))

    def letters(self, name: str) -> list[tuple[int, str]]:
        """Ids and codes in the dead-letter table, of one target."""
        if not self.letter_table.exists:
            return []
        uri = self.stream(name).table_uri
        read = rows(self.letter_table, "row, code, table_uri")
        return sorted((json.loads(str(row))["id"], str(code)) for row, code, of in read if of == uri)

    def check(self, *ids: int) -> None:
        """Check that each target has each row once, either as it is or as a dead letter."""
        for name in self.given:
            bad = BAD[name]
            assert self.ids(name) == sorted(one for one in ids if one not in bad), name
            assert self.letters(name) == sorted((one, bad[one]) for one in ids if one in bad), name
        streams = self.store.streams()
        assert [one for stream in streams for one in self.store.pending(stream.key)] == []
        assert [one for stream in streams for one in self.store.dead_letters.counts(stream.key)] == []

    def row_log(self) -> list[Path]:
        return list((self.folder / "checkpoint" / "row-log").rglob("*.arrow"))


@pytest.fixture
def targets(tmp_path: Path, http_server: HttpRows) -> Iterator[Targets]:
    """A Delta table, an Iceberg table and an HTTP service."""
    lake, ice = DeltaLake(tmp_path / "table"), IcebergLake(tmp_path / "lake")
    sizes = [("id", pa.int64()), ("number", pa.int32()), ("name", pa.string()), ("at", pa.timestamp("us"))]
    lake.create(pa.schema(sizes))
    own = rows_with(0).schema
    ice.create(own.set(2, pa.field("name", pa.string(), nullable=False)))
    http_server.clear()
    http_server.set(deduplicate=True, refused=(REFUSED,))
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        made = Targets(tmp_path, store)
        made.add("lake", "penstock.delta", lake.options, lake.ids)
        made.add("ice", "penstock.iceberg", ice.options, ice.ids)
        http = {"url": http_server.url, "format": "row", "progressEverySeconds": "0"}
        made.add("http", "penstock.http", http, http_server.ids)
        yield made


def test_bad_rows_of_each_target_are_its_dead_letters_and_the_others_get_them(
    targets: Targets,
    redis_service: RedisServer,
    aws_service: AwsServer,
    new_postgres_url: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all families of destinations. Those without files share one row log."""
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    table = PostgresTable(new_postgres_url())
    table.sql("CREATE TABLE events (id bigint, number bigint, name text, at timestamp)")
    targets.add("pg", "penstock.postgres", table.options, table.ids)
    redis = {"url": redis_service.url, "structure": "set", "key": "rows:{name}"}
    targets.add("redis", "penstock.redis", redis, lambda: [row["id"] for row in redis_service.rows()])
    dynamo, sqs = AwsPlace.new(aws_service, "dynamodb"), AwsPlace.new(aws_service, "sqs")
    targets.add("dynamo", "penstock.dynamodb", dynamo.options(idColumn="name"), dynamo.ids)
    targets.add("sqs", "penstock.sqs", sqs.options(), sqs.ids)

    targets.run(0, ALL[:5], ALL[5:])
    assert len(targets.row_log()) == 2, "one row log"
    targets.run(1, (12,), (13, 14))
    deliver(targets.store)

    targets.check(*ALL, 12, 13, 14)
    assert targets.row_log() == []


@pytest.mark.parametrize("point", ["prepare.start", "prepare.done", "letters.start", "letters.landed"])
def test_a_crash_leaves_each_dead_letter_of_each_target_once(targets: Targets, point: str) -> None:
    parts = ALL[:5], ALL[5:]
    with crash_at(point):
        targets.run(0, *parts)
        deliver(targets.store)
    plan = targets.query.plan(targets.store, targets.query.batch(0), rows_with(0).schema)
    written = targets.query.write(plan, [rows_with(*ids) for ids in parts], "r2")
    targets.query.commit(targets.store, written)
    deliver(targets.store)

    targets.check(*ALL)


@pytest.mark.parametrize("crashes_after", range(0, 10, 3))
def test_a_delivery_that_dies_keeps_rows_that_cannot_be_sent(
    targets: Targets, monkeypatch: pytest.MonkeyPatch, crashes_after: int
) -> None:
    """The progress never passes a row that is neither sent nor stored as a dead letter."""
    targets.given["http"]["maxInFlightRequests"] = "1"
    targets.run(0, ALL[:5], ALL[5:])
    write, calls = SqlProgress.write, []

    def write_and_die(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) > crashes_after:
            raise PenstockError("the process is gone")
        return write(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(SqlProgress, "write", write_and_die)
        deliver(targets.store)
    half = targets.store.progress.read(targets.stream("http")).in_delivery
    passed = 0 if half is None else half.position
    with targets.store.engine.connect() as connection:
        stored = connection.exec_driver_sql(
            "SELECT count(*) FROM penstock_dead_letters WHERE letter_id LIKE 'send-%'"
        ).scalar_one()
    assert stored == sum(one in BAD["http"] for one in range(passed))
    deliver(targets.store)

    targets.check(*ALL)


@pytest.mark.parametrize("target", ["lake", "ice"])
def test_too_many_bad_rows_of_one_target_leave_nothing_of_any(targets: Targets, target: str) -> None:
    targets.given[target]["deadLetterMax"] = "0"
    with pytest.raises(SchemaMismatchError, match=rf"^Target {target}: 1 of 10 rows of batch 0 "):
        targets.run(0, ALL)
    assert targets.store.pending(targets.stream("lake")) == []
    written = [*targets.folder.rglob("*.parquet"), *targets.folder.rglob("*.arrow")]
    assert written == [], "what the tasks have written is deleted"

    targets.given[target]["deadLetterMax"] = "1"
    targets.run(0, ALL, run_id="r2")
    deliver(targets.store)
    targets.check(*ALL)


def test_too_many_bad_rows_of_a_delivery_park_that_target_alone(targets: Targets) -> None:
    targets.given["http"] |= {"deadLetterMax": "1", "deliveryTries": "1"}
    targets.run(0, ALL)
    for _ in range(3):  # it stops after the first error
        deliver(targets.store)
    assert targets.store.deliveries.state(targets.stream("http")).parked_at is not None
    for name in ("lake", "ice"):
        record = targets.store.record(targets.stream(name), 0)
        assert record is not None
        assert record.state is ManifestState.COMMITTED


def test_rows_that_cannot_be_sent_are_bounded_in_memory(
    targets: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delivery with nothing but such rows records them from time to time."""
    for module in (dead_letters, delivery):
        monkeypatch.setattr(module, "LETTERS_BYTES_MAX", 3000)
    recorded: list[int] = []
    write = SqlProgress.write

    def count(*args: Any, **kwargs: Any) -> Any:
        recorded.append(sum(map(len, args[-1].values())))
        return write(*args, **kwargs)

    monkeypatch.setattr(SqlProgress, "write", count)
    targets.given = {"http": targets.given["http"]}
    for batch_id in range(6):
        targets.run(batch_id, (FAR,), (FAR,))
    deliver(targets.store)

    assert sum(recorded) == 12
    assert max(recorded) < 6
    assert targets.letters("http") == [(FAR, "does_not_fit")] * 12


def test_bad_rows_of_each_target_can_be_dropped_or_fail(targets: Targets) -> None:
    targets.given["lake"]["badRows"] = targets.given["http"]["badRows"] = "drop"
    targets.run(0, (0, OVERFLOW, FAR, REFUSED))
    deliver(targets.store)
    assert (targets.ids("lake"), targets.ids("http")) == ([0, FAR, REFUSED], [0, OVERFLOW])
    assert targets.letters("lake") == targets.letters("http") == []

    targets.given["http"]["badRows"] = "fail"
    with pytest.raises(SchemaMismatchError, match=r"^Target http: "):
        targets.run(1, (FAR,))


def test_dead_letters_do_not_go_to_another_target(targets: Targets) -> None:
    targets.given["http"]["deadLetter"] = targets.given["lake"]["path"]
    with pytest.raises(
        ConfigurationError, match=r"^Target http: .* to which the query writes its other rows"
    ):
        targets.run(0, ALL)
