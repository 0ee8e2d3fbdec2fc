"""What a batch is written into: tables created, opened, matched by name, or refused with both schemas."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.streams import SCHEMA, DeltaStream, stream_in

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.file_tables.evolution import ADD_COLUMNS


@pytest.fixture
def stream(tmp_path: Path) -> DeltaStream:
    return stream_in(tmp_path)


# Creating ---------------------------------------------------------------------------------------------


def test_a_table_is_created_with_its_partitions_and_properties(stream: DeltaStream) -> None:
    properties = {"delta.checkpointInterval": "7", "owner": "me"}
    target = stream.committer().plan(SCHEMA, partition_by=["NAME"], properties=properties)
    metadata = DeltaTable(stream.uri).metadata()
    assert target.created
    assert (target.table_id, target.table_version) == (str(metadata.id), 0)
    assert target.partition_by == ("name",) == tuple(metadata.partition_columns)
    assert metadata.configuration.items() >= properties.items()
    assert not stream.committer().plan(SCHEMA).created


def test_columns_of_a_created_table_are_nullable_all_the_way_down(stream: DeltaStream) -> None:
    """As Delta's own sink has it: Spark's flags say what a plan knows, not what a table shall demand."""
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("l", pa.list_(inner))])
    target = stream.committer().plan(schema)
    assert target.schema == pa.schema(
        [("id", pa.int64()), ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int32())]))))]
    )


@pytest.mark.parametrize(
    ("partition_by", "says"),
    [(["nope"], "'nope'"), (["l"], "'l'"), (["id", "l", "ID"], "'l'"), (["id"] * 1, None)],
)
def test_invalid_partitions_are_refused(
    stream: DeltaStream, partition_by: list[str], says: str | None
) -> None:
    schema = pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64()))])
    if says is None:
        assert stream.committer().plan(schema, partition_by=partition_by).partition_by == ("id",)
        return
    with pytest.raises(ConfigurationError, match=says):
        stream.committer().plan(schema, partition_by=partition_by)
    assert not Path(stream.uri).exists()


def test_a_table_of_nothing_but_partition_columns_is_refused(stream: DeltaStream) -> None:
    with pytest.raises(ConfigurationError, match="every column"):
        stream.committer().plan(SCHEMA, partition_by=["id", "name"])


@pytest.mark.parametrize(
    "name", ["delta.enableRowTracking", "delta.columnMapping.mode", "delta.constraints.a", "delta.feature.x"]
)
def test_properties_that_need_a_feature_are_refused(stream: DeltaStream, name: str) -> None:
    """The library would write them down without the feature, which makes a table that engines misread."""
    with pytest.raises(ConfigurationError, match=name):
        stream.committer().plan(SCHEMA, properties={name: "true"})
    assert not Path(stream.uri).exists()


@pytest.mark.parametrize("name", ["_change_type", "_commit_version", "_COMMIT_TIMESTAMP"])
def test_columns_of_the_change_data_feed_are_refused_if_it_is_on(stream: DeltaStream, name: str) -> None:
    """delta-spark refuses to write or to read the feed of a table that has them."""
    rows = pa.schema([*SCHEMA, (name, pa.string())])
    with_feed = {"delta.enableChangeDataFeed": "true"}
    with pytest.raises(SchemaMismatchError, match=name):
        stream.committer().plan(rows, properties=with_feed)
    assert not Path(stream.uri).exists()

    stream.committer().plan(SCHEMA, properties=with_feed)
    with pytest.raises(SchemaMismatchError, match=name):
        stream.committer().plan(rows, evolution=ADD_COLUMNS)


def test_without_a_change_data_feed_its_columns_are_columns_as_any_other(stream: DeltaStream) -> None:
    rows = pa.schema([*SCHEMA, ("_change_type", pa.string())])
    assert stream.committer().plan(rows).schema.names == rows.names


def test_a_location_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be created"):
        DeltaStream(str(tmp_path / "file" / "table")).committer().plan(SCHEMA)


# Matching ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (pa.schema([("id", pa.int32()), ("name", pa.string())]), "'id' is long in the table and integer"),
        (pa.schema([("id", pa.int64()), ("extra", pa.string())]), "no column 'extra'.*schemaEvolution"),
        (pa.schema([("id", pa.int64()), ("ID", pa.int64())]), "differ only in case"),
        (pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))]), "no column 'at'"),
    ],
)
def test_mismatches_are_refused_with_both_schemas(stream: DeltaStream, schema: pa.Schema, says: str) -> None:
    stream.commit(0, [1])
    with pytest.raises(SchemaMismatchError, match=says) as caught:
        stream.committer().plan(schema)
    assert "The query has:\n    id:" in str(caught.value)
    assert "The table has:\n    id: long\n    name: string\n" in str(caught.value)


def test_a_missing_not_null_column_is_refused(stream: DeltaStream) -> None:
    DeltaTable.create(stream.uri, pa.schema([pa.field("id", pa.int64(), nullable=False), *SCHEMA][:1]))
    with pytest.raises(SchemaMismatchError, match=r"'id' is NOT NULL in the table and missing"):
        stream.committer().plan(pa.schema([("name", pa.string())]), evolution=ADD_COLUMNS)


def test_a_nullable_column_into_a_not_null_one_is_left_to_the_writer(stream: DeltaStream) -> None:
    DeltaTable.create(stream.uri, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    target = stream.committer().plan(pa.schema([("id", pa.int64())]))
    assert not target.schema.field("id").nullable


@pytest.mark.parametrize(
    ("given", "table"),
    [
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "Etc/UTC"), pa.timestamp("us", "UTC")),
        (pa.large_string(), pa.string()),
        (pa.large_list(pa.int64()), pa.list_(pa.int64())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), pa.list_(pa.int64())),
        (pa.struct({"b": pa.int64(), "a": pa.int32()}), pa.struct({"a": pa.int32(), "b": pa.int64()})),
        (pa.map_(pa.string(), pa.large_binary()), pa.map_(pa.string(), pa.binary())),
    ],
    ids=str,
)
def test_types_equal_in_delta_match(stream: DeltaStream, given: pa.DataType, table: pa.DataType) -> None:
    DeltaTable.create(stream.uri, pa.schema([("v", table)]))
    assert stream.committer().plan(pa.schema([("v", given)])).new_columns == ()


@pytest.mark.parametrize(
    ("given", "table"),
    [
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.decimal128(10, 2), pa.decimal128(12, 2)),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int32()), ("b", pa.int32())]), pa.struct([("a", pa.int32())])),
        (pa.list_(pa.int32()), pa.int32()),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
    ],
    ids=str,
)
def test_types_that_differ_in_delta_are_refused(
    stream: DeltaStream, given: pa.DataType, table: pa.DataType
) -> None:
    DeltaTable.create(stream.uri, pa.schema([("v", table)]))
    difference = r"'v.*' is .* in the table and .* in the query|'v' of the table has no column"
    with pytest.raises(SchemaMismatchError, match=difference):
        stream.committer().plan(pa.schema([("v", given)]))


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us"), pa.month_day_nano_interval()], ids=str)
def test_types_that_delta_does_not_have_are_refused_by_column(stream: DeltaStream, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"  - odd: .*\nCast them") as caught:
        stream.committer().plan(pa.schema([("id", pa.int64()), ("odd", kind)]))
    assert "cfunction" not in str(caught.value), "the library's backtrace belongs into no message"
    assert not Path(stream.uri).exists()


def test_another_partitioning_is_refused_with_both(stream: DeltaStream) -> None:
    stream.committer().plan(SCHEMA, partition_by=["name"])
    with pytest.raises(ConfigurationError, match=r"asks for 'id', but .* partitioned by 'name'"):
        stream.committer().plan(SCHEMA, partition_by=["id"])
    with pytest.raises(ConfigurationError, match=r"asks for no column, but"):
        stream.committer().plan(SCHEMA, partition_by=[])
    assert stream.committer().plan(SCHEMA).partition_by == ("name",)


def test_new_columns_come_last_and_only_if_evolution_is_asked_for(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    wider = pa.schema([("extra", pa.int32()), *SCHEMA])
    target = stream.committer().plan(wider, evolution=ADD_COLUMNS)
    assert target.schema.names == ["id", "name", "extra"]
    assert target.new_columns == ("extra",)
    assert DeltaTable(stream.uri).version() == 1, "planning adds no column"
    assert stream.lake.rows() == [(1, None)]


def test_statistics_settings_are_the_table_s(stream: DeltaStream) -> None:
    properties = {"delta.dataSkippingNumIndexedCols": "3", "delta.dataSkippingStatsColumns": "id,`a b`.c"}
    target = stream.committer().plan(SCHEMA, properties=properties)
    assert target.statistics_columns_max == 3
    assert target.statistics_columns == ("id", "a b.c")
    assert json.loads(target.schema_json)["fields"][0]["name"] == "id"
