"""Clean-up deletes exactly the files that nothing needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.lakes import LAKES
from tests.support.stored_lake import GRACE, NOW, OLD, Lake, paths

from penstock.committers.cleaning import cleanup
from penstock.committers.cleaning.cleanup import (
    ClassifiedFiles,
    FileStatus,
    ListedFile,
    classify,
    settled_batches,
)
from penstock.committers.contract import DataFile, ManifestState, Token
from penstock.committers.delta.cleanup import DeltaCleanableTable
from penstock.committers.delta.files import delta_files
from penstock.committers.errors import ManifestCorruptError, RetryableError
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.iceberg.files import iceberg_files
from penstock.writers.parquet.file_names import parse_file_name


@pytest.fixture
def lake(tmp_path: Path, store_url: str) -> Iterator[Lake]:
    """A Delta table, with the store in each database."""
    with Lake(tmp_path, store_url) as lake:
        yield lake


@pytest.fixture
def local_lake(tmp_path: Path) -> Iterator[Lake]:
    """A Delta table, with the store in SQLite."""
    with Lake(tmp_path) as lake:
        yield lake


@pytest.fixture(params=LAKES)
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A table of each format, with the store in SQLite."""
    with Lake(tmp_path, kind=request.param) as lake:
        yield lake


# What cannot ----------------------------------------------------------------------------------------


def test_files_of_a_batch_given_up_stay_until_a_later_one_is_committed(lake: Lake) -> None:
    """The replay of an aborted batch may be prepared by a driver that still has these very files."""
    lake.commit(0, lake.write(0))
    given_up = lake.write(1)
    lake.prepare(1, given_up)
    lake.store.finish(lake.batch(1), ManifestState.ABORTED)
    assert lake.clean_up() == 0

    lake.commit(1, lake.write(1))
    assert lake.clean_up() == len(given_up)


def test_pending_files_are_kept_even_if_the_table_has_a_later_batch(local_lake: Lake) -> None:
    """Committed, and the driver died before it marked the batch. The log no longer names the files."""
    files = local_lake.write(0)
    manifest = local_lake.prepare(0, files)
    local_lake.committer().commit(manifest)
    lost = local_lake.write(0)
    for entry in (local_lake.table / "_delta_log").glob("*1.json"):
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        entry.write_text("\n".join(json.dumps(action) for action in actions if "add" not in action))

    assert paths(local_lake.find().unneeded) == paths(lost)
    assert local_lake.clean_up() == len(lost)
    assert local_lake.on_disk() == paths(files)


def test_files_that_only_an_older_version_has_stay_for_time_travel(local_lake: Lake) -> None:
    """With the store lost, nothing but the log names them."""
    first = local_lake.write(0)
    local_lake.commit(0, first)
    local_lake.commit(1, local_lake.write(1), mode="overwrite")
    local_lake.lose_store()
    local_lake.commit(2, local_lake.write(2))

    assert local_lake.find().unneeded == []
    assert local_lake.clean_up() == 0
    assert paths(first) <= local_lake.on_disk()


def test_files_that_only_a_checkpoint_of_the_log_names_stay(local_lake: Lake) -> None:
    live = local_lake.write(0)
    local_lake.commit(0, live)
    local_lake.commit(1, local_lake.write(1))
    deltalake.DeltaTable(str(local_lake.table)).create_checkpoint()
    for entry in (local_lake.table / "_delta_log").glob("*.json"):
        entry.unlink()
    local_lake.lose_store()
    # The new store has to know a batch at least as new, or nothing would count as settled.
    local_lake.prepare(1, [])

    assert local_lake.clean_up() == 0
    assert paths(live) <= local_lake.on_disk()
    assert len(local_lake.rows()) == 4


def test_files_that_only_a_committed_manifest_names_stay(local_lake: Lake) -> None:
    """Committed, overwritten, and the log cleaned up: they are the table's own VACUUM's to delete."""
    first = local_lake.write(0)
    local_lake.commit(0, first)
    local_lake.commit(1, local_lake.write(1), mode="overwrite")
    log = local_lake.table / "_delta_log"
    deltalake.DeltaTable(str(local_lake.table)).create_checkpoint()
    for entry in log.glob("*.json"):
        entry.unlink()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    actions = pq.read_table(checkpoint)
    pq.write_table(actions.filter(pa.compute.is_null(actions["remove"])), checkpoint)  # as if it had expired

    assert local_lake.find().unneeded == []
    assert local_lake.clean_up() == 0
    assert paths(first) <= local_lake.on_disk()


def test_files_of_a_table_inside_the_table_stay(tmp_path: Path) -> None:
    """One query wrote both: the token of the outer table does not count for the inner one."""
    with Lake(tmp_path) as outer, Lake(tmp_path / "table") as inner:
        outer.commit(0, outer.write(0))
        inner.runs = 100
        running = inner.write(0)

        assert outer.clean_up() == 0
        assert paths(running) <= inner.on_disk()


def test_without_a_token_in_the_table_nothing_is_settled(any_lake: Lake) -> None:
    """The table was dropped and created again: a driver may still write its first batch."""
    any_lake.prepare(0, [])
    any_lake.store.finish(any_lake.batch(0), ManifestState.COMMITTED)
    written = any_lake.write(0)
    assert any_lake.clean_up() == 0
    assert paths(any_lake.find().unsettled) == paths(written)


def test_without_a_table_nothing_is_deleted(any_lake: Lake) -> None:
    written = any_lake.write(0)
    any_lake.lake.forget()
    assert any_lake.clean_up() == 0
    assert paths(written) <= any_lake.on_disk()


def test_a_delta_table_whose_folder_is_missing_has_nothing_to_delete(local_lake: Lake) -> None:
    shutil.rmtree(local_lake.table)
    assert local_lake.find() == ClassifiedFiles()


# Between the listing and the deletion ---------------------------------------------------------------


def test_a_file_that_is_prepared_after_the_listing_is_kept(any_lake: Lake) -> None:
    """Impossible for a settled batch of this version. The check before each deletion prevents it."""
    orphans = any_lake.write(0)
    any_lake.commit(1, any_lake.write(1))
    cleaning = any_lake.cleanup()
    found = cleaning.find(NOW, GRACE)
    assert paths(found.unneeded) == paths(orphans)

    any_lake.prepare(0, orphans[:1])

    assert sum(cleaning.delete(found)) == len(orphans) - 1
    assert orphans[0].path in any_lake.on_disk()


def commit(lake: Lake, orphans: list[DataFile]) -> None:
    lake.prepare(0, orphans)
    lake.store.finish(lake.batch(0), ManifestState.COMMITTED)


def add_to_the_table(lake: Lake, orphans: list[DataFile]) -> None:
    """Tools that repair a table add files by hand."""
    lake.query_id = "repair"
    lake.register()
    lake.committer().commit(lake.prepare(0, orphans))


def replace_the_table(lake: Lake, _orphans: list[DataFile]) -> None:
    lake.lake.forget()
    lake.plan()


def prepare_a_later_batch(lake: Lake, orphans: list[DataFile]) -> None:
    """File names have batch ids, but what a manifest names counts."""
    lake.prepare(2, orphans)


@pytest.mark.parametrize("change", [commit, add_to_the_table, replace_the_table, prepare_a_later_batch])
def test_nothing_is_deleted_after_a_change_since_the_listing(
    any_lake: Lake, change: Callable[[Lake, list[DataFile]], None]
) -> None:
    orphans = any_lake.write(0)
    any_lake.commit(1, any_lake.write(1))
    cleaning = any_lake.cleanup()
    found = cleaning.find(NOW, GRACE)
    assert paths(found.unneeded) == paths(orphans)

    change(any_lake, orphans)

    assert sum(cleaning.delete(found)) == 0


def test_the_check_is_repeated_for_every_chunk(any_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup, "FILES_PER_CHECK", 1)
    orphans = any_lake.write(0)
    any_lake.commit(1, any_lake.write(1))
    cleaning = any_lake.cleanup()
    deleting = cleaning.delete(cleaning.find(NOW, GRACE))
    assert next(deleting) == 1

    any_lake.prepare(0, orphans)

    assert list(deleting) == [0]


# What cannot be read --------------------------------------------------------------------------------


def test_a_damaged_manifest_stops_clean_up(any_lake: Lake) -> None:
    any_lake.write(0)
    any_lake.commit(0, any_lake.write(0))
    with any_lake.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE penstock_manifest_contents SET content = x'00'")
    before = any_lake.on_disk()
    with pytest.raises(ManifestCorruptError, match="damaged"):
        any_lake.clean_up()
    assert any_lake.on_disk() == before


def test_a_damaged_checkpoint_of_the_log_stops_clean_up(local_lake: Lake) -> None:
    local_lake.write(0)
    local_lake.commit(0, local_lake.write(0))
    local_lake.commit(1, local_lake.write(1))
    deltalake.DeltaTable(str(local_lake.table)).create_checkpoint()
    (checkpoint,) = (local_lake.table / "_delta_log").glob("*.checkpoint.parquet")
    (local_lake.table / "_delta_log" / "_last_checkpoint").unlink()
    other = checkpoint.with_name("00000000000000000000.checkpoint.parquet")
    other.write_bytes(b"PAR1 not parquet")
    before = local_lake.on_disk()
    with pytest.raises(RetryableError, match=other.name):
        local_lake.clean_up()
    assert local_lake.on_disk() == before


def test_an_unreadable_log_stops_clean_up(local_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    local_lake.write(0)
    local_lake.commit(0, local_lake.write(0))
    before = local_lake.on_disk()
    table = DeltaCleanableTable(str(local_lake.table), {})

    class Unreachable:
        def get_file_info(self, _selector: object) -> None:
            raise OSError("no connection")

    monkeypatch.setattr(table, "_fs", Unreachable())
    with pytest.raises(RetryableError, match=r"_delta_log of .* cannot be read: no connection"):
        list(table.names())
    assert local_lake.on_disk() == before


def test_deleted_log_entries_are_listed_again(local_lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log clean-up runs at any time. A log checkpoint has what it deletes."""
    local_lake.commit(0, local_lake.write(0))
    local_lake.commit(1, local_lake.write(1))
    lost = local_lake.write(1)
    read = DeltaCleanableTable._names_in_json

    def vanish(table: DeltaCleanableTable, entry: str) -> set[str]:
        log = local_lake.table / "_delta_log"
        if not list(log.glob("*.checkpoint.parquet")):
            deltalake.DeltaTable(str(local_lake.table)).create_checkpoint()
            for old in log.glob("*.json"):
                old.unlink()
        return read(table, entry)

    monkeypatch.setattr(DeltaCleanableTable, "_names_in_json", vanish)
    local_lake.lose_store()
    local_lake.prepare(1, [])
    assert paths(local_lake.find().unneeded) == paths(lost)


# The pure decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "newest", "settled"),
    [
        (None, 7, -1),  # no table, or another one: nothing is settled
        (5, 7, 5),
        (7, 5, 5),  # the store was put back from an older copy: what it does not know stays
        (5, -1, -1),
    ],
)
def test_settled_is_what_table_and_store_are_past(token: int | None, newest: int, settled: int) -> None:
    tokens = {} if token is None else {"q": Token(token, "")}
    assert settled_batches(tokens, {"q": newest}) == {"q": settled}


@pytest.mark.parametrize(
    ("path", "age", "verdict"),
    [
        ("penstock-q-00000000-00000005-00000-0-0000.zstd.parquet", OLD, FileStatus.UNNEEDED),
        ("day=1/penstock-q-00000000-00000005-00000-0-0000.zstd.parquet", OLD, FileStatus.UNNEEDED),
        ("penstock-q-00000000-00000006-00000-0-0000.zstd.parquet", OLD, FileStatus.UNSETTLED),
        ("penstock-q-00000000-00000005-00000-0-0000.zstd.parquet", GRACE, FileStatus.YOUNG),
        ("penstock-other-00000000-00000005-00000-0-0000.zstd.parquet", OLD, FileStatus.NOT_OURS),
        ("part-00000-8d9a.snappy.parquet", OLD, FileStatus.NOT_OURS),
        ("_delta_log/00000000000000000000.json", OLD, FileStatus.NOT_OURS),
    ],
)
def test_verdicts(path: str, age: timedelta, verdict: FileStatus) -> None:
    file = ListedFile(path, 1, NOW - age)
    assert classify(file, parse_file_name(path), {"q": 5}, NOW - GRACE) is verdict


# Files on the local disk ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files_of", "location"), [(delta_files, "{}"), (iceberg_files, "{}"), (iceberg_files, "file://{}")]
)
def test_files_below_a_local_location(
    tmp_path: Path, files_of: Callable[[str, dict[str, str]], TableFiles], location: str
) -> None:
    """Paths have the characters of partition values. A location that does not exist has no files."""
    names = [f"day={n % 3}/a%2F b{n}" for n in range(100)]
    for name in names:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).touch()
    files = files_of(location.format(tmp_path / "data"), {})
    assert {path for path, _, _ in files.walk()} == set(names)
    assert files.missing([names[0], "day=9/x"]) == ["day=9/x"]
    assert files.missing([*names, "day=9/x"]) == ["day=9/x"]
    assert files.delete([names[0], "day=9/x"]) == 1
    assert files.missing(names) == [names[0]]
    missing = files_of(location.format(tmp_path / "missing"), {})
    assert (missing.missing(["a"]), missing.delete(["a"]), list(missing.walk())) == (["a"], 0, [])
