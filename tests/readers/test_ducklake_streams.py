"""What streams of DuckLake tables have of their own: files that are merged, rows that move out of the catalog
and snapshots of all tables of a lake. `test_streams` has what all formats have in common.
"""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest
from tests.support.ducklake_history import FLUSH, MERGE, REWRITE, History, insert
from tests.support.ducklake_table import DuckLakeTable
from tests.support.ducklakes import NEW_LAKES, new_lake_of, sqlite_lake
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, TableNotSupportedError, reader
from penstock.readers.ducklake.changes import changes_of
from penstock.readers.streaming.positions import Offset


@pytest.fixture
def lake(tmp_path: Path) -> DuckLakeTable:
    """Inserts of up to ten rows are in the catalog."""
    made = DuckLakeTable(sqlite_lake(tmp_path), inlines=True)
    made.sql("CREATE TABLE events (id BIGINT)")
    return made


@pytest.mark.campaign
@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("kind", NEW_LAKES)
def test_a_random_history_is_read_once(
    kind: str, deletes: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever is merged and flushed between planning, reading and a restart. Without deletions no commit is
    taken for one that deletes.
    """
    new_lake = new_lake_of(kind, request)
    for seed in range(20):
        chance = random.Random(seed)
        lake = DuckLakeTable(new_lake(tmp_path / str(seed)), inlines=True)
        lake.sql("CREATE TABLE events (id BIGINT)")
        history = History(lake, chance, deletes=deletes)
        for _ in range(chance.randrange(10)):
            history.step()
        limits = chance.choice([{}, {"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "1000"}])
        options = {**limits, **({"skipChangeCommits": "true"} if deletes else {})}
        stream, expected = TableStream(lake, **options), list(history.live)
        history.added.clear()
        seen = [stream.ids() or []]
        for _ in range(20):
            event = chance.random()
            if event < 0.6:
                history.step()
            elif event < 0.7:
                stream.start()
            elif event < 0.8:
                assert [read(stream, one) for one in range(len(seen))] == seen, seed
            elif (ids := stream.ids()) is not None:
                seen.append(ids)
        while (ids := stream.ids()) is not None:
            seen.append(ids)
        assert sorted(one for ids in seen for one in ids) == sorted(expected + history.added), seed
        for statement in (FLUSH, MERGE):
            lake.sql(statement)
            stream.start()
            assert [read(stream, one) for one in range(len(seen))] == seen, seed


def read(stream: TableStream, number: int) -> list[int]:
    return sorted(row["id"] for row in stream.read(number))


def test_a_merged_file_is_read_once_in_a_batch(lake: DuckLakeTable) -> None:
    """Also if snapshots of other tables are between those of its rows, and commits that are passed over."""
    stream = TableStream(lake, startingVersion="latest", skipChangeCommits="true")
    stream.ids()
    lake.sql(insert(0, 20), insert(20, 20), "CREATE TABLE other (id BIGINT)", insert(40, 20))
    lake.sql("BEGIN", insert(60, 20), "DELETE FROM events WHERE id = 5", "COMMIT", insert(80, 20), MERGE)
    start, end = stream.ends[-1], stream.plan.end_of_batch(Offset.of(stream.ends[-1]))
    files = list(stream.plan.files(Offset.of(start), end))
    assert len(files) < 5
    assert stream.ids() == [*range(60), *range(80, 100)]


def test_rows_of_the_catalog_between_those_of_a_merged_file_are_in_its_part(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20), insert(100, 3), insert(200, 20), insert(300, 20))
    stream = TableStream(lake, maxFilesPerTrigger="1")
    assert stream.ids() == [*range(20)]
    lake.sql(MERGE)
    late = TableStream(lake, maxFilesPerTrigger="1")
    everything = [*range(20), *range(100, 103), *range(200, 220), *range(300, 320)]
    assert [late.ids(), late.ids()] == [everything, None]
    assert stream.all_ids() == everything[20:]
    assert read(stream, 0) == everything[:20]
    lake.sql(FLUSH, MERGE)
    assert read(late, 0) == everything


def test_rows_that_are_deleted_later_are_in_the_first_snapshot(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20), insert(20, 20))
    stream = TableStream(lake, maxFilesPerTrigger="1", ignoreDeletes="true")
    assert stream.ids() == [*range(20)]
    lake.sql(
        "DELETE FROM events WHERE id IN (3, 25)", "DELETE FROM events WHERE id BETWEEN 5 AND 30", REWRITE
    )
    assert [stream.ids(), stream.ids()] == [[*range(20, 40)], None]
    assert read(stream, 0) == [*range(20)]


def test_rows_of_a_commit_are_in_one_batch(lake: DuckLakeTable) -> None:
    """Of a file and of the catalog, also those that later commits delete."""
    stream = TableStream(lake, startingVersion="latest", maxFilesPerTrigger="1", ignoreDeletes="true")
    stream.ids()
    lake.sql("BEGIN", insert(0, 20), insert(100, 3), "COMMIT", "DELETE FROM events WHERE id IN (5, 101)")
    assert [stream.ids(), stream.ids()] == [[*range(20), *range(100, 103)], None]


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM events WHERE id = 100", FLUSH],
        ["DELETE FROM events WHERE id = 1", FLUSH],
        [FLUSH, "DELETE FROM events WHERE id = 100"],
    ],
)
def test_rows_that_leave_the_catalog_are_deleted_only_if_others_are(
    lake: DuckLakeTable, statements: list[str]
) -> None:
    """DuckLake says `deleted_from_table` of them, and sometimes nothing of others in the same transaction."""
    lake.sql(insert(0, 20), insert(100, 3))
    stream = TableStream(lake, startingVersion="latest")
    stream.ids()
    lake.sql("BEGIN", *statements, "COMMIT")
    with pytest.raises(ConfigurationError, match="deletes rows"):
        stream.ids()
    lake.sql(insert(200, 3), "DELETE FROM events WHERE id IN (2, 102, 201)")
    stream = TableStream(lake, startingVersion="latest")
    stream.ids()
    lake.sql(FLUSH, "BEGIN", insert(300, 3), FLUSH, "COMMIT")
    assert stream.ids() == [300, 301, 302]


@pytest.mark.parametrize("rows", [3, 30], ids=["in the catalog", "in a file"])
def test_rows_of_older_versions_have_the_columns_of_today(lake: DuckLakeTable, rows: int) -> None:
    lake.sql("DROP TABLE events", "CREATE TABLE events (id INT, s STRUCT(a INT, b VARCHAR), gone INT)")
    start = str(lake.version() + 1)
    lake.sql(
        f"INSERT INTO events SELECT 1, {{'a': 1, 'b': 'x'}}, 2 FROM range({rows})",
        "ALTER TABLE events RENAME id TO number",
        "ALTER TABLE events ALTER number TYPE BIGINT",
        "ALTER TABLE events ADD COLUMN more VARCHAR DEFAULT 'd'",
        "ALTER TABLE events ADD COLUMN s.c INT",
        "ALTER TABLE events RENAME s.b TO z",
        "ALTER TABLE events DROP COLUMN gone",
        f"INSERT INTO events SELECT {2**40}, {{'a': 2, 'z': 'y', 'c': 3}}, NULL FROM range({rows})",
    )
    old = {"number": 1, "s": {"a": 1, "z": "x", "c": None}, "more": "d"}
    new = {"number": 2**40, "s": {"a": 2, "z": "y", "c": 3}, "more": None}
    found = TableStream(lake, startingVersion=start, where="number > 0").next() or []
    assert [found[0], found[-1], len(found)] == [old, new, 2 * rows]
    names = TableStream(lake, startingVersion=start, columns="more", where="more = 'd'").next()
    assert names == [{"more": "d"}] * rows


def test_a_renamed_column_ends_the_query(lake: DuckLakeTable) -> None:
    lake.sql(insert(0, 20))
    stream, passing = TableStream(lake), TableStream(lake, columns="id")
    stream.ids()
    passing.ids()
    lake.sql("ALTER TABLE events ADD COLUMN more INT", "ALTER TABLE events RENAME more TO others")
    assert stream.ids() is None
    lake.sql("INSERT INTO events VALUES (50, 1)", "ALTER TABLE events RENAME id TO number")
    assert passing.ids() == [50]
    lake.sql("INSERT INTO events VALUES (51, 1)")
    for one, problem in ((stream, "'others' is new"), (passing, "'number' is now number int64")):
        with pytest.raises(ConfigurationError, match=f"The schema has changed: Snapshot .* {problem}"):
            one.ids()


def test_rows_have_the_columns_that_they_were_added_with(lake: DuckLakeTable) -> None:
    lake.sql("ALTER TABLE events ADD COLUMN gone INT")
    stream = TableStream(lake, startingVersion="latest")
    stream.ids()
    lake.sql("INSERT INTO events VALUES (1, 5)", "ALTER TABLE events DROP COLUMN gone")
    assert stream.next() == [{"id": 1, "gone": 5}]


def test_snapshots_of_other_tables_are_passed_over(lake: DuckLakeTable) -> None:
    lake.append(1)
    stream = TableStream(lake)
    assert stream.ids() == [1]
    lake.sql("CREATE TABLE other (id BIGINT)", "INSERT INTO other VALUES (2)", "DELETE FROM other")
    assert stream.ids() is None
    lake.append(3)
    assert stream.ids() == [3]


def test_a_snapshot_that_expired_in_between_is_named(lake: DuckLakeTable) -> None:
    lake.append(1)
    stream = TableStream(lake)
    stream.ids()
    lake.append(2)
    lake.append(3)
    lake.append(4)
    lake.sql(f"CALL ducklake_expire_snapshots('lake', versions => [{lake.version() - 1}])")
    assert stream.ids() == [2]
    with pytest.raises(ConfigurationError, match=f"no longer has the snapshot {lake.version() - 1}, which"):
        stream.ids()


def test_the_first_snapshot_must_be_there_until_it_was_read(lake: DuckLakeTable) -> None:
    lake.append(1)
    lake.append(2)
    stream = TableStream(lake, maxFilesPerTrigger="1")
    assert stream.ids() == [1]
    lake.append(3)
    lake.expire()
    with pytest.raises(ConfigurationError, match=f"no longer has the snapshot {lake.version() - 1}, which"):
        stream.ids()


def test_a_table_that_was_renamed_is_an_error(lake: DuckLakeTable) -> None:
    stream = TableStream(lake)
    lake.sql("ALTER TABLE events RENAME TO others")
    with pytest.raises(ConfigurationError, match="was dropped or renamed"):
        stream.ids()


def test_a_query_may_begin_with_the_next_snapshot(lake: DuckLakeTable) -> None:
    stream = TableStream(lake, startingVersion=str(lake.version() + 1))
    assert stream.ids() == []
    lake.append(1)
    assert stream.ids() == [1]


def test_rows_of_the_catalog_need_the_number_of_their_snapshot(lake: DuckLakeTable) -> None:
    lake.sql("ALTER TABLE events ADD COLUMN snapshot_id INT")
    stream = TableStream(lake)
    lake.sql("INSERT INTO events VALUES (1, 2)")
    with pytest.raises(TableNotSupportedError, match="has a column 'snapshot_id', and rows that are inlined"):
        stream.ids()
    assert reader.read("penstock.ducklake", lake.options).read_all().to_pylist() == [
        {"id": 1, "snapshot_id": 2}
    ]
    lake.sql(FLUSH)
    assert stream.next() == [{"id": 1, "snapshot_id": 2}]


CHANGES = {
    "inserted_into_table:1": {"inserted_into_table"},
    "inserted_into_table:11": set(),
    'created_table:"main"."a,inserted_into_table:1",deleted_from_table:1': {"deleted_from_table"},
    'created_table:"a""b"."c",inlined_insert:1,altered_table:2': {"inlined_insert"},
    'created_schema:"x"': set(),
    "": set(),
}


@pytest.mark.parametrize("made", CHANGES)
def test_changes_are_those_of_the_table(made: str) -> None:
    assert changes_of(made, 1) == CHANGES[made]


@pytest.mark.parametrize("made", ["invented:1", "inserted_into_table", "a:1,b:1,c:x"])
def test_changes_that_nobody_knows_are_refused(made: str, lake: DuckLakeTable) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(1)
    lake.append(2)
    made = made.replace(
        ":1", f":{lake.sql('SELECT table_id FROM __ducklake_metadata_lake.ducklake_table')[0][0]}"
    )
    with sqlite3.connect(lake.folder / "catalog.sqlite") as catalog:
        catalog.execute(
            "UPDATE ducklake_snapshot_changes SET changes_made = ? WHERE snapshot_id = ?",
            [made, lake.version()],
        )
    assert stream.ids() == [1]
    with pytest.raises(TableNotSupportedError, match=f"Snapshot {lake.version()} .* does not know"):
        stream.ids()
