"""Other engines append, overwrite, alter, drop and rename the table while a stream writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import DoubleType, LongType, StringType
from tests.support.lakes import rows
from tests.support.streams import IcebergStream

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import RetryableError, SchemaMismatchError, TableChangedError
from penstock.testing.faults import at_point

NARROW = pa.schema([("id", pa.int64()), ("name", pa.string()), ("n", pa.int32()), ("f", pa.float32())])

Change = Callable[[IcebergStream], object]


@pytest.fixture
def stream(tmp_path: Path) -> IcebergStream:
    """With batch 0 in the table."""
    stream = IcebergStream(tmp_path, schema=NARROW)
    stream.commit(0, [1], name="a", n=1, f=0.5)
    return stream


def alter(*changes: Callable[[UpdateSchema], object]) -> Change:
    """All of these changes of the schema in one commit."""

    def change(stream: IcebergStream) -> None:
        with stream.load().update_schema(allow_incompatible_changes=True) as update:
            for one in changes:
                one(update)

    return change


# What a commit is rebased over -------------------------------------------------------------------------


def set_owner(stream: IcebergStream, owner: str = "another") -> None:
    stream.lake.set_properties({"owner": owner})


def append_and_expire(stream: IcebergStream) -> None:
    stream.lake.append(100)
    stream.lake.expire()


def tag(stream: IcebergStream) -> None:
    stream.load().manage_snapshots().create_tag(stream.head.snapshot_id, "release").commit()


def sort(stream: IcebergStream) -> None:
    with stream.load().update_sort_order() as update:
        update.asc("id", IdentityTransform())


ADD_COLUMN = alter(lambda update: update.add_column("added", StringType()))
RENAME_COLUMN = alter(lambda update: update.rename_column("name", "called"))
DROP_COLUMN = alter(lambda update: update.delete_column("name"))
WIDEN_COLUMNS = alter(
    lambda update: update.update_column("n", LongType()),
    lambda update: update.update_column("f", DoubleType()),
)

A, B = (1, "a", 1, 0.5), (2, "b", 2, 1.5)
FOREIGN = (100, None, None, None)

HARMLESS: dict[str, tuple[Change, str, list[tuple[object, ...]]]] = {
    "append": (lambda stream: stream.lake.append(100), "id, name, n, f", [A, B, FOREIGN]),
    "overwrite": (lambda stream: stream.lake.compact(), "id, name, n, f", [A, B]),
    "delete": (lambda stream: stream.load().delete("id = 1"), "id, name, n, f", [B]),
    "set property": (set_owner, "id, name, n, f", [A, B]),
    "expire": (append_and_expire, "id, name, n, f", [A, B, FOREIGN]),
    "tag": (tag, "id, name, n, f", [A, B]),
    "sort": (sort, "id, name, n, f", [A, B]),
    "add column": (ADD_COLUMN, "id, name, n, f, added", [(*A, None), (*B, None)]),
    "rename column": (RENAME_COLUMN, "id, called, n, f", [A, B]),
    "move column": (alter(lambda update: update.move_first("f")), "id, name, n, f", [A, B]),
    "widen columns": (WIDEN_COLUMNS, "id, name, n, f", [A, B]),
    "drop column": (DROP_COLUMN, "id, n, f", [(1, 1, 0.5), (2, 2, 1.5)]),
}


@pytest.mark.parametrize("name", HARMLESS)
@pytest.mark.parametrize("point", ["before the load", "after the load"])
def test_a_commit_is_rebased_over_harmless_changes(stream: IcebergStream, name: str, point: str) -> None:
    """Columns are matched by field id, not by name or position. No change of the other writer is undone."""
    change, columns, expected = HARMLESS[name]
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    if point == "before the load":
        change(stream)
        assert isinstance(stream.committer().commit(manifest), Committed)
    else:
        with at_point("commit.start", lambda: change(stream)):
            stream.committer().commit(manifest)
        stream.commit_until_it_ends(manifest)
    assert rows(stream.lake, columns) == expected
    if change is set_owner:
        assert stream.load().properties["owner"] == "another"
    assert stream.lake.orphan_manifests() == set() or name in ("expire", "overwrite", "delete")


def test_a_change_of_the_schema_between_load_and_commit_is_a_conflict(stream: IcebergStream) -> None:
    """The files fit the schema that was loaded; the next attempt loads the new one."""
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    with at_point("commit.start", lambda: RENAME_COLUMN(stream)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.lake.orphan_manifests() == set()


# What stops it -----------------------------------------------------------------------------------------


def partition(stream: IcebergStream) -> None:
    with stream.load().update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")


HARMFUL: dict[str, tuple[Change, str]] = {
    "make required": (alter(lambda update: update.update_column("n", required=True)), r"'n' is now NOT NULL"),
    "add required": (
        alter(lambda update: update.add_column("must", LongType(), required=True)),
        r"'must' is NOT NULL in the table",
    ),
    "drop and add again": (
        lambda stream: (
            DROP_COLUMN(stream),
            alter(lambda update: update.add_column("name", StringType()))(stream),
        ),
        r"'name' was dropped and added again",
    ),
    "partition": (partition, r"now partitioned by id_bucket \(bucket\[4\]\)"),
}


@pytest.mark.parametrize(("change", "says"), HARMFUL.values(), ids=HARMFUL)
@pytest.mark.parametrize("point", ["before the load", "after the load"])
def test_a_change_that_the_files_do_not_fit_is_refused_and_nothing_is_committed(
    stream: IcebergStream, change: Change, says: str, point: str
) -> None:
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    if point == "before the load":
        change(stream)
    else:
        with at_point("commit.start", lambda: change(stream)):
            assert isinstance(stream.committer().commit(manifest), Conflict)
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        stream.committer().commit(manifest)
    assert "The files have:\n    id: long" in str(caught.value)
    assert stream.ids() == [1]
    assert stream.lake.orphan_manifests() == set()


def test_a_column_that_was_dropped_and_added_again_can_be_renamed_meanwhile(stream: IcebergStream) -> None:
    """Undoing the change, which other changes are answered with, is not possible in Iceberg."""
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    HARMFUL["drop and add again"][0](stream)
    with pytest.raises(
        SchemaMismatchError, match=r"rename the new one, commit, and rename it back"
    ) as caught:
        stream.committer().commit(manifest)
    assert "Undo" not in str(caught.value)

    alter(lambda update: update.rename_column("name", "renamed"))(stream)
    assert isinstance(stream.committer().commit(manifest), Committed)
    alter(lambda update: update.rename_column("renamed", "name"))(stream)
    assert rows(stream.lake, "id, name, n") == [(1, None, 1), (2, None, 2)]


def test_a_batch_written_for_the_new_partitioning_is_committed(stream: IcebergStream) -> None:
    partition(stream)
    assert isinstance(stream.commit(1, [2, 3, 4]), Committed)
    assert stream.ids() == [1, 2, 3, 4]
    assert len(stream.lake.added()) >= 2


def test_a_committed_batch_counts_even_if_the_table_accepts_no_more_batches(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    stream.committer().commit(manifest)
    partition(stream)
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)


# Dropped, re-created, renamed --------------------------------------------------------------------------


def drop(stream: IcebergStream) -> None:
    stream.lake.sql_catalog.drop_table(stream.name)


def rename(stream: IcebergStream) -> None:
    stream.lake.sql_catalog.rename_table(stream.name, "lake.renamed")


def drop_with_namespace(stream: IcebergStream) -> None:
    drop(stream)
    stream.lake.sql_catalog.drop_namespace("lake")


def drop_and_create(stream: IcebergStream) -> None:
    schema = stream.load().schema()
    drop(stream)
    stream.lake.sql_catalog.create_table(stream.name, Schema(*schema.fields))


NO_LONGER_THERE = "Iceberg table .* no longer exists"
MISSING: dict[str, tuple[Change, str]] = {
    "drop": (drop, NO_LONGER_THERE),
    "rename": (rename, NO_LONGER_THERE),
    "drop with namespace": (drop_with_namespace, NO_LONGER_THERE),
    "drop and create": (drop_and_create, "re-created"),
}


@pytest.mark.parametrize(("change", "says"), MISSING.values(), ids=MISSING)
def test_a_table_that_is_dropped_between_load_and_commit_stops_the_stream(
    stream: IcebergStream, change: Change, says: str
) -> None:
    """A table with another UUID accepts no batch, even with the same schema and head."""
    manifest = stream.prepare(1, [2])
    with at_point("commit.start", lambda: change(stream)), pytest.raises(TableChangedError, match=says):
        stream.committer().commit(manifest)


def test_an_empty_table_created_again_between_load_and_commit_accepts_no_batch(tmp_path: Path) -> None:
    """Neither has a snapshot: only the UUID differs."""
    stream = IcebergStream(tmp_path)
    manifest = stream.prepare(0, [1])
    with at_point("commit.start", lambda: drop_and_create(stream)), pytest.raises(TableChangedError):
        stream.committer().commit(manifest)
    assert stream.load().metadata.snapshots == []


def test_a_stream_continues_once_its_table_has_its_name_again(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [2])
    rename(stream)
    stream.lake.sql_catalog.rename_table("lake.renamed", stream.name)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2]


def test_metadata_that_cannot_be_read_is_reported(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [2])
    metadata = Path(stream.lake.metadata_location.removeprefix("file://"))
    whole = metadata.read_bytes()
    metadata.write_text("{damaged")
    with pytest.raises(RetryableError, match="cannot be read"):
        stream.committer().commit(manifest)
    metadata.write_bytes(whole)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2]


def test_metadata_that_is_replaced_and_deleted_before_it_is_read_is_loaded_again(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table keeps ten old metadata files. The catalog has returned an older one."""
    manifest = stream.prepare(1, [2])
    read = FromInputFile.table_metadata
    deleted: list[str] = []

    def after_others(file: InputFile) -> TableMetadata:
        if not deleted:
            deleted.append(file.location)
            for n in range(12):
                set_owner(stream, str(n))
            assert not Path(file.location.removeprefix("file://")).exists()
        return read(file)

    monkeypatch.setattr(FromInputFile, "table_metadata", after_others)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert deleted
    assert stream.ids() == [1, 2]
