"""Vectors and other types in Lance tables, through the whole path of a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from tests.support.lance_table import LanceHarness
from tests.support.values import VALUES

from penstock.committers.errors import (
    ConfigurationError,
    PenstockError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query, committables

LENGTH, ROWS = 16, 512
FLOATS = pa.list_(pa.float32())


@pytest.fixture
def harness(tmp_path: Path) -> LanceHarness:
    return LanceHarness(tmp_path)


def documents(ids: range, seed: int) -> pa.Table:
    """Rows with vectors as Spark sends them: arrays of floats."""
    numbers = np.random.default_rng(seed).random((len(ids), LENGTH), np.float32)
    return pa.table({"id": pa.array(ids, pa.int64()), "embedding": pa.array(list(numbers), FLOATS)})


def vectors(values: list[Any], data_type: pa.DataType = FLOATS) -> pa.Table:
    return pa.table({"id": pa.array(range(len(values)), pa.int64()), "e": pa.array(values, data_type)})


# Search -------------------------------------------------------------------------------------------------


def test_a_search_with_an_index_finds_rows_before_and_after_it(
    harness: LanceHarness, store: SqlManifestStore
) -> None:
    query = Query(harness, options={"vectors": f"embedding:{LENGTH}"}, store=store)
    old, new = documents(range(ROWS), 1), documents(range(ROWS, 2 * ROWS), 2)
    query.run(store, query.batch(0), old)
    harness.table().create_index("embedding", "IVF_PQ", num_partitions=4, num_sub_vectors=4)
    query.run(store, query.batch(1), new)

    for rows in (old, new):
        wanted = rows["embedding"][7].as_py()
        search = {"column": "embedding", "q": wanted, "k": 1, "nprobes": 4, "refine_factor": 10}
        found = harness.table().to_table(nearest=search)
        assert found["id"].to_pylist() == [rows["id"][7].as_py()]
    (index,) = harness.table().describe_indices()
    assert harness.table().stats.index_stats(index.name)["num_unindexed_rows"] == ROWS

    harness.table().optimize.optimize_indices()
    query.run(store, query.batch(2), documents(range(2 * ROWS, 2 * ROWS + 1), 3))
    assert harness.table().stats.index_stats(index.name)["num_unindexed_rows"] == 1


# Vectors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("element", ["float16", "float32", "float64"])
@pytest.mark.parametrize("given", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_arrays_become_vectors_of_the_asked_type(
    harness: LanceHarness, store: SqlManifestStore, element: str, given: pa.DataType, file_version: str
) -> None:
    options = {"vectors": f"E : 2:{element}", "fileVersion": file_version}
    query = Query(harness, options=options, store=store)
    rows = [None, [1.5, -2.0], [0.25, 4.0], None, None, [float("inf"), 0.0]]
    table = vectors(rows, pa.list_(given))
    query.run(store, query.batch(0), table.slice(0, 3), table.slice(3))
    later = Query(harness, store=store)
    later.run(store, later.batch(1), vectors([[7.0, 8.0]], pa.list_(given)))

    read = harness.table().to_table()
    assert read.schema.field("e").type == pa.list_(pa.type_for_alias(element), 2)
    assert read["e"].to_pylist() == [*rows, [7.0, 8.0]]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([[1.0, 2.0], [1.0]], "an array has 1 elements, and the vectors of the table have 2"),
        ([[1.0, 2.0], []], "an array has 0 elements"),
        ([[1.0, None]], "an element is NULL"),
        ([[1.0, 70_000.0]], "a number is too large for halffloat"),
    ],
)
def test_a_vector_that_does_not_fit_ends_the_task(
    harness: LanceHarness, store: SqlManifestStore, values: list[Any], problem: str
) -> None:
    query = Query(harness, options={"vectors": "e:2:float16"}, store=store)
    plan = query.plan(store, query.batch(0), vectors([]).schema)
    with pytest.raises(SchemaMismatchError, match=f"Column e: {problem}"):
        query.write(plan, [vectors(values)])
    assert not harness.uncommitted()


def test_vectors_that_do_not_fit_become_dead_letters(harness: LanceHarness, store: SqlManifestStore) -> None:
    query = Query(harness, options={"vectors": "e:2", "badRows": "drop"}, store=store)
    values = [[1.0, 2.0], [1.0], [3.0, 4.0], None, [1.0, None]]
    messages = query.run(store, query.batch(0), vectors(values))

    assert harness.table().to_table()["id"].to_pylist() == [0, 2, 3]
    assert [one.rows for one in committables(messages)] == [5]


@pytest.mark.parametrize(
    ("text", "data_type", "error", "problem"),
    [
        ("f:2", FLOATS, ConfigurationError, "vectors names f, but the query has the columns id, e"),
        ("e:2", pa.list_(pa.int32()), SchemaMismatchError, "e: vectors are made of array<float>"),
        ("e:2", pa.string(), SchemaMismatchError, "e: vectors are made of array<float>"),
        ("e:3", FLOATS, SchemaMismatchError, "e: vectors asks for .*3.*, and the table has .*2"),
        ("e:2:float16", FLOATS, SchemaMismatchError, "e: vectors asks for .*halffloat"),
    ],
)
def test_vectors_that_the_query_or_the_table_do_not_have_are_refused(
    harness: LanceHarness,
    store: SqlManifestStore,
    text: str,
    data_type: pa.DataType,
    error: type[PenstockError],
    problem: str,
) -> None:
    harness.create(pa.schema([("id", pa.int64()), ("e", pa.list_(pa.float32(), 2))]).empty_table())
    query = Query(harness, options={"vectors": text}, store=store)
    with pytest.raises(error, match=problem):
        query.plan(store, query.batch(0), pa.schema([("id", pa.int64()), ("e", data_type)]))


@pytest.mark.parametrize("text", ["e", "e:0", "e:x", "e:2:float8", "e:70000", "e:2, E:3", ":2"])
def test_an_option_that_is_no_list_of_vectors_is_refused(harness: LanceHarness, text: str) -> None:
    with pytest.raises(ConfigurationError, match="vectors="):
        Query(harness, options={"vectors": text}).sink()


def test_a_column_of_vectors_is_added_later(harness: LanceHarness, store: SqlManifestStore) -> None:
    first = Query(harness, store=store)
    first.run(store, first.batch(0), pa.table({"id": pa.array([9], pa.int64())}))
    query = Query(harness, options={"vectors": "e:2", "schemaEvolution": "addColumns"}, store=store)
    query.run(store, query.batch(1), vectors([[1.0, 2.0]]))

    assert harness.table().to_table().to_pydict() == {"id": [9, 0], "e": [None, [1.0, 2.0]]}


def test_a_required_vector_must_not_be_null(harness: LanceHarness, store: SqlManifestStore) -> None:
    required = pa.field("e", pa.list_(pa.float32(), 2), nullable=False)
    harness.create(pa.schema([pa.field("id", pa.int64()), required]).empty_table())
    query = Query(harness, store=store)
    query.run(store, query.batch(0), vectors([[1.0, 2.0]]))
    with pytest.raises(SchemaMismatchError, match="declares it NOT NULL"):
        query.run(store, query.batch(1), vectors([None]))
    assert harness.table().to_table()["e"].to_pylist() == [[1.0, 2.0]]


# Other types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_version", ["2.0", "2.1", "2.2"])
def test_each_type_is_read_back_as_it_was_written_or_refused(
    harness: LanceHarness, store: SqlManifestStore, file_version: str
) -> None:
    refused = []
    for number, (name, (data_type, values)) in enumerate(VALUES.items()):
        place = LanceHarness(harness.path.parent / str(number))
        query = Query(place, f"q{number}", {"fileVersion": file_version}, store=store)
        rows = pa.table({"x": pa.array(values, data_type)})
        try:
            query.run(store, query.batch(0), rows, rows)
        except TableNotSupportedError:
            refused.append(name)
            continue
        read = lance.dataset(str(place.path)).to_table()
        assert read["x"].to_pylist() == [*values, *values], name
        assert read.schema.field("x").type == data_type, name

    nested = [name for name in VALUES if "struct" in name or "map" in name]
    maps = [name for name in VALUES if "map" in name]
    assert refused == {"2.0": nested, "2.1": maps, "2.2": []}[file_version]
