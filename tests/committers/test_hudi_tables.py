"""Tables of others: which are written, and which are refused by name. Schemas between Arrow and Avro."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema
from tests.support.hudi import HudiLake
from tests.support.values import rows_of_all_types

from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.hudi import avro
from penstock.committers.hudi.properties import NewHudiTable, layout_of, parse, render, table_of
from penstock.committers.hudi.schema import arrow_schema, avro_record
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

KEYGEN = "org.apache.hudi.keygen."
VERSION_8 = {"hoodie.table.version": "8", "hoodie.timeline.layout.version": "2"}
VERSION_9 = {**VERSION_8, "hoodie.table.version": "9"}
BY_DAY = {"hoodie.table.partition.fields": "day"}
TEXTS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture
def lake(tmp_path: Path) -> HudiLake:
    return HudiLake(tmp_path)


COMPLEX = {"hoodie.table.keygenerator.class": f"{KEYGEN}ComplexKeyGenerator"}


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"hoodie.table.version": "5"}, "table version is 5"),
        ({"hoodie.table.version": "7"}, "table version is 7.*hoodie.write.table.version"),
        ({"hoodie.table.version": "10"}, "table version is 10"),
        ({"hoodie.table.initial.version": "5"}, "upgraded from table version 5"),
        ({**VERSION_8, "hoodie.table.initial.version": "6"}, "upgraded from table version 6"),
        ({**VERSION_9, "hoodie.table.initial.version": "8"}, "upgraded from table version 8"),
        ({**VERSION_8, "hoodie.timeline.layout.version": "1"}, "layout of its timeline is 1"),
        ({**VERSION_8, "hoodie.table.type": "MERGE_ON_READ"}, "MERGE_ON_READ"),
        ({**VERSION_9, "hoodie.table.metadata.partitions": "files"}, "metadata table with files"),
        ({"hoodie.table.type": "MERGE_ON_READ"}, "MERGE_ON_READ"),
        ({"hoodie.table.base.file.format": "ORC"}, "base files are ORC"),
        ({**VERSION_9, "hoodie.table.format": "iceberg"}, "table format is iceberg"),
        ({"hoodie.table.metadata.partitions": "files"}, "metadata table with files"),
        ({"hoodie.table.metadata.partitions": "files,record_index"}, "record-level index"),
        ({"hoodie.table.metadata.partitions.inflight": "files"}, "metadata table with files"),
        ({"hoodie.populate.meta.fields": "false"}, "no record meta columns"),
        ({"hoodie.table.cdc.enabled": "true"}, "records changes"),
        ({"hoodie.datasource.write.drop.partition.columns": "true"}, "lack the partition columns"),
        ({"hoodie.partition.metafile.use.base.format": "true"}, "partition metadata files are Parquet"),
        ({"hoodie.bootstrap.base.path": "/old"}, "bootstrapped"),
        ({"hoodie.bucket.index.hash.field": "id"}, "bucket index"),
        ({"hoodie.table.keygenerator.class": f"{KEYGEN}TimestampBasedKeyGenerator"}, "TIMESTAMPBASED"),
        ({"hoodie.table.keygenerator.type": "CUSTOM"}, "key generator is CUSTOM"),
        ({**COMPLEX, "hoodie.table.recordkey.fields": "id"}, "Complex with the single record key 'id'"),
    ],
)
def test_a_table_that_direct_commits_would_damage_is_refused_by_name(
    lake: HudiLake, store: SqlManifestStore, properties: dict[str, str], message: str
) -> None:
    lake.create(properties=properties)
    before = sorted(lake.meta.iterdir())
    query = Query(lake, store=store)
    with pytest.raises(TableNotSupportedError, match=f"(?s){message}"):
        query.plan(store, query.batch(0))

    assert sorted(lake.meta.iterdir()) == before


@pytest.mark.parametrize(
    "key", ["hoodie.archivelog.folder", "hoodie.timeline.path", "hoodie.timeline.history.path"]
)
def test_folders_of_the_timeline_lie_below_the_table(key: str) -> None:
    """Hudi takes them as they are: Penstock would create files anywhere."""
    version = "6" if "archivelog" in key else "8"
    with pytest.raises(TableNotSupportedError, match=f"{key}='../../x'"):
        layout_of({"hoodie.table.version": version, key: "../../x"})


def test_a_table_that_becomes_unsupported_is_not_committed_to(
    lake: HudiLake, store: SqlManifestStore
) -> None:
    """Another writer enables the metadata table while a batch is written."""
    query = Query(lake, store=store)
    manifest = query.prepare(store, query.batch(0), ids(1))
    with (lake.meta / "hoodie.properties").open("a") as file:
        file.write("hoodie.table.metadata.partitions=files\n")
    with pytest.raises(TableNotSupportedError, match="metadata table"):
        query.target().commit(manifest)

    assert not lake.visible_files()


@pytest.mark.parametrize("timezone", ["UTC", "LOCAL"])
def test_a_table_of_another_writer_is_appended_to(
    lake: HudiLake, store: SqlManifestStore, timezone: str
) -> None:
    lake.create(
        {"id": "long", "day": "string"},
        {
            "hoodie.table.timeline.timezone": timezone,
            "hoodie.table.recordkey.fields": "id",
            "hoodie.table.keygenerator.class": f"{KEYGEN}SimpleKeyGenerator",
            **BY_DAY,
        },
    )
    query = Query(lake, store=store)
    query.run(store, query.batch(0), pa.table({"id": [7], "day": ["x y"]}, schema=TEXTS))

    (path,) = lake.visible_files()
    assert path.startswith("x y/")
    assert [(row["_hoodie_record_key"], row["day"]) for row in lake.rows()] == [("7", "x y")]


def test_a_table_without_encoded_paths_refuses_special_characters(
    lake: HudiLake, store: SqlManifestStore
) -> None:
    lake.create({"id": "long", "day": "string"}, BY_DAY)
    query = Query(lake, store=store)
    with pytest.raises(SchemaMismatchError, match="does not encode special characters"):
        query.run(store, query.batch(0), pa.table({"id": [7], "day": ["2026/1"]}, schema=TEXTS))

    assert not lake.visible_files()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitionBy": "id"}, "partitionBy asks for id, but the table has day"),
        ({"recordKey": "day"}, "recordKey asks for day, but the table has none"),
        ({"hiveStylePartitions": "true"}, "hiveStylePartitions=true"),
        ({"tableVersion": "9"}, "tableVersion=9, but the table has version 6"),
        ({"createTable": "false", "path": "nowhere"}, "createTable=false"),
    ],
)
def test_options_that_contradict_the_table_are_refused(
    lake: HudiLake, store: SqlManifestStore, options: dict[str, str], message: str
) -> None:
    lake.create({"id": "long", "day": "string"}, BY_DAY)
    if "path" in options:
        options = {**options, "path": str(lake.folder.parent / options["path"])}
    query = Query(lake, options=options, store=store)
    with pytest.raises(ConfigurationError, match=message):
        query.plan(store, query.batch(0), TEXTS)
    assert not (lake.folder.parent / "nowhere").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recordKey": "nothing"}, "no column 'nothing'"),
        ({"recordKey": "price"}, "'price' is double"),
        ({"partitionBy": "price"}, "'price' is double"),
        ({"recordKey": "id", "partitionBy": "day, id"}, "encode such keys differently"),
    ],
)
def test_keys_and_partitions_that_hudi_spells_differently_are_refused(
    lake: HudiLake, store: SqlManifestStore, options: dict[str, str], message: str
) -> None:
    query = Query(lake, options=options, store=store)
    columns = pa.schema([("id", pa.int64()), ("day", pa.string()), ("price", pa.float64())])
    with pytest.raises(SchemaMismatchError, match=message):
        query.plan(store, query.batch(0), columns)

    assert not lake.exists


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"path": ""}, "path"),
        ({"maintenance": "true"}, "maintenance is not an option of penstock.hudi"),
        ({"tableProperties": "{}"}, "tableProperties is not an option"),
        ({"tableName": "a b"}, "tableName='a b'"),
        ({"tableVersion": "7"}, "tableVersion='7'.*must be one of 6, 8, 9"),
        ({"sortWithin": "day", "partitionBy": "day"}, "constant within a file"),
        ({"targetFileSize": "5g"}, "at most 4gb"),
        ({"recordKeys": "id"}, "Did you mean recordKey"),
    ],
)
def test_bad_options_are_refused(lake: HudiLake, option: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Query(lake, options=option).sink()


def test_a_table_with_commits_in_avro_needs_the_library(
    tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = HudiLake(tmp_path, version=8)
    lake.create()
    monkeypatch.setattr(avro, "find_spec", lambda _: None)
    query = Query(lake, store=store)
    with pytest.raises(ConfigurationError, match=r"penstock\[hudi\]"):
        query.plan(store, query.batch(0))


def test_a_storage_that_the_client_cannot_open_is_refused(store: SqlManifestStore, lake: HudiLake) -> None:
    query = Query(lake, options={"path": "gs://bucket/table"}, store=store)
    with pytest.raises(ConfigurationError, match="local disks, S3"):
        query.plan(store, query.batch(0))


# Properties and schemas -----------------------------------------------------------------------------

ALL_TYPES = rows_of_all_types(without={"byte", "short"}).schema


def test_every_type_survives_the_way_to_avro_and_back() -> None:
    record = avro_record(ALL_TYPES, "events")
    parse_schema(json.loads(json.dumps(record)))  # names of records and decimals are unique

    assert arrow_schema(record).equals(ALL_TYPES)


@pytest.mark.parametrize(("digits", "size"), [(1, 1), (2, 1), (3, 2), (9, 4), (10, 5), (18, 8), (38, 16)])
def test_a_decimal_has_the_fewest_bytes_that_hold_it(digits: int, size: int) -> None:
    (field,) = avro_record(pa.schema([("x", pa.decimal128(digits, 0))]), "t")["fields"]

    assert field["type"][1]["size"] == size


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("a b", pa.int64()), "letters, digits and underscores"),
        (pa.field("m", pa.map_(pa.int64(), pa.int64())), "keys of maps must be strings"),
        (pa.field("s", pa.struct([("1x", pa.int64())])), "s.1x"),
        (pa.field("_hoodie_file_name", pa.string()), "a column of its own"),
    ],
)
def test_columns_that_avro_has_no_name_or_type_for_are_refused(column: pa.Field, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        avro_record(pa.schema([column]), "events")


def test_all_types_are_in_the_files(lake: HudiLake, store: SqlManifestStore) -> None:
    query = Query(lake, store=store)
    rows = pa.table([pa.nulls(1, field.type) for field in ALL_TYPES], schema=ALL_TYPES)
    query.run(store, query.batch(0), rows)

    (path,) = lake.visible_files()
    stored = pq.read_schema(lake.folder / path)
    assert [stored.field(name).type for name in ALL_TYPES.names] == ALL_TYPES.types


@pytest.mark.parametrize("version", [6, 8, 9])
def test_properties_survive_the_way_to_the_file_and_back(version: int) -> None:
    new = NewHudiTable("events", ("day",), ("id", "day"), is_hive_style=False, version=version)
    content = render(new, avro_record(TEXTS, "events", meta=True))
    table = table_of(parse(content), "/t")

    assert (table.name, table.partition_by, table.record_key) == ("events", ("day",), ("id", "day"))
    assert (table.is_hive_style, table.encodes_paths, table.is_utc) == (False, True, True)
    assert (table.version, table.layout.has_completion_times) == (version, version > 6)
    assert arrow_schema(json.loads(table.create_schema)) == TEXTS
    assert parse("a\\:b\\u0020c = x\\=y\\\\\n#d=1\n!e=2\nf:3") == {"a:b c": "x=y\\", "f": "3"}
