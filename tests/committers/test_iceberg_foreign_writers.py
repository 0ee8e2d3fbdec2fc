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


def update_schema(stream: IcebergStream, change: Callable[[UpdateSchema], object]) -> None:
    with stream.load().update_schema(allow_incompatible_changes=True) as update:
        change(update)


# What a commit is rebased over -------------------------------------------------------------------------


def append(stream: IcebergStream) -> None:
    stream.lake.append(100)


def overwrite(stream: IcebergStream) -> None:
    table = stream.load()
    table.overwrite(table.scan().to_arrow())


def delete(stream: IcebergStream) -> None:
    stream.load().delete("id = 1")


def set_property(stream: IcebergStream, value: str = "another") -> None:
    with stream.load().transaction() as transaction:
        transaction.set_properties({"owner": value})


def expire(stream: IcebergStream) -> None:
    append(stream)
    stream.lake.expire()


def tag(stream: IcebergStream) -> None:
    stream.load().manage_snapshots().create_tag(stream.head.snapshot_id, "release").commit()


def sort(stream: IcebergStream) -> None:
    with stream.load().update_sort_order() as update:
        update.asc("id", IdentityTransform())


def add_column(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.add_column("added", StringType()))


def rename_column(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.rename_column("name", "called"))


def move_column(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.move_first("f"))


def widen_columns(stream: IcebergStream) -> None:
    def widen(update: UpdateSchema) -> None:
        update.update_column("n", LongType())
        update.update_column("f", DoubleType())

    update_schema(stream, widen)


def drop_column(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.delete_column("name"))


A, B = (1, "a", 1, 0.5), (2, "b", 2, 1.5)
FOREIGN = (100, None, None, None)

HARMLESS = [
    (append, "id, name, n, f", [A, B, FOREIGN]),
    (overwrite, "id, name, n, f", [A, B]),
    (delete, "id, name, n, f", [B]),
    (set_property, "id, name, n, f", [A, B]),
    (expire, "id, name, n, f", [A, B, FOREIGN]),
    (tag, "id, name, n, f", [A, B]),
    (sort, "id, name, n, f", [A, B]),
    (add_column, "id, name, n, f, added", [(*A, None), (*B, None)]),
    (rename_column, "id, called, n, f", [A, B]),
    (move_column, "id, name, n, f", [A, B]),
    (widen_columns, "id, name, n, f", [A, B]),
    (drop_column, "id, n, f", [(1, 1, 0.5), (2, 2, 1.5)]),
]


@pytest.mark.parametrize(
    ("change", "columns", "expected"), HARMLESS, ids=lambda of: getattr(of, "__name__", "")
)
@pytest.mark.parametrize("point", ["before the look", "after the look"])
def test_a_commit_is_rebased_over_what_does_it_no_harm(
    stream: IcebergStream, change: Change, columns: str, expected: list[tuple[object, ...]], point: str
) -> None:
    """Another column name or place is no matter: columns go by field ids. Nothing of the other is undone."""
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    if point == "before the look":
        change(stream)
        assert isinstance(stream.committer().commit(manifest), Committed)
    else:
        with at_point("commit.start", lambda: change(stream)):
            stream.committer().commit(manifest)
        stream.commit_until_it_ends(manifest)
    assert rows(stream.lake, columns) == expected
    if change is set_property:
        assert stream.load().properties["owner"] == "another"
    assert stream.lake.orphan_manifests() == set() or change in (expire, overwrite, delete)


def test_a_change_of_the_schema_between_look_and_commit_is_a_conflict(stream: IcebergStream) -> None:
    """The files fitted the schema that was looked at; the next attempt looks at the new one."""
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    with at_point("commit.start", lambda: rename_column(stream)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.lake.orphan_manifests() == set()


# What stops it -----------------------------------------------------------------------------------------


def make_required(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.update_column("n", required=True))


def add_required(stream: IcebergStream) -> None:
    update_schema(stream, lambda update: update.add_column("must", LongType(), required=True))


def drop_and_add_anew(stream: IcebergStream) -> None:
    drop_column(stream)
    update_schema(stream, lambda update: update.add_column("name", StringType()))


def partition(stream: IcebergStream) -> None:
    with stream.load().update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")


HARMFUL = [
    (make_required, r"'n' is now NOT NULL"),
    (add_required, r"'must' is NOT NULL in the table"),
    (drop_and_add_anew, r"'name' was dropped and added again"),
    (partition, r"now partitioned by id_bucket \(bucket\[4\]\)"),
]


@pytest.mark.parametrize(("change", "says"), HARMFUL, ids=lambda of: getattr(of, "__name__", ""))
@pytest.mark.parametrize("point", ["before the look", "after the look"])
def test_a_change_that_the_files_do_not_fit_is_refused_and_nothing_lands(
    stream: IcebergStream, change: Change, says: str, point: str
) -> None:
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    if point == "before the look":
        change(stream)
    else:
        with at_point("commit.start", lambda: change(stream)):
            assert isinstance(stream.committer().commit(manifest), Conflict)
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        stream.committer().commit(manifest)
    assert "The files have:\n    id: long" in str(caught.value)
    assert stream.ids() == [1]
    assert stream.lake.orphan_manifests() == set()


def test_a_batch_written_for_the_new_partitioning_lands(stream: IcebergStream) -> None:
    partition(stream)
    assert isinstance(stream.commit(1, [2, 3, 4]), Committed)
    assert stream.ids() == [1, 2, 3, 4]
    assert len(stream.lake.added()) >= 2


def test_a_batch_that_landed_counts_even_if_the_table_takes_no_more(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [2], name="b", n=2, f=1.5)
    stream.committer().commit(manifest)
    partition(stream)
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)


# Dropped, re-created, renamed ---------------------------------------------------------------------------


def drop(stream: IcebergStream) -> None:
    stream.catalog.drop_table(stream.name)


def rename(stream: IcebergStream) -> None:
    stream.catalog.rename_table(stream.name, "lake.renamed")


def drop_with_namespace(stream: IcebergStream) -> None:
    drop(stream)
    stream.catalog.drop_namespace("lake")


def drop_and_create(stream: IcebergStream) -> None:
    schema = stream.load().schema()
    drop(stream)
    stream.catalog.create_table(stream.name, Schema(*schema.fields))


GONE = [
    (drop, "Iceberg table .* no longer exists"),
    (rename, "Iceberg table .* no longer exists"),
    (drop_with_namespace, "Iceberg table .* no longer exists"),
    (drop_and_create, "re-created"),
]


@pytest.mark.parametrize(("change", "says"), GONE, ids=lambda of: getattr(of, "__name__", ""))
def test_a_table_that_goes_between_look_and_commit_stops_the_stream(
    stream: IcebergStream, change: Change, says: str
) -> None:
    """A table of another UUID takes no batch, though its schema and its head are the same."""
    manifest = stream.prepare(1, [2])
    with at_point("commit.start", lambda: change(stream)), pytest.raises(TableChangedError, match=says):
        stream.committer().commit(manifest)


def test_an_empty_table_created_again_between_look_and_commit_takes_no_batch(tmp_path: Path) -> None:
    """Neither has a snapshot, so that only the UUID tells them apart."""
    stream = IcebergStream(tmp_path)
    manifest = stream.prepare(0, [1])
    with at_point("commit.start", lambda: drop_and_create(stream)), pytest.raises(TableChangedError):
        stream.committer().commit(manifest)
    assert stream.load().metadata.snapshots == []


def test_a_table_renamed_back_goes_on(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [2])
    rename(stream)
    stream.catalog.rename_table("lake.renamed", stream.name)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [1, 2]


def test_a_table_whose_metadata_cannot_be_read_is_said_to_be_unreadable(stream: IcebergStream) -> None:
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
    """The table keeps ten old metadata files; the catalog has named one from before these."""
    manifest = stream.prepare(1, [2])
    read = FromInputFile.table_metadata
    deleted: list[str] = []

    def after_others(file: InputFile) -> TableMetadata:
        if not deleted:
            deleted.append(file.location)
            for n in range(12):
                set_property(stream, str(n))
            assert not Path(file.location.removeprefix("file://")).exists()
        return read(file)

    monkeypatch.setattr(FromInputFile, "table_metadata", after_others)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert deleted
    assert stream.ids() == [1, 2]


def test_a_column_that_another_adds_under_the_same_id_and_name_but_of_another_type_is_refused(
    stream: IcebergStream,
) -> None:
    wider = pa.schema([*NARROW, ("added", pa.int64())])
    manifest = stream.evolving.prepare(1, [2], schema=wider, added=5)
    add_column(stream)
    with pytest.raises(SchemaMismatchError, match=r"'added' is now string; the files have long"):
        stream.committer().commit(manifest)
    assert stream.ids() == [1]


def test_the_field_of_a_foreign_schema_is_matched_by_id(stream: IcebergStream) -> None:
    """Two columns that exchange their names: the values stay with the ids that they were written for."""
    manifest = stream.prepare(1, [2], n=7)
    with stream.load().update_schema() as update:
        update.rename_column("n", "m")
    with stream.load().update_schema() as update:
        update.rename_column("id", "n")
    stream.committer().commit(manifest)
    assert rows(stream.lake, "n, m") == [(1, 1), (2, 7)]
