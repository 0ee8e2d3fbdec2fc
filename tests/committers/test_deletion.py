"""No file outside of the folders of a table is deleted, in any format and storage."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from servers.azure import ACCOUNT, CONTAINER, azure_options, azure_properties
from servers.s3 import BUCKET, s3_properties
from tests.support.stored_lake import Lake

import penstock
from penstock.committers.cleaning.deletion import DeletionGuard, has_folder, is_relative
from penstock.committers.contract import DataFile
from penstock.committers.delta.files import delta_files
from penstock.committers.delta.object_store import open_object_store
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.files.committer import FilesCommitter
from penstock.committers.hudi.storage import HudiStorage
from penstock.committers.iceberg.files import iceberg_files
from penstock.writers.parquet.compaction import delete_files
from penstock.writers.parquet.write_config import WriteConfig

OUTSIDE = ("../v1", "/v1", "a/../../v1", "%2e%2e/v1", "%252E%252e/v1", "./../v1", "../t2/a", "")


@pytest.mark.parametrize(
    ("folder", "inside", "outside"),
    [
        ("s3://lake/t", ["s3://lake/t/a", "s3a://lake/t/a//b", "S3N://lake/t/p=%2F../a"], ["s3://lake/t2/a"]),
        (
            "s3a://lake/t//",
            ["s3://lake/t/a"],
            ["s3://lake2/t/a", "s3://lake//t/a", "/lake/t/a", "s3://lake/t/"],
        ),
        ("abfss://c@x.dfs.core.windows.net/t", ["abfs://c@x.dfs.core.windows.net/t/a"], ["abfss://d@x/t/a"]),
        ("file:///lake/t/", ["/lake/t/a", "file:/lake//t/a"], ["/lake/t", "/lake/t2", "s3://lake/t/a"]),
        ("/lake/t", ["file:///lake/t/a"], ["/lake/t/../v", "/lake/t/%2e%2e/v", "/lake/t/./a", "/lake/t/a\0"]),
    ],
)
def test_a_location_passes_only_below_the_folder(folder: str, inside: list[str], outside: list[str]) -> None:
    assert DeletionGuard([folder]).allowed([*inside, *outside]) == inside


@pytest.mark.parametrize("location", ["/x", "file:/x", "file:///x", "//x", "x", "file:x"])
def test_a_file_in_the_root_is_not_in_the_working_directory(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    assert DeletionGuard([str(tmp_path)]).allowed([location, "./b/../x", f"{tmp_path}/x"]) == [
        f"{tmp_path}/x"
    ]


@pytest.mark.parametrize(
    "location", ["/", "file:///", "file://", "s3://lake", "s3://lake//", "s3://", "file:"]
)
def test_the_root_of_a_storage_is_no_folder(location: str) -> None:
    assert not has_folder(location)
    assert all(map(has_folder, ["/lake/t", "file:///t", "s3://lake/t/"]))


def test_a_name_like_a_partition_value_is_a_relative_path() -> None:
    assert all(map(is_relative, ["p=%2F..%2F/a", "..a/b", "%2e%2e%2e/a", "p=a:b/x", "a b/ä%", "a:b"]))


# On every storage ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    """A folder of a storage, and the options for it."""

    root: str
    delta: dict[str, str]
    iceberg: dict[str, str]

    def files(self, kind: str, folder: str) -> TableFiles:
        if kind == "delta":
            return delta_files(f"{self.root}/{folder}".rstrip("/"), self.delta)
        root = self.root.replace("az://lake", f"abfss://lake@{ACCOUNT}.dfs.core.windows.net")
        return iceberg_files(f"{root}/{folder}".rstrip("/"), self.iceberg)

    def put(self, path: str) -> None:
        store = open_object_store(self.root, self.delta)
        if store is None:
            Path(self.root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(self.root, path).touch()
        else:
            store.put(path, b"x")


@pytest.fixture(params=["local disk", "S3", "Azure"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local disk":
        return Storage(str(tmp_path), {}, {})
    if request.param == "S3":
        options = request.getfixturevalue("s3")
        return Storage(f"s3://{BUCKET}/{uuid.uuid4()}", options, s3_properties(options))
    url = request.getfixturevalue("azure")
    return Storage(f"az://{CONTAINER}/{uuid.uuid4()}", azure_options(url), azure_properties(url))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_no_path_leaves_the_table(storage: Storage, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    for path in ("t/a", "t/b", "v1", "t2/a"):
        storage.put(path)
    files = storage.files(kind, "t")
    assert files.delete([*OUTSIDE, f"{storage.root}/v1", "a"]) == 1
    assert files.delete(OUTSIDE) == 0
    assert storage.files(kind, "").missing(["v1", "t2/a", "t/b"]) == []
    assert sorted(path for path, _, _ in files.walk()) == ["b"]
    assert "did not delete 9 file(s)" in caplog.text


# Links on the local disk --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_clean_up_follows_no_link(tmp_path: Path, kind: str) -> None:
    """To a folder with files of this very query's names, to the folder above, and to a file."""
    lake = Lake(tmp_path, kind=kind)
    lake.commit(0, lake.write(0))
    lost = lake.write(0)
    elsewhere = tmp_path / "elsewhere"
    for file in lost:
        (elsewhere / file.path).parent.mkdir(parents=True)
        (lake.table / file.path).rename(elsewhere / file.path)
    (lake.table / "link").symlink_to(elsewhere)
    (lake.table / "loop").symlink_to(lake.table)
    before = {path for path in elsewhere.rglob("*") if path.is_file()}
    assert len(before) == len(lost)
    assert lake.find().unneeded == []
    assert lake.clean_up() == 0
    assert lake.committer().delete_files([f"link/{file.path}" for file in lost]) == 0
    assert {path for path in elsewhere.rglob("*") if path.is_file()} == before
    lake.store.close()


def test_a_compaction_takes_back_only_files_of_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    (tmp_path / "v1").touch()
    (lake.table / "new").touch()
    paths = ["../v1", f"{tmp_path}/v1", "new"]
    assert isinstance(lake.planned.writers, WriteConfig)
    delete_files(lake.planned.writers, [DataFile(path, 1, 1) for path in paths])
    assert (tmp_path / "v1").exists()
    assert not (lake.table / "new").exists()
    lake.store.close()


def test_folders_of_files_and_hudi_tables_delete_only_their_own(tmp_path: Path) -> None:
    (tmp_path / "v1").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "v2").touch()
    deletions: dict[Path, Callable[[list[str]], int]] = {
        tmp_path / ".rows.penstock": FilesCommitter(f"{tmp_path}/rows").place.delete_staged,
        tmp_path / "table": HudiStorage(f"{tmp_path}/table", {}).delete_all,
    }
    for folder, delete in deletions.items():
        folder.mkdir()
        (folder / "link").symlink_to(tmp_path / "elsewhere")
        (folder / "own").touch()
        assert delete(["../v1", f"{tmp_path}/v1", "link/v2", "own"]) == 1
        assert not (folder / "own").exists()
    assert (tmp_path / "v1").exists()
    assert (tmp_path / "elsewhere" / "v2").exists()


# All of them --------------------------------------------------------------------------------------

PRIMITIVES = ("delete_file", "delete_dir", "unlink", "os.remove", "rmtree", "rmdir", "vacuum", "purge_table")
DELETE_OF = ("io", "store", "file", "filesystem", "objects", "_own(name)")
CALLERS = {
    "committers/file_tables/files.py": "behind the gate",
    "committers/delta/files.py": "behind the gate of `TableFiles`",
    "committers/delta/log_files.py": "its own temporary file",
    "committers/delta/maintenance.py": "only asks the library for a list",
    "committers/files/local_folder.py": "behind the gate",
    "committers/duckdb/staged_files.py": "files of tasks in the staging folder, by their names",
    "committers/hudi/storage.py": "behind the gate; and folders that are empty",
    "committers/iceberg/files.py": "behind the gate of `TableFiles`",
    "committers/iceberg/file_deletion.py": "`delete_files`, whose callers ask the gate",
    "committers/iceberg/file_io.py": "called by `delete_files`, and by pyiceberg for files of its own",
    "committers/iceberg/object_store_files.py": "called by `TableFileIO`",
    "committers/iceberg/local_files.py": "called by `TableFileIO`",
    "committers/probing.py": "the small object that a check has created",
    "committers/paimon/folder.py": "its own temporary files, and notes of old batch writes",
    "writers/parquet/compaction.py": "behind the gate",
    "writers/parquet/new_files.py": "files that this task attempt has written",
    "writers/parquet/objects.py": "called by `Uploads`",
    "writers/parquet/uploads.py": "files that this task attempt has written",
    "writers/delta/filesystem.py": "called by `Uploads`",
    "writers/lance/writer.py": "files that this task attempt has written",
    "writers/paimon/sorted_files.py": "files that this task attempt or commit has written",
    "writers/paimon/writer.py": "files that this task attempt has written",
    "datasource/lake/maintenance.py": "calls Penstock's own `vacuum`",
    "cli/reset_query_id.py": "the checksum of a checkpoint's file",
    "datasource/spark/pickling.py": "its own temporary file",
    "datasource/delta/sink.py": "calls Penstock's own `vacuum`",
}
"""Which modules call what deletes files, and why they may."""


def test_files_are_deleted_nowhere_else() -> None:
    root = Path(penstock.__file__).resolve().parent
    modules = [
        path
        for folder in ("committers", "datasource", "delivery", "cli", "writers")
        for path in (root / folder).rglob("*.py")
    ]
    found = {
        str(path.relative_to(root))
        for path in modules
        if any(map(deletes, ast.walk(ast.parse(path.read_text()))))
    }
    assert found == set(CALLERS)


def deletes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    owner, _, name = ast.unparse(node.func).rpartition(".")
    return f"{owner}.{name}".endswith(PRIMITIVES) or (name == "delete" and owner.endswith(DELETE_OF))
