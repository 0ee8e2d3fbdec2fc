"""The contract with deltalake and obstore: each undocumented behaviour that Penstock relies on.

`make test-newest` runs this against the newest releases of the libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore, from_url

from penstock.committers.delta.library import CHECKPOINT_INTERVAL, in_short, needs_other_features
from penstock.committers.delta.log_entry import logged_path
from penstock.committers.delta.object_store import errors_of_the_system


@pytest.fixture
def location(tmp_path: Path) -> Path:
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    return tmp_path / "t"


def commit(table: DeltaTable, path: str, version: int = 1) -> None:
    table.create_write_transaction(
        [AddAction(path, 1, {}, 0, True, "{}")],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction("app", version)]
        ),
    )


def test_a_commit_without_retries_is_for_the_next_version_of_the_handle_only(location: Path) -> None:
    first, second = DeltaTable(location), DeltaTable(location)
    commit(first, "a.parquet", 1)

    with pytest.raises(CommitFailedError) as raised:
        commit(second, "b.parquet", 2)

    assert not needs_other_features(raised.value)
    assert DeltaTable(location).version() == 1
    assert DeltaTable(location).transaction_version("app") == 1


def test_a_commit_adds_the_path_as_the_log_encodes_it(location: Path) -> None:
    commit(DeltaTable(location), "a=x%20y/ü.parquet")
    paths = pa.table(DeltaTable(location).get_add_actions()).column("path").to_pylist()
    assert logged_path("a=x%20y/ü.parquet") in paths


def test_a_feature_that_the_library_cannot_write_is_recognised(location: Path) -> None:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": ["x-y"]}
    entry = location / "_delta_log" / f"{1:020d}.json"
    entry.write_text(json.dumps({"protocol": protocol}))

    with pytest.raises(CommitFailedError) as raised:
        commit(DeltaTable(location), "a.parquet")

    assert needs_other_features(raised.value)


def test_an_error_has_its_message_first_and_its_internals_after_it(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError):
        DeltaTable(tmp_path)
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("no json")
    with pytest.raises(Exception) as raised:
        DeltaTable(tmp_path)
    assert in_short(raised.value)
    assert "\n" not in in_short(raised.value)
    assert "\x1b" not in in_short(raised.value)


@pytest.mark.slow
def test_a_log_checkpoint_is_written_every_hundred_commits(location: Path) -> None:
    for version in range(1, CHECKPOINT_INTERVAL):
        write_deltalake(location, pa.table({"id": [version]}), mode="append")
    (checkpoint,) = (location / "_delta_log").glob("*.checkpoint.parquet")
    assert checkpoint.name == f"{CHECKPOINT_INTERVAL - 1:020d}.checkpoint.parquet"


def test_the_object_store_creates_a_file_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a", b"2", mode="create")
    with pytest.raises(FileNotFoundError):
        store.head("b")


def test_an_error_of_the_object_store_is_one_of_the_system_without_internals() -> None:
    options: Any = {
        "config": {
            "aws_endpoint": "http://127.0.0.1:1",
            "aws_access_key_id": "x",
            "aws_secret_access_key": "y",
        },
        "client_options": {"allow_http": True},
        "retry_config": {"max_retries": 0},
    }
    store = from_url("s3://bucket/t", **options)
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1") as raised, errors_of_the_system():
        store.head("a")
    assert "Debug source" not in str(raised.value)
    assert raised.value.__suppress_context__
