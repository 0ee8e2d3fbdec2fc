"""Tables and branches that a stream creates or finds, with the configured layout."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from tests.support.iceberg_tables import Tables
from tests.support.readers import iceberg_rows

from penstock.committers.errors import ConfigurationError, PenstockError, RetryableError, SchemaMismatchError
from penstock.committers.iceberg.branch import ATTEMPTS_MAX, ensure_branch
from penstock.committers.iceberg.catalog import open_catalog
from penstock.committers.iceberg.new_table import NewIcebergTable, check_layout
from penstock.committers.iceberg.terms import parse_partition_spec, parse_sort_order

EVENTS = pa.schema(
    [
        pa.field("Id", pa.int64(), nullable=False),
        ("day", pa.date32()),
        ("a.b", pa.string()),
        ("event", pa.struct([("at", pa.timestamp("us")), ("where", pa.struct([("x", pa.float32())]))])),
        ("tags", pa.list_(pa.string())),
        ("price", pa.float64()),
    ]
)


# Creating ----------------------------------------------------------------------------------------------


def test_a_table_is_created_with_its_namespace_and_defaults(tables: Tables) -> None:
    table, created = tables.create(properties={"owner": "me", "write.metadata.previous-versions-max": "7"})
    assert created
    assert table.format_version == 2
    assert table.properties == {
        "commit.manifest-merge.enabled": "true",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "7",
        "penstock.expire-snapshots": "true",
        "penstock.maintenance": "true",
        "owner": "me",
    }
    assert iceberg_rows(table.metadata_location) == []
    assert not tables.create()[1]


def test_columns_of_a_created_table_are_optional_all_the_way_down(tables: Tables) -> None:
    inner = pa.struct([pa.field("x", pa.int8(), nullable=False)])
    columns = pa.schema(
        [
            pa.field("id", pa.int16(), nullable=False),
            ("l", pa.list_(pa.field("element", inner, nullable=False))),
            ("m", pa.map_(pa.string(), pa.field("value", inner, nullable=False))),
            ("d", pa.dictionary(pa.int32(), pa.large_string())),
            ("at", pa.timestamp("ms", "Europe/Berlin")),
            ("n", pa.decimal128(38, 10)),
        ]
    )
    table, _ = tables.create(columns)
    assert str(table.schema()) == (
        "table {\n  1: id: optional int\n"
        "  2: l: optional list<struct<8: x: optional int>>\n"
        "  3: m: optional map<string, struct<11: x: optional int>>\n"
        "  4: d: optional string\n  5: at: optional timestamptz\n  6: n: optional decimal(38, 10)\n}"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_a_table_has_the_configured_format_version(tables: Tables, version: int) -> None:
    assert tables.create(version=version)[0].format_version == version
    by_property = {"format-version": str(version)}
    table, _ = tables.create(name="db.u", properties=by_property)
    assert table.format_version == version
    assert "format-version" not in table.properties


def test_partitions_are_as_configured(tables: Tables) -> None:
    spec = "DAY(event.AT), bucket(16, id), truncate(4, `A.B`), day, identity(event.where.x)"
    with pytest.raises(ConfigurationError, match=r"hour of 'event.at' is redundant with day"):
        tables.create(EVENTS, spec=f"{spec}, hour(event.at) as at_hour")
    table, _ = tables.create(EVENTS, spec=spec)
    assert [(part.name, str(part.transform)) for part in table.spec().fields] == [
        ("event.at_day", "day"),
        ("Id_bucket_16", "bucket[16]"),
        ("a.b_trunc_4", "truncate[4]"),
        ("day", "identity"),
        ("event.where.x", "identity"),
    ]
    names = [table.schema().find_column_name(part.source_id) for part in table.spec().fields]
    assert names == ["event.at", "Id", "a.b", "day", "event.where.x"]


def test_the_sort_order_is_as_configured(tables: Tables) -> None:
    table, _ = tables.create(EVENTS, order="day(event.at) desc nulls first, id, `a.b` nulls last")
    assert [str(part) for part in table.sort_order().fields] == [
        "day(7) DESC NULLS FIRST",
        "1 ASC NULLS FIRST",
        "3 ASC NULLS LAST",
    ]


@pytest.mark.parametrize(
    ("option", "text", "says"),
    [
        ("spec", "nope", "no column 'nope'.*'Id', 'day', 'a.b', 'event', 'event.at'"),
        ("spec", "event", "identity is not defined for 'event'"),
        ("spec", "tags", "identity is not defined for 'tags'"),
        ("spec", "tags.element", "no column 'tags.element'"),
        ("spec", "hour(day)", "hour is not defined for 'day', which is date"),
        ("spec", "truncate(2, event.where.x)", "not defined"),
        ("spec", "bucket(4, id) as DAY", "would have the name of a column"),
        ("spec", "price", "'price' is double, which pyiceberg reads"),
        ("spec", "bucket(4, id) as größe", "non-ASCII letters"),
        ("spec", "day as x, bucket(2, id) as x", "two fields are named 'x'"),
        ("spec", "id, id as other", "is redundant with identity"),
        ("order", "nope", "no column"),
        ("order", "event", "not defined"),
        ("order", "hour(day)", "not defined"),
    ],
)
def test_invalid_partitions_and_orders_are_refused(tables: Tables, option: str, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tables.create(EVENTS, **{option: text})  # type: ignore[arg-type]
    assert not open_catalog(tables.config).table_exists("db.t")


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"format-version": "3"}, "format-version = 3: .*1 and 2"),
        ({"write.format.default": "orc"}, "write.format.default = orc"),
        ({"write.location-provider.impl": "a.B"}, "write.location-provider.impl"),
        ({"write.py-location-provider.impl": "a.B"}, "write.py-location-provider.impl"),
        ({"encryption.key-id": "k"}, "encryption.key-id"),
        ({"penstock.q": "{}"}, "penstock.q"),
        ({"current-snapshot-id": "1"}, "current-snapshot-id"),
        ({"s3.endpoint": "http://host"}, r"option catalog\.s3\.endpoint"),
        ({"py-io-impl": "a.B"}, r"option catalog\.py-io-impl"),
        ({"write.target-file-size-bytes": "big"}, "write.target-file-size-bytes"),
        ({"write.metadata.metrics.default": "some"}, "write.metadata.metrics.default"),
        ({"write.parquet.compression-codec": "brotli"}, "write.parquet.compression-codec.*zstd, snappy"),
        ({"encryption.key-id": "k", "write.format.default": "avro"}, "(?s)encryption.*avro"),
    ],
    ids=str,
)
def test_harmful_properties_are_refused(tables: Tables, properties: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tables.create(properties=properties)
    assert not open_catalog(tables.config).table_exists("db.t")


def test_a_format_version_given_twice_is_refused(tables: Tables) -> None:
    with pytest.raises(ConfigurationError, match="set twice"):
        tables.create(version=1, properties={"format-version": "2"})


@pytest.mark.parametrize("kind", [pa.duration("us"), pa.time64("us"), pa.timestamp("ns"), pa.null()], ids=str)
def test_types_that_iceberg_does_not_have_are_refused_by_column(tables: Tables, kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"  - odd: "):
        tables.create(pa.schema([("id", pa.int64()), ("odd", pa.list_(kind))]))
    assert not open_catalog(tables.config).table_exists("db.t")


@pytest.mark.parametrize("name", ["a.b", "A.B"])
def test_names_that_iceberg_cannot_tell_apart_are_refused(tables: Tables, name: str) -> None:
    columns = pa.schema([(name, pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    with pytest.raises(SchemaMismatchError, match=f"cannot distinguish these columns: '{name}', 'a.b'"):
        tables.create(columns)


def test_a_catalog_error_has_no_secrets(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Table:
        raise OSError("no access with password=hunter22")

    monkeypatch.setattr(open_catalog(tables.config), "create_table", fail)
    with pytest.raises(PenstockError, match=r"cannot create the table db.t") as caught:
        tables.create()
    assert "hunter22" not in str(caught.value)


# Existing tables ---------------------------------------------------------------------------------------


def _asking(spec: str | None = None, order: str | None = None, version: int | None = None) -> NewIcebergTable:
    return NewIcebergTable(
        True,
        None if spec is None else parse_partition_spec(spec),
        None if order is None else parse_sort_order(order),
        version,
    )


@pytest.mark.parametrize(
    "asking",
    [
        _asking(),
        _asking(spec="days(TS), bucket(4, ID)"),
        _asking(spec="day(ts) as TS_day, bucket(4, id)", order="id desc"),
        _asking(version=2),
    ],
)
def test_a_table_with_the_configured_layout_is_accepted(tables: Tables, asking: NewIcebergTable) -> None:
    table, _ = tables.create(spec="day(ts), bucket(4, id)", order="id desc")
    check_layout(table, tables.address(), asking)


@pytest.mark.parametrize(
    ("asking", "says"),
    [
        (_asking(spec=""), r"asks for nothing, but it is partitioned by day\(ts\), bucket\(4, id\)"),
        (_asking(spec="bucket(4, id), day(ts)"), r"asks for bucket\(4, id\), day\(ts\), but"),
        (_asking(spec="day(ts), bucket(8, id)"), r"asks for day\(ts\), bucket\(8, id\), but"),
        (_asking(spec="day(ts) as x, bucket(4, id)"), "partitionSpec asks for"),
        (_asking(order="id"), "asks for id ASC NULLS FIRST, but it is sorted by id DESC NULLS LAST"),
        (_asking(order=""), "asks for nothing, but it is sorted by id DESC"),
        (_asking(version=1), "asks for 1, but it has format version 2"),
    ],
)
def test_another_layout_is_refused_with_both(tables: Tables, asking: NewIcebergTable, says: str) -> None:
    table, _ = tables.create(spec="day(ts), bucket(4, id)", order="id desc")
    with pytest.raises(ConfigurationError, match=says):
        check_layout(table, tables.address(), asking)


def test_dropped_partition_fields_are_ignored(tables: Tables) -> None:
    """In format version 1 they stay as void fields."""
    table, _ = tables.create(spec="name, bucket(4, id)", version=1)
    with table.update_spec() as update:
        update.remove_field("name")
    assert len(table.spec().fields) == 2
    check_layout(table, tables.address(), _asking(spec="bucket(4, id)"))


# Branches ----------------------------------------------------------------------------------------------


def _refs(table: Table) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}


def test_the_main_branch_needs_nothing(tables: Tables) -> None:
    table, _ = tables.create()
    assert ensure_branch(table, tables.address()) is table
    assert table.refresh().metadata.refs == {}


def test_a_new_branch_begins_at_the_main_branch_s_head(tables: Tables) -> None:
    tables.create()
    tables.append([1, 2])
    table = ensure_branch(tables.load(), tables.address(branch="audit"))
    head = table.current_snapshot()
    assert head is not None
    assert _refs(table) == _refs(tables.load()) == {"main": head.snapshot_id, "audit": head.snapshot_id}
    assert ensure_branch(table, tables.address(branch="audit")).metadata_location == table.metadata_location


@pytest.mark.parametrize("version", [1, 2])
def test_a_branch_of_a_table_without_snapshots_can_be_published(tables: Tables, version: int) -> None:
    """Both branches have the empty first snapshot, so main can be fast-forwarded."""
    tables.create(version=version)
    table = ensure_branch(tables.load(), tables.address(branch="audit"))
    (empty,) = table.metadata.snapshots
    assert _refs(table) == {"main": empty.snapshot_id, "audit": empty.snapshot_id}
    assert iceberg_rows(table.metadata_location) == []
    rows = pa.table({"id": [7]}, schema=pa.schema([("id", pa.int64())]))
    table.append(rows, branch="audit")
    assert iceberg_rows(table.metadata_location) == [], "nothing shows on the main branch"
    head = table.metadata.refs["audit"].snapshot_id
    snapshot = table.snapshot_by_id(head)
    assert snapshot is not None
    assert snapshot.parent_snapshot_id == empty.snapshot_id
    table.manage_snapshots().create_branch(head, "main").commit()
    assert iceberg_rows(table.metadata_location, "id") == [(7,)]


def test_a_tag_of_that_name_is_refused(tables: Tables) -> None:
    tables.create()
    tables.append([1])
    table = tables.load()
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_tag(head.snapshot_id, "v1").commit()
    with pytest.raises(ConfigurationError, match="'v1' is a tag"):
        ensure_branch(tables.load(), tables.address(branch="v1"))


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_slow_concurrent_driver_does_not_set_back_the_branch(tables: Tables, has_rows: bool) -> None:
    tables.create()
    if has_rows:
        tables.append([1])
    stale = tables.load()
    table = ensure_branch(tables.load(), tables.address(branch="audit"))
    rows = pa.table({"id": [7]}, schema=pa.schema([("id", pa.int64())]))
    table.append(rows, branch="audit")
    late = ensure_branch(stale, tables.address(branch="audit"))
    assert late.metadata.refs["audit"].snapshot_id == table.metadata.refs["audit"].snapshot_id


def test_a_branch_with_a_lost_response_is_used(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create()
    tables.append([1])
    catalog, calls = open_catalog(tables.config), []
    commit = catalog.commit_table

    def lose(*arguments: object) -> None:
        commit(*arguments)  # type: ignore[arg-type]
        calls.append(1)
        raise CommitFailedException("lost")

    monkeypatch.setattr(catalog, "commit_table", lose)
    assert "audit" in ensure_branch(tables.load(), tables.address(branch="audit")).metadata.refs
    assert len(calls) == 1


def test_the_attempts_to_create_a_branch_are_bounded(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = tables.create()
    calls = []

    def refuse(*_: object) -> None:
        calls.append(1)
        raise CommitFailedException("another one, password=hunter22")

    monkeypatch.setattr(open_catalog(tables.config), "commit_table", refuse)
    with pytest.raises(RetryableError, match=r"'audit'.*could not be created") as caught:
        ensure_branch(table, tables.address(branch="audit"))
    assert len(calls) == ATTEMPTS_MAX
    assert "hunter22" not in str(caught.value)
