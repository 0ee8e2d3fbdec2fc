"""What streams of Lance tables have of their own: what an operation does to rows follows from two versions,
and a mark of a version stands for the id that tables do not have. `test_streams` has what all formats have in
common.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation as Operation
from tests.support.lance_lake import LanceLake
from tests.support.table_streams import TableStream

from penstock import ConfigurationError, RetryableError, TableNotSupportedError
from penstock.committers.lance.maintenance import compact
from penstock.readers.lance import history, scan
from penstock.readers.lance.table import open_version, time_of

NUMBERED = pa.schema([("id", pa.int64()), ("n", pa.int64())])


CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def numbered(*numbers: int) -> pa.Table:
    return pa.table({"id": numbers, "n": numbers}, schema=NUMBERED)


@pytest.fixture(params=[False, True], ids=["", "stable row ids"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LanceLake:
    """A table with four rows in two fragments."""
    made = LanceLake(tmp_path / "table", stable_row_ids=request.param)
    made.create(NUMBERED)
    made.append_rows(numbered(1, 2))
    made.append_rows(numbered(3, 4))
    return made


def upsert(table: lance.LanceDataset) -> None:
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(numbered(4, 5))


def insert_missing(table: lance.LanceDataset) -> None:
    table.merge_insert("id").when_not_matched_insert_all().execute(numbered(4, 5))


def delete_by_source(table: lance.LanceDataset) -> None:
    builder = table.merge_insert("id").when_not_matched_by_source_delete()
    builder.when_not_matched_insert_all().execute(numbered(1, 2, 3))


def merge_with_new(table: lance.LanceDataset, *numbers: int) -> None:
    """As Penstock commits."""
    (new,) = lance.fragment.write_fragments(numbered(*(numbers or (5,))), table, mode="append")
    kept = [one.metadata for one in table.get_fragments()]
    commit(table, Operation.Merge([*kept, new], table.schema, preserves_nullability=True))


def commit(table: lance.LanceDataset, operation: Operation.BaseOperation) -> None:
    lance.LanceDataset.commit(table, lance.Transaction(table.version, operation))


def replace_file(table: lance.LanceDataset) -> None:
    (new,) = lance.fragment.write_fragments(numbered(7, 8), table, mode="append")
    first = table.get_fragments()[0].fragment_id
    commit(table, Operation.DataReplacement([Operation.DataReplacementGroup(first, new.files[0])]))


def build_indices(table: lance.LanceDataset) -> None:
    table.create_scalar_index("id", "BTREE")
    lance.write_dataset(numbered(5), table.uri, mode="append")
    lance.dataset(table.uri).optimize.optimize_indices()


def compact_indexed(table: lance.LanceDataset) -> None:
    table.create_scalar_index("id", "BTREE")
    lance.dataset(table.uri).optimize.compact_files()


def overwrite(table: lance.LanceDataset) -> None:
    lance.write_dataset(numbered(5), table.uri, mode="overwrite")


def restore_second(table: lance.LanceDataset) -> None:
    table.checkout_version(2).restore()  # type: ignore[no-untyped-call]


OPERATIONS: dict[str, tuple[Callable[[lance.LanceDataset], object], list[int] | str | None]] = {
    "rows are merged that are not there": (insert_missing, [5]),
    "fragments are committed with all others": (merge_with_new, [5]),
    "indices are built": (build_indices, [5]),
    "a compaction of a table with an index": (compact_indexed, None),
    "settings": (lambda table: table.update_config({"a": "b"}), None),
    "a tag": (lambda table: table.tags.create("t", table.version), None),
    "a compaction": (lambda table: table.optimize.compact_files(), None),
    "a column that is not read": (lambda table: table.add_columns({"z": "n * 2"}), None),
    "a deletion of nothing": (lambda table: table.delete("id = 77"), None),
    "a deletion": (lambda table: table.delete("id = 1"), "deletes rows"),
    "a deletion of a fragment": (lambda table: table.delete("id < 3"), "deletes rows"),
    "a deletion by what is merged": (delete_by_source, "deletes rows"),
    "an update": (lambda table: table.update({"n": "0"}, where="id = 4"), "changes rows"),
    "an upsert": (upsert, "changes rows"),
    "an overwrite": (overwrite, "changes rows"),
    "a restore": (restore_second, "deletes rows"),
    "a file that is replaced": (replace_file, "changes rows"),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_what_it_does_to_rows(name: str, lake: LanceLake) -> None:
    operation, expected = OPERATIONS[name]
    stream = TableStream(lake, columns="id, n")
    assert stream.ids() == [1, 2, 3, 4]
    operation(lake.load())
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=f"Version {lake.version()} of the .* {expected}"):
            stream.ids()
    else:
        assert stream.ids() == expected


def test_rows_that_come_back_are_not_new(lake: LanceLake) -> None:
    """Restored fragments look like appended ones."""
    stream = TableStream(lake)
    stream.ids()
    with_rows = lake.version()
    lake.load().delete("id > 2")
    passing = TableStream(lake, startingVersion="latest")
    assert passing.ids() == []
    lake.load().checkout_version(with_rows).restore()  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigurationError, match="changes rows"):
        passing.ids()
    stream.options = {**lake.options, "skipChangeCommits": "true"}
    stream.start()
    lake.append_rows(numbered(9))
    assert stream.ids() == [9]


def test_rows_that_no_known_operation_added_are_refused(lake: LanceLake) -> None:
    stream = TableStream(lake)
    stream.ids()
    lake.append_rows(numbered(5))
    unknown = lance.Transaction(lake.version(), Operation.BaseOperation())
    for found in (None, unknown):
        with (
            mock.patch.object(lance.LanceDataset, "read_transaction", lambda *_, found=found: found),
            pytest.raises(TableNotSupportedError, match=f"Version {lake.version()} of .* does not say which"),
        ):
            stream.ids()
        stream.start()


def test_a_rewrite_with_other_rows_is_a_change(tmp_path: Path) -> None:
    lake = LanceLake(tmp_path / "table")
    lake.create(NUMBERED)
    lake.append_rows(numbered(1, 2, 3, 4))
    stream = TableStream(lake)
    stream.ids()
    table = lake.load()
    (new,) = lance.fragment.write_fragments(numbered(1, 2, 3), table, mode="append")
    old = [one.metadata for one in table.get_fragments()]
    commit(table, Operation.Rewrite([Operation.RewriteGroup(old, [new])], []))
    with pytest.raises(ConfigurationError, match="changes rows"):
        stream.ids()


def test_rows_are_those_of_the_version_that_added_them(lake: LanceLake) -> None:
    """Also if they are deleted or compacted later."""
    stream = TableStream(lake, startingVersion="latest", ignoreDeletes="true")
    stream.ids()
    lake.append_rows(numbered(5, 6))
    lake.append_rows(numbered(7, 8))
    lake.load().delete("id IN (6, 7, 8)")
    lake.append_rows(numbered(9))
    assert stream.ids() == [5, 6, 7, 8, 9]
    lake.append_rows(numbered(10))
    lake.compact()
    assert stream.ids() == [10]
    stream.start()
    assert [sorted(row["id"] for row in stream.read(number)) for number in (1, 2)] == [[5, 6, 7, 8, 9], [10]]


def test_fragments_without_rows_that_are_compacted_are_no_deletion(lake: LanceLake) -> None:
    stream = TableStream(lake, ignoreDeletes="true")
    stream.ids()
    table = lake.load()
    fragment = table.get_fragments()[0]
    assert fragment.delete("id = 1") is not None
    lake.load().delete("id = 1")
    lake.compact()
    assert compact(str(lake.folder), {}, 1024) == ""
    lake.append_rows(numbered(5))
    assert stream.ids() == [5]


def test_a_version_is_opened_once_and_few_for_the_rows(lake: LanceLake) -> None:
    stream = TableStream(lake)
    stream.ids()
    for number in range(10, 20):
        lake.append_rows(numbered(number))
    with mock.patch.object(history, "open_version", wraps=open_version) as planned:
        with mock.patch.object(scan, "open_version", wraps=open_version) as read:
            assert stream.ids() == list(range(10, 20))
    assert planned.call_count == 11
    assert read.call_count == 1


# Identity -----------------------------------------------------------------------------------------


def test_an_empty_table_in_the_place_of_an_empty_one_is_refused(tmp_path: Path) -> None:
    lake = LanceLake(tmp_path / "table")
    lake.create(NUMBERED)
    stream = TableStream(lake)
    assert stream.ids() == []
    lake.recreate()
    lake.append(1)
    with pytest.raises(ConfigurationError, match="is another table than the one"):
        stream.ids()


def test_a_copy_that_was_put_in_place_of_the_table_is_refused(lake: LanceLake, tmp_path: Path) -> None:
    """It has the versions up to some number, and others after that."""
    shutil.copytree(lake.folder, tmp_path / "copy")
    lake.append_rows(numbered(5))
    stream = TableStream(lake, skipChangeCommits="true")
    assert stream.ids() == [1, 2, 3, 4, 5]
    shutil.rmtree(lake.folder)
    shutil.copytree(tmp_path / "copy", lake.folder)
    with pytest.raises(ConfigurationError, match="restored from a copy"):
        stream.ids()
    lake.append_rows(numbered(6))
    lake.append_rows(numbered(7))
    with pytest.raises(ConfigurationError, match="restored from a copy"):
        stream.ids()


def test_a_table_that_was_created_again_before_a_batch_is_read_is_an_error(lake: LanceLake) -> None:
    stream = TableStream(lake)
    end = stream.plan.end_of_batch(None)
    files = list(stream.plan.files(None, end))
    shutil.rmtree(lake.folder)
    lake.create(NUMBERED)
    for number in (1, 3):
        lake.append_rows(numbered(number, number + 1))
    with pytest.raises(RetryableError, match="the table was created again"):
        list(stream.table.scan().read(files))


def test_a_dropped_table_is_an_error(lake: LanceLake) -> None:
    stream = TableStream(lake)
    shutil.rmtree(lake.folder)
    with pytest.raises(ConfigurationError, match="was dropped"):
        stream.ids()


@pytest.mark.parametrize("name", [name for name, (_, rows) in OPERATIONS.items() if rows == [5]])
def test_a_version_that_was_read_may_be_cleaned_up_before_the_next(name: str, lake: LanceLake) -> None:
    stream = TableStream(lake)
    stream.ids()
    last = lake.version()
    OPERATIONS[name][0](lake.load())
    lake.load().cleanup_old_versions(versions=list(range(1, last + 1)))
    assert stream.ids() == [5]


def test_a_deletion_after_a_version_that_was_cleaned_up_is_an_error(lake: LanceLake) -> None:
    stream = TableStream(lake, ignoreDeletes="true")
    stream.ids()
    last = lake.version()
    lake.load().delete("id = 1")
    lake.append_rows(numbered(5))
    lake.load().cleanup_old_versions(versions=list(range(1, last + 1)))
    with pytest.raises(ConfigurationError, match=f"no longer has version {last}, which"):
        stream.ids()


def test_the_first_version_that_is_left_cannot_be_the_first_of_a_query(lake: LanceLake) -> None:
    """What it adds cannot be known."""
    lake.expire()
    lake.append_rows(numbered(5))
    version = lake.version()
    assert TableStream(lake, startingVersion=str(version)).ids() == [5]
    for option in ({"startingVersion": str(version - 1)}, {"startingTimestamp": "2001-01-01"}):
        with pytest.raises(ConfigurationError, match=r"no longer has (version|its versions)"):
            TableStream(lake, **option).ids()


# Columns ------------------------------------------------------------------------------------------


def test_columns_that_others_rename_or_cast_end_the_query(lake: LanceLake) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"path": "n", "name": "m"}, "'m' is now m int64, and n int64 in the stream"),
        ({"path": "m", "data_type": pa.int32()}, "'m' is now m int32, and m int64 in the stream"),
    ]
    for change, problem in changes:
        stream, narrow = TableStream(lake), TableStream(lake, columns="id")
        stream.ids()
        narrow.ids()
        lake.alter(**change)
        with pytest.raises(ConfigurationError, match=f"The schema has changed: .*{problem}"):
            stream.ids()
        lake.append_rows(pa.table({"id": [9], "m": pa.array([9], change.get("data_type", pa.int64()))}))
        assert narrow.ids() == [9]
        stream.start()
        assert stream.ids() == [9]


def test_rows_from_before_a_column_got_another_name_are_refused(lake: LanceLake) -> None:
    version = str(lake.version())
    lake.alter(path="n", name="m")
    with pytest.raises(ConfigurationError, match="'n' is now n int64, and m int64 in the stream"):
        TableStream(lake, startingVersion=version).ids()
    assert TableStream(lake, startingVersion=version, columns="id").ids() == [3, 4]


def test_rows_that_were_there_have_their_columns_or_are_refused(lake: LanceLake) -> None:
    stream = TableStream(lake, maxFilesPerTrigger="1")
    assert stream.ids() == [1, 2]
    lake.alter(path="n", name="m")
    stream.start()
    with pytest.raises(ConfigurationError, match="'n' is now n int64, and m int64 in the stream"):
        stream.ids()
    stream.options = {**lake.options, "columns": "id"}
    stream.start()
    assert stream.ids() == [3, 4]


def test_columns_have_the_values_of_their_version(lake: LanceLake) -> None:
    """A new column gets values for rows that were read before, and a dropped one's id may be used again."""
    stream = TableStream(lake, startingVersion=str(lake.version()))
    lake.load().add_columns({"z": "n * 2"})
    lake.append_rows(pa.table({"id": [5], "n": [5], "z": [50]}))
    stream.start()
    assert stream.next() == [
        {"id": 3, "n": 3, "z": None},
        {"id": 4, "n": 4, "z": None},
        {"id": 5, "n": 5, "z": 50},
    ]
    gone = TableStream(lake, startingVersion="latest", where="z > 0 OR id > 0")
    gone.ids()
    lake.append_rows(pa.table({"id": [6], "n": [6], "z": [60]}))
    lake.load().drop_columns(["z"])
    lake.append_rows(numbered(7))
    assert gone.next() == [{"id": 6, "n": 6, "z": 60}, {"id": 7, "n": 7, "z": None}]


def test_a_column_with_the_id_of_a_dropped_one_is_another(lake: LanceLake) -> None:
    lake.load().add_columns({"z": "n * 2"})
    version = str(lake.version())
    stream = TableStream(lake, startingVersion=version)
    assert stream.ids() == []
    lake.append_rows(pa.table({"id": [5], "n": [5], "z": [50]}))
    lake.load().delete("id = 5")
    lake.load().drop_columns(["z"])
    lake.load().add_columns({"w": "'text'"})
    assert stream.next() == [{"id": 5, "n": 5, "z": 50}]
    again = TableStream(lake, startingVersion=version)
    with pytest.raises(ConfigurationError, match="'z' is now z int64, and w string NOT NULL in the stream"):
        again.ids()


def test_a_column_that_is_not_read_may_change(lake: LanceLake) -> None:
    stream = TableStream(lake, columns="id")
    stream.ids()
    lake.load().add_columns({"z": "n * 2"})
    lake.load().drop_columns(["n"])
    lake.append_rows(pa.table({"id": [5], "z": [5]}))
    assert stream.next() == [{"id": 5}]


# Row kinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_changes_of_an_operation_add_up_to_the_rows(name: str, lake: LanceLake) -> None:
    stream = TableStream(lake, changes="true", columns=", ".join(["id", "n", *CHANGE_COLUMNS]))
    stream.next()
    before, version = lake.load().to_table(columns=["id", "n"]).to_pylist(), lake.version()
    OPERATIONS[name][0](lake.load())
    net = Counter(map(repr, before))
    for row in stream.next() or []:
        kind, at = row.pop("_change_type"), row.pop("_commit_version")
        assert version < at <= lake.version()
        assert row.pop("_commit_timestamp") == time_of(lake.load().checkout_version(at).get_version())
        net[repr(row)] += {"insert": 1, "delete": -1}[kind]
    assert +net == Counter(map(repr, lake.load().to_table(columns=["id", "n"]).to_pylist()))
    assert min(net.values()) >= 0


# Random histories ---------------------------------------------------------------------------------


class History:
    """A random history of a table, and the rows that a stream has to have."""

    def __init__(self, lake: LanceLake, chance: random.Random, *, changes: bool) -> None:
        self.lake, self.chance, self.changes = lake, chance, changes
        self.added: list[int] = []
        """By versions that only add rows."""
        self._next = 0

    def live(self) -> list[int]:
        return sorted(self.lake.load().to_table(columns=["id"])["id"].to_pylist())

    def step(self) -> None:
        table, live = self.lake.load(), self.live()
        kinds = ["append"] * 4 + ["insert missing", "compact", "index", "settings", "as penstock"]
        more = ["delete", "update", "upsert", "overwrite", "restore", "delete and insert"]
        kind = self.chance.choice([*kinds, *(more if self.changes else [])])
        new = list(range(self._next, self._next + self.chance.choice([1, 3, 30])))
        some = self.chance.sample(live, min(len(live), self.chance.choice([1, 2, 15])))
        listed = f"id IN ({', '.join(map(str, some or [-1]))})"
        if kind in ("append", "insert missing", "as penstock"):
            self._next += len(new)
            self.added += new
        if kind == "append":
            self.lake.append_rows(numbered(*new))
        elif kind == "insert missing":
            table.merge_insert("id").when_not_matched_insert_all().execute(numbered(*new, *some))
        elif kind == "as penstock":
            merge_with_new(table, *new)
        elif kind == "delete":
            table.delete(listed)
        elif kind == "update":
            table.update({"n": "n + 1"}, where=listed)
        elif kind == "upsert" and some:
            self._next += len(new)
            merging = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merging.execute(numbered(*new, *some))
        elif kind == "overwrite" and self.chance.random() < 0.2:
            self._next += len(new)
            self.lake.overwrite(numbered(*new))
        elif kind == "restore" and self.chance.random() < 0.2:
            table.checkout_version(self.chance.randint(1, table.version)).restore()  # type: ignore[no-untyped-call]
        elif kind == "index":
            table.create_scalar_index("id", "BTREE", replace=True)
        elif kind == "settings":
            table.update_config({"n": str(self._next)})
        else:
            table.optimize.compact_files(target_rows_per_fragment=self.chance.choice([4, 1000]))


@pytest.mark.campaign
@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["", "stable row ids"])
@pytest.mark.parametrize("reads", ["all", "without changes", "changes"])
def test_a_random_history_is_read_once(reads: str, stable_row_ids: bool, tmp_path: Path) -> None:
    """Whatever is compacted between planning, reading and a restart. Changes add up to the rows."""
    for seed in range(20):
        chance = random.Random(seed)
        lake = LanceLake(tmp_path / str(seed), stable_row_ids=stable_row_ids)
        lake.create(NUMBERED)
        past = History(lake, chance, changes=reads != "all")
        for _ in range(chance.randrange(10)):
            past.step()
        limits = chance.choice([{}, {"maxFilesPerTrigger": "1"}, {"maxBytesPerTrigger": "1000"}])
        options = {"without changes": {"skipChangeCommits": "true"}, "changes": {"changes": "true"}}
        stream = TableStream(lake, **limits, **options.get(reads, {}))
        expected = past.live()
        past.added.clear()
        seen = [stream.next() or []]
        for _ in range(30):
            event = chance.random()
            if event < 0.6:
                past.step()
            elif event < 0.7:
                stream.start()
            elif event < 0.8:
                assert [stream.read(number) for number in range(len(seen))] == seen, seed
            elif (rows := stream.next()) is not None:
                seen.append(rows)
        while (rows := stream.next()) is not None:
            seen.append(rows)
        net: Counter[int] = Counter()
        for row in (row for rows in seen for row in rows):
            net[row["id"]] += 1 if row.get("_change_type", "insert") == "insert" else -1
        assert min(net.values(), default=0) >= 0
        found = sorted(net.elements())
        assert found == (past.live() if reads == "changes" else sorted(expected + past.added)), seed
