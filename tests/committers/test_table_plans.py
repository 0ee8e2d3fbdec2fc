"""What a batch is planned into, in both formats: the table that is created, and columns by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from tests.support.lakes import LAKES, LakeTable
from tests.support.query import Query

from penstock.committers.errors import ConfigurationError
from penstock.committers.store.sql import open_store_in_memory

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    return LAKES[request.param](tmp_path)


def test_no_table_is_created_where_that_is_not_allowed(lake: LakeTable) -> None:
    with pytest.raises(ConfigurationError, match="createTable=false"):
        Query(lake).with_options(createTable="false").plan_of(0)
    assert not lake.exists
    assert not lake.folder.exists()


@pytest.mark.parametrize("kind", LAKES)
def test_of_many_that_create_a_table_all_use_the_same(kind: str, tmp_path: Path) -> None:
    """With its usual retries the Delta library would let the loser create the table under another id."""
    for number in range(20 if kind == "delta" else 5):
        query, start = Query(LAKES[kind](tmp_path / str(number))), Barrier(4)

        def plan(query: Query = query, start: Barrier = start) -> str:
            start.wait()
            content = query.plan_of(0).content
            assert content is not None
            return content.table_id

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(plan) for _ in range(4)]
        assert len({future.result() for future in futures}) == 1
        assert query.lake.versions() == query.lake.versions_when_new


def test_columns_are_matched_by_name_in_any_order_and_case(lake: LakeTable) -> None:
    """Nullable columns that the rows do not have are NULL."""
    query = Query(lake)
    batches = (
        pa.table({"id": [1], "name": ["a"]}, schema=COLUMNS),
        pa.table({"NAME": ["b"], "Id": [2]}),
        pa.table({"id": [3]}),
    )
    with open_store_in_memory() as store:
        for batch_id, rows in enumerate(batches):
            query.run(store, query.batch(batch_id), rows)
    assert lake.rows("id, name") == [(1, "a"), (2, "b"), (3, None)]
