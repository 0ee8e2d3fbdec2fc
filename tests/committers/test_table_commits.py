"""Commits of concurrent drivers and writers, and plans, for file tables of both formats."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakes import LAKES, LakeTable, rows
from tests.support.query import Query
from tests.support.race import race
from tests.support.streams import SCHEMA, VIEWS, TableStream, stream_of

from penstock.committers.contract import Committed, Conflict, Mode
from penstock.committers.errors import ConfigurationError
from penstock.committers.store.sql import open_store_in_memory
from penstock.testing.faults import at_point

WIDER = pa.schema([*SCHEMA, ("note", pa.int32())])


@pytest.fixture(params=[*(f"delta, {snapshot_cache}" for snapshot_cache in sorted(VIEWS)), "iceberg"])
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> TableStream:
    kind, _, snapshot_cache = request.param.partition(", ")
    return stream_of(kind, tmp_path, snapshot_cache)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_version_taken_between_load_and_commit_is_a_conflict(stream: TableStream, mode: Mode) -> None:
    """The rows of the other writer stay, unless the next attempt overwrites them."""
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], mode=mode)
    with at_point("commit.start", lambda: stream.lake.append(100)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.ids() == [1, 100]
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == ([1, 2, 100] if mode == "append" else [2])


@pytest.mark.parametrize("schema", [SCHEMA, WIDER], ids=["same columns", "new column"])
def test_a_concurrent_driver_that_commits_first_is_noticed(stream: TableStream, schema: pa.Schema) -> None:
    """The check and the commit use one handle: a token that is committed in between is a conflict."""
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], schema=schema, evolve=True)
    point = "evolve.done" if stream.lake.kind == "delta" and schema is WIDER else "commit.start"
    with at_point(point, lambda: stream.committer().commit(manifest)):
        assert not isinstance(stream.committer().commit(manifest), Conflict)
    assert rows(stream.lake, schema.names[-1]) == [(None,), (None,)]
    assert stream.ids() == [1, 2]
    assert [batch_id for _, batch_id, _ in stream.lake.tokens()] == [0, 1]


@pytest.mark.parametrize("kind", LAKES)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_of_two_processes_with_one_manifest_exactly_one_commits(
    tmp_path: Path, kind: str, mode: Mode
) -> None:
    stream = stream_of(kind, tmp_path)
    new_committer, arguments = stream.committer_arguments()
    manifests = [stream.prepare(batch_id, [batch_id], mode=mode) for batch_id in range(4)]
    race(partial(new_committer, *arguments), manifests)
    assert stream.ids() == (list(range(4)) if mode == "append" else [3])
    assert stream.lake.versions() - stream.lake.versions_when_new == 4


# Plans ------------------------------------------------------------------------------------------------


def test_no_table_is_created_where_that_is_not_allowed(lake: LakeTable) -> None:
    with pytest.raises(ConfigurationError, match="createTable=false"):
        Query(lake).with_options(createTable="false").plan_of(0)
    assert not lake.exists
    assert not lake.folder.exists()


@pytest.mark.parametrize("kind", LAKES)
def test_of_many_that_create_a_table_all_use_the_same(kind: str, tmp_path: Path) -> None:
    """With its usual retries the Delta library would let the loser create the table under another id."""
    for number in range(20 if kind == "delta" else 5):
        query, start = Query(LAKES[kind](tmp_path / str(number))), threading.Barrier(4)

        def plan(query: Query = query, start: threading.Barrier = start) -> str:
            start.wait()
            table_id: str = query.plan_of(0).targets[0].content.table_id
            return table_id

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(plan) for _ in range(4)]
        assert len({future.result() for future in futures}) == 1
        assert query.lake.versions() == query.lake.versions_when_new


def test_columns_are_matched_by_name_in_any_order_and_case(lake: LakeTable) -> None:
    """Nullable columns that the rows do not have are NULL."""
    query = Query(lake)
    batches = (
        pa.table({"id": [1], "name": ["a"]}, schema=SCHEMA),
        pa.table({"NAME": ["b"], "Id": [2]}),
        pa.table({"id": [3]}),
    )
    with open_store_in_memory() as store:
        for batch_id, batch in enumerate(batches):
            query.run(store, query.batch(batch_id), batch)
    assert lake.rows("id, name") == [(1, "a"), (2, "b"), (3, None)]
