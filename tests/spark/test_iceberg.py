"""Streams into Iceberg tables: evolved tables, branches, complete snapshots, options of the format."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType
from pyspark.sql import functions as f
from tests.support.id_stream import IdStream
from tests.support.lakes import IcebergLake

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_a_table_with_evolved_columns_and_partitions_gets_a_stream(
    iceberg_ids: IdStream, iceberg_table: IcebergLake
) -> None:
    """One column renamed, one widened, one dropped and created again, one moved; another partition spec."""
    iceberg_table.create(
        pa.schema([("date", pa.string()), ("id", pa.int32()), ("half", pa.int64()), ("note", pa.string())])
    )
    table = iceberg_table.load()
    with table.update_spec() as spec:
        spec.add_field("date", IdentityTransform(), "by_day")
    first = pa.table({"date": ["d9"], "id": pa.array([-1], pa.int32()), "half": [7], "note": ["old"]})
    table.append(first)
    with table.update_schema(allow_incompatible_changes=True) as schema:
        schema.rename_column("date", "day")
        schema.update_column("id", LongType())
        schema.delete_column("half")
        schema.move_first("id")
    with table.update_schema() as schema:
        schema.add_column("half", LongType())
    with table.update_spec() as spec:
        spec.remove_field("by_day")
        spec.add_field("id", BucketTransform(4), "id_bucket")
    iceberg_ids.add_files(2)
    iceberg_ids.run(iceberg_ids.rows().selectExpr("id div 2 AS half", "*"))

    streamed = [(number, f"d{number % 2}", None, number // 2) for number in range(200)]
    assert iceberg_ids.read("id, day, note, half") == [(-1, "d9", "old", None), *streamed]
    folders = {path.split("/")[1] for path in iceberg_ids.data_files()}
    assert folders == {"by_day=d9", *(f"id_bucket={bucket}" for bucket in range(4))}


@pytest.mark.slow
def test_a_branch_is_written_and_main_is_unchanged_until_it_is_forwarded(
    iceberg_ids: IdStream, iceberg_table: IcebergLake
) -> None:
    """Write, audit, publish: the stream writes a branch, it is audited, then main follows."""
    iceberg_ids.add_files(1)
    iceberg_ids.run()
    iceberg_ids.add_files(2)
    iceberg_ids.run(branch="audit", newTarget="allow")  # it begins with the rows of main
    audit = IcebergLake(Path(str(iceberg_table.warehouse)), branch="audit")
    assert audit.ids() == list(range(300))
    assert [number for (number,) in iceberg_ids.read("id")] == list(range(100))

    table = iceberg_table.load()
    head = table.refs()["audit"].snapshot_id
    table.manage_snapshots().set_current_snapshot(head).commit()
    iceberg_ids.forget_commit(2)
    iceberg_ids.add_files(1)
    iceberg_ids.run(branch="audit")

    assert audit.ids() == list(range(400))
    assert [number for (number,) in iceberg_ids.read("id")] == list(range(300))


def test_complete_mode_shows_one_row_per_key_at_every_moment(iceberg_ids: IdStream) -> None:
    """A reader that reads all the time never finds the table empty, nor a key twice."""
    iceberg_ids.add_files(1)
    counts = iceberg_ids.rows().groupBy("day").count()
    iceberg_ids.writer(counts).outputMode("complete").start().awaitTermination()
    iceberg_ids.add_files(3)
    versions: list[list[tuple[object, ...]]] = []
    query = iceberg_ids.writer(counts).outputMode("complete").start()
    while query.isActive:
        versions.append(iceberg_ids.read())
        time.sleep(0.02)
    query.awaitTermination()

    assert iceberg_ids.read() == [("d0", 200), ("d1", 200)]
    whole = [[("d0", count), ("d1", count)] for count in (50, 100, 150, 200)]
    assert versions
    assert all(table in whole for table in versions)


def test_new_columns_are_added_in_the_commit_of_their_first_rows(
    iceberg_ids: IdStream, iceberg_table: IcebergLake
) -> None:
    iceberg_ids.add_files(1)
    iceberg_ids.run()
    before = iceberg_table.metadata()
    iceberg_ids.add_files(1)
    more = iceberg_ids.rows().withColumn("half", f.col("id") / 2)
    iceberg_ids.run(more, schemaEvolution="addColumns")

    after = iceberg_table.metadata()
    assert len(after["metadata-log"]) == len(before["metadata-log"]) + 1
    (new,) = [one for one in after["snapshots"] if one not in before["snapshots"]]
    assert new["schema-id"] == after["current-schema-id"] != before["current-schema-id"]


# One mistake each -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "part_of_message"),
    [
        ({"partitionBy": "day"}, "Did you mean partitionSpec?"),
        ({"path": "/lake/ids"}, "path is not an option"),
        ({"catalog": "nowhere"}, "nowhere"),
        ({"table": "ids"}, "namespace"),
        ({"formatVersion": "3"}, "must be one of 1, 2"),
        ({"partitionSpec": "week(day)"}, "week"),
        ({"createTable": "false"}, "createTable=false"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_reported_before_any_file_is_written(
    iceberg_ids: IdStream, iceberg_table: IcebergLake, options: dict[str, str], part_of_message: str
) -> None:
    iceberg_ids.add_files(1)
    message = iceberg_ids.fails_with(None, **options)

    assert "ConfigurationError" in message
    assert part_of_message in message
    assert not iceberg_table.folder.exists()


def test_a_missing_catalog_is_reported_before_any_file_is_written(iceberg_ids: IdStream) -> None:
    iceberg_ids.add_files(1)
    writer = iceberg_ids.rows().writeStream.format("penstock.iceberg").option("table", "lake.ids")
    query = writer.option("checkpointLocation", str(iceberg_ids.checkpoint)).trigger(availableNow=True)
    with pytest.raises(Exception, match="Neither catalog nor warehouse is given"):
        query.start().awaitTermination()


def test_a_table_of_format_version_3_is_refused_by_name(
    iceberg_ids: IdStream, iceberg_table: IcebergLake
) -> None:
    iceberg_table.create(pa.schema([("id", pa.int64()), ("day", pa.string())]))
    location = Path(iceberg_table.metadata_location.removeprefix("file://"))
    version_2 = location.read_text()
    assert '"format-version":2' in version_2
    location.write_text(version_2.replace('"format-version":2', '"format-version":3,"next-row-id":0'))
    iceberg_ids.add_files(1)
    message = iceberg_ids.fails_with()

    assert "TableNotSupportedError" in message
    assert "format version 3" in message
    assert iceberg_ids.data_files() == set()
