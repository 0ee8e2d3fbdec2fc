"""New fields inside of columns: added, or refused with advice that helps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.ducklakes import sqlite_lake
from tests.support.files import FilesHarness
from tests.support.hudi import HudiLake
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.lance_table import LanceHarness

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query

TABLES: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "delta": (lambda folder: DeltaLake(folder / "table"), True),
    "ducklake": (sqlite_lake, False),
    "files": (FilesHarness, False),
    "hudi": (HudiLake, False),
    "iceberg": (IcebergLake, True),
    "lance": (LanceHarness, False),
}
"""Each kind of table, and whether addColumns adds fields of structs."""

NARROW = pa.table({"id": [1], "s": [{"a": 1}]})
WIDE = pa.table({"id": [2], "s": [{"a": 1, "b": "x"}]})
ADVICE = ("would add it", "add it with the option", "Set schemaEvolution")


def problem_of(query: Query, store: SqlManifestStore) -> str:
    """What the query with the new field ends in; empty if the field is added."""
    try:
        query.run(store, query.batch(1), WIDE)
    except SchemaMismatchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("option", ["none", "addColumns"])
@pytest.mark.parametrize("kind", TABLES)
def test_add_columns_is_only_advised_where_it_helps(
    tmp_path: Path, store: SqlManifestStore, kind: str, option: str
) -> None:
    make, adds_fields = TABLES[kind]
    query = Query(make(tmp_path), options={"schemaEvolution": option}, store=store)
    query.run(store, query.batch(0), NARROW)
    problem = problem_of(query, store)
    is_added = adds_fields and option == "addColumns"
    assert (problem == "") == is_added
    assert any(words in problem for words in ADVICE) == (adds_fields and not is_added), problem


def test_fields_of_the_keys_of_a_map_are_never_added(tmp_path: Path, store: SqlManifestStore) -> None:
    query = Query(IcebergLake(tmp_path), options={"schemaEvolution": "addColumns"}, store=store)

    def rows(key: dict[str, int]) -> pa.Table:
        kind = pa.map_(pa.struct([(name, pa.int64()) for name in key]), pa.int64())
        return pa.table({"m": pa.array([[(key, 1)]], kind)})

    query.run(store, query.batch(0), rows({"a": 1}))
    with pytest.raises(
        SchemaMismatchError, match=r"no column 'm.key.b', and schemaEvolution=addColumns adds none"
    ):
        query.run(store, query.batch(1), rows({"a": 1, "b": 2}))
