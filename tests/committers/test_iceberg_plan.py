"""What executors get of a table: layout, sort order, column metrics and Parquet settings."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.iceberg_tables import SCHEMA, Tables

from penstock.committers.contract import DataFile, PartitionField, SortField
from penstock.committers.errors import ConfigurationError
from penstock.committers.iceberg.branch import ensure_branch
from penstock.committers.iceberg.catalog import CatalogConfig
from penstock.committers.iceberg.plan import plan_target
from penstock.committers.iceberg.target import NO_SNAPSHOT, IcebergTableLayout, ParquetSettings

NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.struct([("a", pa.string()), ("inner", pa.struct([("b", pa.string())]))])),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.struct([("v", pa.string())]))),
        ("name", pa.string()),
    ]
)
"""Leaves: id 1, s.a 6, s.inner.b 8, l.element 9, m.key 10, m.value.v 12, name 5."""


def _target(
    tables: Tables, properties: dict[str, str] | None = None, source: pa.Schema = SCHEMA
) -> IcebergTableLayout:
    """Properties as others set them, after the table was created."""
    table, _ = tables.create(source)
    if properties:
        table.transaction().set_properties(properties).commit_transaction()
    return tables.plan(source)


def test_a_target_pickles_and_names_the_table(tables: Tables) -> None:
    table, _ = tables.create(spec="day(ts)")
    target = plan_target(table, SCHEMA, "main", created=True)
    assert pickle.loads(pickle.dumps(target)) == target
    assert target.created
    assert (target.table_id, target.table_version) == (str(table.metadata.table_uuid), NO_SNAPSHOT)
    file = DataFile("ts_day=2026-11-20/f.parquet", 1, 1, (("ts_day", "20777"),))
    assert target.content([file], "append").partition_by == ("ts_day",)


def test_the_version_is_the_branch_s_head(tables: Tables) -> None:
    tables.create()
    tables.append([1])
    table = ensure_branch(tables.load(), tables.address(branch="audit"))
    audit = table.metadata.refs["audit"].snapshot_id
    tables.append([2])
    main = tables.load().current_snapshot()
    assert main is not None
    assert tables.plan(SCHEMA, branch="audit").table_version == audit != main.snapshot_id
    assert tables.plan(SCHEMA).table_version == main.snapshot_id


def test_the_data_location_is_that_of_the_table(tables: Tables) -> None:
    table, _ = tables.create()
    assert tables.plan(SCHEMA).data_location == f"{table.location()}/data"
    table.transaction().set_properties(
        {"write.data.path": "s3://bucket/elsewhere/", "write.object-storage.enabled": "True"}
    ).commit_transaction()
    target = tables.plan(SCHEMA)
    assert (target.data_location, target.is_object_storage_layout) == ("s3://bucket/elsewhere", True)
    assert target.has_partition_paths
    tables.load().transaction().set_properties(
        {"write.object-storage.partitioned-paths": "false"}
    ).commit_transaction()
    assert not tables.plan(SCHEMA).has_partition_paths


def test_partitioning_is_the_default_spec_with_paths_of_columns(tables: Tables) -> None:
    table, _ = tables.create(NESTED, spec="bucket(4, s.inner.b), truncate(2, name), id as key", version=1)
    with table.update_schema() as schema:
        schema.rename_column("name", "label")
    with table.update_spec() as spec:
        spec.remove_field("key")
    target = plan_target(table, pa.schema([("label", pa.string())]), "main", created=False)
    assert target.partition_spec_id == 1
    assert target.partitioning == (
        PartitionField("s.inner.b_bucket_4", ("s", "inner", "b"), "bucket[4]"),
        PartitionField("name_trunc_2", ("label",), "truncate[2]"),
        PartitionField("key", ("id",), "void"),
    )


def test_the_sort_order_is_the_table_s(tables: Tables) -> None:
    tables.create(NESTED, order="s.inner.b desc nulls first, bucket(4, id)")
    assert tables.plan(NESTED).sort_order == (
        SortField(("s", "inner", "b"), "identity", True, True),
        SortField(("id",), "bucket[4]", False, True),
    )


# Column metrics ----------------------------------------------------------------------------------------


def test_every_leaf_has_the_usual_metrics_and_repeated_ones_counts(tables: Tables) -> None:
    metrics = _target(tables, source=NESTED).metrics
    usual = dict.fromkeys((1, 5, 6, 8), "truncate(16)")
    assert metrics == {**usual, **dict.fromkeys((9, 10, 12), "counts")}


def test_a_column_s_own_mode_wins_over_the_table_s(tables: Tables) -> None:
    metrics = _target(
        tables,
        {
            "write.metadata.metrics.default": "counts",
            "write.metadata.metrics.column.s.inner.b": "Truncate(4)",
            "write.metadata.metrics.column.id": "full",
            "write.metadata.metrics.column.l.element": "full",
            "write.metadata.metrics.column.m.key": "none",
            "write.metadata.metrics.column.missing": "full",
            "write.metadata.metrics.column.s": "full",
        },
        NESTED,
    ).metrics
    assert metrics == {
        1: "full",
        5: "counts",
        6: "counts",
        8: "truncate(4)",
        9: "counts",
        10: "none",
        12: "counts",
    }


@pytest.mark.parametrize(
    ("default", "sorted_"), [("none", "truncate(16)"), ("counts", "truncate(16)"), ("full", "full")]
)
def test_columns_that_rows_are_sorted_by_have_bounds(tables: Tables, default: str, sorted_: str) -> None:
    tables.create(
        NESTED,
        order="id, truncate(2, name), bucket(4, s.a)",
        properties={"write.metadata.metrics.default": default},
    )
    metrics = tables.plan(NESTED).metrics
    assert (metrics[1], metrics[5], metrics[6]) == (sorted_, sorted_, default)


def test_a_sorted_column_s_own_mode_wins(tables: Tables) -> None:
    tables.create(order="id", properties={"write.metadata.metrics.column.id": "none"})
    assert tables.plan(SCHEMA).metrics[1] == "none"


def test_only_the_first_leaves_have_metrics_those_at_the_top_before_nested_ones(tables: Tables) -> None:
    key = "write.metadata.metrics.max-inferred-column-defaults"
    expected: dict[int, set[int]] = {
        0: set(),
        1: {1},
        2: {1, 5},
        3: {1, 5, 6},
        4: {1, 5, 6, 8},
        5: {1, 5, 6, 8, 9},
    }
    for limit, leaves in expected.items():
        metrics = _target(tables, {key: str(limit)}, NESTED).metrics
        assert {leaf for leaf, mode in metrics.items() if mode != "none"} == leaves
    metrics = _target(tables, {key: "1", "write.metadata.metrics.default": "full"}, NESTED).metrics
    assert metrics[5] == "full", "a default that is set holds for all"


def test_of_very_wide_tables_the_first_hundred_leaves_have_metrics(tables: Tables) -> None:
    wide = pa.schema([(f"c{n}", pa.int32()) for n in range(120)])
    metrics = _target(tables, source=wide).metrics
    assert [n for n in range(1, 121) if metrics[n] == "truncate(16)"] == list(range(1, 101))


def test_new_columns_have_metrics_too(tables: Tables) -> None:
    tables.create()
    wider = pa.schema([*SCHEMA, ("extra", pa.struct([("x", pa.int32())]))])
    assert tables.plan(wider, evolve=True).metrics[5] == "truncate(16)"


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("write.metadata.metrics.default", "most"),
        ("write.metadata.metrics.default", "truncate(0)"),
        ("write.metadata.metrics.column.id", "truncate"),
        ("write.metadata.metrics.max-inferred-column-defaults", "-1"),
    ],
)
def test_metrics_that_cannot_be_read_are_refused_by_name(tables: Tables, key: str, text: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=re.escape(f"property {key} of the Iceberg table has the unsupported value {text!r}"),
    ):
        _target(tables, {key: text})


# Parquet -----------------------------------------------------------------------------------------------


def test_a_table_without_properties_leaves_the_settings_open(tables: Tables) -> None:
    assert _target(tables).parquet == ParquetSettings()


def test_parquet_settings_are_the_table_s(tables: Tables) -> None:
    settings = _target(
        tables,
        {
            "write.target-file-size-bytes": "1000",
            "write.parquet.row-group-size-bytes": "2000",
            "write.parquet.row-group-limit": "3000",
            "write.parquet.page-size-bytes": "4000",
            "write.parquet.page-row-limit": "5000",
            "write.parquet.dict-size-bytes": "6000",
            "write.parquet.compression-codec": "GZIP",
            "write.parquet.compression-level": "9",
            "write.parquet.bloom-filter-enabled.column.name": "true",
            "write.parquet.bloom-filter-enabled.column.s.inner.b": "TRUE",
            "write.parquet.bloom-filter-enabled.column.id": "false",
            "write.parquet.bloom-filter-enabled.column.missing": "true",
        },
        NESTED,
    ).parquet
    assert settings == ParquetSettings(
        target_file_bytes=1000,
        row_group_bytes=2000,
        row_group_rows=3000,
        page_bytes=4000,
        page_rows=5000,
        dictionary_bytes=6000,
        compression="gzip",
        compression_level=9,
        bloom_columns=(("name",), ("s", "inner", "b")),
    )


@pytest.mark.parametrize(
    ("codec", "level", "expected"),
    [
        ("zstd", "22", ("zstd", 22)),
        ("uncompressed", "3", ("none", None)),
        ("snappy", "3", ("snappy", None)),
        ("lz4", None, ("lz4", None)),
        ("lz4_raw", None, ("lz4", None)),
        (None, "3", (None, 3)),
    ],
)
def test_codecs_and_levels(
    tables: Tables, codec: str | None, level: str | None, expected: tuple[str | None, int | None]
) -> None:
    """Codecs without levels ignore them, as Iceberg's own writers do."""
    given = {"write.parquet.compression-codec": codec, "write.parquet.compression-level": level}
    settings = _target(tables, {key: text for key, text in given.items() if text is not None}).parquet
    assert (settings.compression, settings.compression_level) == expected


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("write.target-file-size-bytes", "512MB"),
        ("write.target-file-size-bytes", "0"),
        ("write.parquet.row-group-limit", "-5"),
        ("write.parquet.page-row-limit", "1.5"),
        ("write.parquet.compression-codec", "brotli"),
        ("write.parquet.compression-codec", "lzo"),
        ("write.parquet.compression-level", "23"),
        ("write.parquet.compression-level", "fast"),
        ("write.parquet.bloom-filter-enabled.column.id", "yes"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused_by_name(tables: Tables, key: str, text: str) -> None:
    with pytest.raises(
        ConfigurationError,
        match=re.escape(f"property {key} of the Iceberg table has the unsupported value {text!r}"),
    ):
        _target(tables, {key: text})


def test_io_properties_come_along(tables: Tables, tmp_path: Path) -> None:
    own = {"s3.endpoint": "http://host", "s3.secret-access-key": "AKsecret+/="}
    properties = {**tables.config.embedded_properties, "type": "sql", **own}
    (tmp_path / "lake").mkdir()
    theirs = Tables(CatalogConfig.of("penstock", properties))
    theirs.create()
    target = theirs.plan(SCHEMA)
    assert target.io_properties == own
    assert "AKsecret" not in repr(target)


def test_executors_get_no_file_io_that_the_table_chooses(tables: Tables) -> None:
    names = ("s3.endpoint", "s3.retry-strategy-impl", "adls.account-host", "gcs.service.host", "py-io-impl")
    planted = dict.fromkeys(names, "table.Choice")
    assert _target(tables, planted).io_properties == {}
