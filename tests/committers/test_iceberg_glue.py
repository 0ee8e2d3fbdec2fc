"""Batches over a Glue catalog with its tables in S3, while the network loses and delays what it carries.

boto3 sends a request again when its response does not come, with the version of the table that the first one
had: what the first one has done makes the second a conflict.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint
import polars as pl
import pytest
from botocore.awsrequest import AWSRequest, AWSResponse
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.glue import GlueCatalog
from servers.glue import GlueServer
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.s3 import BUCKET
from tests.committers.catalog_lake import CatalogLake, ids
from tests.committers.iceberg_query import IcebergQuery
from tests.committers.lakes import named_files

from penstock.committers.contract import AlreadyCommitted, Committed, ManifestState
from penstock.committers.errors import (
    CommitStateUnknownError,
    PenstockError,
    RetryableError,
    TableChangedError,
)
from penstock.committers.iceberg.catalog import open_catalog
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.testing.faults import at_point

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED
SENDS_MAX = 11
"""Of one request: pyiceberg asks boto3 for ten retries."""


class Lake(CatalogLake):
    """One table in a namespace of its own, as the test sees it: straight from the server."""

    def __init__(self, server: GlueServer, folder: Path, warehouse: str) -> None:
        self.server = server
        super().__init__(folder)
        self._warehouse = {"warehouse": warehouse}

    @property
    def catalog(self) -> Catalog:
        return self.server.catalog

    def stream(self, uri: str | None = None, **options: Any) -> IcebergQuery:
        """The query, with its connection to Glue or to a proxy at `uri`."""
        ours = {**self.server.properties_at(uri or self.server.uri), **self._warehouse}
        properties = {**ours, **options.pop("properties", {})}
        made = IcebergOptions(catalog="glue", catalog_properties=properties, table=self.name, **options)
        return IcebergQuery(made, self._store_url)

    def ids(self, branch: str = "main") -> list[int]:
        """As polars reads them. Every file of every snapshot is there."""
        table = self.load()
        assert set(named_files(table)) <= self.files()
        options = {
            "aws_endpoint_url": self.server.uri,
            "aws_access_key_id": "k",
            "aws_secret_access_key": "s",
        }
        scan = pl.scan_iceberg(table, reader_override="native", storage_options=options)
        return sorted(scan.collect()["id"].to_list())

    def files(self) -> set[str]:
        """All that lies under the table's location."""
        location = self.load().location()
        if location.startswith("file://"):
            return {path.as_uri() for path in Path(location.removeprefix("file://")).rglob("*.*")}
        pages = self.server.s3.get_paginator("list_objects_v2")
        prefix = location.removeprefix(f"s3://{BUCKET}/")
        found = pages.paginate(Bucket=BUCKET, Prefix=f"{prefix}/").search("Contents[].Key")
        return {f"s3://{BUCKET}/{key}" for key in found}


@pytest.fixture(autouse=True)
def _boto3_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its retries, which it still does."""
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))


@pytest.fixture(scope="module")
def proxy(glue: GlueServer) -> Iterator[LossyProxy]:
    with lossy_proxy(glue.uri) as proxy:
        yield proxy


@pytest.fixture
def lake(glue: GlueServer, tmp_path: Path) -> Lake:
    """Its files are on the local disk, which is faster: what these tests are about is Glue."""
    return Lake(glue, tmp_path, tmp_path.as_uri())


@pytest.fixture
def lake_in_s3(glue: GlueServer, tmp_path: Path) -> Lake:
    return Lake(glue, tmp_path, f"s3://{BUCKET}/warehouse")


@pytest.fixture
def stream(lake: Lake, network: LossyProxy) -> IcebergQuery:
    """Through the proxy; its first batch has landed."""
    stream = lake.stream(network.url)
    stream.run(0, ids(1, 2))
    return stream


@contextmanager
def at_update(stream: IcebergQuery, action: Callable[[AWSRequest], AWSResponse | None]) -> Iterator[None]:
    """Do this once when the table's update is about to be sent: pyiceberg knows its version by then."""
    catalog = open_catalog(stream.sink._catalog)
    assert isinstance(catalog, GlueCatalog)
    left = [action]

    def handler(request: AWSRequest, **_: object) -> AWSResponse | None:
        return left.pop()(request) if left else None

    events = catalog.glue.meta.events
    events.register("before-send.glue.UpdateTable", handler)
    try:
        yield
        assert not left
    finally:
        events.unregister("before-send.glue.UpdateTable", handler)


def spending(network: LossyProxy, *faults: Fault) -> Callable[[AWSRequest], None]:
    return lambda _request: network.spend(*faults)


# Without faults ------------------------------------------------------------------------------------------


def test_batches_land_once_and_a_replay_is_known(lake_in_s3: Lake) -> None:
    lake = lake_in_s3
    stream = lake.stream()
    written = [stream.run(batch_id, ids(batch_id)) for batch_id in range(5)]
    assert isinstance(stream.commit(written[4]), AlreadyCommitted)
    assert lake.ids() == [0, 1, 2, 3, 4]
    assert [stream.state(batch_id) for batch_id in range(5)] == [COMMITTED] * 5
    assert stream.sink.table_uri == f"glue:{lake.name}"


def test_expired_snapshots_go_with_their_files(lake_in_s3: Lake) -> None:
    lake = lake_in_s3
    stream = lake.stream(snapshots_max=2, snapshot_grace_s=0.0)
    for number, batch_id in enumerate((1, 2, 3, 10, 20, 30)):
        stream.run(batch_id, ids(number))
    assert len(lake.load().metadata.snapshots) <= 3
    assert len([name for name in lake.files() if "/snap-" in name]) <= 4
    assert lake.ids() == [0, 1, 2, 3, 4, 5]


# Others at the same table ---------------------------------------------------------------------------------


def test_conflicts_are_tried_again_and_leave_no_file_behind(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    with at_point("commit.start", lambda: lake.append(100), times=2):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, 100, 100]
    assert {name for name in lake.files() if name.endswith(".avro")} <= set(named_files(lake.load()))


def test_a_change_between_the_look_and_the_update_is_a_conflict(stream: IcebergQuery, lake: Lake) -> None:
    """pyiceberg has checked the requirements on the older state: the version that it names decides."""
    written = stream.write(1, ids(3))
    with at_update(stream, lambda _: lake.append(100)):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, 100]
    assert {name for name in lake.files() if name.endswith(".avro")} <= set(named_files(lake.load()))


def test_a_twin_with_another_connection_and_we_commit_once(stream: IcebergQuery, lake: Lake) -> None:
    twin = lake.stream()
    written = stream.write(1, ids(3))
    with at_update(stream, lambda _: twin.recover() and None):
        assert isinstance(stream.commit(written), Committed)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_table_dropped_while_the_commit_is_sent_is_said(stream: IcebergQuery, lake: Lake) -> None:
    written = stream.write(1, ids(3))
    with at_update(stream, lambda _: lake.server.catalog.drop_table(lake.name)):
        with pytest.raises(TableChangedError, match="dropped"):
            stream.commit(written)
    assert stream.state(1) is PREPARED


# Responses and requests that are lost ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [["response lost"], ["landed, answered 500", *["answered 503"] * (SENDS_MAX - 1)]],
    ids=["refused then", "no answer then"],
)
def test_a_batch_that_landed_is_committed_whatever_the_answer(
    stream: IcebergQuery, lake: Lake, network: LossyProxy, faults: list[Fault]
) -> None:
    """boto3's retries are refused, by the batch itself, or never answered."""
    written = stream.write(1, ids(3))
    with at_update(stream, spending(network, *faults)):
        assert isinstance(stream.commit(written), Committed)
    assert len(network.spent()) == len(faults)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_lost_request_is_sent_again(stream: IcebergQuery, lake: Lake, network: LossyProxy) -> None:
    written = stream.write(1, ids(3))
    with at_update(stream, spending(network, "request lost", "answered 503")):
        assert isinstance(stream.commit(written), Committed)
    assert len(network.spent()) == 2
    assert lake.ids() == [1, 2, 3]


def test_a_late_request_is_refused_once_its_retry_has_landed(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3))
    with at_update(stream, spending(network, "request late")):
        assert isinstance(stream.commit(written), Committed)
    lake.append(100)
    assert network.deliver_late() == [400]
    assert lake.ids() == [1, 2, 3, 100]


def test_requests_that_are_all_lost_leave_the_state_unknown_and_recovery_commits(
    stream: IcebergQuery, lake: Lake, network: LossyProxy
) -> None:
    written = stream.write(1, ids(3))
    outage: list[Fault] = ["request lost"] * SENDS_MAX
    with at_update(stream, spending(network, *outage)):
        with pytest.raises(CommitStateUnknownError, match=f"may or may not be .* glue:{lake.name}"):
            stream.commit(written)
    assert len(network.spent()) == SENDS_MAX
    assert stream.state(1) is PREPARED
    assert lake.ids() == [1, 2]
    stream.recover()
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_catalog_that_is_gone_leaves_the_batch_prepared(lake: Lake) -> None:
    with lossy_proxy(lake.server.uri) as gone:
        stream = lake.stream(gone.url)
        written = stream.write(0, ids(1))
    with pytest.raises(RetryableError, match="Nothing was committed"):
        stream.commit(written)
    assert stream.state(0) is PREPARED
    lake.stream().recover()
    assert lake.ids() == [1]


# Secrets --------------------------------------------------------------------------------------------------

HIDDEN = ("s3cret-of-glue", "s3cret-of-s3", "t0ken-of-mine")


def test_executors_get_what_opens_files_and_nothing_of_glue(lake_in_s3: Lake) -> None:
    lake = lake_in_s3
    written = lake.stream(properties={"glue.session-token": HIDDEN[2]}).write(0, ids(1))
    given = lake.server.properties_at("").items()
    assert written.plan.storage_options == {name: value for name, value in given if name.startswith("s3.")}


def signature_does_not_match(request: AWSRequest) -> AWSResponse:
    """AWS's answer quotes the headers that should have been signed."""
    token = request.headers["X-Amz-Security-Token"]
    token = token.decode() if isinstance(token, bytes) else token
    message = (
        "The request signature we calculated does not match the signature you provided. The Canonical String "
        f"for this request should have been 'POST\n/\n\nhost:glue\nx-amz-security-token:{token}\n'"
    )
    body = json.dumps({"__type": "InvalidSignatureException", "message": message}).encode()
    answer = AWSResponse(request.url, 400, {"Content-Type": "application/x-amz-json-1.1"}, None)
    answer._content = body
    return answer


def test_no_secret_of_the_catalog_shows_in_an_error(lake: Lake) -> None:
    stream = lake.stream(properties={"glue.session-token": HIDDEN[2]})
    written = stream.write(0, ids(1))
    with at_update(stream, signature_does_not_match):
        with pytest.raises(CommitStateUnknownError, match=r"x-amz-security-token:\*\*\*") as caught:
            stream.commit(written)
    assert_hides(caught.value)


def test_no_secret_shows_when_the_catalog_cannot_be_opened(lake: Lake) -> None:
    stream = lake.stream(properties={"glue.endpoint": "no URL"})
    with pytest.raises(PenstockError) as caught:
        stream.write(0, ids(1))
    assert_hides(caught.value)


def assert_hides(error: PenstockError) -> None:
    text = "".join(traceback.format_exception(error)) + repr(error)
    assert [secret for secret in HIDDEN if secret in text] == []
