"""Changes by key into Postgres tables, with a real server: a dict decides what the table must have."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.support.histories import Histories
from tests.support.postgres import PostgresQuery, query_into, url_of
from tests.support.sql_table import commit_answers

from penstock.committers.contract import AlreadyCommitted, Changes, Committed, Manifest
from penstock.committers.database.merge import merge, mergeable
from penstock.committers.dead_letters import row_in
from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    ManifestCorruptError,
    PenstockError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from penstock.committers.postgres import tombstones
from penstock.committers.postgres.dialect import DIALECT
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.sink import mode_of
from penstock.testing.conformance.query import attempt, shipped

MANIFESTS = DIALECT.manifests

ROWS = pa.schema([("id", pa.int64()), ("lsn", pa.int64()), ("name", pa.string()), ("op", pa.string())])
UPSERT = {
    "writeMode": "upsert",
    "keys": "id",
    "orderBy": "lsn",
    "deleteWhen": "op = 'd'",
    "dropColumns": "op, lsn",
}
LATE = {"lateRows": "ignore", "dropColumns": "op"}

RUNS = count()
Row = tuple[int | None, int, str | None, str]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], schema=ROWS)


@pytest.fixture
def query(new_postgres_url: Callable[[], str]) -> PostgresQuery:
    return query_into(new_postgres_url(), **UPSERT)


def build(query: PostgresQuery, batch_id: int, *tasks: pa.Table) -> Manifest:
    """Write a batch, up to its manifest."""
    target, batch = query.target(), query.batch(batch_id)
    mode = mode_of(query.sink().options, overwrite=False)
    planned = shipped(target.plan_batch(tasks[0].schema, mode, batch_id))
    payloads = []
    for number, rows in enumerate(tasks):
        writer = planned.writers.open(attempt(batch, number, str(next(RUNS))))
        for some in rows.to_batches(max_chunksize=max(5, rows.num_rows // 2)):
            writer.write(some)
        payloads.append(writer.finish())
    try:
        return shipped(target.manifest(batch, planned.content, payloads))
    except SchemaMismatchError:
        target.discard(payloads)
        raise


def commit(query: PostgresQuery, *manifests: Manifest) -> Any:
    return query.target().commit(merge(manifests, MANIFESTS) if len(manifests) > 1 else manifests[0])


def run(query: PostgresQuery, batch_id: int, *rows: Row) -> Any:
    return commit(query, build(query, batch_id, rows_of(*rows)))


def names(query: PostgresQuery) -> dict[int, str | None]:
    return dict(query.sql("SELECT id, name FROM events"))


def deleted(query: PostgresQuery) -> list[tuple[Any, ...]]:
    """The tombstones."""
    return query.sql(f"SELECT key_1, order_1 FROM {tombstone_table(query)} ORDER BY key_1")


def tombstone_table(query: PostgresQuery) -> str:
    ((name,),) = query.sql(
        "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename ~ '^penstock_deleted_'",
        query.schema,
    )
    return str(name)


# Histories --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A query, and the rows that it gets."""

    schema: pa.Schema
    options: Mapping[str, str]
    keys: Sequence[str]
    order: Sequence[str]
    values: Mapping[str, Callable[[random.Random], Any]]
    dropped: Sequence[str]
    delete: Callable[[Mapping[str, Any]], bool]

    @property
    def ignores_late_rows(self) -> bool:
        return self.options.get("lateRows") == "ignore"

    @property
    def has_history(self) -> bool:
        return "history" in self.options

    @property
    def selected(self) -> list[str]:
        names = [name for name in self.schema.names if name not in self.dropped]
        ends = ["valid_from", self.options.get("validTo", "valid_to"), "is_current"]
        return [*names, *(ends if self.has_history else [])]

    def kept(self, row: Mapping[str, Any]) -> set[str]:
        """The columns that a row leaves as they are."""
        named = self.options.get("updateColumns", "all").lower()
        names = set(self.schema.names) if named == "given" else set(named.split(", "))
        return {name for name in names.difference(self.dropped) if name in row and row[name] is None}

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def rank(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Texts are compared by their bytes."""
        values = (row[name] for name in self.order)
        return tuple(value.encode() if isinstance(value, str) else value for value in values)


def one_of(*values: Any) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(values)


def up_to(most: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(0, most)


BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
KINDS = {
    "apply": Kind(
        ROWS,
        UPSERT,
        ["id"],
        ["lsn"],
        {"id": up_to(12), "lsn": up_to(40), "name": one_of("a", "b", None, ""), "op": one_of("u", "u", "d")},
        ["lsn", "op"],
        lambda row: row["op"] == "d",
    ),
    "partial": Kind(
        pa.schema([*ROWS, ("tags", pa.list_(pa.string())), ("x", pa.float64())]),
        {**UPSERT, "updateColumns": "given"},
        ["id"],
        ["lsn"],
        {
            "id": up_to(5),
            "lsn": up_to(400),
            "name": one_of("a", "b", None, None, ""),
            "op": one_of("u", "u", "u", "d"),
            "tags": one_of([], ["a"], ["b", "c"], None, None),
            "x": one_of(0.5, -0.0, None, None),
        },
        ["lsn", "op"],
        lambda row: row["op"] == "d",
    ),
    "partial, late": Kind(
        pa.schema([*ROWS, ("x", pa.float64()), ("y", pa.int32())]),
        {**UPSERT, **LATE, "updateColumns": "name, X"},
        ["id"],
        ["lsn"],
        {
            "id": up_to(4),
            "lsn": up_to(400),
            "name": one_of("a", "b", None, None),
            "op": one_of("u", "u", "u", "d"),
            "x": one_of(0.5, 1.5, None, None),
            "y": one_of(1, None),
        },
        ["op"],
        lambda row: row["op"] == "d",
    ),
    "history": Kind(
        ROWS,
        {**UPSERT, "history": "true"},
        ["id"],
        ["lsn"],
        {
            "id": up_to(4),
            "lsn": up_to(200),
            "name": one_of("a", "b", None, ""),
            "op": one_of("u", "u", "u", "d"),
        },
        ["lsn", "op"],
        lambda row: row["op"] == "d",
    ),
    "history, texts": Kind(
        pa.schema([*ROWS, ("seq", pa.int32())]).set(1, pa.field("at", pa.string())),
        {
            "writeMode": "upsert",
            "keys": "id, name",
            "orderBy": "at, seq",
            "deleteWhen": "op = 'd'",
            "dropColumns": "op",
            "history": "true",
            "validTo": "until",
        },
        ["id", "name"],
        ["at", "seq"],
        {
            "id": up_to(1),
            "at": one_of("a", "B", "b", "ä", "", "z", "aa", "Z", "y", "x"),
            "name": one_of("é", "e\u0301"),
            "op": one_of("u", "u", "d"),
            "seq": up_to(50),
        },
        ["op"],
        lambda row: row["op"] == "d",
    ),
    "no order": Kind(
        ROWS,
        {"writeMode": "upsert", "keys": "id", "deleteWhen": "op = 'd'", "dropColumns": "op"},
        ["id"],
        [],
        {"id": up_to(60), "lsn": up_to(3), "name": one_of("a", "b"), "op": one_of("u", "u", "d")},
        ["op"],
        lambda row: row["op"] == "d",
    ),
    "late, composite keys": Kind(
        pa.schema(
            [
                ("at", pa.timestamp("us", "UTC")),
                ("region", pa.string()),
                ("price", pa.decimal128(9, 2)),
                ("seq", pa.string()),
                ("gone", pa.bool_()),
                ("x", pa.float64()),
            ]
        ),
        {
            "writeMode": "upsert",
            "keys": "region, price",
            "orderBy": "at, seq",
            "deleteWhen": "gone",
            "dropColumns": "gone",
            "lateRows": "ignore",
        },
        ["region", "price"],
        ["at", "seq"],
        {
            "at": lambda rng: BEGIN + timedelta(seconds=rng.randint(0, 6)),
            "region": one_of("a", "A", "ä", "a ", ""),
            "price": one_of(Decimal("1.00"), Decimal("-1.10")),
            "seq": one_of("a", "B", "b", "ä", "", "z"),
            "gone": one_of(True, False, False, None),
            "x": one_of(0.0, -0.0, 1.5, None),
        },
        ["gone"],
        lambda row: bool(row["gone"]),
    ),
    "late, text key": Kind(
        ROWS.set(0, pa.field("id", pa.string())),
        {**UPSERT, **LATE},
        ["id"],
        ["lsn"],
        {
            "id": one_of("a", "A", "aé", "ae\u0301", "10", "9", "", "\U0001f600"),
            "lsn": up_to(60),
            "name": one_of("a", None),
            "op": one_of("u", "d"),
        },
        ["op"],
        lambda row: row["op"] == "d",
    ),
}


@dataclass
class Model:
    """What the table must have."""

    kind: Kind
    rows: dict[tuple[Any, ...], Mapping[str, Any]] = field(default_factory=dict)
    deleted: dict[tuple[Any, ...], tuple[Any, ...]] = field(default_factory=dict)

    histories: Histories = field(default_factory=Histories)

    def is_ambiguous(self, batch: Sequence[Mapping[str, Any]]) -> bool:
        last = self._last(batch)
        partial = {key for key, row in last.items() if self.kind.kept(row) and not self.kind.delete(row)}
        seen: dict[object, str] = {}
        for row in batch:  # any of these rows may give a value to the last one
            place = self.kind.key(row), self.kind.rank(row)
            if place[0] in partial and seen.setdefault(place, self._seen(row)) != self._seen(row):
                return True
        return any(
            self._seen(row) != self._seen(last[self._identity(row)])
            for row in batch
            if self.kind.rank(row) == self.kind.rank(last[self._identity(row)])
        )

    def apply(self, batch: Sequence[Mapping[str, Any]]) -> None:
        if self.kind.has_history:
            changes = [
                (key, rank[0], None if self.kind.delete(row) else row)
                for (key, *_), row in self._last(batch).items()
                for rank in (self.kind.rank(row),)
            ]
            self.histories.apply(changes)
            return
        in_order = sorted(batch, key=self.kind.rank)
        for key, last in self._last(batch).items():
            rank, row = self.kind.rank(last), self.rows.get(key, {})
            if self.kind.ignores_late_rows:
                before = [self.kind.rank(self.rows[key])] if key in self.rows else []
                before += [self.deleted[key]] if key in self.deleted else []
                if any(rank < one for one in before):
                    continue
            for one in [one for one in in_order if self.kind.key(one) == key]:
                kept = {name: row.get(name) for name in self.kind.kept(one)}
                row = {} if self.kind.delete(one) else {**one, **kept}
            if self.kind.delete(last):
                self.rows.pop(key, None)
                self.deleted[key] = rank
            else:
                self.deleted.pop(key, None)
                self.rows[key] = row

    def table(self) -> set[str]:
        columns = [name for name in self.kind.schema.names if name not in self.kind.dropped]
        if self.kind.has_history:
            return {
                text_of([*(row[name] for name in columns), *map(_text, (begin, end)), end is None])
                for begin, end, row in self.histories.rows()
            }
        return {text_of([row[name] for name in columns]) for row in self.rows.values()}

    def _identity(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        key = self.kind.key(row)
        return (key, self.kind.rank(row)[0]) if self.kind.has_history else key

    def _last(self, batch: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
        last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        for row in batch:
            key = self._identity(row)
            if key not in last or self.kind.rank(row) > self.kind.rank(last[key]):
                last[key] = row
        return last

    def _seen(self, row: Mapping[str, Any]) -> str:
        if self.kind.delete(row):
            return "deleted"
        return text_of([row[name] for name in self.kind.schema.names if name not in self.kind.dropped])


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def text_of(row: Iterable[Any]) -> str:
    """Tells 0.0 and -0.0 apart."""
    return repr([one.astimezone(timezone.utc) if isinstance(one, datetime) else one for one in row])


def random_batch(kind: Kind, rng: random.Random) -> list[dict[str, Any]]:
    rows = [{name: kind.values[name](rng) for name in kind.schema.names} for _ in range(rng.randint(1, 14))]
    return rows + rng.sample(rows, rng.randint(0, len(rows) // 3))


def in_tasks(kind: Kind, rows: Iterable[Mapping[str, Any]], rng: random.Random) -> list[pa.Table]:
    tasks: list[list[Mapping[str, Any]]] = [[] for _ in range(rng.randint(1, 3))]
    for row in rows:
        rng.choice(tasks).append(row)
    return [pa.Table.from_pylist(some, schema=kind.schema) for some in tasks]


def lose_response(connection: psycopg.Connection) -> None:
    connection.commit()
    raise psycopg.OperationalError("the connection was lost")


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5)]])
@pytest.mark.parametrize("name", KINDS)
def test_a_table_has_what_a_dict_has(new_postgres_url: Callable[[], str], name: str, seed: int) -> None:
    """Batches of one or several tasks, of which a delivery commits some at once, and one process again."""
    kind, rng = KINDS[name], random.Random(f"{name} {seed}")
    query, model = query_into(new_postgres_url(), **kind.options), Model(kind)
    selected = ", ".join(kind.selected)
    batch_id = refused = 0
    while batch_id < 8:
        manifests: list[Manifest] = []
        while len(manifests) < rng.choice([1, 1, 2, 3]):
            rows = random_batch(kind, rng)
            tasks = in_tasks(kind, rows, rng)
            if model.is_ambiguous(rows):
                refused += 1
                with pytest.raises(SchemaMismatchError, match="Two different rows have the same key"):
                    build(query, batch_id, *tasks)
                continue
            manifests.append(build(query, batch_id, *tasks))
            model.apply(rows)
            batch_id += 1
        if rng.random() < 0.2:
            with commit_answers(lose_response):
                outcome = commit(query, *manifests)
        else:
            outcome = commit(query, *manifests)

        assert isinstance(outcome, Committed)
        assert isinstance(commit(query, *manifests), AlreadyCommitted)
        found = query.sql(f"SELECT {selected} FROM events")
        assert set(map(text_of, found)) == model.table()
        assert len(found) == len(model.table())
    assert query.staged() == []
    assert refused or kind.order
    if kind.ignores_late_rows:
        assert {row[: len(kind.keys)] for row in query.sql(f"TABLE {tombstone_table(query)}")}


def test_a_history_that_cannot_be_kept_is_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    """No columns for it, ends of another type, no unique index."""
    query = query.with_options(history="true")
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    with pytest.raises(SchemaMismatchError, match="history=true: the table has no column 'valid_from'"):
        query.plan(store, query.batch(0), ROWS)
    query.sql("ALTER TABLE events ADD valid_from bigint, ADD valid_to numeric(38), ADD is_current boolean")
    with pytest.raises(SchemaMismatchError, match="'valid_from' is bigint and 'valid_to' is numeric"):
        query.plan(store, query.batch(0), ROWS)
    query.sql("ALTER TABLE events ALTER valid_to TYPE bigint")
    with pytest.raises(TableNotSupportedError, match=r'no unique index over .* "id", "valid_from"'):
        query.plan(store, query.batch(0), ROWS)
    query.sql("ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id, valid_from)")
    query.sql("CREATE UNIQUE INDEX ON events (id) WHERE is_current")
    commit(query, build(query, 0, rows_of((1, 1, "a", "u"), (1, 3, "c", "u"))))
    commit(query, build(query, 1, rows_of((1, 4, "d", "u"), (1, 2, "b", "u"))))
    found = query.sql("SELECT name, valid_from, valid_to FROM events ORDER BY valid_from")
    assert found == [("a", 1, 2), ("b", 2, 3), ("c", 3, 4), ("d", 4, None)]


# Within a batch ---------------------------------------------------------------------------------------


def test_rows_that_differ_and_have_no_order_are_refused_before_they_are_prepared(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    """Whichever tasks have written them."""
    messages = query.write(
        query.plan(store, query.batch(0), ROWS), [rows_of((1, 5, "a", "u")), rows_of((1, 5, "b", "u"))]
    )
    with pytest.raises(SchemaMismatchError, match="the same value of orderBy"):
        query.commit(store, messages)

    assert query.state(store, 0) is None
    assert query.staged() == []
    for rows in ([(1, 5, "a", "u"), (1, 5, None, "u")], [(1, 5, "a", "u"), (1, 5, "a", "d")]):
        with pytest.raises(SchemaMismatchError, match="the same value of orderBy"):
            build(query, 0, rows_of(*rows))
    run(query, 0, (1, 5, "a", "u"), (1, 5, "a", "x"), (2, 1, "a", "u"), (2, 1, "b", "u"), (2, 2, None, "d"))
    assert names(query) == {1: "a"}


def test_a_row_with_null_as_key_or_order_is_a_bad_row(
    query: PostgresQuery, store: SqlManifestStore, tmp_path: Path
) -> None:
    with pytest.raises(SchemaMismatchError, match="NULL in id, which the option keys names"):
        run(query, 0, (None, 1, "a", "u"))
    drop = query.with_options(badRows="drop")
    no_order = rows_of((3, 1, "c", "u")).set_column(1, "lsn", pa.array([None], pa.int64()))
    rows = pa.concat_tables([rows_of((1, 1, "a", "u"), (None, 2, "b", "d")), no_order])
    drop.run(store, drop.batch(0), rows)

    assert names(query) == {1: "a"}


def test_a_deletion_needs_only_its_key(query: PostgresQuery) -> None:
    """Its other columns may be NULL, or have values that the table would refuse."""
    query.sql("CREATE TABLE events (id integer PRIMARY KEY, name varchar(3) NOT NULL)")
    narrow = query.with_options(badRows="drop")
    run(narrow, 0, (1, 1, "a", "u"), (2, 1, "b", "u"), (3, 1, "c", "u"))
    run(narrow, 1, (1, 2, None, "d"), (2, 2, "too long", "d"), (9, 1, None, "d"))

    assert names(query) == {3: "c"}


# Tables -----------------------------------------------------------------------------------------------


def test_a_new_table_gets_the_keys_as_its_primary_key(query: PostgresQuery) -> None:
    both = query.with_options(keys="NAME, id", dropColumns="op")
    run(both, 0, (1, 1, "a", "u"), (1, 1, "b", "u"))

    ((columns,),) = query.sql(
        "SELECT array_agg(attname ORDER BY n) FROM pg_index, unnest(indkey) WITH ORDINALITY AS k (num, n) "
        "JOIN pg_attribute ON attnum = num WHERE indrelid = 'events'::regclass AND indisprimary "
        "AND attrelid = indrelid"
    )
    assert columns == ["name", "id"]
    assert query.sql("SELECT id, lsn, name FROM events ORDER BY name") == [(1, 1, "a"), (1, 1, "b")]


TABLE = "CREATE TABLE events (id bigint, name text)"


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (TABLE, 'CREATE UNIQUE INDEX ON .*events" \\("id"\\)'),
        (f"{TABLE}; CREATE INDEX ON events (id)", "no unique index"),
        (f"{TABLE}; CREATE UNIQUE INDEX ON events (id, name)", "no unique index"),
        (f"{TABLE}; CREATE UNIQUE INDEX ON events (abs(id))", "no unique index"),
        (f"{TABLE}; CREATE UNIQUE INDEX i ON events (id) WHERE id > 0", '"i" is for some rows only'),
        (f"{TABLE}; ALTER TABLE events ADD CONSTRAINT i UNIQUE (id) DEFERRABLE", '"i" is DEFERRABLE'),
    ],
)
def test_a_table_without_a_unique_index_over_the_keys_is_refused(
    query: PostgresQuery, store: SqlManifestStore, ddl: str, said: str
) -> None:
    query.sql(ddl)
    with pytest.raises(TableNotSupportedError, match=said):
        query.plan(store, query.batch(0), ROWS)


def test_an_index_for_which_different_texts_are_equal_is_refused(
    query: PostgresQuery, store: SqlManifestStore
) -> None:
    query.sql("CREATE COLLATION any_case (provider = libc, locale = 'C')")
    oid = f"'{query.schema}.any_case'::regcollation"  # without ICU, only the catalog says so
    query.sql(f"UPDATE pg_collation SET collisdeterministic = false WHERE oid = {oid}")
    query.sql("CREATE TABLE events (id bigint, name text COLLATE any_case PRIMARY KEY)")
    with pytest.raises(TableNotSupportedError, match="nondeterministic collation"):
        query.with_options(keys="name").plan(store, query.batch(0), ROWS)


@pytest.mark.parametrize(
    "ddl",
    [
        'CREATE TABLE events (id bigint, name text COLLATE "C", UNIQUE (name, id))',
        f"{TABLE}; CREATE UNIQUE INDEX ON events (name, id) INCLUDE (id)",
        "CREATE TABLE events (id bigint, name text, PRIMARY KEY (id, name)) PARTITION BY LIST (name); "
        "CREATE TABLE one PARTITION OF events FOR VALUES IN ('a'); "
        "CREATE TABLE two PARTITION OF events DEFAULT",
    ],
)
def test_any_unique_index_over_the_keys_will_do(query: PostgresQuery, ddl: str) -> None:
    query.sql(ddl)
    both = query.with_options(keys="id, name")
    run(both, 0, (1, 1, "a", "u"), (1, 1, "b", "u"), (2, 1, "b", "u"))
    run(both, 1, (1, 1, "a", "d"), (2, 1, "b", "u"), (3, 1, "c", "u"))

    assert query.sql("SELECT id, name FROM events ORDER BY 1, 2") == [(1, "b"), (2, "b"), (3, "c")]


def test_an_index_that_was_dropped_before_the_commit_stops_it(query: PostgresQuery) -> None:
    query.sql("CREATE TABLE events (id bigint CONSTRAINT key PRIMARY KEY, name text)")
    manifest = build(query, 0, rows_of((1, 1, "a", "u")))
    query.sql("ALTER TABLE events DROP CONSTRAINT key")
    with pytest.raises(TableNotSupportedError, match="no unique index"):
        commit(query, manifest)


def test_columns_that_the_query_does_not_have_keep_their_values(query: PostgresQuery) -> None:
    query.sql(
        'CREATE TABLE events (n bigint GENERATED ALWAYS AS IDENTITY, "Id" bigint PRIMARY KEY, name text, '
        "twice bigint GENERATED ALWAYS AS (2 * \"Id\") STORED, note text DEFAULT 'new')"
    )
    run(query, 0, (5, 1, "a", "u"))
    query.sql("UPDATE events SET note = 'kept'")
    run(query, 1, (5, 2, "b", "u"), (6, 1, "c", "u"))

    assert query.sql('SELECT "Id", name, twice, note FROM events ORDER BY 1') == [
        (5, "b", 10, "kept"),
        (6, "c", 12, "new"),
    ]


def test_new_columns_come_with_the_first_changes(query: PostgresQuery) -> None:
    run(query, 0, (1, 1, "a", "u"), (2, 1, "b", "u"))
    late = query.with_options(**LATE, schemaEvolution="addColumns")
    run(late, 1, (1, 7, "c", "u"))
    run(late, 2, (1, 6, "late", "u"), (2, -9, "not late: NULL is before all", "u"))

    assert query.sql("SELECT id, lsn, name FROM events ORDER BY id") == [
        (1, 7, "c"),
        (2, -9, "not late: NULL is before all"),
    ]


def test_keys_alone_are_changes(query: PostgresQuery) -> None:
    only = query.with_options(dropColumns="op, lsn, name")
    run(only, 0, (1, 1, None, "u"), (2, 1, None, "u"))
    run(only, 1, (1, 1, None, "u"), (2, 1, None, "d"))

    assert query.ids() == [1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"orderBy": "doc", "dropColumns": "op, lsn"}, "orderBy: 'doc' is jsonb"),
        ({"keys": "missing"}, "keys names 'missing'"),
    ],
)
def test_columns_that_cannot_be_compared_are_refused(
    query: PostgresQuery, store: SqlManifestStore, options: dict[str, str], said: str
) -> None:
    query.sql(f"{TABLE}; ALTER TABLE events ADD PRIMARY KEY (id), ADD doc jsonb")
    schema = ROWS.append(pa.field("doc", pa.string()))
    with pytest.raises(PenstockError, match=said):
        query.with_options(**options).plan(store, query.batch(0), schema)


def test_names_that_commits_use_are_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    with pytest.raises(SchemaMismatchError, match="'penstock_deletes'"):
        query.plan(store, query.batch(0), ROWS.append(pa.field("penstock_deletes", pa.bool_())))


def test_complete_mode_and_changes_are_refused(query: PostgresQuery, store: SqlManifestStore) -> None:
    with pytest.raises(ConfigurationError, match="writeMode=upsert changes rows"):
        query.plan(store, query.batch(0), ROWS, overwrite=True)


RIGHTS = (
    "INSERT ON {schema}.events",
    "SELECT ON {schema}.events",
    "UPDATE ON {schema}.events",
    "DELETE ON {schema}.events",
    "DELETE ON {tombstones}",
)


@pytest.mark.parametrize("without", [*RIGHTS, ""])
def test_the_rights_to_change_rows_are_checked_first(query: PostgresQuery, without: str) -> None:
    late = query.with_options(**LATE)
    run(late, 0, (1, 1, "a", "u"))
    user, table = f"u{query.schema}", tombstone_table(query)
    query.sql(f"CREATE ROLE {user} LOGIN; GRANT USAGE, CREATE ON SCHEMA {query.schema} TO {user}")
    query.sql(f"GRANT SELECT, INSERT, UPDATE ON penstock_fence, {table} TO {user}")
    for right in RIGHTS:
        if right != without:
            query.sql(f"GRANT {right.format(schema=query.schema, tombstones=table)} TO {user}")
    by_user = late.with_options(url=url_of(query.url, user))
    try:
        if without:
            with pytest.raises(AccessRefusedError, match=without.partition(" ")[0]):
                run(by_user, 1, (1, 2, None, "d"))
        else:
            run(by_user, 1, (1, 2, None, "d"))
            assert names(query) == {}
    finally:
        query.sql(f"DROP OWNED BY {user}; DROP ROLE {user}")


# Other writers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["u", "d"])
def test_a_row_that_another_session_inserts_meanwhile_is_replaced(query: PostgresQuery, op: str) -> None:
    """MERGE would fail here."""
    run(query, 0, (2, 1, "b", "u"))
    manifest = build(query, 1, rows_of((1, 1, "ours", "u"), (2, 2, "ours", op)))
    outcomes: list[Any] = []
    with psycopg.connect(query.url.replace("+psycopg", "")) as other:
        other.execute("INSERT INTO events (id, name) VALUES (1, 'theirs')")
        other.execute("UPDATE events SET name = 'theirs' WHERE id = 2")
        committing = threading.Thread(target=lambda: outcomes.append(commit(query, manifest)))
        committing.start()
        committing.join(0.3)
        assert committing.is_alive()
        other.commit()
    committing.join()

    assert isinstance(outcomes[0], Committed)
    assert names(query) == ({1: "ours", 2: "ours"} if op == "u" else {1: "ours"})


def test_a_trigger_that_drops_rows_stops_the_commit(query: PostgresQuery) -> None:
    run(query, 0, (1, 1, "a", "u"))
    query.sql(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER no BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION no()"
    )
    with pytest.raises(TableNotSupportedError, match="a trigger of the table drops rows"):
        run(query, 1, (1, 2, "b", "u"), (2, 1, "c", "u"))
    query.sql("CREATE TRIGGER no_d BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION no()")
    with pytest.raises(TableNotSupportedError, match="may keep rows that are to be deleted"):
        run(query, 1, (1, 2, "b", "u"))

    assert names(query) == {1: "a"}


def test_changed_staging_tables_are_not_committed(query: PostgresQuery) -> None:
    manifest = build(query, 0, rows_of((1, 1, "a", "u"), (1, 2, "b", "u")))
    query.sql(f"DELETE FROM {query.staged()[0]} WHERE name = 'b'")
    with pytest.raises(TableNotSupportedError, match="has 1 rows, but its task has written 2"):
        commit(query, manifest)


# Rows that the server refuses --------------------------------------------------------------------------


def test_a_refused_row_leaves_what_the_batches_before_it_have_made(
    query: PostgresQuery, tmp_path: Path
) -> None:
    """Also if one delivery commits them together."""
    letters = query.with_options(badRows="deadLetter", deadLetter=str(tmp_path / "letters"))
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'))")
    query.sql("CREATE TABLE other (id bigint REFERENCES events)")
    run(letters, 0, (1, 1, "a", "u"), (2, 1, "b", "u"), (3, 1, "c", "u"))
    query.sql("INSERT INTO other VALUES (3)")
    later = [
        build(letters, 1, rows_of((1, 2, "a2", "u")), rows_of((4, 1, "bad", "u"), (1, 1, "x", "u"))),
        build(
            letters, 2, rows_of((1, 3, "bad", "u"), (2, 3, None, "d"), (3, 3, None, "d"), (4, 2, "d", "u"))
        ),
    ]
    outcome = commit(letters, *later)

    assert names(query) == {1: "a2", 3: "c", 4: "d"}
    assert outcome.dropped_rows == 3
    found = {
        (batch_id, one.letter_id, one.code): row_in(one.content).to_pylist()
        for batch_id, some in outcome.dead_letters.items()
        for one in some
    }
    assert found == {
        (1, "commit-00001-000000000000", "23514"): [
            {"id": 4, "name": "bad", "lsn": 1, "penstock_deletes": False}
        ],
        (2, "commit-00000-000000000000", "23514"): [
            {"id": 1, "name": "bad", "lsn": 3, "penstock_deletes": False}
        ],
        (2, "commit-00000-000000000003", "23503"): [
            {"id": 3, "name": None, "lsn": 3, "penstock_deletes": True}
        ],
    }


def test_a_refused_row_is_named_by_its_keys(query: PostgresQuery) -> None:
    query.sql(f"{TABLE}; ALTER TABLE events ADD CHECK (name <> 'bad'); CREATE UNIQUE INDEX ON events (id)")
    with pytest.raises(SchemaMismatchError, match="The first one is the row with id = '77' of batch 0"):
        run(query, 0, *((number, 1, "bad" if number == 77 else "a", "u") for number in range(300)))

    assert names(query) == {}


def test_rows_that_take_over_a_unique_value_are_not_refused(query: PostgresQuery) -> None:
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY, name text UNIQUE)")
    run(query, 0, (9, 1, "a", "u"), (2, 1, "b", "u"))
    run(query, 1, (9, 2, None, "d"), (3, 1, "a", "u"))
    dropping = query.with_options(badRows="drop")
    outcome = run(dropping, 2, (4, 1, "b", "u"), (2, 2, "c", "u"))  # tried again after the other row

    assert names(query) == {3: "a", 2: "c", 4: "b"}
    assert outcome.dropped_rows == 0


def test_a_refused_row_does_not_remove_the_tombstone_of_its_key(query: PostgresQuery) -> None:
    query.sql("CREATE TABLE events (id bigint PRIMARY KEY, lsn bigint, name text CHECK (name <> 'bad'))")
    late = query.with_options(**LATE, badRows="drop")
    run(late, 0, (1, 5, None, "d"))
    run(late, 1, (1, 6, "bad", "u"), (2, 1, "b", "u"))
    run(late, 2, (1, 4, "older", "u"))

    assert names(query) == {2: "b"}


# Tombstones -------------------------------------------------------------------------------------------


def test_an_older_row_never_brings_a_deleted_key_back(query: PostgresQuery) -> None:
    late = query.with_options(**LATE)
    run(late, 0, (1, 5, "a", "u"), (2, 5, None, "d"))
    run(late, 1, (1, 6, None, "d"), (2, 4, None, "d"))
    run(late, 2, (1, 5, "b", "u"), (2, 4, "b", "u"))
    assert names(query) == {}
    assert deleted(query) == [(1, 6), (2, 5)]

    run(late, 3, (1, 6, "as late", "u"), (2, 7, "later", "u"))
    assert names(query) == {1: "as late", 2: "later"}
    assert deleted(query) == []
    run(late, 4, (1, 5, None, "d"), (2, 7, None, "d"))
    assert names(query) == {1: "as late"}
    query.sql("INSERT INTO events VALUES (2, NULL, 'of another writer')")
    run(late, 5, (2, 6, None, "d"))
    assert names(query) == {1: "as late", 2: "of another writer"}


def test_the_order_of_a_delivery_is_that_of_its_rows(query: PostgresQuery) -> None:
    late = query.with_options(**LATE)
    run(late, 0, (1, 1, "a", "u"), (2, 1, "b", "u"))
    later = [
        build(late, 1, rows_of((1, 9, None, "d"), (2, 9, "last", "u"), (3, 2, "as late", "u"))),
        build(late, 2, rows_of((1, 8, "late", "u"), (2, 8, None, "d"), (3, 2, "last", "u"))),
    ]
    commit(late, *later)

    assert names(query) == {2: "last", 3: "last"}
    assert deleted(query) == [(1, 9)]


def test_old_tombstones_are_removed_some_at_a_time(
    query: PostgresQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "PRUNED_MIN", 3)
    late = query.with_options(**LATE, tombstonesFor="1h")
    run(late, 0, *((number, 1, None, "d") for number in range(8)))
    ((lasts,),) = query.sql(f"SELECT max(expires_at) - now() FROM {tombstone_table(query)}")
    assert timedelta(minutes=59) < lasts < timedelta(minutes=61)
    query.sql(
        f"UPDATE {tombstone_table(query)} SET expires_at = now() - key_1 * interval '1 s' WHERE key_1 > 0"
    )
    run(late, 1, (100, 1, "x", "u"))
    assert deleted(query) == [(number, 1) for number in range(5)]
    run(late, 2, (200, 1, None, "d"), (201, 1, None, "d"))
    assert deleted(query) == [(0, 1), (200, 1), (201, 1)]


def test_tombstones_are_looked_up_by_key(query: PostgresQuery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a batch has so many rows that the planner would rather read all of them."""
    late = query.with_options(**LATE)
    run(late, 0, (1, 1, None, "d"))
    query.sql(
        f"INSERT INTO {tombstone_table(query)} SELECT table_oid, number, 1, expires_at "
        f"FROM {tombstone_table(query)}, generate_series(2, 8000) AS number"
    )
    query.sql("INSERT INTO events (id, lsn) SELECT number, 0 FROM generate_series(1, 6000) AS number")
    query.sql(f"ANALYZE {tombstone_table(query)}; ANALYZE events")
    plans: list[str] = []
    real = psycopg.Cursor.execute

    def explained(cursor: psycopg.Cursor, statement: Any, *values: Any, **options: Any) -> psycopg.Cursor:
        if tombstone_table_name in str(statement) and str(statement).startswith(("INSERT", "DELETE")):
            lines = real(cursor, f"EXPLAIN {statement}", *values).fetchall()
            plans.append("\n".join(line for (line,) in lines))
        return real(cursor, statement, *values, **options)

    tombstone_table_name = tombstone_table(query)
    monkeypatch.setattr(psycopg.Cursor, "execute", explained)
    run(late, 1, *((number, 2, "a", "d" if number % 2 else "u") for number in range(6_000)))
    monkeypatch.undo()

    assert len(plans) == 5
    assert [plan for plan in plans if f"Seq Scan on {tombstone_table_name}" in plan] == []
    assert [plan for plan in plans if "Hash Join" in plan or "Merge Join" in plan] == []
    assert sum(f"Index Scan using {tombstone_table_name}_pkey" in plan for plan in plans) >= 3


def test_tombstones_of_a_table_that_was_dropped_do_not_count(query: PostgresQuery) -> None:
    late = query.with_options(**LATE)
    run(late, 0, (1, 5, None, "d"))
    query.sql("DROP TABLE events; DELETE FROM penstock_fence")
    run(late, 0, (1, 4, "a", "u"))

    assert names(query) == {1: "a"}


def test_tombstones_of_a_table_that_was_restored_and_accepted_count(query: PostgresQuery) -> None:
    late = query.with_options(**LATE)
    run(late, 0, (1, 5, None, "d"))
    query.sql("ALTER TABLE events RENAME TO before; CREATE TABLE events (LIKE before INCLUDING ALL)")
    target: Any = late.target()
    target.accept(query.query_id)
    run(late, 1, (1, 4, "late", "u"))

    assert names(query) == {}


def test_a_key_may_become_wider(query: PostgresQuery) -> None:
    query.sql("CREATE TABLE events (id integer PRIMARY KEY, lsn integer, name text)")
    late = query.with_options(**LATE, badRows="drop")
    run(late, 0, (1, 5, None, "d"))
    query.sql("ALTER TABLE events ALTER id TYPE numeric, ALTER lsn TYPE bigint")
    ids = pa.array([Decimal(1), Decimal(10**20)], pa.decimal128(25, 0))
    rows = rows_of((1, 4, "late", "u"), (2, 2**40, None, "d")).set_column(0, "id", ids)
    commit(late, build(late, 1, rows))

    assert names(query) == {}
    assert deleted(query) == [(1, 5), (10**20, 2**40)]


def test_two_queries_see_the_deletions_of_each_other(query: PostgresQuery) -> None:
    """Otherwise one could insert a row while the other deletes its key, and neither would see the other."""
    late = query.with_options(**LATE)
    run(late, 0, (9, 1, "x", "u"))
    manifest = build(replace(late, query_id="q2"), 0, rows_of((1, 5, "older", "u")))
    content = MANIFESTS.decode(manifest)
    assert isinstance(content.mode, Changes)
    target: Any = late.target()
    types = dict(content.staged_columns)
    own = DIALECT.changes.tombstones(target._address, content.table_id, content.mode, types)
    outcomes: list[Any] = []
    with target._server.transaction("") as first:
        own.begin(first)
        committing = threading.Thread(target=lambda: outcomes.append(commit(late, manifest)))
        committing.start()
        committing.join(0.3)
        assert committing.is_alive()
        first.execute(f"INSERT INTO {own.sql} VALUES ({content.table_id}, 1, 6, now() + interval '1 day')")
    committing.join()

    assert isinstance(outcomes[0], Committed)
    assert names(query) == {9: "x"}


def test_texts_are_compared_by_their_bytes() -> None:
    """Whatever the collation of the database is: C in these tests."""
    at_least = DIALECT.changes.at_least
    assert at_least(["n.x"], ["t.x"], ["character varying(3)"]).count('COLLATE "C"') == 5
    assert at_least(["n.x"], ["t.x"], ["bigint"]) == "(n.x > t.x OR t.x IS NULL OR (n.x = t.x AND 1 = 1))"


# Manifests --------------------------------------------------------------------------------------------


def test_only_batches_with_the_same_changes_are_delivered_together(query: PostgresQuery) -> None:
    run(query, 0, (1, 1, "a", "u"))
    some = [build(query, number, rows_of((number, 1, "a", "u"))) for number in (1, 2)]
    other = build(query.with_options(deleteWhen="op = 'x'"), 3, rows_of((4, 1, "a", "u")))
    appended = build(query_into(query.url), 4, rows_of((4, 1, "a", "u")).drop_columns(["lsn", "op"]))

    assert mergeable([*some, other], MANIFESTS) == some
    assert mergeable([other, appended], MANIFESTS) == [other]
    assert MANIFESTS.decode(merge(some, MANIFESTS)).mode == MANIFESTS.decode(some[0]).mode


def test_manifests_of_earlier_versions_are_read(query: PostgresQuery) -> None:
    appended = build(query_into(query.url), 0, rows_of((4, 1, "a", "u")))
    assert not {"extra", "changes"} & json.loads(appended.content).keys()
    assert isinstance(commit(query, appended), Committed)


@pytest.mark.parametrize(
    "damage",
    [
        {"changes": {}},
        {"changes": None},
        {"extra": [["penstock_order_1", "bigint); DROP TABLE events; --"], ["penstock_deletes", "boolean"]]},
        {"mode": "other"},
    ],
)
def test_damaged_changes_are_not_committed(query: PostgresQuery, damage: dict[str, object]) -> None:
    manifest = build(query, 0, rows_of((1, 1, "a", "u")))
    fields = json.loads(manifest.content)
    for changes in (damage, {"changes": {**fields["changes"], "keys": ["other"]}}):
        damaged = replace(manifest, content=json.dumps({**fields, **changes}).encode())
        with pytest.raises(ManifestCorruptError):
            commit(query, damaged)


def test_a_manifest_has_all_that_a_commit_needs(
    query: PostgresQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    late = query.with_options(**LATE)
    manifest = build(late, 0, rows_of((1, 1, "a", "u"), (2, 1, None, "d")))
    late.stored_committer().commit(manifest)

    assert names(query) == {1: "a"}
    assert deleted(query) == [(2, 1)]
