"""A Delta table on S3, from a real Spark without a jar: `storage.*` options reach executors and driver."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pytest
from tests.s3_server import BUCKET, s3_server
from tests.spark.id_stream import IdStream

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


def test_a_stream_into_s3_and_its_replay_deliver_each_row_once(
    ids: IdStream, storage: dict[str, str]
) -> None:
    options = {f"storage.{key}": value for key, value in storage.items()}
    path = f"s3a://{BUCKET}/table"
    ids.add_files(2)
    ids.run(None, path=path, partitionBy="day", **options)
    ids.forget_commit(1)
    ids.add_files(1)
    ids.run(None, path=path, **options)

    rows = pl.scan_delta(f"s3://{BUCKET}/table", storage_options=storage).collect()
    assert sorted(rows["id"].to_list()) == list(range(300))
    assert {directory["day"] for directory in rows.select("day").unique().to_dicts()} == {"d0", "d1"}


def test_wrong_credentials_are_an_error_that_shows_no_secret(ids: IdStream, storage: dict[str, str]) -> None:
    options = {f"storage.{key}": value for key, value in storage.items()}
    ids.add_files(1)
    message = ids.fails_with(
        None, path="s3://no-such-bucket/table", **{**options, "storage.AWS_SECRET_ACCESS_KEY": "hunter2"}
    )

    assert "no-such-bucket" in message
    assert "hunter2" not in message
