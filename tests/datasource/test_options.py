"""Options: parsed once, refused together, in sentences; secrets stay out of sight."""

from __future__ import annotations

import pytest

from penstock import ConfigurationError
from penstock.datasource.options import DeltaOptions


def problems_of(**options: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        DeltaOptions.parse({"path": "/t", **options})
    return str(refused.value)


def test_only_the_path_is_needed() -> None:
    assert DeltaOptions.parse({"path": "/lake/t"}) == DeltaOptions(path="/lake/t")


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
    assert "sortWithin names partition column(s) a" in problems_of(partitionby="a", sortwithin="a,b")


def test_table_properties_keep_their_case() -> None:
    """Spark lowers the case of option keys, so the properties are one JSON value."""
    options = DeltaOptions.parse({"path": "/t", "tableproperties": '{"delta.appendOnly": "true"}'})

    assert options.table_properties == {"delta.appendOnly": "true"}
    assert "JSON object of strings" in problems_of(tableproperties='{"a": 1}')


def test_an_in_memory_store_is_refused() -> None:
    assert "forgets its manifests" in problems_of(store="sqlite://")
    assert "forgets its manifests" in problems_of(store="sqlite:///:memory:")


def test_secrets_are_not_shown() -> None:
    options = DeltaOptions.parse(
        {"path": "/t", "store": "postgresql://u:hunter2@h/d", "storage.aws_secret_access_key": "hunter2"}
    )

    assert options.storage_options == {"AWS_SECRET_ACCESS_KEY": "hunter2"}
    assert "hunter2" not in repr(options)
    assert "hunter2" not in problems_of(**{"storage.aws_secret_access_key": "hunter2", "colour": "red"})
