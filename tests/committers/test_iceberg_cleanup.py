"""Clean-up of Iceberg tables keeps every file that a snapshot names. `test_cleanup.py` tests both formats."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyarrow.fs import FileInfo, FileType
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from servers.s3 import BUCKET, s3_client, s3_properties
from tests.support.lakes import IcebergLake
from tests.support.stored_lake import GRACE, NOW, OLD, Lake, paths

from penstock.committers.contract import DataFile
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.manifest import build_manifest
from penstock.committers.iceberg.expiry import ExpiryPolicy, SnapshotExpiry
from penstock.committers.iceberg.files import iceberg_files


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Lake(tmp_path, kind="iceberg") as lake:
        yield lake


def commit_to_audit(lake: Lake, batch_id: int, files: Sequence[DataFile]) -> None:
    """Commit these files to the branch `audit`, which exists."""
    manifest = build_manifest(lake.batch(batch_id), lake.plan().content.with_files(files))
    lake.lake.sink(branch="audit", partitionSpec="day").open_table().commit(manifest)


def orphan_in(lake: Lake, folder: str) -> str:
    """The path of an old file of a lost attempt of batch 0, moved to this folder."""
    file, *others = lake.write(0)
    for other in others:
        (lake.table / other.path).unlink()
    path = Path(folder, Path(file.path).name)
    (lake.table / folder).mkdir(parents=True, exist_ok=True)
    (lake.table / file.path).rename(lake.table / path)
    return str(path)


# What is deleted, and what is kept ------------------------------------------------------------------


def test_files_that_any_snapshot_names_are_kept_without_the_store(lake: Lake) -> None:
    """Overwritten since, or on a branch, or behind a tag."""
    first, second, on_branch = lake.write(0), lake.write(1), lake.write(2)
    lake.commit(0, first)
    head = lake.iceberg.version()
    lake.iceberg.load().manage_snapshots().create_tag(head, "first").create_branch(head, "audit").commit()
    lake.commit(1, second)
    lake.iceberg.load().delete()
    commit_to_audit(lake, 2, on_branch)
    lake.lose_store()
    lake.commit(3, lake.write(3))
    assert lake.clean_up() == 0
    assert paths([*first, *second, *on_branch]) <= lake.on_disk()


def test_files_of_expired_snapshots_are_kept_for_their_grace_period(lake: Lake) -> None:
    for batch_id in range(6):
        lake.commit(batch_id, lake.write(batch_id), "overwrite")
    lake.lose_store()
    lake.commit(6, lake.write(6))
    before = lake.on_disk()
    policy = ExpiryPolicy(keep_snapshots_max=2, grace_s=3600)
    uri = lake.stream.table_uri
    expiry = SnapshotExpiry(lake.iceberg.load, lake.store.expiries, uri, policy, lambda: NOW)
    assert expiry.run().snapshots > 2

    assert lake.clean_up() == 0
    assert lake.on_disk() == before

    for plan in lake.store.expiries.of_table(lake.table_id):
        lake.store.expiries.remove(plan)
    assert lake.clean_up() > 0


def test_each_check_loads_the_table_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And once each for the names and for the deletion."""
    monkeypatch.setattr("penstock.committers.cleaning.cleanup.FILES_PER_CHECK", 1)
    loads: list[IcebergLake] = []
    load = IcebergLake.load

    def counted_load(table: IcebergLake) -> Table:
        loads.append(table)
        return load(table)

    monkeypatch.setattr(IcebergLake, "load", counted_load)
    assert len(lake.write(0)) == 2
    lake.commit(0, lake.write(0))
    cleaning = lake.cleanup()
    found = cleaning.find(NOW, GRACE)
    loads.clear()
    assert list(cleaning.delete(found)) == [1, 1]
    assert len(loads) == 2 * 3


def test_names_are_yielded_once(lake: Lake) -> None:
    table = lake.cleanable()
    for batch_id in range(2):
        files = lake.write(batch_id)
        lake.commit(batch_id, files)
        assert set[str]().union(*table.names()) == {Path(file.path).name for file in files}


# The table ------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_branch(lake: Lake) -> None:
    lake.commit(0, lake.write(0))
    lake.iceberg.load().manage_snapshots().create_branch(lake.iceberg.version(), "audit").commit()
    commit_to_audit(lake, 4, lake.write(4))
    table_id, main = lake.cleanable().id_and_tokens(["q0", "unknown"])
    assert table_id == lake.table_id
    assert {query: token.batch_id for query, token in main.items()} == {"q0": 0}
    _, audit = lake.cleanable("audit").id_and_tokens(["q0"])
    assert audit["q0"].batch_id == 4


@pytest.mark.parametrize(
    "name", ["write.data.path", "write.object-storage.enabled"], ids=["data path", "object storage layout"]
)
def test_files_are_found_wherever_the_table_puts_them(
    lake: Lake, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "write.data.path":
        load, lake.table = IcebergLake.load, tmp_path / "elsewhere"
        lake.iceberg.set_properties({name: f"file://{tmp_path}/elsewhere"})

        def load_with_option(table: IcebergLake) -> Table:
            """The table with the option `catalog.penstock.data-path`."""
            loaded = load(table)
            loaded.catalog.properties["penstock.data-path"] = f"{tmp_path}//elsewhere/"
            return loaded

        monkeypatch.setattr(IcebergLake, "load", load_with_option)
    else:
        lake.iceberg.set_properties({name: "true"})
    lake.planned = lake.plan()
    orphans, kept = lake.write(0), lake.write(0)
    lake.commit(0, kept)
    assert lake.clean_up() == len(orphans)
    assert lake.on_disk() == paths(kept)


@pytest.mark.parametrize(
    "folder", ["", "elsewhere", "warehouse/lake"], ids=["root", "sibling", "above the table"]
)
def test_a_property_of_the_table_gives_no_files_to_deletion(
    lake: Lake, tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who writes the table can set `write.data.path`; the operator gives the folder in an option."""
    orphan = lake.table / orphan_in(lake, "")
    foreign = tmp_path / folder / orphan.name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(orphan.read_bytes())
    os.utime(foreign, 2 * ((NOW - OLD).timestamp(),))
    lake.commit(0, lake.write(0))
    path = "/" if not folder else f"{tmp_path}/{folder}"
    lake.iceberg.set_properties({"write.data.path": f"file://{path}"})
    if folder:
        lake.clean_up()
    else:  # without a listing of the whole disk
        assert lake.cleanable().delete_files([str(foreign).removeprefix("/")]) == 0
    assert foreign.exists()
    assert "catalog.penstock.data-path" in caplog.text


def test_metadata_and_tables_inside_the_data_location_are_not_checked(lake: Lake) -> None:
    """Where files of both would lie: `write.data.path` may be the table's own location, or above others."""
    table = lake.iceberg.load()
    lake.iceberg.set_properties({"write.data.path": table.location()})
    lake.planned, lake.table = lake.plan(), lake.iceberg.folder
    lake.commit(0, lake.write(0))
    lake.iceberg.sql_catalog.create_table("lake.inner", table.schema(), location=f"{table.location()}/inner")
    of_inner, as_metadata, orphan = (orphan_in(lake, folder) for folder in ("inner/data", "metadata", "data"))
    listed = {file.path for file in lake.cleanable().files()}
    assert orphan in listed
    assert not [path for path in listed if path.startswith(("metadata/", "inner/"))]
    assert lake.clean_up() == 1
    assert {of_inner, as_metadata} <= lake.on_disk()


# What cannot be read --------------------------------------------------------------------------------


def test_a_manifest_that_cannot_be_read_stops_clean_up(lake: Lake) -> None:
    lake.write(0)
    lake.commit(0, lake.write(0))
    table = lake.iceberg.load()
    (manifest,) = table.metadata.snapshots[0].manifests(table.io)
    file = Path(manifest.manifest_path.removeprefix("file://"))
    content, before = file.read_bytes(), lake.on_disk()
    for damage in (lambda: file.write_bytes(content[:100]), file.unlink):
        damage()
        with pytest.raises(RetryableError, match=r"lake\.ids cannot be read: .*were not deleted"):
            lake.clean_up()
    assert lake.on_disk() == before


def test_snapshots_expired_meanwhile_are_listed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch_id in range(8):
        lake.commit(batch_id, lake.write(batch_id))
    lost = lake.write(0)
    lake.lose_store()
    lake.commit(8, lake.write(8))
    policy = ExpiryPolicy(keep_snapshots_max=2, grace_s=0)
    uri = lake.stream.table_uri
    expiry = SnapshotExpiry(lake.iceberg.load, lake.store.expiries, uri, policy, lambda: NOW)
    read = ManifestFile.fetch_manifest_entry
    runs: list[int] = []

    def expire_first(manifest: ManifestFile, *arguments: object, **keywords: object) -> object:
        if not runs:
            runs.append(0)
            lake.iceberg.load().delete()
            lake.iceberg.append(0)
            while expiry.run().files == 0:
                pass
        return read(manifest, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", expire_first)
    assert paths(lost) <= paths(lake.find().unneeded)
    assert runs


# Files in other places ------------------------------------------------------------------------------


def test_files_below_a_location_in_an_object_store(s3: dict[str, str]) -> None:
    folder = f"cleanup/{uuid.uuid4()}"
    for key in ("data/day=1/a b", "data/b", "data2/c"):
        s3_client(s3).put_object(Bucket=BUCKET, Key=f"{folder}/{key}", Body=b"x")
    properties = s3_properties(s3)
    files = iceberg_files(f"s3://{BUCKET}/{folder}/data", properties)
    assert {(path, size) for path, size, _ in files.walk()} == {("day=1/a b", 1), ("b", 1)}
    assert files.missing(["b", "c"]) == ["c"]
    assert files.delete(["b", "c"]) == 1
    assert {path for path, _, _ in files.walk()} == {"day=1/a b"}
    assert list(iceberg_files(f"s3://{BUCKET}/{folder}/nothing", properties).walk()) == []


def test_files_are_deleted_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowded:
        """Deletes no file before it may delete four."""

        four = threading.Barrier(4)

        def get_file_info(self, path: str) -> FileInfo:
            return FileInfo(path, FileType.File)

        def delete_file(self, path: str) -> None:
            self.four.wait(30)
            if path == "missing":
                raise FileNotFoundError(path)

    monkeypatch.setattr("pyarrow.fs.SubTreeFileSystem", lambda *_: Crowded())
    properties = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"}
    assert iceberg_files("s3://lake/t", properties).delete(["a", "b", "c", "missing"]) == 4


def test_a_storage_that_cannot_be_asked_is_retryable() -> None:
    properties = {
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "s3cr3t",
        "s3.region": "us-east-1",
        "s3.connect-timeout": "1",
    }
    with pytest.raises(
        RetryableError, match=r"s3://lake/t cannot be listed or checked.*catalog\.\*"
    ) as caught:
        iceberg_files("s3://lake/t", properties).missing(["a"])
    assert "s3cr3t" not in str(caught.value)
