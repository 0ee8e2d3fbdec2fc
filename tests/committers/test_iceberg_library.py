"""The contract with pyiceberg: each undocumented behaviour of the library that Penstock relies on.

`make test-newest` runs this against the newest release of the library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import _HiveClient
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, clear_manifest_cache
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import parse_transform
from sqlalchemy import make_url

from penstock.committers.arrow_values import numeric_array
from penstock.committers.errors import ConfigurationError, PenstockError, RetryableError
from penstock.committers.iceberg.catalog import CatalogConfig, catalog_error, open_catalog
from penstock.committers.iceberg.library.changed_files import MergingChangeFiles, ReplaceFiles
from penstock.committers.iceberg.library.snapshots import (
    UncopiedTransaction,
    delete_merged,
    delete_uncommitted,
    empty_snapshot,
    replace_all,
    start_branch,
    transform_name,
)
from penstock.committers.iceberg.live_files import ManifestCache, live_files
from penstock.committers.iceberg.position_deletes import deletes_content, deletes_entry
from penstock.writers.parquet.transforms import apply_transform, transform_problem

ROW_0 = numeric_array([0])
COUNT = "commit.manifest.min-count-to-merge"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With two files in two manifests."""
    catalog = SqlCatalog("contract", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("lake")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    made = catalog.create_table("lake.t", schema=rows.schema, properties={COUNT: "2"})
    made.append(rows)
    made.append(rows)
    return made


def files_of(table: Table) -> set[str]:
    return {str(path) for path in Path(table.location().removeprefix("file://")).rglob("*.avro")}


def test_a_producer_writes_manifests_and_leaves_the_commit_to_the_caller(table: Table) -> None:
    before = table.metadata.current_snapshot_id
    transaction = UncopiedTransaction(table)

    producer = transaction.update_branch("main", {"note": "x"}).fast_append()
    producer.commit()

    added, ref = transaction.updates
    assert isinstance(added, AddSnapshotUpdate)
    assert isinstance(ref, SetSnapshotRefUpdate)
    assert added.snapshot.snapshot_id == ref.snapshot_id == producer.snapshot_id
    assert any(
        isinstance(one, AssertRefSnapshotId) and one.snapshot_id == before for one in transaction.requirements
    )
    assert table.refresh().metadata.current_snapshot_id == before


def test_an_attempt_that_is_rolled_back_leaves_no_manifest(table: Table) -> None:
    before = files_of(table)
    transaction = UncopiedTransaction(table)
    producer = replace_all(transaction, "main", {})
    producer.commit()
    assert files_of(table) > before

    delete_uncommitted(producer)

    assert {path for path in files_of(table) - before if "snap-" not in path} == set()


def test_a_merge_names_what_it_wrote_and_the_rest_can_be_deleted(table: Table) -> None:
    table.metadata.properties["commit.manifest-merge.enabled"] = "true"
    before = files_of(table)
    transaction = UncopiedTransaction(table)
    producer = transaction.update_branch("main", {}).merge_append()
    for task in table.scan().plan_files():
        producer.append_data_file(task.file)
    producer.commit()
    deleted: list[str] = []

    def delete_files(_: FileIO, paths: Any) -> None:
        deleted.extend(paths)

    delete_merged(producer, delete_files)

    assert len(deleted) == 1
    assert deleted[0].removeprefix("file://") in files_of(table) - before
    delete_uncommitted(producer)
    assert deleted[0].removeprefix("file://") in files_of(table), "it is no longer the producer's"


def test_an_overwrite_is_one_snapshot_that_removes_every_file(table: Table) -> None:
    transaction = UncopiedTransaction(table)
    producer = replace_all(transaction, "main", {})
    assert producer.files_affected
    producer.commit()
    table.catalog.commit_table(table, transaction.requirements, transaction.updates)
    assert table.refresh().scan().to_arrow().num_rows == 0
    assert len(table.metadata.snapshots) == 3


def test_a_replacement_removes_the_named_files_and_no_other(table: Table) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    live = [(one, one.fetch_manifest_entry(table.io)) for one in snapshot.manifests(table.io)]
    source = live[0][1][0].data_file.file_path
    transaction = UncopiedTransaction(table)

    ReplaceFiles(transaction, table, "main", live, {source}).commit()
    table.catalog.commit_table(table, transaction.requirements, transaction.updates)

    after = table.refresh().current_snapshot()
    assert after is not None
    assert after.summary is not None
    assert after.summary.operation is Operation.REPLACE
    assert after.summary["deleted-data-files"] == "1"
    assert source not in {task.file.file_path for task in table.scan().plan_files()}
    assert table.scan().to_arrow().num_rows == 1


def test_delete_files_have_manifests_of_their_own_which_are_merged(table: Table) -> None:
    """The last snapshot replaces the delete file of the first one."""
    paths = sorted(task.file.file_path for task in table.scan().plan_files())
    written: list[str] = []
    for number in range(3):
        table.metadata.properties["commit.manifest-merge.enabled"] = "true"
        live, of = live_files(table, "main", ManifestCache()), paths[number % 2]
        transaction = UncopiedTransaction(table)
        removed = {written[0]} if number == 2 else set()
        producer = MergingChangeFiles(
            Operation.DELETE, transaction, table, "main", live.manifests, removed, {"note": "x"}
        )
        location, content = f"{table.location()}/data/{number}.parquet", deletes_content(of, ROW_0)
        Path(location.removeprefix("file://")).write_bytes(content)
        producer.append_deletes(deletes_entry(location, len(content), live.data[of].data_file, ROW_0))
        producer.commit()
        delete_merged(producer, lambda *_: None)
        table.catalog.commit_table(table, transaction.requirements, transaction.updates)
        table.refresh()
        written.append(location)
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["note"] == "x"
    assert head.summary["total-delete-files"] == head.summary["total-position-deletes"] == "2"
    manifests = head.manifests(table.io)
    (deletes,) = [one for one in manifests if one.content == ManifestContent.DELETES]
    assert len(manifests) == 2, "those of data files are merged, too"
    entries = deletes.fetch_manifest_entry(table.io, discard_deleted=False)
    assert {(entry.data_file.file_path, entry.status, entry.sequence_number) for entry in entries} == {
        (written[0], ManifestEntryStatus.DELETED, 3),
        (written[1], ManifestEntryStatus.EXISTING, 4),
        (written[2], ManifestEntryStatus.ADDED, 5),
    }
    assert table.scan().to_arrow().num_rows == 0


def test_the_content_of_a_manifest_is_a_number_in_format_version_1(tmp_path: Path) -> None:
    """So it is compared by value."""
    catalog = SqlCatalog("v1", uri="sqlite:///:memory:", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("lake")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    made = catalog.create_table("lake.t", schema=rows.schema, properties={"format-version": "1"})
    made.append(rows)
    clear_manifest_cache()
    (manifest,) = made.current_snapshot().manifests(made.io)  # type: ignore[union-attr]
    assert manifest.content == ManifestContent.DATA
    assert manifest.content is not ManifestContent.DATA


def test_a_branch_begins_at_a_snapshot(table: Table) -> None:
    head = table.current_snapshot()
    assert head is not None
    for change in (start_branch(table, "audit", head.snapshot_id), empty_snapshot(table)):
        updates, requirements = change
        table.catalog.commit_table(table, requirements, updates)
        table.refresh()
    assert table.metadata.refs["audit"].snapshot_id == head.snapshot_id
    assert table.metadata.current_snapshot_id != head.snapshot_id


def test_the_name_of_an_unknown_transform_is_kept() -> None:
    assert transform_name(parse_transform("future[7]")) == "future[7]"  # type: ignore[arg-type]


def test_the_transforms_in_rust_say_what_they_are_not_defined_for() -> None:
    """That is pyiceberg-core, a package of its own."""
    assert apply_transform("truncate[2]", pa.array(["abc", None])).to_pylist() == ["ab", None]
    assert apply_transform("bucket[16]", pa.array([34], pa.int32())).to_pylist() == [3]
    problem = transform_problem("bucket[4]", pa.float64())
    assert problem is not None
    assert "=>" not in problem


# Time-outs of catalogs --------------------------------------------------------------------------------

SHORT = {"connect-timeout-s": "30", "request-timeout-s": "0.3"}


def of_rest(port: int) -> dict[str, str]:
    return {"type": "rest", "uri": f"http://127.0.0.1:{port}", **SHORT}


def of_hive(port: int) -> dict[str, str]:
    return {"type": "hive", "uri": f"thrift://127.0.0.1:{port}", **SHORT}


def of_glue(port: int) -> dict[str, str]:
    keys = {"glue.access-key-id": "a", "glue.secret-access-key": "b", "glue.region": "us-east-1"}
    return {
        "type": "glue",
        "glue.endpoint": f"http://127.0.0.1:{port}",
        "glue.max-retries": "0",
        **keys,
        **SHORT,
    }


def of_postgres(port: int) -> dict[str, str]:
    uri = f"postgresql+psycopg://me:secret@127.0.0.1:{port}/db?connect_timeout=1"
    return {"type": "sql", "uri": uri, "warehouse": "/nowhere"}


def error_of(properties: dict[str, str]) -> PenstockError:
    config = CatalogConfig.of("silent", properties)
    try:
        open_catalog(config).list_namespaces()
    except PenstockError as error:
        return error
    except Exception as error:  # noqa: BLE001  of any library
        return catalog_error(error, "cannot be read", config)
    raise AssertionError("a server that never answers has answered")


@pytest.mark.parametrize("of_server", [of_rest, of_hive, of_glue, of_postgres])
def test_a_silent_catalog_is_an_outage(silent: int, of_server: Callable[[int], dict[str, str]]) -> None:
    started = time.monotonic()
    error = error_of(of_server(silent))
    assert isinstance(error, RetryableError), error
    assert "secret" not in str(error)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("key", ["connect-timeout-s", "request-timeout-s"])
@pytest.mark.parametrize("given", ["", "0", "-1", "nan", "soon"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(key: str, given: str) -> None:
    error = error_of({**of_rest(1), key: given})
    assert isinstance(error, ConfigurationError)
    assert f"catalog.{key} must be a positive number of seconds" in str(error)


def test_a_catalog_in_postgres_has_the_timeouts_of_the_store(new_postgres_url: Callable[[], str]) -> None:
    url = make_url(new_postgres_url()).update_query_dict({"tcp_user_timeout": "5000"})
    options = f"{url.query['options']} -cstatement_timeout=7s"
    uri = url.update_query_dict({"options": options}).render_as_string(hide_password=False)
    opened = open_catalog(CatalogConfig.of("pg", {"type": "sql", "uri": uri, "warehouse": "/nowhere"}))
    assert isinstance(opened, SqlCatalog)
    with opened.engine.connect() as connection:
        shown = [
            connection.exec_driver_sql(f"SHOW {name}").scalar()
            for name in ("statement_timeout", "lock_timeout")
        ]
        info = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    opened.engine.dispose()
    assert shown == ["7s", "30s"]
    assert (info["connect_timeout"], info["tcp_user_timeout"]) == ("10", "5000")


# File I/O of tables -----------------------------------------------------------------------------------


def test_a_rest_catalog_gives_a_table_what_it_hands_out_itself_and_nothing_of_its_properties(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    given = {**of_rest(1), "s3.region": "operator", "s3.access-key-id": "operator"}
    opened = open_catalog(CatalogConfig.of("vending", given))
    planted = dict.fromkeys(("s3.endpoint", "s3.region", "s3.access-key-id", "s3.session-token"), "table")
    metadata = table.metadata.model_copy(update={"properties": {**table.properties, **planted}})
    response = TableResponse.model_validate(
        {
            "metadata": metadata,
            "metadata-location": table.metadata_location,
            "config": {"s3.session-token": "catalog"},
            "storage-credentials": [{"prefix": "file:", "config": {"s3.access-key-id": "credential"}}],
        }
    )

    loaded = opened._response_to_table(("lake", "t"), response)  # type: ignore[attr-defined]

    used = {name: value for name, value in loaded.io.properties.items() if name.startswith("s3.")}
    assert used == {"s3.region": "operator", "s3.access-key-id": "credential", "s3.session-token": "catalog"}
    assert loaded.metadata == metadata


@pytest.mark.parametrize(
    ("owner", "name", "properties"),
    [
        (Catalog, "_load_file_io", {"type": "sql", "uri": "sqlite://", "warehouse": "/x"}),
        (RestCatalog, "_response_to_table", of_rest(1)),
    ],
    ids=["all others", "rest"],
)
def test_a_library_that_makes_file_io_otherwise_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, properties: dict[str, str]
) -> None:
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    monkeypatch.delattr(owner, name)
    error = error_of({**properties, "for": name})
    assert isinstance(error, ConfigurationError)
    assert f"{owner.__name__}.{name}" in str(error)


# Hooks that no longer hold ----------------------------------------------------------------------------


def call_the_original(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, caller: str) -> None:
    """Replace `caller`, so that it calls the library's own method `name` and not the hook."""
    hooked, call = getattr(owner, name), getattr(owner, caller)

    def calls_the_original(self: Any, *arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self), name, hooked, raising=False)
            return call(self, *arguments, **options)

    monkeypatch.setattr(owner, caller, calls_the_original)


@pytest.mark.parametrize("release", ["renames the method", "does not call the method"])
@pytest.mark.parametrize(
    ("owner", "name", "caller", "properties"),
    [
        (RestCatalog, "_config_headers", "_create_session", of_rest(1)),
        (SqlCatalog, "_init_catalog", "__init__", {"type": "sql", "uri": "sqlite://", "warehouse": "/x"}),
        (_HiveClient, "_init_thrift_transport", "__init__", of_hive(1)),
    ],
    ids=["rest", "sql", "hive"],
)
def test_a_catalog_whose_hook_does_not_hold_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    owner: Any,
    name: str,
    caller: str,
    properties: dict[str, str],
) -> None:
    """Before any request is sent without a time-out."""
    call_the_original(monkeypatch, owner, name, caller)
    if release == "renames the method":
        monkeypatch.delattr(owner, name)
    else:
        monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    error = error_of({**properties, "for": release})
    assert isinstance(error, ConfigurationError)
    assert f"{owner.__name__}.{name}" in str(error)
    assert "pip install" in str(error)
