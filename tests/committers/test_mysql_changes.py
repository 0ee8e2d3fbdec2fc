"""What is particular to changes by key in MySQL tables, with a real server. See `conformance.upserts`."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from servers.mysql import MySqlProcess
from tests.support.mysql import MySqlQuery, new_query, on_both, on_mariadb, query_into

from penstock.committers.contract import Committed
from penstock.committers.errors import AccessRefusedError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.mysql import types
from penstock.committers.mysql.address import settings_of
from penstock.committers.mysql.connection import MySqlServer
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.upserts import COLUMNS, OPTIONS, changes

LATE = {"lateRows": "ignore"}
RUNS = count()


@pytest.fixture
def query(mysql_server: MySqlProcess) -> MySqlQuery:
    return new_query(mysql_server, **OPTIONS)


def create(query: MySqlQuery, definition: str) -> None:
    """Create the table with an index. In place of `of_texts` comes the collation that tells texts apart."""
    ((version,),) = query.sql("SELECT version()")
    collation = "utf8mb4_nopad_bin" if "MariaDB" in version else "utf8mb4_0900_bin"
    defined = definition.replace("of_texts", collation)
    query.sql(f"CREATE TABLE events (id BIGINT, n BIGINT, text LONGTEXT, {defined}) ENGINE = InnoDB")


def commit(query: MySqlQuery, store: SqlManifestStore, batch_id: int, *rows: pa.Table) -> Any:
    """Write and commit a batch; return the outcome."""
    manifest = query.build(store, query.batch(batch_id), *rows, run_id=str(next(RUNS)))
    return query.target().commit(manifest)


def rows(query: MySqlQuery) -> list[tuple[Any, ...]]:
    return query.sql("SELECT id, n, text FROM events ORDER BY id")


def named(keys: list[str], text: str, n: int = 1, op: str = "u") -> pa.Table:
    """Rows whose key is `name`."""
    count = len(keys)
    given = {"id": [0] * count, "n": [n] * count, "text": [text] * count, "op": [op] * count, "name": keys}
    return pa.table(given, pa.schema([*COLUMNS, ("name", pa.string())]))


# Keys -------------------------------------------------------------------------------------------------


def test_different_texts_are_different_keys(query: MySqlQuery, store: SqlManifestStore) -> None:
    """MySQL's own collations ignore case, accents, or spaces at the end. Also of late rows."""
    by_name = query.with_options(keys="name", **LATE)
    keys = ["a", "A", "a ", "a  ", "ä", "a\u0308", "", " ", "x" * 255, "x" * 254]
    commit(by_name, store, 0, named(keys, "first"))
    commit(
        by_name, store, 1, named(["A", "a  ", "a\u0308", "x" * 255], "second", 2), named(["a "], "", 2, "d")
    )
    commit(by_name, store, 2, named(["a ", "ä"], "late", 0))

    changed = {"A", "a  ", "a\u0308", "x" * 255}
    found = dict(query.sql("SELECT name, text FROM events"))
    assert found == {key: "second" if key in changed else "first" for key in keys if key != "a "}


def test_a_key_that_is_too_long_is_a_bad_row(query: MySqlQuery, store: SqlManifestStore) -> None:
    by_name = query.with_options(keys="name")
    with pytest.raises(
        SchemaMismatchError, match=r"256 characters does not fit the column name.*varchar\(255\)"
    ):
        commit(by_name, store, 0, named(["x" * 256], "a"))


@on_both
def test_texts_that_differ_after_their_first_kilobyte_are_different(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    """The server sorts by the first `max_sort_length` bytes, 1,024 by default."""
    create(query, "name VARCHAR(700) COLLATE of_texts PRIMARY KEY")
    keys = ["é" * 650 + end for end in ("a", "b", "c")]
    by_name = query.with_options(keys="name", orderBy="text")
    commit(by_name, store, 0, named(keys, "a" * 2000 + "1"), named(keys, "a" * 2000 + "2"))

    assert query.sql("SELECT count(*), min(right(text, 1)) FROM events") == [(3, "2")]


def test_keys_of_new_tables_fit_an_index() -> None:
    assert [types.key_type("longtext", count) for count in (1, 2, 3, 4)] == [
        "varchar(255)",
        "varchar(255)",
        "varchar(233)",
        "varchar(175)",
    ]
    assert types.key_type("longblob", 1) == "varbinary(255)"
    assert types.key_type("bigint", 4) == "bigint"


@pytest.mark.parametrize(
    ("keys", "definition", "said"),
    [
        ("id", "KEY (id)", "no unique index over exactly the columns of keys, `id`"),
        ("id", "UNIQUE (id, n)", r"ADD UNIQUE \(`id`\)"),
        (
            "name",
            "name VARCHAR(20) COLLATE utf8mb4_general_ci UNIQUE",
            "equal in the collation utf8mb4_general_ci",
        ),
        ("name", "name VARCHAR(20) COLLATE utf8mb4_bin UNIQUE", "equal in the collation utf8mb4_bin"),
        (
            "name",
            "name VARCHAR(20) COLLATE of_texts, UNIQUE (name(5))",
            "only the beginning of 'name'",
        ),
    ],
)
def test_a_table_whose_index_does_not_tell_keys_apart_is_refused(
    query: MySqlQuery, store: SqlManifestStore, keys: str, definition: str, said: str
) -> None:
    create(query, definition)
    given = named(["a"], "a") if keys == "name" else changes((1, 1, "a"))
    with pytest.raises(TableNotSupportedError, match=said):
        query.with_options(keys=keys).plan(store, query.batch(0), given.schema)


@on_mariadb
def test_a_key_without_a_length_is_refused(query: MySqlQuery, store: SqlManifestStore) -> None:
    """MariaDB's unique index over it has hashes. MySQL has no such index."""
    create(query, "name TEXT COLLATE of_texts UNIQUE")
    with pytest.raises(TableNotSupportedError, match="'name' is text: give it a length"):
        query.with_options(keys="name").plan(store, query.batch(0), named(["a"], "a").schema)


def test_an_index_that_was_dropped_before_the_commit_stops_it(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    manifest = query.build(store, query.batch(0), changes((1, 1, "a")))
    query.sql("ALTER TABLE events DROP PRIMARY KEY")
    with pytest.raises(TableNotSupportedError, match="no unique index"):
        query.target().commit(manifest)


# Rows -------------------------------------------------------------------------------------------------


def test_the_row_of_another_key_is_never_replaced(query: MySqlQuery, store: SqlManifestStore) -> None:
    """`ON DUPLICATE KEY UPDATE` would, if another unique index has the value. The row is refused."""
    query.sql("CREATE TABLE events (id BIGINT PRIMARY KEY, n BIGINT, text VARCHAR(20) UNIQUE)")
    commit(query, store, 0, changes((1, 1, "a"), (2, 1, "b")))
    with pytest.raises(SchemaMismatchError, match="the row with id = '3' of batch 1"):
        commit(query, store, 1, changes((3, 2, "a")))
    dropping = query.with_options(badRows="drop")
    outcome = commit(dropping, store, 1, changes((1, 2), (3, 2, "a"), (4, 2, "b"), (2, 2, "B"), (5, 2, "c")))

    assert outcome.dropped_rows == 1  # "b" is that of 2 in a collation that ignores case
    assert rows(query) == [(2, 2, "B"), (3, 2, "a"), (5, 2, "c")]


def test_a_refused_row_leaves_what_the_batches_before_it_have_made(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    create(query, "PRIMARY KEY (id), CHECK (text <> 'bad')")
    dropping = query.with_options(badRows="drop", **LATE)
    commit(dropping, store, 0, changes((1, 1, "a"), (2, 1, "b"), (9, 5)))
    waiting = dropping.with_options(delivery="decoupled")
    waiting.run(store, waiting.batch(1), changes((1, 2, "A"), (3, 2)))
    parts = changes((1, 3, "bad"), (4, 3, "d")), changes((2, 3), (9, 6, "bad"))
    waiting.run(store, waiting.batch(2), *parts)
    some = [store.manifest(query.stream, batch_id) for batch_id in (1, 2)]
    target: Any = dropping.target()
    outcome = target.commit(target.merge(some, None))
    commit(dropping, store, 3, changes((9, 4, "late: the refused row has removed no tombstone")))

    assert outcome.dropped_rows == 2
    assert rows(query) == [(1, 2, "A"), (4, 3, "d")]


def test_columns_that_the_query_does_not_have_keep_their_values(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    create(query, "note VARCHAR(9) DEFAULT 'new', twice BIGINT AS (id * 2) STORED, PRIMARY KEY (id)")
    query.sql("CREATE TABLE parts (id BIGINT, FOREIGN KEY (id) REFERENCES events (id) ON DELETE CASCADE)")
    commit(query, store, 0, changes((1, 1, "a"), (2, 1, "b")))
    query.sql("UPDATE events SET note = 'kept'")
    query.sql("INSERT INTO parts VALUES (1), (2)")
    commit(query, store, 1, changes((1, 2, "A"), (2, 2), (3, 2, "c")))

    found = query.sql("SELECT id, text, note, twice FROM events ORDER BY id")
    assert found == [(1, "A", "kept", 2), (3, "c", "new", 6)]
    assert query.sql("SELECT id FROM parts") == [(1,)]


def test_keys_alone_are_changes(query: MySqlQuery, store: SqlManifestStore) -> None:
    only = query.with_options(dropColumns="op, n, text")
    commit(only, store, 0, changes((1, 1, "a"), (2, 1, "b")))
    commit(only, store, 1, changes((1, 2, "a"), (2, 2)))
    assert query.ids() == [1]


@pytest.mark.parametrize(("first", "second"), [(None, 1.0), (1.0, 1.0000000000000002)])
def test_rows_that_differ_in_any_way_have_no_last_one(
    query: MySqlQuery, store: SqlManifestStore, first: float | None, second: float | None
) -> None:
    both = pa.concat_tables([changes((1, 1, "a")), changes((1, 1, "a"))])
    with pytest.raises(SchemaMismatchError, match="Two different rows have the same key"):
        commit(query, store, 0, both.append_column("x", pa.array([first, second], pa.float64())))
    commit(query, store, 0, both.append_column("x", pa.array([first, first], pa.float64())))
    assert query.ids() == [1]


# Others -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [{}, LATE])
@pytest.mark.parametrize("op", ["u", "d"])
def test_a_row_that_another_session_inserts_meanwhile_is_replaced(
    query: MySqlQuery, store: SqlManifestStore, op: str, late: dict[str, str]
) -> None:
    changing = query.with_options(**late)
    commit(changing, store, 0, changes((2, 1, "b")))
    second = (2, 2, "ours") if op == "u" else (2, 2)
    manifest = changing.build(store, changing.batch(1), changes((1, 1, "ours"), second))
    outcomes: list[Any] = []
    with closing(MySqlServer(settings_of(query.table.url), "").connect()) as other:
        cursor = other.cursor()
        cursor.execute("INSERT INTO events (id, n, text) VALUES (1, 0, 'theirs')")
        cursor.execute("UPDATE events SET text = 'theirs' WHERE id = 2")
        committing = threading.Thread(target=lambda: outcomes.append(changing.target().commit(manifest)))
        committing.start()
        committing.join(0.5)
        assert committing.is_alive()
        other.commit()
    committing.join()

    assert isinstance(outcomes[0], Committed)
    assert rows(query) == [(1, 1, "ours"), *([(2, 2, "ours")] if op == "u" else [])]


def test_two_queries_see_the_deletions_of_each_other(query: MySqlQuery, store: SqlManifestStore) -> None:
    """One deletes a key that is not there, and one inserts an older row of it: they wait for each other."""
    late = query.with_options(**LATE)
    commit(late, store, 0, changes((9, 1, "x")))
    manifest = late.build(store, late.batch(1), changes((1, 4, "older")))
    target: Any = late.target()
    content = target._decode(manifest)
    own = target._dialect.changes.tombstones(
        target._address, content.table_id, content.mode, dict(content.staged_columns)
    )
    outcomes: list[Any] = []
    with target._server.transaction("") as first:
        own.begin(first)
        committing = threading.Thread(target=lambda: outcomes.append(late.target().commit(manifest)))
        committing.start()
        committing.join(0.5)
        assert committing.is_alive()
        first.execute(f"INSERT INTO {own.sql} VALUES ('{content.table_id}', 1, 6, '2999-01-01')")
    committing.join()

    assert isinstance(outcomes[0], Committed)
    assert rows(query) == [(9, 1, "x")]


RIGHTS = (
    "SELECT, INSERT ON events",
    "UPDATE ON events",
    "DELETE ON events",
    "SELECT, INSERT, UPDATE, DELETE ON {deleted}",
    "CREATE TEMPORARY TABLES ON {schema}.*",
    "CREATE ON {schema}.*",
)


@pytest.mark.parametrize("without", [*RIGHTS, ""])
def test_the_rights_to_change_rows_are_checked_first(
    query: MySqlQuery, store: SqlManifestStore, without: str
) -> None:
    late = query.with_options(**LATE)
    commit(late, store, 0, changes((1, 1, "a")))
    (deleted,) = (name for name in query.table.tables() if name.startswith("penstock_deleted_"))
    user = f"u{query.table.schema[:20]}"
    query.sql(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'pw'")
    for right in (*RIGHTS, "SELECT, INSERT, UPDATE, DELETE ON penstock_fence", "SELECT ON penstock_refused"):
        if right != without:
            given = right.format(deleted=deleted, schema=query.table.schema)
            query.sql(f"GRANT {given} TO {user}@'127.0.0.1'")
    port, name = settings_of(query.table.url)["port"], query.table.schema
    by_user = query_into(f"mysql://{user}:pw@127.0.0.1:{port}/{name}", **late.options)
    try:
        if without:
            with pytest.raises(AccessRefusedError, match=r"denied|lacks a privilege: CREATE TEMPORARY"):
                by_user.plan(store, query.batch(1), COLUMNS)
        else:
            by_user.plan(store, query.batch(1), COLUMNS)
    finally:
        query.sql(f"DROP USER {user}@'127.0.0.1'")


# Tombstones -------------------------------------------------------------------------------------------


def deleted(query: MySqlQuery) -> list[tuple[Any, ...]]:
    (name,) = (name for name in query.table.tables() if name.startswith("penstock_deleted_"))
    return query.sql(f"SELECT key_1, order_1 FROM {name} ORDER BY key_1")


def test_tombstones_are_kept_until_a_newer_row_or_their_time(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    late = query.with_options(**LATE)
    commit(late, store, 0, changes((1, 5, "a"), (2, 5)))
    commit(late, store, 1, changes((1, 6), (2, 4)))
    commit(late, store, 2, changes((1, 5, "late"), (2, 4, "late")))
    assert (rows(query), deleted(query)) == ([], [(1, 6), (2, 5)])
    commit(late, store, 3, changes((1, 6, "as late"), (2, 4)))
    assert (rows(query), deleted(query)) == ([(1, 6, "as late")], [(2, 5)])
    (name,) = (name for name in query.table.tables() if name.startswith("penstock_deleted_"))
    query.sql(f"UPDATE {name} SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    commit(late, store, 4, changes((3, 1)))
    assert deleted(query) == [(3, 1)]


def test_tombstones_count_for_a_table_that_was_restored_and_accepted(
    query: MySqlQuery, store: SqlManifestStore
) -> None:
    late = query.with_options(**LATE)
    commit(late, store, 0, changes((1, 5)))
    ((before,),) = query.sql(
        "SELECT table_comment FROM information_schema.tables WHERE table_name = 'events' "
        "AND table_schema = %s",
        query.table.schema,
    )
    query.sql(f"ALTER TABLE events COMMENT 'penstock table {'0' * 32}'")
    target: Any = late.target()
    target.accept(late.query_id)
    commit(late, store, 1, changes((1, 4, "late"), (2, 1, "b")))

    assert before != "penstock table " + "0" * 32
    assert query.ids() == [2]


def test_a_key_may_become_wider(query: MySqlQuery, store: SqlManifestStore) -> None:
    query.sql("CREATE TABLE events (id INT PRIMARY KEY, n INT, text LONGTEXT)")
    late = query.with_options(**LATE, badRows="drop")
    commit(late, store, 0, changes((1, 5)))
    query.sql("ALTER TABLE events MODIFY id DECIMAL(25) NOT NULL, MODIFY n BIGINT")
    commit(late, store, 1, changes((1, 4, "late"), (2, 2**40)))

    assert (query.ids(), deleted(query)) == ([], [(1, 5), (2, 2**40)])
