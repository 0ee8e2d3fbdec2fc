"""Changes of DuckLake tables with their kind: the rows that each snapshot adds and deletes, as DuckLake's own
function `ducklake_table_changes` has them.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.ducklake_history import FLUSH, MERGE, REWRITE, History, insert
from tests.support.ducklake_table import DuckLakeTable
from tests.support.ducklakes import NEW_LAKES, DuckLake, new_lake_of, sqlite_lake
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, TableNotSupportedError

KINDS = {"insert": "insert", "update_postimage": "insert", "delete": "delete", "update_preimage": "delete"}


def new_table(lake: DuckLake) -> DuckLakeTable:
    """Inserts and deletions of up to ten rows are in the catalog."""
    made = DuckLakeTable(lake, inlines=True)
    made.sql("CREATE TABLE events (id BIGINT)")
    return made


@pytest.fixture
def lake(tmp_path: Path) -> DuckLakeTable:
    return new_table(sqlite_lake(tmp_path))


def in_files(lake: DuckLakeTable) -> None:
    lake.sql("CALL lake.set_option('data_inlining_row_limit', 0)")


def changes(rows: list[dict[str, Any]] | None) -> Counter[tuple[int, str, int]]:
    return Counter((row["_commit_version"], row["_change_type"], row["id"]) for row in rows or [])


def all_changes(lake: DuckLakeTable, **options: str) -> Counter[tuple[int, str, int]]:
    """Of a new stream."""
    stream, found = TableStream(lake, changes="true", **options), Counter[tuple[int, str, int]]()
    while (rows := stream.next()) is not None:
        found += changes(rows)
    return found


def changes_of_ducklake(lake: DuckLakeTable, first: int) -> Counter[tuple[int, str, int]]:
    """Of each snapshot alone: of rows in merged files, DuckLake says when they were added, also if they are
    deleted. Without rewritten files, of which it says that all rows are updated.
    """
    made = lake.sql(
        "SELECT snapshot_id, changes_made FROM __ducklake_metadata_lake.ducklake_snapshot_changes"
    )
    parts = [
        f"SELECT {number}, change_type, id "
        f"FROM ducklake_table_changes('lake', 'main', 'events', {number}, {number})"
        for number, changed in made
        if number >= first and "rewrite_delete" not in changed
    ]
    rows = lake.sql(" UNION ALL ".join(parts)) if parts else []
    return Counter((number, KINDS[kind], found) for number, kind, found in rows)


MERGE_INTO = (
    "MERGE INTO events USING (SELECT unnest([2, 101, 500]) AS id) new ON new.id = events.id "
    "WHEN MATCHED THEN UPDATE SET id = events.id + 1000 WHEN NOT MATCHED THEN INSERT VALUES (new.id)"
)
OPERATIONS = {
    "inserts": [insert(200, 30), insert(300, 3)],
    "a deletion of few rows": ["DELETE FROM events WHERE id IN (1, 25, 100)"],
    "a deletion of many rows": ["DELETE FROM events WHERE id BETWEEN 3 AND 30"],
    "several deletions": [
        "DELETE FROM events WHERE id IN (1, 100)",
        "DELETE FROM events WHERE id BETWEEN 2 AND 18",
        "DELETE FROM events WHERE id IN (0, 21, 102)",
        "DELETE FROM events WHERE id BETWEEN 19 AND 38",
    ],
    "a deletion of a file": ["DELETE FROM events WHERE id < 20"],
    "a deletion of all rows": ["DELETE FROM events"],
    "a truncation": ["DELETE FROM events WHERE id IN (5, 101)", "TRUNCATE events"],
    "an update of few rows": ["UPDATE events SET id = id + 1000 WHERE id IN (2, 22, 101)"],
    "an update of many rows": ["UPDATE events SET id = id + 1000 WHERE id > 10"],
    "updates of the same rows": ["UPDATE events SET id = id + 1000 WHERE id % 100 IN (2, 1002)"] * 3,
    "a merge": [MERGE_INTO],
    "a merge of a flushed table": [FLUSH, MERGE, MERGE_INTO],
    "a deletion and an insert": ["BEGIN", "DELETE FROM events WHERE id IN (3, 102)", insert(50, 3), "COMMIT"],
    "all rows are replaced": ["BEGIN", "DELETE FROM events", insert(50, 30), "COMMIT"],
    "a flush after changes": ["UPDATE events SET id = id + 1000 WHERE id IN (2, 101)", FLUSH],
    "changes after a flush": [FLUSH, "DELETE FROM events WHERE id IN (2, 101)", FLUSH, "TRUNCATE events"],
    "a flush and an insert": ["BEGIN", insert(50, 3), FLUSH, "COMMIT"],
    "a deletion in a flushed file": ["BEGIN", FLUSH, "DELETE FROM events WHERE id = 101", "COMMIT"],
    "a compaction": [MERGE],
    "changes after a compaction": [
        MERGE,
        "DELETE FROM events WHERE id IN (1, 21)",
        "DELETE FROM events WHERE id BETWEEN 2 AND 25",
    ],
    "a rewrite of files": ["DELETE FROM events WHERE id IN (1, 22)", FLUSH, REWRITE],
    "changes after a rewrite": [
        "DELETE FROM events WHERE id < 10",
        REWRITE,
        insert(50, 20),
        MERGE,
        "UPDATE events SET id = id + 1000 WHERE id % 10 = 2",
    ],
}


EXAMPLES = ("a deletion and an insert", "a merge", "changes after a flush", "several deletions")


def test_changes_of_examples_are_those_of_ducklake(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One after the other, in a lake with its catalog in Postgres and its files on S3."""
    lake = new_table(new_lake_of("postgresql and S3", request)(tmp_path))
    stream, first = TableStream(lake, changes="true"), lake.version() + 1
    stream.next()
    for name in EXAMPLES:
        lake.sql(insert(0, 20), insert(20, 20), insert(100, 3))
        lake.sql(*OPERATIONS[name])
    expected = changes_of_ducklake(lake, first)
    assert changes(stream.next()) == expected
    assert Counter(row[0] for row in lake.sql("FROM events")) == net(expected)


@pytest.mark.campaign
@pytest.mark.parametrize("are_inlined", [True, False], ids=["in the catalog", "in files"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_changes_are_those_of_ducklake(name: str, are_inlined: bool, lake: DuckLakeTable) -> None:
    """Also if rows are in other files afterwards."""
    if not are_inlined:
        in_files(lake)
    stream, first = TableStream(lake, changes="true"), lake.version() + 1
    stream.next()
    lake.sql(insert(0, 20), insert(20, 20), insert(100, 3))
    lake.sql(*OPERATIONS[name])
    expected, last = changes_of_ducklake(lake, first), lake.version()
    assert changes(stream.next()) == expected
    assert Counter(row[0] for row in lake.sql("FROM events")) == net(expected)
    for later in ([], [FLUSH, MERGE], [insert(2000, 30), REWRITE, MERGE]):
        lake.sql(*later) if later else None
        stream.start()
        assert changes(stream.read(1)) == expected
    found = all_changes(lake, startingVersion=str(first))
    assert {one: count for one, count in found.items() if one[0] <= last} == expected


def net(found: Counter[tuple[int, str, int]]) -> Counter[int]:
    """The rows that are left."""
    rows: Counter[int] = Counter()
    for (_, kind, number), count in found.items():
        rows[number] += count if kind == "insert" else -count
    assert min(rows.values(), default=0) >= 0
    return +rows


@pytest.mark.campaign
@pytest.mark.parametrize("are_inlined", [True, False], ids=["in the catalog", "in files"])
@pytest.mark.parametrize("kind", NEW_LAKES)
@pytest.mark.parametrize("seed", range(8))
def test_changes_of_a_random_history_add_up_to_the_rows(
    seed: int, kind: str, are_inlined: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """And are those of DuckLake, whatever is moved to other files between planning, reading and a restart."""
    chance = random.Random(seed)
    lake = new_table(new_lake_of(kind, request)(tmp_path))
    if not are_inlined:
        in_files(lake)
    history = History(lake, chance, deletes=True, truncates=True)
    for _ in range(chance.randrange(10)):
        history.step()
    limits = chance.choice([{}, {"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "1000"}])
    stream, first = TableStream(lake, changes="true", **limits), lake.version() + 1
    seen = [changes(stream.next())]
    for _ in range(30):
        event = chance.random()
        if event < 0.6:
            history.step()
        elif event < 0.7:
            stream.start()
        elif event < 0.8:
            again = chance.randrange(len(seen))
            assert changes(stream.read(again)) == seen[again]
        elif (rows := stream.next()) is not None:
            seen.append(changes(rows))
    while (rows := stream.next()) is not None:
        seen.append(changes(rows))
    found = sum(seen, Counter[tuple[int, str, int]]())
    assert net(found) == Counter(history.live)
    later = Counter({one: count for one, count in found.items() if one[0] >= first})
    assert by_snapshot(later) == by_snapshot(changes_of_ducklake(lake, first))
    for statement in (FLUSH, MERGE, REWRITE):
        lake.sql(statement)
        stream.start()
        assert [changes(stream.read(one)) for one in range(len(seen))] == seen
    batches = [{number for number, _, _ in batch} for batch in seen[1:]]
    assert sum(map(len, batches)) == len(set[int]().union(*batches))


def by_snapshot(found: Counter[tuple[int, str, int]]) -> dict[tuple[int, int], int]:
    """What each snapshot adds up to: `ducklake_table_changes` has rows that it adds and deletes at once."""
    sums: Counter[tuple[int, int]] = Counter()
    for (snapshot, kind, number), count in found.items():
        sums[snapshot, number] += count if kind == "insert" else -count
    return {one: count for one, count in sums.items() if count}


# Batches ------------------------------------------------------------------------------------------


def test_rows_have_the_version_and_the_time_of_their_snapshot(lake: DuckLakeTable) -> None:
    """Also those of a file with rows of several snapshots, which are read in one batch."""
    lake.sql(insert(0, 1))
    stream = TableStream(lake, changes="true")
    (first,) = stream.next() or []
    lake.sql(insert(1, 20), insert(21, 20), MERGE, "DELETE FROM events WHERE id = 5")
    later = stream.next() or []
    times = dict(lake.sql("SELECT snapshot_id, snapshot_time FROM snapshots()"))
    assert {row["_commit_version"] for row in [first, *later]} == {2, 3, 4, 6}
    assert all(row["_commit_timestamp"] == times[row["_commit_version"]] for row in [first, *later])
    assert {(row["_commit_version"], row["_change_type"]) for row in later if row["id"] == 5} == {
        (3, "insert"),
        (6, "delete"),
    }


def test_all_rows_of_a_snapshot_are_in_one_batch(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20), insert(20, 20), insert(100, 3))
    stream = TableStream(lake, changes="true", startingVersion="latest", maxFilesPerTrigger="1")
    assert stream.next() == []
    lake.sql(
        "BEGIN", "DELETE FROM events WHERE id IN (1, 21, 101)", insert(200, 20), insert(300, 3), "COMMIT"
    )
    lake.sql("DELETE FROM events WHERE id = 2")
    batch = stream.next() or []
    assert Counter(row["_change_type"] for row in batch) == {"delete": 3, "insert": 23}
    assert changes(stream.next()) == {(lake.version(), "delete", 2): 1}


@pytest.mark.campaign
def test_files_without_matching_rows_are_not_read(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20), insert(20, 20))
    stream = TableStream(lake, changes="true", startingVersion="latest", where="id < 20")
    stream.next()
    lake.sql("DELETE FROM events WHERE id >= 20")
    assert stream.next() is None
    lake.sql("DELETE FROM events WHERE id IN (5, 6)", "DELETE FROM events")
    first = lake.version() - 1
    assert changes(stream.next()) == changes_of_ducklake(lake, first)


@pytest.mark.campaign
def test_a_file_whose_deletions_are_of_other_snapshots_is_not_opened(lake: DuckLakeTable) -> None:
    """A delete file that a flush has made does not say of which snapshots it has deletions."""
    lake.sql(insert(0, 3), "DELETE FROM events WHERE id = 1", FLUSH, insert(20, 20))
    stream = TableStream(lake, changes="true", startingVersion="latest")
    stream.next()
    flushed = [path for path in lake.folder.rglob("*.parquet") if pq.read_metadata(path).num_rows == 3]
    lake.sql("DELETE FROM events WHERE id = 25")
    for path in flushed:
        path.unlink()
    assert changes(stream.next()) == {(lake.version(), "delete", 25): 1}


@pytest.mark.campaign
def test_a_delete_file_of_earlier_snapshots_is_not_read(lake: DuckLakeTable) -> None:
    in_files(lake)
    lake.sql(insert(0, 20), "DELETE FROM events WHERE id = 1")
    earlier = list(lake.folder.rglob("*.parquet"))
    lake.sql(insert(20, 20))
    stream = TableStream(lake, changes="true", startingVersion="latest")
    stream.next()
    lake.sql("DELETE FROM events WHERE id = 25")
    for path in earlier:
        path.unlink()
    assert changes(stream.next()) == {(lake.version(), "delete", 25): 1}


# Columns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [3, 30], ids=["in the catalog", "in a file"])
def test_deleted_rows_of_older_versions_have_the_columns_of_today(lake: DuckLakeTable, rows: int) -> None:
    lake.sql("DROP TABLE events", "CREATE TABLE events (id INT, s STRUCT(a INT, b VARCHAR), gone INT)")
    lake.sql(
        f"INSERT INTO events SELECT range, {{'a': 1, 'b': 'x'}}, 2 FROM range({rows})",
        "ALTER TABLE events RENAME id TO number",
        "ALTER TABLE events ALTER number TYPE BIGINT",
        "ALTER TABLE events ADD COLUMN more VARCHAR DEFAULT 'd'",
        "ALTER TABLE events ADD COLUMN s.c INT",
        "ALTER TABLE events RENAME s.b TO z",
        "ALTER TABLE events DROP COLUMN gone",
    )
    stream = TableStream(lake, changes="true", startingVersion="latest", columns="number, s, more")
    stream.next()
    lake.sql("DELETE FROM events WHERE number = 1", "UPDATE events SET more = 'e' WHERE number = 2", FLUSH)
    lake.sql("DELETE FROM events")
    old = {"s": {"a": 1, "z": "x", "c": None}, "more": "d"}
    found = stream.next() or []
    assert found[:2] == [{"number": 1, **old}, {"number": 2, **old}]
    assert {"number": 2, **old, "more": "e"} in found[2:]
    assert len(found) == 1 + 2 + rows - 1


@pytest.mark.campaign
def test_a_changed_column_ends_the_query_before_a_deletion(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20))
    stream = TableStream(lake, changes="true")
    stream.next()
    lake.sql("DELETE FROM events WHERE id = 3", "ALTER TABLE events RENAME id TO number")
    assert changes(stream.next()) == {(lake.version() - 1, "delete", 3): 1}
    lake.sql("DELETE FROM events WHERE number = 4")
    with pytest.raises(ConfigurationError, match=f"Snapshot {lake.version()} .* 'number' is now number"):
        stream.next()


@pytest.mark.campaign
def test_rows_of_files_that_others_have_written_can_be_deleted(lake: DuckLakeTable) -> None:
    """They have no field ids."""
    path = lake.folder / "added.parquet"
    pq.write_table(pa.table({"id": range(50, 80)}), path)
    lake.sql(f"CALL ducklake_add_data_files('lake', 'events', '{path}')")
    stream = TableStream(lake, changes="true")
    assert len(stream.next() or []) == 30
    first = lake.version() + 1
    lake.sql("DELETE FROM events WHERE id = 51", "DELETE FROM events WHERE id < 75", "DELETE FROM events")
    assert changes(stream.next()) == changes_of_ducklake(lake, first)


@pytest.mark.campaign
def test_deleted_rows_of_the_catalog_need_the_number_of_their_row(lake: DuckLakeTable) -> None:
    lake.sql("ALTER TABLE events ADD COLUMN rowid INT", "INSERT INTO events VALUES (1, 2), (2, 3)")
    stream = TableStream(lake, changes="true")
    stream.next()
    lake.sql("DELETE FROM events WHERE id = 1")
    with pytest.raises(TableNotSupportedError, match="has a column 'rowid', and rows that are inlined"):
        stream.next()


# What cannot be known -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement", ["DELETE FROM events WHERE id IN (1, 100)", "DELETE FROM events WHERE id >= 100"]
)
def test_rows_that_are_deleted_and_flushed_at_once_are_an_error(lake: DuckLakeTable, statement: str) -> None:
    """DuckLake forgets them: its own function does not have them either."""
    lake.sql(insert(0, 20), insert(100, 3))
    stream = TableStream(lake, changes="true")
    assert len(stream.next() or []) == 23
    lake.sql("BEGIN", statement, FLUSH, "COMMIT")
    assert not [one for one in changes_of_ducklake(lake, lake.version()) if one[2] == 100]
    with pytest.raises(TableNotSupportedError, match="the catalog does not say which rows it deletes"):
        stream.next()


@pytest.mark.campaign
def test_rows_that_move_to_other_files_at_once_are_an_error(lake: DuckLakeTable) -> None:
    """DuckLake refuses such transactions today."""
    lake.sql(insert(0, 20))
    stream = TableStream(lake, changes="true")
    stream.next()
    lake.sql("DELETE FROM events WHERE id = 3")
    with sqlite3.connect(lake.folder / "catalog.sqlite") as catalog:
        catalog.execute(
            "UPDATE ducklake_snapshot_changes SET changes_made = changes_made || ',merge_adjacent:1' "
            "WHERE snapshot_id = ?",
            [lake.version()],
        )
    with pytest.raises(TableNotSupportedError, match="the catalog does not say which rows it deletes"):
        stream.next()


@pytest.mark.parametrize("statement", ["TRUNCATE events", "DELETE FROM events WHERE id IN (1, 101)"])
def test_deletions_need_the_snapshot_before(lake: DuckLakeTable, statement: str) -> None:
    """What it had may be removed with it."""
    lake.sql(insert(0, 20), insert(100, 3))
    stream = TableStream(lake, changes="true")
    stream.next()
    lake.sql(statement)
    lake.expire()
    for one in (stream, TableStream(lake, changes="true", startingVersion=str(lake.version()))):
        with pytest.raises(ConfigurationError, match=f"the snapshot {lake.version() - 1}, .* compared"):
            one.next()


@pytest.mark.campaign
def test_inserts_do_not_need_the_snapshot_before(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20))
    stream = TableStream(lake, changes="true")
    stream.next()
    lake.sql(insert(20, 20))
    lake.expire()
    assert len(stream.next() or []) == 20


@pytest.mark.campaign
def test_a_delete_file_that_replaces_another_deletes_what_the_other_has_not(lake: DuckLakeTable) -> None:
    """As versions of DuckLake before 1.0 have written them: all deletions, without their snapshots."""
    in_files(lake)
    lake.sql(insert(0, 20))
    first = lake.version() + 1
    lake.sql("DELETE FROM events WHERE id IN (1, 2)", "DELETE FROM events WHERE id = 3")
    with sqlite3.connect(lake.folder / "catalog.sqlite") as catalog:
        ((number, path),) = catalog.execute("SELECT delete_file_id, path FROM ducklake_delete_file")
        columns = [row[1] for row in catalog.execute("PRAGMA table_info(ducklake_delete_file)")]
        newer = ", ".join(
            {"delete_file_id": "1000", "path": "'newer.parquet'", "begin_snapshot": str(first + 1)}.get(
                name, "NULL" if name == "partial_max" else name
            )
            for name in columns
        )
        catalog.execute(f"INSERT INTO ducklake_delete_file SELECT {newer} FROM ducklake_delete_file")
        catalog.execute(
            "UPDATE ducklake_delete_file SET end_snapshot = ?, partial_max = NULL WHERE delete_file_id = ?",
            [first + 1, number],
        )
    (written,) = lake.folder.rglob(path)
    rows = pq.read_table(written).select(["file_path", "pos"])
    pq.write_table(rows, written.parent / "newer.parquet")
    pq.write_table(rows.slice(0, 2), written)
    assert all_changes(lake, startingVersion=str(first)) == {
        (first, "delete", 1): 1,
        (first, "delete", 2): 1,
        (first + 1, "delete", 3): 1,
    }


@pytest.mark.campaign
def test_a_row_that_is_added_and_deleted_at_once_is_not_one_of_the_snapshot_before(
    lake: DuckLakeTable,
) -> None:
    """As a flush would write it, if the catalog kept such rows."""
    lake.sql(insert(0, 3), insert(10, 3), "DELETE FROM events WHERE id = 0", FLUSH)
    second = lake.version() - 2
    with sqlite3.connect(lake.folder / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE ducklake_delete_file SET begin_snapshot = ?", [second])
        catalog.execute(
            "UPDATE ducklake_snapshot_changes SET changes_made = 'inlined_insert:1,inlined_delete:1' "
            "WHERE snapshot_id = ?",
            [second],
        )
        ((path,),) = catalog.execute("SELECT path FROM ducklake_delete_file")
    (written,) = lake.folder.rglob(path)
    rows = pq.read_table(written)
    names = [*rows["file_path"].to_pylist() * 2], [0, 3], [second] * 2
    pq.write_table(pa.table(dict(zip(rows.column_names, names, strict=True)), schema=rows.schema), written)
    assert all_changes(lake, startingVersion=str(second)) == {
        (second, "delete", 0): 1,
        (second, "insert", 11): 1,
        (second, "insert", 12): 1,
    }
