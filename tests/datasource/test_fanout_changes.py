"""One stream of changes into several targets, each in its own mode, in one pass over the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from servers.http_rows import HttpRows
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.support.fanouts import FanoutPlace
from tests.support.lakes import DeltaLake
from tests.support.search import SearchPlace

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.store.sql import open_store
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import OPTIONS, changes

BY_KEY = {name: value for name, value in OPTIONS.items() if name != "dropColumns"}
BATCHES: list[list[list[Any]]] = [
    [[(1, 1, "a"), (2, 1, "b"), (1, 3, "c")], [(3, 1, "d"), (1, 2)]],
    [[(2, 2)], [(3, 3, "e"), (3, 2, "f"), (9, 1)]],
]
NEWEST = [(1, 3, "c"), (3, 3, "e")]


def fanout(folder: Path, **targets: dict[str, str]) -> Query:
    """A query into these targets, a Delta table by key, and a folder of all changes."""
    all_targets = {
        "lake": {"": "penstock.delta", **DeltaLake(folder / "delta").options, **OPTIONS},
        "bucket": {"": "penstock.files", "path": str(folder / "raw"), "fileFormat": "json"},
        **targets,
    }
    given = {
        f"target.{name}.{option}".rstrip("."): value
        for name, options in all_targets.items()
        for option, value in options.items()
    }
    return Query(FanoutPlace({**given, "checkpointLocation": str(folder / "checkpoint")}))


def run(folder: Path, query: Query) -> None:
    with open_store(f"sqlite:///{folder}/store.db") as store:
        for batch_id, parts in enumerate(BATCHES):
            query.run(store, query.batch(batch_id), *(changes(*part) for part in parts))
        deliver(store)
        assert not store.streams(is_pending=True)


def check_tables(folder: Path) -> None:
    lake = DeltaLake(folder / "delta")
    assert sorted(lake.rows("id, n, text")) == NEWEST
    assert "op" not in [column.name for column in DeltaTable(f"{folder}/delta").schema().fields]
    raw = [
        json.loads(line)
        for path in (folder / "raw").rglob("*.json")
        for line in path.read_text().splitlines()
    ]
    assert sorted((row["id"], row["n"], row.get("text"), row["op"]) for row in raw) == sorted(
        (row[0], row[1], row[2] if len(row) == 3 else None, "u" if len(row) == 3 else "d")
        for parts in BATCHES
        for part in parts
        for row in part
    )


def test_each_target_has_its_own_mode(tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows]) -> None:
    """A table and a service by key, a folder and a service of all changes. The services share a row log,
    which has the columns that one of them does not get.
    """
    for server in two_http_servers:
        server.set()
        server.clear()
    by_key, events = two_http_servers
    resource = {"": "penstock.http", "url": f"{by_key.url}/{{id}}", "format": "row", "method": "PUT"}
    query = fanout(tmp_path, search={**resource, **OPTIONS}, events={"": "penstock.http", "url": events.url})
    run(tmp_path, query)

    check_tables(tmp_path)
    assert sorted((row["id"], row["n"], row["text"]) for row in by_key.resources()) == NEWEST
    assert all("op" not in row for row in by_key.resources())
    assert sorted((row["id"], row["n"], row["op"]) for row in events.rows()) == sorted(
        (row[0], row[1], "u" if len(row) == 3 else "d") for parts in BATCHES for part in parts for row in part
    )


def test_a_row_that_fits_one_mode_only_names_the_target(
    tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows]
) -> None:
    """A row without a key is one more change for the folder."""
    resource = {"": "penstock.http", "url": f"{two_http_servers[0].url}/{{id}}", "format": "row"}
    query = fanout(tmp_path, search={**resource, "method": "PUT", **OPTIONS})
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        with pytest.raises(SchemaMismatchError, match=r"Target (lake|search).*NULL in id"):
            query.run(store, query.batch(0), changes((None, 1, "a")))  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatchError, match="Two different rows"):
            query.run(store, query.batch(0), changes((1, 1, "a")), changes((1, 1, "b")))
        assert not store.streams(is_pending=True)


@pytest.mark.parametrize(
    "target",
    [
        {"": "penstock.kinesis", "stream": "s", "region": "eu-west-1"},
        {"": "penstock.files", "path": "/all", "fileFormat": "json"},
        {"": "penstock.kafka", "bootstrapServers": "h:9092", "topic": "t"},
    ],
)
def test_a_target_that_only_appends_refuses_the_mode_by_name(tmp_path: Path, target: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"(?s)Target events: .*leave writeMode out"):
        fanout(tmp_path, events={**target, **BY_KEY}).with_targets()


@pytest.mark.slow
def test_delta_files_redis_and_opensearch_each_in_its_mode(
    tmp_path: Path, redis_service: RedisServer, opensearch: OpenSearchServer
) -> None:
    place = SearchPlace.new(opensearch, "opensearch", opensearch.url)
    redis = {
        "": "penstock.redis",
        "url": redis_service.url,
        "structure": "hash",
        "key": "rows",
        "field": "{id}",
    }
    late = {**BY_KEY, "lateRows": "ignore"}
    query = fanout(
        tmp_path,
        cache={**redis, **OPTIONS},
        search={"": "penstock.opensearch", **place.options(), **late},
    )
    run(tmp_path, query)

    check_tables(tmp_path)
    assert sorted((row["id"], row["n"], row["text"]) for row in redis_service.rows()) == NEWEST
    found = {hit["_id"]: hit["_source"] for hit in opensearch.hits(place.index)}
    assert found == {str(row[0]): {"id": row[0], "n": row[1], "text": row[2], "op": "u"} for row in NEWEST}
    opensearch.delete(place.index)
