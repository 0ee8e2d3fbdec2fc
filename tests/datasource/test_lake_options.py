"""Options of `penstock.lake`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.committers.errors import ConfigurationError
from penstock.datasource.lake.options import LakeOptions
from penstock.datasource.lake.query import SharedFiles, lake_query
from penstock.datasource.lake.source import LakeDataSource

GIVEN = {"path": "/lake/ids", "warehouse": "/lake/warehouse", "table": "lake.ids"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": "delta"}, "formats=.*: must be delta,iceberg"),
        ({"formats": "delta,hudi"}, "formats=.*: must be delta,iceberg"),
        ({"compactWith": "local"}, "compactWith is not an option of penstock.lake"),
        ({"partitionSpec": "day(ts)"}, "partitionSpec is not an option .* Delta has no hidden partitions"),
        ({"branch": "audit"}, "branch is not an option"),
        ({"target.delta.badRows": "drop"}, "an option of both tables"),
        ({"badRows": "deadLetter"}, "badRows=deadLetter needs deadLetter"),
        ({"tableProperties": "{}"}, "target.delta.tableProperties or"),
        ({"target.hudi.x": "1"}, "target.hudi.x: the tables are target.delta and target.iceberg"),
        ({"target.delta.path": "/x"}, "target.delta.path: an option of both"),
        ({"catalog.penstock.data-path": "/x"}, "Iceberg must not delete them"),
        ({"path": "s3://bucket/table"}, "which the embedded catalog in warehouse cannot open"),
        (
            {"writeMode": "upsert", "keys": "id", "updateColumns": "given"},
            "updateColumns is not supported by penstock.lake: each table would write its rows",
        ),
        ({"path": "/a%b"}, "readers of Iceberg tables interpret"),
    ],
)
def test_options_that_do_not_fit_both_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        lake_query({**GIVEN, **options})


def test_all_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"path is missing.*\n?.*table is missing.*\n?.*Neither"):
        LakeOptions.parse({})


def test_options_of_s3_are_given_once_and_never_shown() -> None:
    secret = "geheim-4711"
    given = {
        "path": "s3a://bucket/table",
        "table": "lake.ids",
        "catalog.type": "sql",
        "catalog.uri": "sqlite:////none",
        "storage.AWS_ENDPOINT_URL": "https://127.0.0.1:1",
        "storage.AWS_SECRET_ACCESS_KEY": secret,
        "catalog.s3.region": "mars",
        "storage.AWS_REGION": "venus",
    }
    sink = lake_query(given)
    assert isinstance(sink.parts, SharedFiles)
    pair = sink.parts.pair
    properties = pair.iceberg.catalog.properties
    assert properties["s3.endpoint"] == "https://127.0.0.1:1"
    assert properties["s3.secret-access-key"] == secret
    assert properties["s3.region"] == "mars", "what is given for Iceberg counts there"
    assert pair.data_location == pair.delta.table_uri == "s3://bucket/table"
    assert secret not in repr(sink)
    both = pair.delta.options, pair.iceberg.options
    assert [one.compact_with for one in both] == ["none"] * 2
    assert all(secret not in str(one.options.given) for one in sink.targets.values())


@pytest.mark.parametrize("delivery", ["coupled", "decoupled", None])
def test_it_is_decoupled_unless_the_query_says_otherwise(delivery: str | None) -> None:
    """The delivery process maintains both tables in any case."""
    sink = lake_query({**GIVEN, **({} if delivery is None else {"delivery": delivery})})
    assert sink.options.is_decoupled == (delivery != "coupled")
    assert all(one.options.is_decoupled for one in sink.targets.values())


def test_garbage_collection_of_iceberg_is_off_unless_the_query_says_otherwise() -> None:
    target = "target.iceberg.tableProperties"
    tables: list[Any] = [
        lake_query(given).targets["iceberg"].open_table()
        for given in (GIVEN, {**GIVEN, target: '{"gc.enabled": "true"}'})
    ]
    assert [table._new.properties["gc.enabled"] for table in tables] == ["false", "true"]


def test_it_is_only_for_streams() -> None:
    source = LakeDataSource(dict(GIVEN))
    with pytest.raises(ConfigurationError, match=r"^penstock\.lake is only for streams"):
        source.writer(None, False)  # type: ignore[arg-type]
