"""Options are parsed once, all problems are reported together, and secrets are hidden."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.lakes import DeltaLake

from penstock import ConfigurationError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.lake.options import LakeOptions
from penstock.testing.conformance.query import Query, ids


def problems_of(**options: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        DeltaOptions.parse({"path": "/t", **options})
    return str(refused.value)


def test_only_the_path_is_needed() -> None:
    assert DeltaOptions.parse({"path": "/lake/t"}) == DeltaOptions(path="/lake/t")


@pytest.mark.parametrize("path", ["/lake/a%20b/t", "/lake/a%2Fb", "file:///lake/a%2520b"])
def test_a_local_folder_that_the_delta_library_looks_for_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"path=.*must not contain '%2[0F]'.*Rename the folder"):
        DeltaOptions.parse({"path": path})
    with pytest.raises(ConfigurationError, match=r"path=.*must not contain '%2[0F]'"):
        LakeOptions.parse({"path": path, "table": "a.t", "warehouse": "/lake/w"})


@pytest.mark.parametrize("name", ["a b", "a%b", "100%", "ü", "a#b?c"])
def test_a_delta_table_lies_where_its_path_says(tmp_path: Path, store: SqlManifestStore, name: str) -> None:
    folder = tmp_path / name / "t"
    query = Query(DeltaLake(folder), store=store)
    for number in range(2):
        query.run(store, query.batch(number), ids(number))
    assert len(list(folder.glob("*.parquet"))) == 2
    assert DeltaTable(str(folder)).version() >= 1


def test_a_url_of_a_local_delta_table_is_decoded_once(tmp_path: Path, store: SqlManifestStore) -> None:
    query = Query(DeltaLake(tmp_path), options={"path": f"file://{tmp_path}/a%20b"}, store=store)
    query.run(store, query.batch(0), ids(1))
    assert (tmp_path / "a b" / "_delta_log").is_dir()


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(ConfigurationError) as refused:
        DeltaOptions.parse({"targetfilesize": "big", "createtable": "perhaps", "colour": "red"})

    message = str(refused.value)
    assert message.count("\n  - ") == 4
    for part in (
        "targetFileSize='big'",
        "createTable='perhaps'",
        "colour is not an option",
        "path is missing",
    ):
        assert part in message


def test_an_unknown_option_names_the_nearest_known_one() -> None:
    assert "Did you mean partitionBy?" in problems_of(partitionsby="a")


def test_options_of_other_sinks_are_named_as_documented() -> None:
    """Spark passes option names in lower case."""
    assert "sortOrder is not an option here" in problems_of(sortorder="id")
    assert "partitionBy is not an option here. Did you mean partitionSpec?" in iceberg_problems_of(
        partitionby="day"
    )
    assert "Spark passes option names in lower case" in problems_of(partitionsby="a")


@pytest.mark.parametrize(
    ("text", "size"), [("128mb", 128 << 20), ("1g", 1 << 30), ("1.5 MB", 3 << 19), ("1048576", 1 << 20)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert DeltaOptions.parse({"path": "/t", "targetfilesize": text}).target_file_bytes == size


@pytest.mark.parametrize("text", ["-1", "0", "1tb", "", "mb", "1e9"])
def test_sizes_out_of_range_are_refused(text: str) -> None:
    assert "targetFileSize" in problems_of(targetfilesize=text)


def test_columns_are_a_list_or_a_json_array() -> None:
    assert DeltaOptions.parse({"path": "/t", "partitionby": "a, b"}).partition_by == ("a", "b")
    assert DeltaOptions.parse({"path": "/t", "partitionby": '["a,b", " c"]'}).partition_by == ("a,b", " c")
    assert "twice" in problems_of(partitionby="a,A")
    assert "column names" in problems_of(partitionby="[1]")


def test_a_partition_column_cannot_be_sorted_within() -> None:
    assert "sortWithin contains the partition column(s) a" in problems_of(partitionby="a", sortwithin="a,b")


def test_table_properties_keep_their_case() -> None:
    """Spark lowers the case of option keys, so the properties are one JSON value."""
    options = DeltaOptions.parse({"path": "/t", "tableproperties": '{"delta.appendOnly": "true"}'})

    assert options.table_properties == {"delta.appendOnly": "true"}
    assert "JSON object of strings" in problems_of(tableproperties='{"a": 1}')


def test_an_in_memory_store_is_refused() -> None:
    assert "loses its manifests" in problems_of(store="sqlite://")
    assert "loses its manifests" in problems_of(store="sqlite:///:memory:")


def test_secrets_are_not_shown() -> None:
    options = DeltaOptions.parse(
        {"path": "/t", "store": "postgresql://u:hunter2@h/d", "storage.aws_secret_access_key": "hunter2"}
    )

    assert options.storage_options == {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert "hunter2" not in repr(options)
    assert "hunter2" not in problems_of(**{"storage.aws_secret_access_key": "hunter2", "colour": "red"})


# Iceberg ---------------------------------------------------------------------------------------------


def iceberg_problems_of(**options: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        IcebergOptions.parse({"table": "db.t", "warehouse": "/lake", **options})
    return str(refused.value)


def test_an_iceberg_table_needs_a_name_and_a_catalog() -> None:
    with pytest.raises(ConfigurationError) as refused:
        IcebergOptions.parse({})

    assert "table is missing" in str(refused.value)
    assert "Neither catalog nor warehouse" in str(refused.value)
    for catalog in ({"warehouse": "/lake"}, {"catalog": "prod"}, {"catalog.uri": "http://localhost"}):
        assert IcebergOptions.parse({"table": "db.t", **catalog}).table == "db.t"


def test_an_iceberg_table_has_no_path() -> None:
    """`.start("db.t")` hands it over as one."""
    assert "path is not an option: an Iceberg table has a name" in iceberg_problems_of(path="db.t")


def test_what_the_table_itself_may_say_has_no_default() -> None:
    options = IcebergOptions.parse({"table": "db.t", "warehouse": "/lake"})

    assert (options.target_file_bytes, options.row_group_rows, options.compression) == (None, None, None)
    assert options.expire_snapshots is None


def test_format_versions_that_cannot_be_written_are_refused() -> None:
    assert "formatVersion='3': must be one of 1, 2" in iceberg_problems_of(formatversion="3")


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30 min", 1800), ("12h", 43200), ("7d", 604800)])
def test_times_have_units(text: str, seconds: int) -> None:
    options = IcebergOptions.parse({"table": "db.t", "warehouse": "/lake", "snapshotgrace": text})

    assert options.snapshot_grace_s == seconds


def test_a_catalogs_secrets_are_not_shown() -> None:
    given = {"catalog.credential": "id:hunter2", "catalog.uri": "postgresql://u:hunter2@h/d"}
    options = IcebergOptions.parse({"table": "db.t", **given})

    assert options.catalog_properties["credential"] == "id:hunter2"
    assert "hunter2" not in repr(options)
    assert "hunter2" not in iceberg_problems_of(**given, colour="red")
