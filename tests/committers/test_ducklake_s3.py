"""DuckLakes with the data on S3: lost requests and responses, maintenance, access keys."""

from __future__ import annotations

import datetime as dt
import pickle
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from servers.lossy_proxy import Fault, LossyProxy
from servers.s3 import BUCKET, s3_client
from tests.support.ducklakes import DuckLake, sqlite_lake

from penstock.committers.contract import AlreadyCommitted, Committed
from penstock.committers.ducklake.connection import LakeServer
from penstock.committers.ducklake.maintenance import delete_removed_files, merge_files
from penstock.committers.ducklake.storage import duckdb_secret
from penstock.committers.errors import ConfigurationError, RetryableError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.destinations import cleanup_of
from penstock.datasource.ducklake.sink import DuckLakeSink, StoredDuckLake
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids, payloads

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture
def lake(tmp_path: Path, s3: dict[str, str], s3_proxy: LossyProxy) -> DuckLake:
    """Reached through the proxy."""
    storage = {**s3, "AWS_ENDPOINT_URL": s3_proxy.url, "max_retries": "0"}
    return replace(sqlite_lake(tmp_path), s3=storage)


@pytest.fixture
def query(lake: DuckLake, store: SqlManifestStore) -> Query:
    """With one committed batch."""
    query = Query(lake, store=store)
    query.run(store, query.batch(0), ids(0))
    return query


def objects(lake: DuckLake) -> list[str]:
    folder = lake.data_path.removeprefix(f"s3://{BUCKET}/").removesuffix("data/")
    listed = s3_client(lake.s3).list_objects_v2(Bucket=BUCKET, Prefix=folder)
    return [one["Key"].removeprefix(folder) for one in listed.get("Contents", [])]


@pytest.mark.parametrize("fault", ["request lost", "response lost", "answered 503"])
@pytest.mark.parametrize("step", ["HEAD main.events/penstock", "GET main.events/penstock"])
def test_a_fault_while_the_files_are_registered_adds_the_batch_once(
    lake: DuckLake, query: Query, store: SqlManifestStore, s3_proxy: LossyProxy, step: str, fault: Fault
) -> None:
    """The clients repeat most requests."""
    manifest = query.prepare(store, query.batch(1), ids(1))
    s3_proxy.spend(fault, on=step)
    with suppress(RetryableError):
        query.target().commit(manifest)
    assert s3_proxy.spent()
    query.target().commit(manifest)
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert sorted(lake.sql("SELECT id FROM events")) == [(0,), (1,)]


def test_without_an_answer_of_s3_the_batch_is_not_committed(
    lake: DuckLake, query: Query, store: SqlManifestStore, s3_proxy: LossyProxy
) -> None:
    manifest = query.prepare(store, query.batch(1), ids(1))
    lost: list[Fault] = ["response lost"] * 9
    s3_proxy.spend(*lost, on="GET main.events/penstock")
    with pytest.raises(RetryableError, match="HTTP GET"):
        query.target().commit(manifest)
    s3_proxy.spend()
    assert lake.sql("SELECT id FROM events") == [(0,)]
    assert isinstance(query.target().commit(manifest), Committed)


def test_files_wait_beside_the_data_path_and_clean_up_keeps_what_is_needed(
    lake: DuckLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 4):
        query.run(store, query.batch(number), ids(number))
    lost = query.write(query.plan(store, query.batch(4)), [ids(4)], run_id="lost")
    pending = query.prepare(store, query.batch(4), ids(4))
    lake.sql("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    monkeypatch.setattr("penstock.committers.ducklake.maintenance.RETENTION_DAYS", -1)
    sink = query.sink()
    assert isinstance(sink, DuckLakeSink)
    server = LakeServer(sink._address, sink.options.storage_options)
    assert merge_files(server) == 4
    assert delete_removed_files(server) == 4
    assert sorted({path.partition("/")[0] for path in objects(lake)}) == ["data", "data.penstock"]

    assert query.target().missing(pending) == []
    query.target().commit(pending)
    assert sorted(lake.sql("SELECT id FROM events")) == [(number,) for number in range(5)]

    stored = StoredDuckLake(server.address, server.storage)
    cleanup = cleanup_of(stored, store, [query.stream])
    found = cleanup.find(dt.datetime.now(dt.timezone.utc), dt.timedelta(0))
    assert {file.path for file in found.unneeded} == {file.path for files in payloads(lost) for file in files}


def test_partition_values_on_s3_are_read_back(lake: DuckLake, store: SqlManifestStore) -> None:
    query = Query(lake, options={"partitionBy": "key"})
    keys = ["", "a/b", "%2F", "a b+c", "ä", "key=1"]
    query.run(store, query.batch(0), pa.table({"id": range(len(keys)), "key": keys}))
    assert lake.sql("SELECT id, key FROM events ORDER BY id") == list(enumerate(keys))


def test_the_access_key_is_neither_shown_nor_stored(
    lake: DuckLake, query: Query, store: SqlManifestStore, s3_proxy: LossyProxy, tmp_path: Path
) -> None:
    secret = "geheimer/schluessel"
    other = replace(lake, s3={**lake.s3, "AWS_SECRET_ACCESS_KEY": secret})
    query = Query(other, "q2", store=store)
    manifest = query.prepare(store, query.batch(0), ids(0))
    echoed: list[Fault] = ["echoed"] * 20
    s3_proxy.spend(*echoed, on=".parquet")
    with pytest.raises(RetryableError) as raised:
        query.target().commit(manifest)
    shown = f"{raised.value} {query.sink()!r} {query.target()!r} {query.stored_table()!r}"
    assert secret not in shown
    sink = query.sink()
    assert isinstance(sink, DuckLakeSink)
    server = LakeServer(sink._address, sink.options.storage_options)
    assert server.in_short(OSError(f"signed with {secret}")) == "signed with ***"
    for path in tmp_path.iterdir():
        if path.is_file():
            assert secret.encode() not in path.read_bytes()
    assert secret.encode() not in pickle.dumps(manifest)


def test_without_an_access_key_nothing_is_created(
    tmp_path: Path, store: SqlManifestStore, lake: DuckLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    keyless = replace(lake, s3={key: value for key, value in lake.s3.items() if key not in KEYS})
    query = Query(keyless)
    with pytest.raises(ConfigurationError, match=r"no access key.*AWS_ACCESS_KEY_ID"):
        query.plan(store, query.batch(0))
    assert not (tmp_path / "catalog.sqlite").exists()


def test_an_existing_table_needs_the_access_key_too(
    lake: DuckLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = query.prepare(store, query.batch(1), ids(1))
    options = {
        key: value for key, value in lake.options.items() if "ACCESS_KEY" not in key and key != "dataPath"
    }
    keyless = Query(lake, destination_options=options)
    for attempt in (
        lambda: keyless.plan(store, keyless.batch(1)),
        lambda: keyless.target().commit(manifest),
        lambda: keyless.target().missing(manifest),
        lambda: keyless.target().token("q1"),
    ):
        with pytest.raises(ConfigurationError, match="no access key"):
            attempt()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert isinstance(keyless.target().commit(manifest), Committed)


def test_options_of_the_delta_library_in_duckdbs_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    keys = {"AWS_ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    known = {"KEY_ID": "key", "SECRET": "secret", "REGION": "eu-west-1", "SESSION_TOKEN": "token"}
    assert dict(duckdb_secret(keys)) == known
    assert duckdb_secret({"AWS_REGION": "us-east-1"}) == ()
    endpoint = {"AWS_ENDPOINT": "https://s3.example/minio/", "AWS_REGION": "here"}
    more = {"ENDPOINT": "s3.example/minio", "URL_STYLE": "path", "USE_SSL": "true", "REGION": "here"}
    assert dict(duckdb_secret({**keys, **endpoint})) == {**known, **more}
    with pytest.raises(ConfigurationError, match="AWS_VIRTUAL_HOSTED_STYLE_REQUEST"):
        duckdb_secret({**keys, **endpoint, "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"})
