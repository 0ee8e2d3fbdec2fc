"""The contract with pyiceberg: each undocumented behaviour of the library that Penstock relies on.

`make test-newest` runs this against the newest release of the library.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import parse_transform

from penstock.committers.errors import ConfigurationError, RetryableError
from penstock.committers.iceberg.catalog import CatalogConfig, open_catalog
from penstock.committers.iceberg.library import catalogs
from penstock.committers.iceberg.library.snapshots import (
    ReplaceFiles,
    UncopiedTransaction,
    delete_merged,
    delete_uncommitted,
    empty_snapshot,
    replace_all,
    start_branch,
    transform_name,
)
from penstock.writers.transforms import apply_transform, transform_problem

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


def test_an_attempt_that_is_given_up_leaves_no_manifest(table: Table) -> None:
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


def rest(properties: dict[str, str]) -> CatalogConfig:
    return CatalogConfig.of("hooked", {"type": "rest", "uri": "http://127.0.0.1:1", **properties})


def test_the_first_request_of_a_rest_catalog_has_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def send(*_: object, **options: object) -> requests.Response:
        asked.append(options["timeout"])
        raise requests.Timeout

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    with pytest.raises(RetryableError):
        open_catalog(rest({"for": "the first request"}))
    assert asked == [catalogs.REQUEST_TIMEOUT_S]


def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = RestCatalog._config_headers
    monkeypatch.delattr(RestCatalog, "_config_headers")
    monkeypatch.setattr(RestCatalog, "_create_session", _session_with(hooked))


def not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RestCatalog, "_create_session", _session_with(RestCatalog._config_headers))


def _session_with(headers: Callable[[RestCatalog, requests.Session], None]) -> Any:
    def create_session(self: RestCatalog) -> requests.Session:
        session = requests.Session()
        headers(self, session)
        return session

    return create_session


@pytest.mark.parametrize("change", [renamed, not_called])
def test_a_rest_catalog_whose_hook_is_not_called_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(catalogs.PatientRestCatalog, "_fetch_config", lambda _: None)
    change(monkeypatch)
    with pytest.raises(ConfigurationError, match=r"RestCatalog\._config_headers.*pip install"):
        open_catalog(rest({"for": change.__name__}))
