"""What the product relies on of the Delta library, claimed of the library and of its fake alike.

What random histories show is left to `test_fake_delta_histories.py`: tokens, stale handles, columns and the
history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from tests.simulation.delta_sides import (
    EPOCH,
    LOG,
    FakeSide,
    RealSide,
    Side,
    add_column,
    commit,
    create,
    drop,
    drop_old_entries,
    ending,
    entry,
    history,
    log_of,
    new_table,
    open_table,
    set_times,
    write,
)

from penstock.committers.delta.cleanup import DeltaCleanableTable
from penstock.committers.delta.files import delta_files


@pytest.fixture(params=["fake", "real"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Side:
    return FakeSide() if request.param == "fake" else RealSide(tmp_path)


def raises(error: type[Exception], match: str | None = None) -> Any:
    """That very class, none derived from it."""
    return pytest.raises(error, match=match, check=lambda raised: type(raised) is error)


# Opening -------------------------------------------------------------------------------------------------


def test_where_nothing_is_there_is_no_table(side: Side) -> None:
    with raises(TableNotFoundError, "does not exist"):
        open_table(side)


def test_a_folder_without_a_log_is_no_table(side: Side) -> None:
    side.write_file("x.parquet", 1)
    with raises(TableNotFoundError, "No files in log segment"):
        open_table(side)


def test_a_version_that_was_cleaned_up_is_not_found(side: Side) -> None:
    new_table(side, batches=5, checkpoint_every=4)
    drop_old_entries(side)
    for version in range(3):
        with raises(TableNotFoundError, "No files in log segment"):
            open_table(side, version)
    assert [open_table(side, version).version() for version in (3, 4, 5)] == [3, 4, 5]


def test_a_log_that_has_lost_its_beginning_cannot_be_read(side: Side) -> None:
    new_table(side, batches=2)
    side.delete(entry(0))
    with raises(DeltaError):
        open_table(side)


def test_a_log_with_a_gap_cannot_be_read_beyond_it(side: Side) -> None:
    new_table(side, batches=3)
    side.delete(entry(2))
    with raises(DeltaError, "contiguous"):
        open_table(side)
    assert open_table(side, 1).version() == 1


def test_a_handle_says_what_the_table_is(side: Side) -> None:
    create(side)
    handle = open_table(side)
    assert handle.metadata().id == open_table(side).metadata().id != ""
    assert handle.metadata().configuration["delta.checkpointInterval"] == "20"
    assert handle.metadata().partition_columns == []
    assert handle.table_uri.rstrip("/") == f"file://{side.uri}"
    assert handle.protocol()[:2] == (1, 2)
    assert (handle.protocol().writer_features, handle.protocol().reader_features) == (None, None)


# Creating ------------------------------------------------------------------------------------------------


def test_a_table_created_again_has_another_id(side: Side) -> None:
    create(side)
    before = open_table(side).metadata().id
    drop(side)
    create(side)
    assert open_table(side).metadata().id != before


# Tokens --------------------------------------------------------------------------------------------------


def test_a_token_is_read_from_the_log_when_it_is_asked_for(side: Side) -> None:
    """Newest entry first, and no further than needed; whoever cleans up the log meanwhile, breaks it."""
    new_table(side, batches=3)
    handle = open_table(side)
    side.delete(entry(1))
    assert handle.transaction_version("q") == 3
    side.delete(entry(3))
    with raises(DeltaError, "File not found"):
        handle.transaction_version("q")


# Commits -------------------------------------------------------------------------------------------------


def test_a_handle_whose_table_was_dropped_does_not_commit(side: Side) -> None:
    new_table(side, batches=1)
    stale = open_table(side)
    drop(side)
    with raises(DeltaError, "Invalid table version: 1"):
        commit(stale, 2)
    assert not [path for path in side.paths() if path.startswith(LOG)]


def test_a_handle_of_a_table_that_was_created_again_does_not_commit(side: Side) -> None:
    new_table(side, batches=2)
    stale = open_table(side)
    drop(side)
    new_table(side, batches=1)
    with raises(DeltaError, "Invalid table version: 2"):
        commit(stale, 3)


def test_a_handle_whose_version_was_cleaned_up_does_not_commit(side: Side) -> None:
    new_table(side, batches=1, checkpoint_every=4)
    stale = open_table(side)
    for batch_id in (2, 3):
        write(side, batch_id)
    drop_old_entries(side)
    with raises(DeltaError, "Invalid table version: 1"):
        commit(stale, 4)


def test_missing_files_are_committed(side: Side) -> None:
    new_table(side)
    commit(open_table(side), 1, ["nowhere.parquet"])
    assert side.files(open_table(side)) == {"nowhere.parquet"}


def test_a_path_committed_twice_is_one_file(side: Side) -> None:
    new_table(side, batches=1)
    commit(open_table(side), 2, ["q-1.parquet"])
    assert side.rows(open_table(side)) == [1]


@pytest.mark.parametrize(("drops_expired", "old", "oldest_left"), [(None, 5, 5), (None, 7, 5), (False, 7, 0)])
def test_a_commit_drops_what_no_young_version_needs(
    side: Side, drops_expired: bool | None, old: int, oldest_left: int
) -> None:
    """Log checkpoints are of versions 2, 5 and 8; the first `old` versions are beyond the log's retention."""
    new_table(side, batches=7, checkpoint_every=3)
    for name in log_of(side):
        if name[0] != "_" and int(name[:20]) < old:
            side.set_time(f"{LOG}/{name}", EPOCH)
    commit(open_table(side), 8, drops_expired=drops_expired)
    assert min(log_of(side))[:20] == f"{oldest_left:020}"
    assert open_table(side).transaction_version("q") == 8


FOREIGN_WRITES: dict[str, Callable[[Side], object]] = {
    "append": lambda side: side.append(9),
    "compaction": lambda side: side.compact(),
    "overwriting": lambda side: write(side, 9, query="other", mode="overwrite"),
    "same token": lambda side: write(side, 9),
    "other token": lambda side: write(side, 9, query="other"),
    "column": lambda side: add_column(open_table(side), "y"),
    "restore": lambda side: open_table(side).restore(1),
    "vacuum": lambda side: side.vacuum(),
}
COMMITS: dict[str, Callable[[Any], None]] = {
    "append": lambda handle: commit(handle, 3, ["new.parquet"], retries=None),
    "overwriting": lambda handle: commit(handle, 3, ["new.parquet"], mode="overwrite", retries=None),
    "column": lambda handle: add_column(handle, "x", retries=None),
}


@pytest.mark.parametrize("write", FOREIGN_WRITES)
@pytest.mark.parametrize("what", COMMITS)
def test_a_commit_with_retries_is_rebased_over_foreign_writes_as_the_library_does(
    tmp_path: Path, what: str, write: str
) -> None:
    """The product makes none; what would happen if it did is for the simulator to show."""
    ends = []
    for side in (FakeSide(), RealSide(tmp_path)):
        new_table(side, batches=2)
        side.write_file("orphan.parquet", 0)
        stale = open_table(side)
        FOREIGN_WRITES[write](side)
        ended = ending(partial(COMMITS[what], stale))
        table = open_table(side)
        names = {"other" if path.startswith("part-") else path for path in side.files(table)}
        columns = [column.name for column in _fields(table)]
        ends.append((ended, table.version(), table.transaction_version("q"), names, columns))
    assert ends[0] == ends[1]


# Columns -------------------------------------------------------------------------------------------------


def _fields(handle: Any) -> list[Any]:
    return list(Schema.from_json(handle.schema().to_json()).fields)


def test_a_column_that_is_there_in_another_case_is_refused(side: Side) -> None:
    new_table(side)
    with raises(Exception, "Duplicate field name"):
        add_column(open_table(side), "ID")
    assert open_table(side).version() == 0


# History -------------------------------------------------------------------------------------------------


def test_history_leaves_out_what_was_cleaned_up(side: Side) -> None:
    new_table(side, batches=5, checkpoint_every=4)
    drop_old_entries(side)
    assert [version for version, *_ in history(open_table(side), 6)] == [5, 4, 3]


def test_history_of_a_dropped_table_is_empty(side: Side) -> None:
    new_table(side, batches=1)
    handle = open_table(side)
    drop(side)
    assert history(handle, 1) == []


def test_history_tells_of_vacuums_and_compactions(side: Side) -> None:
    new_table(side, batches=2)
    side.compact()
    side.vacuum()
    said = [(version, operation) for version, operation, *_ in history(open_table(side), 3)]
    assert said == [(5, "VACUUM END"), (4, "VACUUM START"), (3, "OPTIMIZE")]


# RESTORE, and time travel ----------------------------------------------------------------------------------


def test_a_restore_takes_back_files_and_leaves_tokens(side: Side) -> None:
    new_table(side, batches=3)
    handle = open_table(side)
    handle.restore(1)
    assert handle.version() == open_table(side).version() == 4
    assert side.files(open_table(side)) == {"q-1.parquet"}
    assert open_table(side).transaction_version("q") == 3
    assert history(open_table(side), 1) == [(4, "RESTORE", None, {"version": "1"})]


def test_a_restore_is_undone_by_a_restore(side: Side) -> None:
    new_table(side, batches=3)
    open_table(side).restore(1)
    open_table(side).restore(3)
    assert side.rows(open_table(side)) == [1, 2, 3]


def test_a_restore_takes_back_columns(side: Side) -> None:
    new_table(side)
    table_id = open_table(side).metadata().id
    add_column(open_table(side), "x")
    open_table(side).restore(0)
    assert [column.name for column in _fields(open_table(side))] == ["id"]
    assert open_table(side).metadata().id == table_id


def test_a_restore_by_time_notes_the_time(side: Side) -> None:
    new_table(side, batches=3)
    set_times(side)
    moment = datetime.fromtimestamp(EPOCH + 250, timezone.utc)
    open_table(side).restore(moment)
    told = history(open_table(side), 1)
    assert told == [(4, "RESTORE", None, {"datetime": str((EPOCH + 250) * 1000)})]
    assert side.rows(open_table(side)) == [1, 2]


@pytest.mark.parametrize(
    ("seconds", "version"), [(-1, 0), (0, 0), (99, 0), (100, 1), (250, 2), (300, 3), (1000, 3)]
)
def test_a_handle_goes_to_the_version_of_a_time(side: Side, seconds: int, version: int) -> None:
    new_table(side, batches=3)
    set_times(side)
    handle = open_table(side)
    handle.load_as_version(datetime.fromtimestamp(EPOCH + seconds, timezone.utc))
    assert handle.version() == version


def test_a_time_before_the_oldest_version_that_is_left_is_taken_for_that_one(side: Side) -> None:
    new_table(side, batches=5, checkpoint_every=4)
    set_times(side)
    drop_old_entries(side)
    for seconds, version in ((110, 3), (410, 4)):
        handle = open_table(side)
        handle.load_as_version(datetime.fromtimestamp(EPOCH + seconds, timezone.utc))
        assert handle.version() == version


def test_a_stale_handle_does_not_restore(side: Side) -> None:
    new_table(side, batches=2)
    stale = open_table(side)
    write(side, 3)
    with raises(CommitFailedError):
        stale.restore(1)


@pytest.mark.parametrize("version", [2, 3])
def test_only_an_earlier_version_is_restored(side: Side, version: int) -> None:
    new_table(side, batches=2)
    with raises(DeltaError):
        open_table(side).restore(version)


def test_a_version_whose_files_are_gone_is_not_restored(side: Side) -> None:
    new_table(side, batches=1)
    write(side, 2, mode="overwrite")
    side.delete("q-1.parquet")
    with raises(DeltaError, r"Find missing file q-1\.parquet"):
        open_table(side).restore(1)
    assert open_table(side).version() == 2


# Foreign writers --------------------------------------------------------------------------------------------


def test_a_vacuum_deletes_what_the_newest_version_does_not_name(side: Side) -> None:
    new_table(side, batches=1)
    write(side, 2, mode="overwrite")
    side.write_file("orphan.parquet", 3)
    side.vacuum()
    assert {path for path in side.paths() if not path.startswith(LOG)} == {"q-2.parquet"}


def test_a_vacuum_that_finds_nothing_is_no_commit(side: Side) -> None:
    new_table(side, batches=1)
    side.vacuum()
    assert open_table(side).version() == 1


# Files and clean-up ----------------------------------------------------------------------------------------

ODD_NAME = "x y%2F#;@:$!~"
ODD = f"a b%20=,+&'é/{ODD_NAME}.parquet"


@pytest.fixture
def product(side: Side) -> Iterator[Side]:
    """The product's code reaches that side."""
    if isinstance(side, FakeSide):
        with side.lake.installed():
            yield side
    else:
        yield side


def test_clean_up_sees_the_files_and_the_names_of_every_version_that_can_be_read(product: Side) -> None:
    new_table(product, checkpoint_every=4)
    table = DeltaCleanableTable(product.uri, {})
    assert _names(table) == set()
    product.write_file(ODD, 1)
    commit(open_table(product), 1, [ODD, "first.parquet"])
    commit(open_table(product), 2, ["second.parquet"], mode="overwrite")
    commit(open_table(product), 3, ["third.parquet"])
    assert log_of(product)[3] == f"{3:020}.checkpoint.parquet"
    assert _names(table) == {ODD_NAME, "first", "second", "third"}
    assert _names(table) == set()
    drop_old_entries(product)
    anew = DeltaCleanableTable(product.uri, {})
    assert _names(anew) == {ODD_NAME, "first", "second", "third"}
    assert {file.path for file in anew.files()} == {ODD}


def _names(table: DeltaCleanableTable) -> set[str]:
    return {name.removesuffix(".parquet") for names in table.names() for name in names if name}


def test_clean_up_sees_tokens(product: Side) -> None:
    new_table(product)
    commit(open_table(product), 5, query="penstock:q")
    _, tokens = DeltaCleanableTable(product.uri, {}).id_and_tokens(["q", "other"])
    assert {query_id: token.batch_id for query_id, token in tokens.items()} == {"q": 5}


def test_clean_up_finds_no_file_where_there_is_no_table(product: Side) -> None:
    assert list(DeltaCleanableTable(product.uri, {}).files()) == []


def test_files_are_looked_for_and_deleted_by_their_paths(product: Side) -> None:
    create(product)
    product.write_file(ODD, 1)
    files = delta_files(product.uri, {})
    assert files.missing([ODD, "gone.parquet"]) == ["gone.parquet"]
    assert files.delete([ODD, "gone.parquet"]) == 1
    assert files.missing([ODD]) == [ODD]


def test_no_file_is_there_where_no_table_is(product: Side) -> None:
    files = delta_files(product.uri, {})
    assert (files.missing(["a"]), files.delete(["a"]), list(files.walk())) == (["a"], 0, [])
