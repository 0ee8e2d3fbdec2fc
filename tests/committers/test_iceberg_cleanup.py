"""Clean-up of Iceberg tables: deletes what nothing needs, and never a file that any snapshot names."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileInfo, FileType
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from servers.s3 import s3_client, s3_properties, s3_server
from tests.support.readers import iceberg_rows

from penstock.committers.cleanup import ClassifiedFiles, Cleanup
from penstock.committers.contract import Batch, DataFile, ManifestState, StreamKey
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest, decode
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.iceberg.expiry import ExpiryPolicy, SnapshotExpiry
from penstock.committers.iceberg.files import iceberg_files
from penstock.committers.iceberg.table import token_property
from penstock.committers.store.sql import open_store_in_memory
from penstock.writers.parquet.write_config import FileNames, parse_file_name

NOW = datetime.now(timezone.utc)
OLD, YOUNG, GRACE = timedelta(days=30), timedelta(days=1), timedelta(days=7)
NAME = "lake.events"
STREAM = StreamKey("q0", "lake:events")


class IcebergLake:
    """A real Iceberg table and a real store, with files as the writers leave them, 30 days ago."""

    def __init__(
        self, folder: Path, properties: dict[str, str] | None = None, catalog: dict[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.catalog = SqlCatalog(
            "test",
            uri=f"sqlite:///{folder}/catalog.sqlite",
            warehouse=f"file://{folder}",
            **(catalog or {}),
        )
        self.catalog.create_namespace_if_not_exists("lake")
        schema = pa.schema([("id", pa.int64())])
        self.catalog.create_table(NAME, schema, properties=properties or {})
        self.store = open_store_in_memory()
        self.store.register_stream(STREAM, "iceberg")
        self.attempts = 0

    def close(self) -> None:
        self.catalog.close()
        self.store.close()

    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def load(self) -> Table | None:
        try:
            return self.table()
        except NoSuchTableError:
            return None

    @property
    def data(self) -> Path:
        return Path(self.table().location_provider().data_path.removeprefix("file://"))

    def write(self, batch_id: int, age: timedelta = OLD, folder: str = "") -> str:
        """The file of one task attempt, by its path below the data location."""
        self.attempts += 1
        name = FileNames(STREAM.query_id, f"run-{self.attempts}", batch_id, 0, 0).name(0, "zstd")
        path = f"{folder}{name}"
        file = self.data / path
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": pa.array([self.attempts])}), file)
        os.utime(file, 2 * ((NOW - age).timestamp(),))
        return path

    def prepare(self, batch_id: int, paths: Iterable[str]) -> None:
        table = self.table()
        content = LakeManifest(
            kind="iceberg",
            mode="append",
            table_id=str(table.metadata.table_uuid),
            table_version=-1,
            schema_json=table.schema().model_dump_json(),
            new_columns=(),
            partition_by=(),
            files=tuple(DataFile(path, 1, 1) for path in paths),
            location=f"file://{self.data}",
        )
        self.store.claim(STREAM, "run")
        self.store.prepare(build_manifest(batch_of(batch_id), content), "run")

    def commit(self, batch_id: int, *paths: str, branch: str = "main") -> None:
        """As another version of Penstock, or none, might: with pyiceberg alone."""
        self.prepare(batch_id, paths)
        with self.table().transaction() as change:
            if paths:
                change.add_files([f"file://{self.data}/{path}" for path in paths], branch=branch)
            change.set_properties({token_property(STREAM.query_id, branch): token_json(batch_id)})
        self.store.finish(batch_of(batch_id), ManifestState.COMMITTED)

    def forget_manifests(self) -> None:
        """As if the store knew the batches, and not their files: the table alone must keep them."""
        for batch_id in range(20):
            if self.store.record(STREAM, batch_id) is not None:
                with self.store.engine.begin() as connection:
                    for table in ("penstock_manifest_contents", "penstock_manifests"):
                        connection.exec_driver_sql(f"DELETE FROM {table} WHERE batch_id = {batch_id}")
                self.prepare(batch_id, ())
                self.store.finish(batch_of(batch_id), ManifestState.COMMITTED)

    def cleanable(self, branch: str = "main") -> IcebergCleanableTable:
        return IcebergCleanableTable(self.load, STREAM.table_uri, branch, self.store.expiries)

    def cleanup(self) -> Cleanup:
        return Cleanup(
            self.store,
            self.cleanable(),
            [STREAM],
            [STREAM],
            parse_file_name,
            lambda manifest: [file.path for file in decode(manifest).files],
        )

    def find(self) -> ClassifiedFiles:
        return self.cleanup().find(NOW, GRACE)

    def clean_up(self) -> int:
        one = self.cleanup()
        return sum(one.delete(one.find(NOW, GRACE)))

    def on_disk(self) -> set[str]:
        return {str(path.relative_to(self.data)) for path in self.data.rglob("*.parquet")}

    def rows(self) -> list[tuple[object, ...]]:
        return iceberg_rows(self.table().metadata_location.removeprefix("file://"))


def batch_of(batch_id: int) -> Batch:
    return Batch(STREAM, batch_id, f"{batch_id:064x}")


def token_json(batch_id: int) -> str:
    noted = {"batch_id": batch_id, "digest": batch_of(batch_id).digest}
    return json.dumps(noted | {"snapshot_id": 0, "sequence_number": 0, "timestamp_ms": 0})


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[IcebergLake]:
    made = IcebergLake(tmp_path)
    yield made
    made.close()


# What goes, and what stays --------------------------------------------------------------------------


def test_only_old_unnamed_files_of_settled_batches_go(lake: IcebergLake) -> None:
    orphan, young, unsettled = lake.write(0), lake.write(0, YOUNG), lake.write(2)
    committed = [lake.write(0), lake.write(1, folder="day=1/")]
    lake.commit(0, committed[0])
    lake.commit(1, committed[1])
    pq.write_table(pa.table({"id": pa.array([1])}), lake.data / "of-somebody-else.parquet")
    found = lake.find()
    assert [file.path for file in found.unneeded] == [orphan]
    assert [file.path for file in found.young] == [young]
    assert [file.path for file in found.unsettled] == [unsettled]
    assert lake.clean_up() == 1
    assert lake.on_disk() == {young, unsettled, *committed, "of-somebody-else.parquet"}


def test_what_any_snapshot_names_stays_without_the_store(lake: IcebergLake) -> None:
    """Overwritten since, or on a branch, or behind a tag."""
    first, second, on_branch = lake.write(0), lake.write(1), lake.write(2)
    lake.commit(0, first)
    tagged = lake.table().metadata.current_snapshot_id
    assert tagged is not None
    lake.table().manage_snapshots().create_tag(tagged, "first").create_branch(tagged, "audit").commit()
    lake.commit(1, second)
    lake.table().delete()
    lake.commit(2, on_branch, branch="audit")
    lake.commit(3)
    lake.forget_manifests()
    assert lake.clean_up() == 0
    assert {first, second, on_branch} <= lake.on_disk()


def test_files_of_expired_snapshots_stay_for_their_grace_period(lake: IcebergLake) -> None:
    for batch_id in range(6):
        lake.commit(batch_id, lake.write(batch_id))
        lake.table().delete()
    lake.forget_manifests()
    before = lake.on_disk()
    policy = ExpiryPolicy(keep_snapshots_max=2, grace_s=3600)
    expiry = SnapshotExpiry(lake.table, lake.store.expiries, STREAM.table_uri, policy, lambda: NOW)
    assert expiry.run().snapshots > 2

    assert lake.clean_up() == 0
    assert lake.on_disk() == before

    for plan in lake.store.expiries.of_table(str(lake.table().metadata.table_uuid)):
        lake.store.expiries.remove(plan)
    assert lake.clean_up() > 0


def test_a_file_that_is_committed_after_the_look_stays(lake: IcebergLake) -> None:
    late, lost = lake.write(0), lake.write(0)
    lake.commit(0, lake.write(0))
    cleaning = lake.cleanup()
    found = cleaning.find(NOW, GRACE)
    lake.table().add_files([f"file://{lake.data}/{late}"])
    assert sum(cleaning.delete(found)) == 1
    assert late in lake.on_disk()
    assert lost not in lake.on_disk()
    assert len(lake.rows()) == 2


def test_each_check_loads_the_table_once_for_its_id_and_tokens(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once each for the names and for the deletion."""
    monkeypatch.setattr("penstock.committers.cleanup.FILES_PER_CHECK", 1)
    loaded: list[Table | None] = []
    load = lake.load

    def noted_load() -> Table | None:
        loaded.append(load())
        return loaded[-1]

    monkeypatch.setattr(lake, "load", noted_load)
    lake.write(0)
    lake.write(0)
    lake.commit(0, lake.write(0))
    cleaning = lake.cleanup()
    found = cleaning.find(NOW, GRACE)
    loaded.clear()
    assert list(cleaning.delete(found)) == [1, 1]
    assert len(loaded) == 2 * 3


def test_names_are_yielded_once(lake: IcebergLake) -> None:
    first, second = lake.write(0), lake.write(1)
    lake.commit(0, first)
    table = lake.cleanable()
    assert set[str]().union(*table.names()) == {first}
    lake.commit(1, second)
    assert set[str]().union(*table.names()) == {second}


# The table ------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_branch(lake: IcebergLake) -> None:
    lake.commit(0, lake.write(0))
    head = lake.table().metadata.current_snapshot_id
    assert head is not None
    lake.table().manage_snapshots().create_branch(head, "audit").commit()
    lake.commit(4, branch="audit")
    table_id, main = lake.cleanable().id_and_tokens(["q0", "unknown"])
    assert table_id == str(lake.table().metadata.table_uuid)
    assert {query: token.batch_id for query, token in main.items()} == {"q0": 0}
    _, audit = lake.cleanable("audit").id_and_tokens(["q0"])
    assert audit["q0"].batch_id == 4


def test_without_a_table_nothing_is_deleted(lake: IcebergLake) -> None:
    orphan = lake.write(0)
    lake.commit(0)
    data = lake.data
    lake.catalog.drop_table(NAME)
    assert lake.clean_up() == 0
    assert (data / orphan).exists()


@pytest.mark.parametrize(
    ("properties", "folder"),
    [
        ({"write.data.path": "elsewhere"}, ""),
        ({"write.object-storage.enabled": "true"}, "0101/1010/0110/01100110/"),
    ],
    ids=["data path", "object storage layout"],
)
def test_files_are_found_wherever_the_table_puts_them(
    tmp_path: Path, properties: dict[str, str], folder: str
) -> None:
    given = {}
    if "write.data.path" in properties:
        properties = {"write.data.path": f"file://{tmp_path}/elsewhere"}
        given = {"penstock.data-path": f"{tmp_path}//elsewhere/"}
    lake = IcebergLake(tmp_path, properties, given)
    orphan, kept = lake.write(0, folder=folder), lake.write(0, folder=folder)
    lake.commit(0, kept)
    assert lake.clean_up() == 1
    assert lake.on_disk() == {kept}
    assert orphan not in lake.on_disk()
    lake.close()


@pytest.mark.parametrize("folder", ["", "elsewhere", "lake"], ids=["root", "sibling", "above the table"])
def test_a_property_of_the_table_gives_no_files_to_deletion(
    tmp_path: Path, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who writes the table can set `write.data.path`; the operator gives the folder in an option."""
    (tmp_path / "lake").mkdir()
    lake = IcebergLake(tmp_path)
    lake.write(0)
    orphan = lake.data / lake.write(0)
    foreign = tmp_path / folder / orphan.name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(orphan.read_bytes())
    os.utime(foreign, 2 * ((NOW - OLD).timestamp(),))
    lake.commit(0)
    with lake.table().transaction() as change:
        path = "/" if not folder else f"{tmp_path}/{folder}"
        change.set_properties({"write.data.path": f"file://{path}"})
    if folder:
        lake.clean_up()
    else:  # without a listing of the whole disk
        assert lake.cleanable().delete_files([str(foreign).removeprefix("/")]) == 0
    assert foreign.exists()
    assert "catalog.penstock.data-path" in caplog.text
    lake.close()


def test_metadata_and_tables_inside_the_data_location_are_not_looked_at(tmp_path: Path) -> None:
    """Where files of both would lie: `write.data.path` may be the table's own location, or above others."""
    lake = IcebergLake(tmp_path, {"write.data.path": f"file://{tmp_path}/lake/events"})
    lake.commit(0, lake.write(0))
    inner = lake.catalog.create_table(
        "lake.inner", lake.table().schema(), location=f"{lake.table().location()}/inner"
    )
    of_inner = lake.write(0, folder="inner/data/")
    as_metadata = lake.write(0, folder="metadata/")
    orphan = lake.write(0, folder="data/")
    listed = {file.path for file in lake.cleanable().files()}
    assert orphan in listed
    assert not [path for path in listed if path.startswith(("metadata/", "inner/"))]
    assert lake.clean_up() == 1
    assert {of_inner, as_metadata} <= lake.on_disk()
    assert inner.metadata_location.startswith(lake.table().location())
    lake.close()


# What cannot be read --------------------------------------------------------------------------------


def test_a_manifest_that_cannot_be_read_stops_clean_up(lake: IcebergLake) -> None:
    lake.write(0)
    lake.commit(0, lake.write(0))
    table = lake.table()
    (manifest,) = table.metadata.snapshots[0].manifests(table.io)
    file = Path(manifest.manifest_path.removeprefix("file://"))
    content, before = file.read_bytes(), lake.on_disk()
    for damage in (lambda: file.write_bytes(content[:100]), file.unlink):
        damage()
        with pytest.raises(RetryableError, match=r"lake:events cannot be read: .*were not deleted"):
            lake.clean_up()
    assert lake.on_disk() == before


def test_snapshots_that_expire_while_they_are_read_are_looked_for_anew(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [lake.write(batch_id) for batch_id in range(8)]
    for batch_id, path in enumerate(kept):
        lake.commit(batch_id, path)
    lost = lake.write(0)
    lake.forget_manifests()
    policy = ExpiryPolicy(keep_snapshots_max=2, grace_s=0)
    read = ManifestFile.fetch_manifest_entry
    runs: list[int] = []

    def expire_first(manifest: ManifestFile, *arguments: object, **keywords: object) -> object:
        if not runs:
            runs.append(0)
            lake.table().delete()
            for _ in range(3):
                lake.commit(9)
                lake.table().append(pa.table({"id": pa.array([0])}))
            expiry = SnapshotExpiry(lake.table, lake.store.expiries, STREAM.table_uri, policy, lambda: NOW)
            while expiry.run().files == 0:
                pass
        return read(manifest, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", expire_first)
    assert lost in {file.path for file in lake.find().unneeded}
    assert runs


# Files in other places ------------------------------------------------------------------------------


def test_files_below_a_local_location(tmp_path: Path) -> None:
    """With the characters that partition values bring, and once the location is gone."""
    names = [f"day={n % 3}/a%2F b{n}" for n in range(100)]
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    for location in (f"file://{tmp_path}/data", f"{tmp_path}/data"):
        files = iceberg_files(location, {})
        assert {path for path, _, _ in files.walk()} == set(names)
        assert files.missing([names[0], "day=9/x"]) == ["day=9/x"]
        assert files.missing([*names, "day=9/x"]) == ["day=9/x"]
    assert files.delete([names[0], "day=9/x"]) == 1
    assert files.missing(names) == [names[0]]
    gone = iceberg_files(f"file://{tmp_path}/gone", {})
    assert (gone.missing(["a"]), gone.delete(["a"]), list(gone.walk())) == (["a"], 0, [])


def test_files_below_a_location_in_an_object_store() -> None:
    with s3_server() as options:
        client = s3_client(options)
        for key in ("t/data/day=1/a b", "t/data/b", "t/data2/c"):
            client.put_object(Bucket="lake", Key=key, Body=b"x")
        properties = s3_properties(options)
        files = iceberg_files("s3://lake/t/data", properties)
        assert {(path, size) for path, size, _ in files.walk()} == {("day=1/a b", 1), ("b", 1)}
        assert files.missing(["b", "c"]) == ["c"]
        assert files.delete(["b", "c"]) == 1
        assert {path for path, _, _ in files.walk()} == {"day=1/a b"}
        assert list(iceberg_files("s3://lake/nothing", properties).walk()) == []


def test_files_are_deleted_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowded:
        """Deletes no file before it may delete four."""

        four = threading.Barrier(4)

        def get_file_info(self, path: str) -> FileInfo:
            return FileInfo(path, FileType.File)

        def delete_file(self, path: str) -> None:
            self.four.wait(30)
            if path == "gone":
                raise FileNotFoundError(path)

    monkeypatch.setattr("pyarrow.fs.SubTreeFileSystem", lambda *_: Crowded())
    properties = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"}
    assert iceberg_files("s3://lake/t", properties).delete(["a", "b", "c", "gone"]) == 4


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
