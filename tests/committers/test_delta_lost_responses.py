"""Lost requests, lost responses and outages during a commit to a Delta table."""

from __future__ import annotations

import os
import uuid
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from servers.azure import CONTAINER, emulator_options
from servers.lossy_proxy import Fault, LossyProxy
from tests.support.lossy_requests import ProxyOf
from tests.support.streams import VIEWS, DeltaStream

from penstock.committers.contract import AlreadyCommitted, Committed
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import CommitStateUnknownError, RetryableError

ONCE_ONLY = {"max_retries": "0"}
"""The object store of the library retries failed requests without this option."""


@pytest.fixture(params=["S3", "Azure"])
def network(request: pytest.FixtureRequest, proxy_of: ProxyOf, monkeypatch: pytest.MonkeyPatch) -> LossyProxy:
    if request.param == "S3":
        return request.getfixturevalue("s3_proxy")
    network = proxy_of(request.getfixturevalue("azure"))
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", network.url)
    return network


@pytest.fixture(params=sorted(VIEWS))
def stream(network: LossyProxy, request: pytest.FixtureRequest) -> DeltaStream:
    uri, options = f"az://{CONTAINER}/{uuid.uuid4()}", emulator_options()
    if "AZURITE_BLOB_STORAGE_URL" not in os.environ:
        uri = f"s3://lake/{uuid.uuid4()}"
        options = request.getfixturevalue("s3")
    return DeltaStream(uri, storage_options=options, snapshot_cache=VIEWS[request.param]())


def through(network: LossyProxy, stream: DeltaStream, **options: str) -> DeltaTableCommitter:
    if stream.uri.startswith("s3:"):  # in Azure everything goes through the network
        options["AWS_ENDPOINT_URL"] = network.url
    return stream.committer(**options)


def rows(stream: DeltaStream) -> list[Any]:
    table = pl.scan_delta(stream.uri, storage_options=dict(stream.storage_options)).collect()
    return sorted(table["id"].to_list())


COMMIT = "PUT _delta_log json"
OUTAGE: list[Fault] = ["denied"] * 20


def test_a_batch_with_a_lost_response_is_not_added_again(stream: DeltaStream, network: LossyProxy) -> None:
    manifest = stream.prepare(0, [1, 2, 3])
    network.spend("response lost", on=COMMIT)
    assert isinstance(through(network, stream, **ONCE_ONLY).commit(manifest), Committed)
    assert network.spent()
    assert stream.committer().commit(manifest) == AlreadyCommitted(1)
    assert rows(stream) == [1, 2, 3]


@pytest.mark.parametrize("fault", ["response lost", "committed, answered 503"])
def test_a_repeated_request_that_takes_its_own_commit_for_a_conflict_is_not_repeated_once_more(
    stream: DeltaStream, network: LossyProxy, fault: Fault
) -> None:
    """The object store retries the request, and its own first request has created the version."""
    manifest = stream.prepare(0, [1, 2, 3])
    network.spend(fault, on=COMMIT)
    assert through(network, stream).commit(manifest) == Committed(1)
    assert network.spent()
    assert DeltaTable(stream.uri, storage_options=dict(stream.storage_options)).version() == 1
    assert rows(stream) == [1, 2, 3]


def test_a_lost_request_leaves_the_state_unknown(stream: DeltaStream, network: LossyProxy) -> None:
    manifest = stream.prepare(0, [1])
    network.spend("request lost", on=COMMIT)
    with pytest.raises(CommitStateUnknownError, match=r"may or may not be in the Delta table .*recover"):
        through(network, stream, **ONCE_ONLY).commit(manifest)
    assert stream.committer().commit(manifest) == Committed(1)
    assert rows(stream) == [1]


def test_a_denied_commit_leaves_the_state_unknown(stream: DeltaStream, network: LossyProxy) -> None:
    """A proxy may deny a request that the storage has executed."""
    manifest = stream.prepare(0, [1])
    network.spend("denied", on=COMMIT)
    with pytest.raises(CommitStateUnknownError, match="privileges"):
        through(network, stream).commit(manifest)


def test_an_outage_after_the_commit_leaves_it_unknown(stream: DeltaStream, network: LossyProxy) -> None:
    manifest = stream.prepare(0, [1])
    network.spend("response lost", *OUTAGE, on=COMMIT, then_on_any=True)
    with pytest.raises(CommitStateUnknownError):
        through(network, stream, **ONCE_ONLY).commit(manifest)
    network.spend()
    assert stream.committer().commit(manifest) == AlreadyCommitted(1)
    assert rows(stream) == [1]


def test_a_failed_log_checkpoint_is_no_failed_commit(stream: DeltaStream, network: LossyProxy) -> None:
    manifest = stream.prepare(0, [1], properties={"delta.checkpointInterval": "1"})
    network.spend(*OUTAGE, on="PUT checkpoint")
    assert through(network, stream).commit(manifest) == Committed(1)
    assert network.spent()
    assert stream.committer().commit(manifest) == AlreadyCommitted(1)
    assert rows(stream) == [1]


def test_a_table_that_cannot_be_read_is_retryable(stream: DeltaStream, network: LossyProxy) -> None:
    manifest = stream.prepare(0, [1])
    network.spend(*OUTAGE)
    with pytest.raises(RetryableError, match="cannot be read"):
        through(network, stream, **ONCE_ONLY).commit(manifest)


def test_columns_added_with_a_lost_response_are_found(stream: DeltaStream, network: LossyProxy) -> None:
    stream.commit(0, [1])
    wider = stream.schema.append(stream.schema.field("id").with_name("extra"))
    manifest = stream.prepare(1, [2], schema=wider, evolve=True)
    network.spend("response lost", on=COMMIT)
    committer = through(network, stream)
    outcomes = [committer.commit(manifest), committer.commit(manifest)]
    assert any(isinstance(outcome, Committed) for outcome in outcomes)
    assert rows(stream) == [1, 2]
