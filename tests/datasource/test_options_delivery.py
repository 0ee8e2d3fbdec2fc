"""The options of decoupled delivery, and what of all options a store may keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import ConfigurationError
from penstock.datasource.delta import options as delta
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.iceberg import options as iceberg
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.options.declaring import options_of
from penstock.datasource.options.file_tables import FileTableOptions
from penstock.datasource.options.parsing import Option
from penstock.datasource.settings import settings_of

SECRET = "hunter2"


def test_the_defaults_are_as_documented() -> None:
    options = DeltaOptions.parse({"path": "/t"})
    policy = options.delivery_policy
    assert not options.is_decoupled
    assert (policy.after_s, policy.after_bytes, policy.after_batches) == (60, 128 << 20, 1000)
    assert (policy.after_checkpoint, policy.tries_max) == (False, 5)
    assert (options.backlog_batches_max, options.backlog_bytes_max) == (10_000, 100 << 30)
    assert (options.backlog_s_max, options.backlog_wait_s) == (86_400, 600)


def test_a_delivery_is_as_large_as_a_file_by_default() -> None:
    assert DeltaOptions.parse({"path": "/t", "targetFileSize": "1g"}).delivery_policy.after_bytes == 1 << 30
    given = {"path": "/t", "targetFileSize": "1g", "deliverAfterBytes": "5mb"}
    assert DeltaOptions.parse(given).delivery_policy.after_bytes == 5 << 20


def test_a_full_backlog_is_always_due() -> None:
    """Otherwise the query would wait for deliveries that wait for more of the query."""
    given = {"path": "/t", "backlogBatches": "7", "backlogBytes": "1mb", "backlogSeconds": "9"}
    policy = DeltaOptions.parse(given).delivery_policy
    assert (policy.after_batches, policy.after_bytes, policy.after_s) == (7, 1 << 20, 9)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delivery", "later"),
        ("deliverAfterSeconds", "0"),
        ("deliverAfterBytes", "much"),
        ("deliverAfterBatches", "-1"),
        ("deliverAfterCheckpoint", "perhaps"),
        ("compactWith", "flink"),
        ("deliveryTries", "0"),
        ("backlogBatches", "0"),
        ("backlogBytes", "0"),
        ("backlogSeconds", "1d"),
        ("backlogWaitSeconds", "-1"),
        ("eventTime", " "),
        ("keepDelivered", "0"),
        ("keepDeliveredFor", "7"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}='{text}'"):
        DeltaOptions.parse({"path": "/t", name.lower(): text})


# What the store keeps ----------------------------------------------------------------------------------


def test_settings_have_what_was_given_by_its_documented_name() -> None:
    options = DeltaOptions.parse(
        {"path": "/t", "DELIVERY": "decoupled", "checkpointlocation": "/cp", "targetfilesize": "1g"}
    )
    settings = json.loads(settings_of(options))
    assert settings == {
        "delivery": "decoupled",
        "checkpoint": "/cp",
        "options": {
            "path": "/t",
            "delivery": "decoupled",
            "checkpointLocation": "/cp",
            "targetFileSize": "1g",
        },
    }
    assert DeltaOptions.parse(settings["options"]) == options


def secret_options(required: dict[str, str], prefix: str) -> dict[str, str]:
    return {**required, "store": f"postgresql://u:{SECRET}@h/d", f"{prefix}s3.secret-access-key": SECRET}


def test_no_secret_is_in_the_settings() -> None:
    of_delta = secret_options({"path": "/t", "STORAGE.Aws_Secret": SECRET}, "storage.")
    of_iceberg = secret_options({"table": "a.b", "Catalog.Token": SECRET}, "catalog.")
    for options in (DeltaOptions.parse(of_delta), IcebergOptions.parse(of_iceberg)):
        assert SECRET not in settings_of(options)
        assert SECRET not in repr(options)
        assert "store" not in options.given


def test_whatever_is_handed_on_by_a_prefix_is_never_in_the_settings() -> None:
    """Also if it has the name of a documented option after its prefix."""
    for option in options_of(FileTableOptions):
        options = DeltaOptions.parse({"path": "/t", f"storage.{option.name}": SECRET})
        assert SECRET not in settings_of(options)


@pytest.mark.parametrize("options", [delta.OPTIONS, iceberg.OPTIONS])
def test_the_store_is_the_only_documented_option_that_is_secret(options: tuple[Option, ...]) -> None:
    assert [option.name for option in options if option.is_secret] == ["store"]


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/t",
        f"s3a://key:{SECRET}/x/y@bucket/t",
        f"s3://{SECRET}@bucket/t",
        f"https://host/t?sig={SECRET}",
        f"https://host/t?sv=1&X-Amz-Signature={SECRET}",
        f"https://host/t?X-Amz-Credential={SECRET}",
        f"https://host/t%3Fsig%3D{SECRET}",
        f"abfss://c@a/t?x=1&Token={SECRET}",
        f"abfss://c:{SECRET}@a/t",
    ],
)
def test_a_secret_in_a_location_is_refused_before_a_store_would_keep_it(url: str, delivery: str) -> None:
    with pytest.raises(ConfigurationError, match="path contains a password, key or signature") as of_delta:
        DeltaOptions.parse({"path": url, "delivery": delivery})
    assert SECRET not in str(of_delta.value)
    assert "Give it as storage.* instead." in str(of_delta.value)
    for name in ("warehouse", "catalog.warehouse", "checkpointLocation"):
        with pytest.raises(ConfigurationError, match=f"{name} contains a password, key") as refused:
            IcebergOptions.parse({"table": "a.b", "catalog": "c", name: url, "delivery": delivery})
        assert SECRET not in str(refused.value)
        assert "Give it as catalog.* instead." in str(refused.value)


@pytest.mark.parametrize(
    "path",
    [
        "abfss://container@account.dfs.core.windows.net/t",
        "/lake/key=1&token=2/me:you@host",
        "s3://bucket/a@b/c",
        "file:///lake/a:b@c",
        "hdfs://nn:8020/data/user@corp/t",
        "hdfs://me@nn:8020/data/user@corp/t",
        "s3://bucket/event;key=a/t",
        "s3://bucket/c#key=1",
    ],
)
def test_a_location_without_a_secret_is_taken(path: str) -> None:
    for delivery in ("coupled", "decoupled"):
        DeltaOptions.parse({"path": path, "checkpointLocation": path, "delivery": delivery})
        IcebergOptions.parse({"table": "a.b", "catalog": "c", "warehouse": path, "delivery": delivery})


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("ck", "{cwd}/ck"),
        ("file:ck", "{cwd}/ck"),
        ("/a b/ck", "/a b/ck"),
        ("file:/a%20b", "file:/a%20b"),
        ("file:///ck", "file:///ck"),
        ("s3a://bucket/ck", "s3a://bucket/ck"),
    ],
)
def test_a_store_keeps_where_the_checkpoint_is_for_every_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, stored: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options = DeltaOptions.parse({"path": "/t", "checkpointLocation": given})
    assert json.loads(settings_of(options))["checkpoint"] == stored.format(cwd=tmp_path)
