"""Batches with a Glue catalog and tables in S3, with lost and delayed requests.

boto3 retries a request without a response, with the table version of the first request: if the first one was
executed, the second one is a conflict.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSRequest, AWSResponse
from servers.glue import GlueServer
from servers.lossy_proxy import Fault
from servers.s3 import BUCKET
from tests.support.catalogs import SENDS_MAX, GlueLake, StoredQuery, assert_hides
from tests.support.lakes import ids
from tests.support.lossy_requests import ProxyOf

from penstock.committers.contract import Committed, ManifestState
from penstock.committers.errors import CommitStateUnknownError, TableChangedError

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


@pytest.fixture
def lake(glue_lake: GlueLake) -> GlueLake:
    return glue_lake


@pytest.fixture
def lake_in_s3(glue: GlueServer, proxy_of: ProxyOf, tmp_path: Path) -> GlueLake:
    return GlueLake(glue, proxy_of(glue.uri), tmp_path, f"s3://{BUCKET}/warehouse")


def spending(lake: GlueLake, *faults: Fault) -> Callable[[AWSRequest], None]:
    return lambda _request: lake.proxy.spend(*faults)


# Without faults ----------------------------------------------------------------------------------------


def test_files_of_a_table_in_s3_are_read_there_and_expire(lake_in_s3: GlueLake) -> None:
    stream = lake_in_s3.stream(keepSnapshots="2", snapshotGrace="0s")
    for number, batch_id in enumerate((0, 1, 2, 10, 20, 30)):
        stream.run(batch_id, ids(number))
    assert len([name for name in lake_in_s3.files() if "/snap-" in name]) <= 4
    assert lake_in_s3.ids() == [0, 1, 2, 3, 4, 5]


# Others at the same table ------------------------------------------------------------------------------


def test_a_change_between_the_load_and_the_update_is_a_conflict(stream: StoredQuery, lake: GlueLake) -> None:
    """pyiceberg has checked the requirements on the older state: the version in the request decides."""
    written = stream.write(1, ids(3))
    with lake.at_update(stream, lambda _: lake.append(100)):
        assert isinstance(stream.commit(written), Committed)
    assert lake.ids() == [1, 2, 3, 100]
    assert lake.orphan_manifests() == set()


def test_a_table_dropped_during_the_commit_is_reported(stream: StoredQuery, lake: GlueLake) -> None:
    written = stream.write(1, ids(3))
    with lake.at_update(stream, lambda _: lake.server.catalog.drop_table(lake.name)):
        with pytest.raises(TableChangedError, match="dropped"):
            stream.commit(written)
    assert stream.state(1) is PREPARED


# Responses and requests that are lost ------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults",
    [["response lost"], ["committed, answered 500", *["answered 503"] * (SENDS_MAX - 1)]],
    ids=["refused then", "no answer then"],
)
def test_a_committed_batch_is_always_found(stream: StoredQuery, lake: GlueLake, faults: list[Fault]) -> None:
    """boto3's retries are refused, by the batch itself, or never answered."""
    written = stream.write(1, ids(3))
    with lake.at_update(stream, spending(lake, *faults)):
        assert isinstance(stream.commit(written), Committed)
    assert len(lake.proxy.spent()) == len(faults)
    assert stream.state(1) is COMMITTED
    assert lake.ids() == [1, 2, 3]


def test_a_lost_request_is_sent_again(stream: StoredQuery, lake: GlueLake) -> None:
    written = stream.write(1, ids(3))
    with lake.at_update(stream, spending(lake, "request lost", "answered 503")):
        assert isinstance(stream.commit(written), Committed)
    assert len(lake.proxy.spent()) == 2
    assert lake.ids() == [1, 2, 3]


def test_a_late_request_is_refused_after_its_retry(stream: StoredQuery, lake: GlueLake) -> None:
    written = stream.write(1, ids(3))
    with lake.at_update(stream, spending(lake, "request late")):
        assert isinstance(stream.commit(written), Committed)
    lake.append(100)
    assert lake.proxy.deliver_late() == [400]
    assert lake.ids() == [1, 2, 3, 100]


# Secrets -----------------------------------------------------------------------------------------------

HIDDEN = ("s3cret-of-glue", "s3cret-of-s3", "t0ken-of-mine")


def test_executors_get_what_opens_files_and_nothing_of_glue(lake_in_s3: GlueLake) -> None:
    plan: Any = lake_in_s3.stream(properties={"glue.session-token": HIDDEN[2]}).plan(0, ids(1))
    given = lake_in_s3.properties().items()
    assert plan.writers.parts[0].writers.storage_options == {
        name: value for name, value in given if name.startswith("s3.")
    }


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


def test_no_secret_of_the_catalog_shows_in_an_error(lake: GlueLake) -> None:
    stream = lake.stream(properties={"glue.session-token": HIDDEN[2]})
    written = stream.write(0, ids(1))
    with lake.at_update(stream, signature_does_not_match):
        with pytest.raises(CommitStateUnknownError, match=r"x-amz-security-token:\*\*\*") as caught:
            stream.commit(written)
    assert_hides(caught.value, *HIDDEN)
