"""Queries with `writeMode=upsert`: their options, what tasks write, and the queries that may have them."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lakes import DeltaLake

from penstock.committers.changes import tombstones
from penstock.committers.changes.key_files import Keys
from penstock.committers.changes.tombstones import Tombstones
from penstock.committers.contract import Batch, Changes, StreamKey
from penstock.committers.delta.files import delta_files
from penstock.committers.errors import ConfigurationError, PenstockError, SchemaMismatchError
from penstock.committers.file_tables.manifest import decode
from penstock.committers.store.sql import open_store, open_store_in_memory
from penstock.datasource.changes.condition import condition
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DESTINATION, StoredDelta
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import COLUMNS, OPTIONS, changes
from penstock.writers.changes.row_kinds import KEPT


@dataclass
class Place:
    options: dict[str, str]
    destination: Any = DESTINATION


def lake_and_query(folder: Path, **options: str) -> tuple[DeltaLake, Query]:
    lake = DeltaLake(folder / "table")
    return lake, Query(Place({**lake.options, **OPTIONS, **options}))


# Options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"writeMode": "upsert"}, "keys is missing"),
        ({"writeMode": "merge"}, "must be one of append, upsert"),
        ({"keys": "id"}, "keys: only a query with writeMode=upsert has it"),
        ({"merge": "on-read"}, "merge: only a query with writeMode=upsert has it"),
        ({**OPTIONS, "dropColumns": "ID"}, "dropColumns contains id of keys"),
        ({**OPTIONS, "orderBy": ""}, "orderBy="),
        ({"writeMode": "upsert", "keys": "id", "lateRows": "ignore"}, "lateRows=ignore needs orderBy"),
        ({**OPTIONS, "lateRows": "ignore", "dropColumns": "n"}, "dropColumns contains n of orderBy"),
        ({**OPTIONS, "tombstonesFor": "7d"}, "only a query with lateRows=ignore"),
        ({**OPTIONS, "routeBy": "op", "path": "/t/{op}"}, "with routeBy is not supported"),
        ({"updateColumns": "given"}, "updateColumns: only a query with writeMode=upsert has it"),
        ({**OPTIONS, "updateColumns": "text, ID"}, "updateColumns contains ID of keys or orderBy"),
        ({**OPTIONS, "updateColumns": ","}, "must name at least one column"),
        ({"writeMode": "upsert", "keys": "id", "history": "true"}, "history=true needs orderBy"),
        ({**OPTIONS, "history": "true", "lateRows": "ignore"}, "with lateRows=ignore is not supported"),
        ({**OPTIONS, "history": "true", "updateColumns": "given"}, "with updateColumns is not supported"),
        ({**OPTIONS, "history": "true", "validTo": "valid_from"}, "must differ from each other"),
        ({**OPTIONS, "history": "true", "isCurrent": "ID"}, "must differ from each other and from keys"),
        ({**OPTIONS, "validTo": "until"}, "validTo: only a query with history=true has it"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        DeltaOptions.parse({"path": "/t", **options})


ROWS = pa.table(
    {
        "op": ["d", "u", None],
        "n": pa.array([1, 2, None], pa.int32()),
        "gone": [True, None, False],
        "s": [{"x": "d"}, None, {"x": "u"}],
        "day": pa.array([19_000, 19_001, None], pa.int32()).cast(pa.date32()),
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("op = 'd'", [0]),
        ("OP in ('d', 'x')", [0]),
        ("op <> 'd'", [1]),
        ("not (op = 'u')", [0]),
        ("op is null", [2]),
        ("op like 'd%' or n > 1", [0, 1]),
        ("n >= 1 and n < 2", [0]),
        ("n not in (1, 5)", [1]),
        ("s.x = 'd'", [0]),
        ("day = '2022-01-08'", [0]),
        ("gone", [0]),
        ("Gone", [0]),
    ],
)
def test_a_condition_says_which_rows_delete(text: str, rows: list[int]) -> None:
    """NULL is not true. It reaches the tasks pickled."""
    expression = pickle.loads(pickle.dumps(condition(text, ROWS.schema)))
    numbered = ROWS.append_column("row", pa.array(range(3)))
    assert numbered.filter(expression)["row"].to_pylist() == rows


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("op =", "deleteWhen"),
        ("m = 1", "only the columns op, n"),
        ("n", "int32 and not boolean"),
        ("n = 1.5", "n = 1.5"),
    ],
)
def test_a_condition_that_fits_no_row_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        condition(text, ROWS.schema)


# What tasks write -----------------------------------------------------------------------------------


def test_a_task_with_more_rows_than_its_buffer_writes_several_parts(tmp_path: Path) -> None:
    """A key in two parts has one last row all the same."""
    lake, query = lake_and_query(tmp_path, bufferSize="1mb")
    rows = [(number % 3000, number, "x" * 400) for number in range(9000)]
    with open_store_in_memory() as store:
        arriving = pa.concat_tables([changes(*rows[first : first + 1500]) for first in range(0, 9000, 1500)])
        manifest = query.build(store, query.batch(0), arriving)
        assert len([file for file in decode(manifest).files if ".keys." in file.path]) > 1
        query.target().commit(manifest)
    assert sorted(lake.rows("id, n")) == [(number, 6000 + number) for number in range(3000)]


def test_rows_may_say_which_columns_they_keep(tmp_path: Path) -> None:
    """In a column beside those of the query, in addition to what the option says."""
    lake, query = lake_and_query(tmp_path)
    kept = pa.array([["text"], None, []], pa.list_(pa.string()))
    with open_store_in_memory() as store:
        query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
        rows = changes((1, 2, "unknown"), (2, 2, "B"), (3, 2, None))
        query.run(store, query.batch(1), rows.append_column(KEPT, kept))
    assert lake.rows("id, n, text") == [(1, 2, "a"), (2, 2, "B"), (3, 2, None)]


@pytest.mark.parametrize(
    ("options", "names", "problem"),
    [
        ({}, ["n"], "does not have the value of n, which the option keys or orderBy"),
        ({"history": "true"}, ["text"], "in a history the value of the version before is not known"),
    ],
)
def test_a_row_without_a_value_that_it_needs_is_refused(
    options: dict[str, str], names: list[str], problem: str, tmp_path: Path
) -> None:
    _, query = lake_and_query(tmp_path, **options)
    rows = changes((1, 1, "a")).append_column(KEPT, pa.array([names], pa.list_(pa.string())))
    with open_store_in_memory() as store, pytest.raises(SchemaMismatchError, match=problem):
        query.run(store, query.batch(0), rows)


def test_columns_are_found_whatever_their_case_is(tmp_path: Path) -> None:
    lake, query = lake_and_query(tmp_path, keys="ID", orderBy="N", dropColumns="OP", lateRows="ignore")
    with open_store_in_memory() as store:
        query.run(store, query.batch(0), changes((1, 2, "a")))
        query.run(store, query.batch(1), changes((1, 1, "b"), (2, 1, "c")))
    assert lake.rows("id, n, text") == [(1, 2, "a"), (2, 1, "c")]


def test_the_rows_of_a_waiting_batch_are_shown_without_its_keys(tmp_path: Path) -> None:
    lake, query = lake_and_query(tmp_path)
    with open_store_in_memory() as store:
        manifest = query.prepare(store, query.batch(0), changes((1, 2, "a"), (2, 1)))
        shown = list(StoredDelta(str(lake.path), {}).batch_rows(manifest, store))
        assert [row for one in shown for row in one.rows.to_pylist()] == [{"id": 1, "n": 2, "text": "a"}]


def test_a_damaged_key_file_stops_the_commit(tmp_path: Path) -> None:
    lake, query = lake_and_query(tmp_path)
    with open_store_in_memory() as store:
        manifest = query.prepare(store, query.batch(0), changes((1, 2, "a")))
        (path,) = lake.folder.glob("_penstock/*.keys.parquet")
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(PenstockError, match=r"key file .* is damaged"):
            query.target().commit(manifest)


# Tombstones -----------------------------------------------------------------------------------------


def test_tombstones_are_forgotten_after_their_time_and_merged_into_few_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tombstones, "FILES_MAX", 4)
    stream, now = StreamKey("q1", str(tmp_path)), [1_000_000.0]
    mode = Changes(("id",), ("n",), late_rows="ignore", tombstones_s=100.0)
    (tmp_path / "_delta_log").mkdir()

    def of(number: int) -> Tombstones:
        return Tombstones(delta_files(str(tmp_path), {}), Batch(stream, number, "ab"), mode, lambda: now[0])

    def late(*orders: int) -> list[int]:
        ids = pa.array(range(len(orders)), pa.int64())
        keys = Keys((ids,), (pa.array(orders, pa.int64()),), pa.repeat(pa.scalar(False), len(orders)))
        return [int(number) for number in of(99).late_keys(keys).to_pylist()]

    for number in range(7):
        key, order = pa.array([number % 3], pa.int64()), pa.array([number], pa.int64())
        one = of(number)
        one.add(Keys((key,), (order,), pa.repeat(pa.scalar(True), 1)))
        one.prune()
        now[0] += 10
    assert len(list(tmp_path.rglob("_penstock/tombstones-*/*.parquet"))) <= 4
    assert late(5, 4, 4, 0) == [0, 2]  # the newest are 6, 4 and 5
    monkeypatch.setattr(tombstones, "_indexes", {})  # another process
    assert late(5, 4, 4, 0) == [0, 2]
    now[0] += 1000
    of(8).prune()
    assert late(0, 0, 0) == []
    assert not list(tmp_path.rglob("_penstock/tombstones-*/*.parquet"))


def test_tombstones_of_earlier_batches_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, query = lake_and_query(tmp_path, lateRows="ignore")
    read: list[str] = []
    real = Tombstones._read

    def counted(self: Tombstones, name: str) -> Any:
        read.append(name)
        return real(self, name)

    monkeypatch.setattr(Tombstones, "_read", counted)
    with open_store_in_memory() as store:
        for number in range(5):
            query.run(store, query.batch(number), changes((number, 2), (9, number, "a")))
    assert len(read) == len(set(read)) == 5


def test_the_order_may_get_a_wider_type_while_batches_wait(tmp_path: Path) -> None:
    """If the table does not have its column."""
    lake, query = lake_and_query(tmp_path, delivery="decoupled", dropColumns="op, n")
    narrow = COLUMNS.set(1, pa.field("n", pa.int32()))
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")).cast(narrow))
        query.run(store, query.batch(1), changes((1, 2**40, "A")))
        deliver(store)
    assert lake.rows("id, text") == [(1, "A"), (2, "b")]


# Queries --------------------------------------------------------------------------------------------


def test_targets_of_a_fan_out_have_a_mode_each(tmp_path: Path) -> None:
    """One gets the newest rows, another all changes as they are."""
    newest, everything = DeltaLake(tmp_path / "newest"), DeltaLake(tmp_path / "everything")
    of_newest = {f"target.newest.{name}": value for name, value in {**OPTIONS, **newest.options}.items()}
    options = {
        "target.newest": "penstock.delta",
        "target.everything": "penstock.delta",
        "target.everything.path": str(everything.path),
        **of_newest,
        "store": f"sqlite:///{tmp_path}/unused.db",
    }
    place = Place(options, _fan_out())
    query = Query(place)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
        query.run(store, query.batch(1), changes((1, 2, "A"), (2, 2)))
        deliver(store)
    assert newest.rows("id, n, text") == [(1, 2, "A")]
    assert len(everything.rows("id, n, text, op")) == 4


def _fan_out() -> Any:
    return replace(DESTINATION, data_source="penstock.datasource.fanout.source:FanoutDataSource")


def test_an_equal_manifest_is_decoded_from_the_store(tmp_path: Path) -> None:
    """The mode has all that a recovery needs, in a form that older versions refuse."""
    _, query = lake_and_query(tmp_path, lateRows="ignore")
    with open_store_in_memory() as store:
        content = decode(query.prepare(store, query.batch(0), changes((1, 2, "a"))))
    assert isinstance(content.mode, Changes)
    assert (content.mode.keys, content.mode.order_by) == (("id",), ("n",))
    assert content.mode.tombstones_s == 7 * 86_400
    assert json.dumps(content.mode.delete_when) == "\"op = 'd'\""
