"""Iceberg tables of other writers are written, or refused with all reasons at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.typedef import Record
from tests.support.iceberg_tables import Tables, overwrite, with_properties
from tests.support.readers import iceberg_rows

from penstock.committers.errors import TableNotSupportedError
from penstock.committers.iceberg.checks import check_supported


def _with_metadata(table: Table, changes: Mapping[str, Any]) -> Table:
    """The table with these changes of its metadata by another engine."""
    metadata = {**json.loads(table.metadata.model_dump_json()), **changes}
    parsed = TableMetadataUtil.parse_obj(metadata)
    return Table(table.name(), parsed, table.metadata_location, table.io, table.catalog)


def test_a_plain_table_is_supported(tables: Tables) -> None:
    table, _ = tables.create(spec="day(ts), bucket(4, id), truncate(2, name), name", order="id")
    check_supported(table, "append")
    check_supported(table, "overwrite")


@pytest.mark.parametrize(
    "properties",
    [
        {"write.format.default": "Parquet"},
        {"write.wap.enabled": "true"},
        {"gc.enabled": "false"},
        {"write.delete.format.default": "avro"},
        {"write.distribution-mode": "hash"},
        {"write.object-storage.enabled": "true"},
        {"write.data.path": "file:///elsewhere"},
        {"schema.name-mapping.default": "[]"},
    ],
    ids=str,
)
def test_harmless_properties_are_left_alone(tables: Tables, properties: dict[str, str]) -> None:
    check_supported(with_properties(tables.create()[0], properties), "overwrite")


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"write.format.default": "orc"}, r"write\.format\.default = orc: .* Way out: set .* to parquet"),
        ({"write.location-provider.impl": "a.B"}, r"write\.location-provider\.impl = a\.B"),
        ({"write.py-location-provider.impl": "a.B"}, r"write\.py-location-provider\.impl = a\.B"),
        ({"encryption.key-id": "k3y"}, r"encryption\.key-id: files would have to be encrypted"),
    ],
    ids=str,
)
def test_properties_that_commits_violate_are_refused(
    tables: Tables, properties: dict[str, str], says: str
) -> None:
    with pytest.raises(TableNotSupportedError, match=says) as caught:
        check_supported(with_properties(tables.create()[0], properties), "append")
    assert "k3y" not in str(caught.value)


def test_format_version_3_is_refused(tables: Tables) -> None:
    table = _with_metadata(tables.create()[0], {"format-version": 3, "next-row-id": 0})
    with pytest.raises(TableNotSupportedError, match=r"format version 3: .* row ids"):
        check_supported(table, "append")


def test_an_unknown_partition_transform_is_refused(tables: Tables) -> None:
    fields = [{"source-id": 1, "field-id": 1000, "transform": "zorder", "name": "z"}]
    table = _with_metadata(tables.create()[0], {"partition-specs": [{"spec-id": 0, "fields": fields}]})
    with pytest.raises(
        TableNotSupportedError, match=r"transform 'zorder' in partitioning 0: .*the transform is unknown"
    ):
        check_supported(table, "append")
    assert "zorder" not in table.metadata.model_dump_json(), "what a commit would write"


def test_a_transform_that_its_column_s_type_does_not_have_is_refused(tables: Tables) -> None:
    fields = [{"source-id": 2, "field-id": 1000, "transform": "day", "name": "d"}]
    table = _with_metadata(tables.create()[0], {"partition-specs": [{"spec-id": 0, "fields": fields}]})
    with pytest.raises(TableNotSupportedError, match=r"'d' \(day\): its transform is not defined for string"):
        check_supported(table, "append")


def test_an_unknown_transform_in_a_sort_order_is_refused(tables: Tables) -> None:
    """Rows may be in any order, but a commit would write `unknown` as the transform."""
    part = {"source-id": 1, "transform": "zorder", "direction": "asc", "null-order": "nulls-first"}
    orders = [{"order-id": 1, "fields": [part]}]
    table = _with_metadata(tables.create()[0], {"sort-orders": orders, "default-sort-order-id": 1})
    with pytest.raises(TableNotSupportedError, match="transform 'zorder' in sort order 1"):
        check_supported(table, "append")
    assert "zorder" not in table.metadata.model_dump_json(), "what a commit would write"


def test_all_reasons_are_named_at_once(tables: Tables) -> None:
    table = _with_metadata(tables.create()[0], {"format-version": 3, "next-row-id": 0})
    table = with_properties(table, {"write.format.default": "avro", "encryption.key-id": "k"})
    with pytest.raises(TableNotSupportedError) as caught:
        check_supported(table, "append")
    assert str(caught.value).count("Way out:") == 3
    assert "db.t" in str(caught.value)


# Dropped columns ---------------------------------------------------------------------------------------


def _drop_partition_column(tables: Tables, files: int, **properties: str) -> Table:
    """A table that was partitioned by `name` and no longer has such a column."""
    version = int(properties.pop("version", "2"))
    tables.create(spec="name, bucket(4, id)", version=version, properties=properties)
    for n in range(files):
        tables.append([n], partition=Record("x", 1))
    table = tables.load()
    with table.update_spec() as update:
        update.remove_field("name")
    with table.update_schema() as update:
        update.delete_column("name")
    return tables.load()


def test_a_void_field_is_supported_until_its_column_is_dropped(tables: Tables) -> None:
    """In format version 1 a dropped partition field stays in the spec, and so in every manifest."""
    table, _ = tables.create(spec="name, bucket(4, id)", version=1)
    with table.update_spec() as update:
        update.remove_field("name")
    check_supported(tables.load(), "overwrite")
    tables.append([1], partition=Record(None, 1))
    assert iceberg_rows(tables.load().metadata_location, "id") == [(1,)]
    with tables.load().update_schema() as schema:
        schema.delete_column("name")
    with pytest.raises(TableNotSupportedError, match=r"'name' \(void\): its column was dropped"):
        check_supported(tables.load(), "append")
    tables.append([2], partition=Record(None, 1))
    with pytest.raises(IndexError):  # the error without the check
        list(tables.load().scan().plan_files())


def test_an_old_partitioning_of_a_dropped_column_is_refused_if_manifests_are_merged(tables: Tables) -> None:
    table = _drop_partition_column(tables, files=2)
    for replaces in (False, True):
        with pytest.raises(TableNotSupportedError, match="older partitioning 0 by 'name'"):
            check_supported(table, "overwrite" if replaces else "append")
    with pytest.raises(TypeError):  # the error without the check
        tables.append([3], partition=Record(1))


def test_an_old_partitioning_of_a_dropped_column_is_harmless_without_merges(tables: Tables) -> None:
    table = _drop_partition_column(tables, 2, **{"commit.manifest-merge.enabled": "false"})
    check_supported(table, "append")
    tables.append([3], partition=Record(1))
    assert iceberg_rows(tables.load().metadata_location, "id") == [(0,), (1,), (3,)]
    with pytest.raises(TableNotSupportedError, match="older partitioning 0 by 'name'"):
        check_supported(tables.load(), "overwrite")
    with pytest.raises(TypeError):  # the error without the check
        overwrite(tables.load(), [4], Record(1))


def test_an_older_partitioning_that_no_file_follows_is_harmless(tables: Tables) -> None:
    check_supported(_drop_partition_column(tables, files=0), "overwrite")
