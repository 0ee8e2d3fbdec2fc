"""Streams of the rows of tables, also of other writers: each row once, in whole commits."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.types import LongType, StringType
from tests.support import foreign_iceberg
from tests.support.ducklake_table import DuckLakeTable
from tests.support.ducklakes import sqlite_lake
from tests.support.foreign_iceberg import NAMES
from tests.support.hudi_table import HudiTable
from tests.support.lakes import IDS, LAKES, DeltaLake, IcebergLake, LakeTable, ids
from tests.support.lance_lake import LanceLake
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, RetryableError, TableNotSupportedError, reader
from penstock.committers.iceberg.library.changed_files import ReplaceFiles
from penstock.committers.iceberg.library.snapshots import UncopiedTransaction
from penstock.committers.iceberg.live_files import live_files
from penstock.committers.iceberg.snapshot import Attempt
from penstock.readers.lance.table import time_of

Streamed: TypeAlias = LakeTable | DuckLakeTable | HudiTable | LanceLake
STREAMED: Mapping[str, Callable[[Path], Streamed]] = {
    **LAKES,
    "lance": lambda folder: LanceLake(folder / "table"),
    "hudi 6": lambda folder: HudiTable(folder, 6),
    "hudi 9": lambda folder: HudiTable(folder, 9),
    "ducklake": lambda folder: DuckLakeTable(sqlite_lake(folder), inlines=False),
    "catalog of a ducklake": lambda folder: DuckLakeTable(sqlite_lake(folder), inlines=True),
}


KINDS = [*LAKES, *(pytest.param(kind, marks=pytest.mark.slow) for kind in STREAMED if kind not in LAKES)]
IN_FILES = KINDS[:-1]
also_in_a_catalog = pytest.mark.parametrize("lake", KINDS, indirect=True)


@pytest.fixture(params=IN_FILES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Streamed:
    """A table with a row in each of two commits."""
    return with_rows(STREAMED[request.param](tmp_path))


@pytest.fixture(params=KINDS)
def changed(request: pytest.FixtureRequest, tmp_path: Path) -> Streamed:
    """The same, of a format whose changes can be read."""
    return with_rows(STREAMED[request.param](tmp_path))


def with_rows(lake: Streamed) -> Streamed:
    lake.create(IDS)
    lake.append(1)
    lake.append(2)
    return lake


def compact(lake: Streamed) -> None:
    """Put all rows into one file, as a commit that changes no rows."""
    if not isinstance(lake, IcebergLake):
        lake.compact()
        return
    table = lake.load()
    transaction, live = UncopiedTransaction(table), live_files(table, "main")
    producer = ReplaceFiles(transaction, table, "main", live.manifests, set(live.data))
    for file in _dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io):
        file.spec_id = table.metadata.default_spec_id
        producer.append_data_file(file)
    producer.commit()
    Attempt.of(table, transaction, producer).send()


def delete(lake: Streamed, number: int) -> None:
    """Delete a row. Some formats write its file again, with the other rows."""
    if isinstance(lake, DuckLakeTable | HudiTable | LanceLake):
        lake.delete(number)
    else:
        lake.load().delete(f"id = {number}")


def version_before(lake: Streamed, back: int) -> str:
    """The version a number of commits before the newest one."""
    if isinstance(lake, HudiTable):
        return lake.instants()[-1 - back]
    if not isinstance(lake, IcebergLake):
        return str(lake.version() - back)
    return str(lake.load().history()[-1 - back].snapshot_id)


def clean_up(lake: Streamed) -> None:
    """Remove all versions but the newest."""
    if not isinstance(lake, DeltaLake):
        lake.expire()
        return
    lake.load().create_checkpoint()
    for number in range(lake.version()):
        (lake.folder / "_delta_log" / f"{number:020d}.json").unlink()


# Each row once ------------------------------------------------------------------------------------


@also_in_a_catalog
def test_the_rows_that_are_there_come_first_and_then_those_that_are_added(lake: Streamed) -> None:
    stream = TableStream(lake)
    assert stream.ids() == [1, 2]
    assert stream.ids() is None
    lake.append(3, 4)
    lake.append(5)
    assert stream.ids() == [3, 4, 5]
    lake.append(6)
    stream.start()
    assert stream.ids() == [6]
    assert stream.ids() is None


@also_in_a_catalog
def test_a_compaction_in_between_shows_no_row_twice(lake: Streamed) -> None:
    limited = TableStream(lake, maxFilesPerTrigger="1")
    assert limited.ids() is not None
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    compact(lake)
    assert lake.count() == 3
    lake.append(4)
    assert stream.ids() == [3, 4]
    assert limited.all_ids() == sorted({1, 2, 3, 4} - set(ids_of(limited, 0)))


def ids_of(stream: TableStream, number: int) -> list[int]:
    return [row["id"] for row in stream.read(number)]


@also_in_a_catalog
def test_a_repeated_batch_has_the_same_rows(lake: Streamed) -> None:
    stream = TableStream(lake, maxFilesPerTrigger="1")
    seen = [stream.next()]
    lake.append(3, 4)
    compact(lake)
    seen.append(stream.next())
    lake.append(5)
    stream.start()
    assert [stream.read(number) for number in range(len(seen))] == seen
    stream.all_ids()
    stream.start()
    again = [ids_of(stream, number) for number in range(len(stream.ends))]
    assert sorted(number for batch in again for number in batch) == [
        1,
        2,
        3,
        4,
        5,
    ]


def test_each_commit_is_seen_whole_or_not_at_all(lake: Streamed) -> None:
    commits = 8

    def write() -> None:
        for number in range(3, 3 + commits):
            lake.append_rows(ids(*[number] * 10))

    writer = threading.Thread(target=write)
    stream, batches = TableStream(lake), [[1, 2]]
    assert stream.ids() == batches[0]
    writer.start()
    while writer.is_alive():
        batches.append(stream.ids() or [])
    writer.join()
    batches.append(stream.ids() or [])
    for batch in batches[1:]:
        assert set(Counter(batch).values()) <= {10}
    expected = [1, 2, *(number for number in range(3, 3 + commits) for _ in range(10))]
    assert [number for batch in batches for number in batch] == expected


def test_limits_divide_what_is_there_and_what_is_added(lake: Streamed) -> None:
    stream = TableStream(lake, maxFilesPerTrigger="1")
    assert [stream.ids(), stream.ids(), stream.ids()] in ([[1], [2], None], [[2], [1], None])
    lake.append(3)
    lake.append(4)
    assert [stream.ids(), stream.ids(), stream.ids()] == [[3], [4], None]
    small = TableStream(lake, maxBytesPerTrigger="1")
    assert [len(small.ids() or []) for _ in range(5)] == [1, 1, 1, 1, 0]
    assert len(TableStream(lake, maxBytesPerTrigger="1g").ids() or []) == 4


def test_conditions_and_columns_hold_for_streams(tmp_path: Path) -> None:
    for kind in STREAMED:
        (tmp_path / kind).mkdir()
        lake = STREAMED[kind](tmp_path / kind)
        lake.create(pa.schema([("id", pa.int64()), ("text", pa.string())]))
        lake.append_rows(pa.table({"id": [1, 2], "text": ["a", "b"]}))
        stream = TableStream(lake, where="text = 'a'", columns="id")
        assert stream.next() == [{"id": 1}]
        lake.append_rows(pa.table({"id": [3], "text": ["b"]}))
        assert not stream.next()
        lake.append_rows(pa.table({"id": [4, 5], "text": ["c", "a"]}))
        assert stream.next() == [{"id": 5}]


@also_in_a_catalog
def test_deleted_rows_of_what_is_there_are_left_out(lake: Streamed) -> None:
    delete(lake, 1)
    assert TableStream(lake).ids() == [2]


# Where a query begins -----------------------------------------------------------------------------


@also_in_a_catalog
def test_a_query_begins_with_a_version(lake: Streamed) -> None:
    lake.append(3)
    assert TableStream(lake, startingVersion=version_before(lake, 0)).ids() == [3]
    assert TableStream(lake, startingVersion=version_before(lake, 1)).ids() == [2, 3]
    with pytest.raises(ConfigurationError, match=r"startingVersion: the .* table .* has no .* 77"):
        TableStream(lake, startingVersion="77").ids()


def test_a_query_begins_with_the_next_commit(lake: Streamed) -> None:
    stream = TableStream(lake, startingVersion="latest")
    assert stream.ids() == []
    lake.append(3)
    stream.start()
    assert stream.read(0) == []
    assert stream.ids() == [3]


def test_a_query_begins_with_a_time(lake: Streamed) -> None:
    if isinstance(lake, DeltaLake):
        for number in range(3):
            entry = lake.folder / "_delta_log" / f"{number:020d}.json"
            os.utime(entry, (1_000_000 + number * 100, 1_000_000 + number * 100))
        second = datetime.fromtimestamp(1_000_150, timezone.utc)
    elif isinstance(lake, IcebergLake):
        second = datetime.fromtimestamp(lake.load().history()[-1].timestamp_ms / 1000, timezone.utc)
    elif isinstance(lake, LanceLake):
        second = time_of(lake.load().versions()[-1])
    elif isinstance(lake, HudiTable):
        second = lake.completed_at()
    else:
        ((second,),) = lake.sql("SELECT max(snapshot_time) FROM lake.snapshots()")
    assert TableStream(lake, startingTimestamp=second.isoformat()).ids() == [2]
    assert TableStream(
        lake, startingTimestamp="1970-01-02" if lake.kind == "delta" else "2001-01-01"
    ).ids() == [1, 2]
    now = TableStream(lake, startingTimestamp=datetime.now(timezone.utc).isoformat())
    assert now.ids() == []
    lake.append(3)
    assert now.ids() == [3]
    with pytest.raises(ConfigurationError, match="is in the future"):
        TableStream(
            lake, startingTimestamp=(datetime.now(timezone.utc) + timedelta(days=1)).isoformat()
        ).ids()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"startingVersion": "1", "startingTimestamp": "2026-01-01"},
            "startingVersion and startingTimestamp are",
        ),
        ({"startingVersion": "first"}, "must be a whole number"),
        ({"maxFilesPerTrigger": "0"}, "must be a whole number from 1"),
        ({"versionAsOf": "1"}, "is not an option"),
        ({"ignoreDelete": "true"}, "Did you mean ignoreDeletes"),
    ],
)
def test_wrong_options_are_said(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    for kind in STREAMED:
        with pytest.raises(ConfigurationError, match=problem):
            TableStream(STREAMED[kind](tmp_path), **options)


# Changes ------------------------------------------------------------------------------------------


def test_a_commit_that_deletes_is_refused_or_passed_over(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    delete(lake, 2)
    lake.append(4)
    assert stream.ids() == [3]
    with pytest.raises(
        ConfigurationError, match=r"(deletes|changes) rows.*skipChangeCommits|ignoreDeletes"
    ) as refused:
        stream.ids()
    assert "changes=true" in str(refused.value)
    assert version_before(lake, 1) in str(refused.value)
    before = list(stream.ends)
    for options in (
        {"skipChangeCommits": "true"},
        *([{"ignoreDeletes": "true"}] if lake.kind != "delta" else []),
    ):
        stream.ends, stream.options = list(before), {**lake.options, **options}
        stream.start()
        assert stream.ids() == [4]


def test_a_commit_that_only_deletes_is_told_from_one_that_changes(tmp_path: Path) -> None:
    """In Delta a deletion vector replaces a file by itself with fewer rows."""
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS, {"delta.enableDeletionVectors": "true"})
    lake.append(1, 2, 3)
    stream = TableStream(lake, ignoreDeletes="true")
    assert stream.ids() == [1, 2, 3]
    version = lake.version()
    entry = lake.folder / "_delta_log" / f"{version:020d}.json"
    added = next(json.loads(line)["add"] for line in entry.read_text().splitlines() if '"add"' in line)
    vector = {
        "storageType": "u",
        "pathOrInlineDv": "x" * 20,
        "sizeInBytes": 40,
        "cardinality": 1,
        "offset": 1,
    }
    gone = {"path": added["path"], "dataChange": True, "size": added["size"], "partitionValues": {}}

    def write(number: int, removed: dict[str, object], again: dict[str, object]) -> None:
        content = [{"remove": {**gone, **removed}}, {"add": {**added, **again}}]
        path = lake.folder / "_delta_log" / f"{version + number:020d}.json"
        path.write_text("\n".join(map(json.dumps, content)))

    write(1, {}, {"deletionVector": vector})
    assert stream.ids() is None
    write(2, {"deletionVector": vector}, {})
    with pytest.raises(
        ConfigurationError, match=rf"Version {version + 2} of the Delta table .* changes rows"
    ):
        stream.ids()


def test_an_overwrite_is_a_change(lake: Streamed) -> None:
    stream = TableStream(lake, ignoreDeletes="true")
    stream.ids()
    if isinstance(lake, DeltaLake):
        write_deltalake(str(lake.folder), ids(7), mode="overwrite")
        with pytest.raises(ConfigurationError, match="changes rows"):
            stream.ids()
    elif isinstance(lake, HudiTable):
        lake.overwrite(7)
        with pytest.raises(ConfigurationError, match="changes rows"):
            stream.ids()
    elif isinstance(lake, DuckLakeTable | LanceLake):
        lake.update("id = 7", "id = 1")
        with pytest.raises(ConfigurationError, match="changes rows"):
            stream.ids()
    else:
        lake.load().overwrite(ids(7))  # in two snapshots: one deletes, one appends
        assert stream.ids() == [7]


# Row kinds ----------------------------------------------------------------------------------------

FIXTURES = Path(__file__).parents[1] / "fixtures" / "delta"
WITHOUT_START = {"column_mapping_id", "column_mapping_name", "iceberg_compat", "variant"}
TABLES = sorted({path.name for path in FIXTURES.iterdir()} - WITHOUT_START)


@pytest.mark.parametrize("name", TABLES)
def test_changes_of_a_table_of_sparks_own_engine_add_up_to_its_rows(name: str) -> None:
    """Also with deletion vectors, and with a change data feed of its own."""
    lake = DeltaLake(FIXTURES / name)
    stream = TableStream(lake, startingVersion="0", changes="true")
    net: Counter[str] = Counter()
    while (rows := stream.next()) is not None:
        for row in rows:
            own = repr({key: value for key, value in row.items() if key not in CHANGE_COLUMNS})
            net[own] += {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}[
                row["_change_type"]
            ]
    there = reader.read("penstock.delta", path=str(lake.folder)).read_all().to_pylist()
    assert +net == Counter(map(repr, there))
    assert min(net.values(), default=0) >= 0


CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def test_rows_of_a_vector_are_read_in_every_part_of_a_file(tmp_path: Path) -> None:
    """Rows are numbered in the whole file."""
    shutil.copytree(FIXTURES / "deletion_vectors", tmp_path / "table")
    stream = TableStream(DeltaLake(tmp_path / "table"), startingVersion="0", changes="true")
    for path in (tmp_path / "table").glob("*.parquet"):
        pq.write_table(pq.read_table(path), path, row_group_size=2)
    kinds: dict[str, list[int]] = {}
    while (rows := stream.next()) is not None:
        for row in rows:
            kinds.setdefault(row["_change_type"], []).append(row["id"])
    assert sorted(kinds["insert"]) == list(range(1, 11))
    assert kinds["delete"] == [5]


def test_changes_have_the_version_and_the_time_of_their_commit(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS)
    lake.append(1, 2)
    stream = TableStream(lake, changes="true")
    first = stream.next() or []
    assert [(row["id"], row["_change_type"], row["_commit_version"]) for row in first] == [
        (1, "insert", 1),
        (2, "insert", 1),
    ]
    entry = (lake.folder / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
    at_ms = next(json.loads(line)["commitInfo"]["timestamp"] for line in entry if "commitInfo" in line)
    assert {row["_commit_timestamp"] for row in first} == {
        datetime.fromtimestamp(at_ms // 1000, timezone.utc) + timedelta(milliseconds=at_ms % 1000)
    }
    lake.load().delete("id = 1")
    assert {(row["id"], row["_change_type"], row["_commit_version"]) for row in stream.next() or []} == {
        (1, "delete", 2),
        (2, "delete", 2),
        (2, "insert", 2),
    }


def test_limits_leave_a_commit_that_changes_rows_whole(changed: Streamed) -> None:
    stream = TableStream(changed, changes="true", startingVersion="latest", maxFilesPerTrigger="1")
    assert stream.ids() == []
    changed.append(3)
    changed.append(4, 5)
    delete(changed, 4)  # Delta and Iceberg have the file written again
    last = [4] if isinstance(changed, DuckLakeTable | HudiTable | LanceLake) else [4, 5, 5]
    assert [stream.ids(), stream.ids(), stream.ids(), stream.ids()] == [[3], [4, 5], last, None]
    stream.start()
    assert ids_of(stream, 1) == [3]


def test_changes_add_up_to_the_rows(changed: Streamed) -> None:
    stream = TableStream(changed, changes="true")
    net: Counter[int] = Counter()

    def read() -> list[int]:
        while (rows := stream.next()) is not None:
            for row in rows:
                net[row["id"]] += 1 if row["_change_type"].lower() == "insert" else -1
        return sorted(net.elements())

    assert read() == [1, 2]
    changed.append(3, 4, 5)
    delete(changed, 4)
    compact(changed)
    assert read() == [1, 2, 3, 5]
    delete(changed, 1)
    if isinstance(changed, DeltaLake):
        write_deltalake(str(changed.folder), ids(7, 8), mode="overwrite")
    elif isinstance(changed, IcebergLake):
        changed.load().overwrite(ids(7, 8))
    elif isinstance(changed, HudiTable):
        changed.overwrite(7, 8)
    elif isinstance(changed, LanceLake):
        changed.overwrite(ids(7, 8))
    else:
        assert isinstance(changed, DuckLakeTable)
        changed.sql("BEGIN", "TRUNCATE events", "INSERT INTO events VALUES (7), (8)", "COMMIT")
    stream.start()
    assert read() == [7, 8]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"equality_deletes"}))
def test_changes_of_a_table_of_java_add_up_to_its_rows(name: str, tmp_path: Path) -> None:
    """Also with position deletes."""
    table = foreign_iceberg.load(name, tmp_path)
    lake = IcebergLake(tmp_path, f"foreign.{name}")
    *_, oldest = ancestors_of(table.current_snapshot(), table.metadata)
    first = str(oldest.snapshot_id)
    if table.metadata.format_version < 2:
        with pytest.raises(ConfigurationError, match=r"changes: .* has format version 1"):
            TableStream(lake, changes="true")
        return
    stream = TableStream(lake, startingVersion=first, changes="true")
    net: Counter[str] = Counter()
    while (rows := stream.next()) is not None:
        for row in rows:
            own = repr({key: value for key, value in row.items() if key not in ICEBERG_CHANGE_COLUMNS})
            net[own] += {"INSERT": 1, "DELETE": -1}[row["_change_type"]]
    there = reader.read("penstock.iceberg", lake.options).read_all().to_pylist()
    assert +net == Counter(map(repr, there))
    assert min(net.values(), default=0) >= 0


ICEBERG_CHANGE_COLUMNS = ("_change_type", "_change_ordinal", "_commit_snapshot_id")


def test_changes_can_be_conditions_and_columns(changed: Streamed) -> None:
    changed.append(3, 4)
    delete(changed, 3)
    kind = "DELETE" if isinstance(changed, IcebergLake) else "delete"
    options = {"changes": "true", "startingVersion": version_before(changed, 1)}
    gone = [3] if isinstance(changed, DuckLakeTable | HudiTable | LanceLake) else [3, 4]
    assert TableStream(changed, **options, where=f"_change_type = '{kind}'", columns="id").all_ids() == gone


def test_what_a_change_feed_cannot_do_is_said(changed: Streamed) -> None:
    with pytest.raises(ConfigurationError, match="give one of them"):
        TableStream(changed, changes="true", ignoreDeletes="true")
    changed.drop()
    changed.create(pa.schema([("_change_type", pa.string())]))
    with pytest.raises(ConfigurationError, match="has a column _change_type"):
        TableStream(changed, changes="true")


def test_a_removal_that_does_not_say_enough_is_refused(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS)
    stream = TableStream(lake, changes="true")
    stream.ids()
    entry = lake.folder / "_delta_log" / f"{1:020d}.json"
    entry.write_text(json.dumps({"remove": {"path": "x.parquet", "dataChange": True}}))
    with pytest.raises(TableNotSupportedError, match=r"the removal of x\.parquet has no size"):
        stream.ids()


# What is no longer there --------------------------------------------------------------------------


def test_a_version_that_was_cleaned_up_is_an_error(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    lake.append(4)
    clean_up(lake)
    stream.start()
    for one in (stream, TableStream(lake, startingTimestamp="2001-01-01")):
        with pytest.raises(ConfigurationError, match=r"no longer has|have (expired|been archived) in part"):
            one.ids()
    assert TableStream(lake).ids() == [1, 2, 3, 4]


def test_a_stream_that_is_up_to_date_goes_on_after_a_clean_up(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    clean_up(lake)
    stream.start()
    assert stream.ids() == [3]


def test_a_compaction_that_is_old_is_stored_as_read(lake: Streamed) -> None:
    """Else a table that is only compacted for a long time would lose the stream's place in a clean-up."""
    stream = TableStream(lake)
    stream.ids()
    compact(lake)
    assert stream.ids() is None
    stream.plan._now = lambda: datetime.now(timezone.utc) + timedelta(hours=2)
    assert stream.ids() == []
    assert stream.ids() is None


def test_a_data_file_that_was_deleted_is_an_error_that_names_it(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    for path in lake.folder.rglob("*.lance" if lake.kind == "lance" else "*.parquet"):
        if "_delta_log" not in path.parts:
            path.unlink()
    with pytest.raises(RetryableError, match=r"The data file .*(parquet|lance) of .* table .* is missing"):
        stream.ids()


def test_another_table_in_its_place_is_refused(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.recreate()
    for number in range(5):
        lake.append(number)
    with pytest.raises(ConfigurationError, match=r"is (now )?another table.*dropped and created again"):
        stream.ids()
    stream.start()
    with pytest.raises(ConfigurationError, match="is another table than the one that this query has read"):
        stream.ids()


def test_a_branch_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    lake = LAKES["iceberg"](tmp_path)
    assert isinstance(lake, IcebergLake)
    lake.create(IDS)
    lake.append(1)
    lake.append(2)
    stream = TableStream(lake)
    stream.ids()
    lake.roll_back()
    lake.append(3)
    with pytest.raises(ConfigurationError, match="it was rolled back, or replaced"):
        stream.ids()


# Schemas ------------------------------------------------------------------------------------------


def add_column(lake: Streamed) -> None:
    if isinstance(lake, IcebergLake):
        with lake.load().update_schema() as update:
            update.add_column("more", StringType())
        lake.append_rows(pa.table({"id": [4], "more": ["x"]}))
    elif isinstance(lake, DuckLakeTable | LanceLake):
        lake.add_column()
        lake.append_rows(pa.table({"id": [4], "more": ["x"]}))
    elif isinstance(lake, HudiTable):
        lake.add_column()
    else:
        write_deltalake(
            str(lake.folder), pa.table({"id": [4], "more": ["x"]}), mode="append", schema_mode="merge"
        )


def own_columns(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Without those that Hudi has."""
    return [{name: value for name, value in row.items() if "_hoodie_" not in name} for row in rows or ()]


@also_in_a_catalog
def test_a_new_column_ends_the_query_and_the_next_one_reads_it(lake: Streamed) -> None:
    stream, narrow = TableStream(lake), TableStream(lake, columns="id")
    stream.ids()
    narrow.ids()
    lake.append(3)
    add_column(lake)
    assert own_columns(stream.next()) == [{"id": 3}]
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"The schema has changed: .*'more' is new"):
            stream.next()
    stream.start()
    assert own_columns(stream.next()) == [{"id": 4, "more": "x"}]
    assert narrow.ids() == [3, 4]


def test_rows_before_a_new_column_have_null_there(lake: Streamed) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append(3)
    add_column(lake)
    stream.start()
    assert own_columns(stream.next()) == [{"id": 3, "more": None}, {"id": 4, "more": "x"}]


def test_a_type_that_is_another_ends_the_query(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS)
    first, late = TableStream(lake), TableStream(lake, skipChangeCommits="true")
    first.ids()
    late.ids()
    write_deltalake(str(lake.folder), pa.table({"id": ["a"]}), mode="overwrite", schema_mode="overwrite")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="'id' is string, and long in the stream"):
            late.ids()
        late.options = {"columns": "id"}
    stream = TableStream(lake, startingVersion="0")
    with pytest.raises(ConfigurationError, match="'id' is long, and string in the stream"):
        stream.ids()


def test_a_wider_type_ends_the_query_in_iceberg(tmp_path: Path) -> None:
    lake = LAKES["iceberg"](tmp_path)
    lake.create(pa.schema([("id", pa.int32())]))
    lake.append_rows(pa.table({"id": pa.array([1], pa.int32())}))
    stream = TableStream(lake)
    stream.ids()
    assert isinstance(lake, IcebergLake)
    with lake.load().update_schema() as update:
        update.update_column("id", LongType())
    lake.append_rows(pa.table({"id": pa.array([2**40], pa.int64())}))
    with pytest.raises(ConfigurationError, match=r"'id' is now .*long.*, and .*int.* in the stream"):
        stream.ids()
    stream.start()
    assert stream.ids() == [2**40]


def test_a_feature_that_nobody_knows_is_refused_when_it_comes(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS)
    stream = TableStream(lake)
    stream.ids()
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["new"],
        "writerFeatures": ["new"],
    }
    entry = lake.folder / "_delta_log" / f"{1:020d}.json"
    entry.write_text(json.dumps({"protocol": protocol}))
    with pytest.raises(TableNotSupportedError, match="table feature 'new'"):
        stream.ids()


DAMAGED = ('{"add": {"path": 1}}', '{"add": ', '{"add": 1}', "[1]", "[" * 100_000)


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_entry_is_an_error_that_names_the_version(content: str, tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(IDS)
    stream = TableStream(lake)
    stream.ids()
    (lake.folder / "_delta_log" / f"{1:020d}.json").write_text(content)
    with pytest.raises(TableNotSupportedError, match="The entry of version 1 in the log"):
        stream.ids()


def test_files_keep_the_values_of_the_partitioning_that_they_were_written_with(tmp_path: Path) -> None:
    """A condition on a column that is no partition column in older versions must not skip their files."""
    rows = pa.table({"id": [1, 2], "kind": ["a", "b"]})
    write_deltalake(tmp_path / "table", rows)
    DeltaTable(tmp_path / "table").delete()
    write_deltalake(
        tmp_path / "table", rows, partition_by=["kind"], mode="overwrite", schema_mode="overwrite"
    )
    lake = DeltaLake(tmp_path / "table")
    stream = TableStream(lake, startingVersion="0", skipChangeCommits="true", where="kind = 'a'")
    assert stream.all_ids() == [1, 1]
