"""The worst moments of a commit: it landed and nobody said so, or it did not and nobody said so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import requests
import sqlalchemy as sa
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from pyiceberg.table import CommitTableResponse
from tests.support.catalog_faults import (
    Send,
    catalog_with,
    late,
    not_sent,
    response_lost,
    unreachable_catalog,
)
from tests.support.streams import IcebergStream

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import CommitStateUnknownError, RetryableError

UNKNOWN = (
    CommitStateUnknownException("500"),
    ServiceUnavailableError("503"),
    ServerError("502"),
    AuthorizationExpiredError("419"),
    requests.ConnectionError("reset by peer"),
    requests.ReadTimeout("no answer in 60 s"),
    sa.exc.OperationalError("UPDATE", {}, Exception("server closed the connection unexpectedly")),
    ValueError("the response is no JSON"),
)
"""What catalogs raise when nobody can say whether the request has landed."""

CONFLICT = CommitFailedException("branch main has changed")


def name(error: Exception) -> str:
    return type(error).__name__


@pytest.fixture(params=[False, True], ids=["embedded", "named"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergStream:
    """With batch 0 in the table."""
    stream = IcebergStream(tmp_path, is_named=request.param)
    stream.commit(0, [0])
    return stream


@pytest.fixture
def remote(tmp_path: Path) -> IcebergStream:
    """The catalog may be anywhere: a request may land long after it was given up. With batch 0."""
    stream = IcebergStream(tmp_path, is_named=True)
    stream.commit(0, [0])
    return stream


def polars_ids(stream: IcebergStream) -> list[int]:
    return sorted(stream.lake.scan().select("id").collect()["id"].to_list())


# Landed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*UNKNOWN, CONFLICT], ids=name)
def test_a_batch_that_landed_with_its_response_lost_is_not_added_again(
    stream: IcebergStream, error: Exception
) -> None:
    """A conflict too may be its own: the client or a proxy has repeated the request that landed."""
    manifest = stream.prepare(1, [1, 2])
    with catalog_with(response_lost(error)):
        outcome = stream.committer().commit(manifest)
    assert outcome == Committed(stream.head.snapshot_id)
    assert stream.committer().commit(manifest) == AlreadyCommitted(stream.head.snapshot_id)
    assert stream.ids() == polars_ids(stream) == [0, 1, 2]
    assert stream.lake.orphan_manifests() == set()


@pytest.mark.parametrize("error", [UNKNOWN[0], CONFLICT], ids=name)
def test_a_batch_that_landed_and_cannot_be_looked_for_is_found_by_the_next_attempt(
    stream: IcebergStream, error: Exception
) -> None:
    """Its manifests stay: they are in the table."""
    manifest = stream.prepare(1, [1])
    outage = unreachable_catalog(requests.ConnectionError("refused"))

    def land_before_an_outage(send: Send) -> CommitTableResponse:
        send()
        outage.__enter__()
        raise error

    try:
        with (
            catalog_with(land_before_an_outage),
            pytest.raises(CommitStateUnknownError, match="may or may not"),
        ):
            stream.committer().commit(manifest)
    finally:
        outage.__exit__(None, None, None)
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert stream.ids() == [0, 1]


def test_a_batch_that_landed_and_was_expired_before_anyone_looked_is_not_added_again(
    stream: IcebergStream,
) -> None:
    """The token is in a table property: snapshots come and go."""
    manifest = stream.prepare(1, [1])

    def land_and_expire(send: Send) -> CommitTableResponse:
        send()
        stream.lake.append(100)
        stream.lake.expire()
        raise UNKNOWN[0]

    with catalog_with(land_and_expire):
        assert isinstance(stream.committer().commit(manifest), Committed)
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert stream.ids() == [0, 1, 100]


def test_a_batch_whose_old_metadata_cannot_be_deleted_has_landed(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done after the commit does not decide about it."""

    def fail(*_: object) -> None:
        raise OSError("no permission")

    manifest = stream.prepare(1, [1])
    monkeypatch.setattr("penstock.committers.iceberg.snapshot.delete_old_metadata", fail)
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


# Not landed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", UNKNOWN, ids=name)
def test_a_lost_request_leaves_the_state_unknown_and_the_next_attempt_lands(
    remote: IcebergStream, error: Exception
) -> None:
    """Its manifests stay, for it may land yet."""
    manifest = remote.prepare(1, [1])
    with catalog_with(not_sent(error)):
        with pytest.raises(
            CommitStateUnknownError, match=r"may or may not be in the Iceberg table .*recover"
        ):
            remote.committer().commit(manifest)
    assert len(remote.lake.orphan_manifests()) == 2
    assert isinstance(remote.committer().commit(manifest), Committed)
    assert remote.ids() == [0, 1]


def test_a_request_to_the_embedded_catalog_that_failed_did_not_land(tmp_path: Path) -> None:
    """Nothing is on its way when SQLite has answered: the manifests go."""
    stream = IcebergStream(tmp_path)
    stream.commit(0, [0])
    manifest = stream.prepare(1, [1])
    with catalog_with(not_sent(sa.exc.OperationalError("UPDATE", {}, Exception("disk I/O error")))):
        with pytest.raises(RetryableError, match="was not committed"):
            stream.committer().commit(manifest)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


def test_a_refused_request_is_a_conflict_and_its_manifests_go(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [1])
    with catalog_with(not_sent(CONFLICT)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


def test_an_unknown_end_while_another_moved_the_branch_is_a_conflict(remote: IcebergStream) -> None:
    """The request asks for the head that is no longer there, so it can never land. The next one does."""
    manifest = remote.prepare(1, [1])
    on_their_way: list[Send] = []

    def another_is_faster(send: Send) -> CommitTableResponse:
        on_their_way.append(send)
        remote.lake.append(100)
        raise UNKNOWN[0]

    with catalog_with(another_is_faster):
        assert isinstance(remote.committer().commit(manifest), Conflict)
    with pytest.raises(CommitFailedException):
        on_their_way[0]()
    assert isinstance(remote.committer().commit(manifest), Committed)
    assert remote.ids() == [0, 1, 100]


def test_manifests_that_cannot_be_written_are_told_and_leave_nothing(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = stream.prepare(1, [1])

    def fail(**_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.table.update.snapshot.write_manifest_list", fail)
        with pytest.raises(RetryableError, match=r"(?s)could not be\s+written.*No space left"):
            stream.committer().commit(manifest)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


# Late -------------------------------------------------------------------------------------------------


def arrives_before_the_retry(send: Send, retry: Callable[[], object]) -> None:
    send()
    retry()


def arrives_after_the_retry(send: Send, retry: Callable[[], object]) -> None:
    retry()
    with pytest.raises(CommitFailedException):
        send()


def arrives_while_the_retry_is_sent(send: Send, retry: Callable[[], object]) -> None:
    def both(send_retry: Send) -> CommitTableResponse:
        send()
        return send_retry()

    with catalog_with(both):
        retry()


ARRIVALS = (arrives_before_the_retry, arrives_after_the_retry, arrives_while_the_retry_is_sent)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("arrive", ARRIVALS)
def test_a_request_that_lands_late_adds_no_rows_twice(
    remote: IcebergStream, arrive: Callable[[Send, Callable[[], object]], None], mode: str
) -> None:
    manifest = remote.prepare(1, [1, 2], mode=mode)  # type: ignore[arg-type]
    on_their_way: list[Send] = []
    with catalog_with(late(UNKNOWN[0], on_their_way)), pytest.raises(CommitStateUnknownError):
        remote.committer().commit(manifest)
    arrive(on_their_way[0], lambda: remote.committer().commit(manifest))
    assert remote.ids() == polars_ids(remote) == ([0, 1, 2] if mode == "append" else [1, 2])
    assert len(list(remote.lake.tokens())) == 2


def test_a_late_request_after_the_next_batch_adds_nothing(remote: IcebergStream) -> None:
    manifest = remote.prepare(1, [1])
    on_their_way: list[Send] = []
    with catalog_with(late(UNKNOWN[0], on_their_way)), pytest.raises(CommitStateUnknownError):
        remote.committer().commit(manifest)
    remote.committer().commit(manifest)
    remote.commit(2, [2])
    with pytest.raises(CommitFailedException):
        on_their_way[0]()
    assert remote.ids() == [0, 1, 2]


def test_a_late_request_for_the_first_snapshot_of_a_table_adds_no_rows_twice(tmp_path: Path) -> None:
    """The table has no head yet that could move."""
    stream = IcebergStream(tmp_path, is_named=True)
    manifest = stream.prepare(0, [1])
    on_their_way: list[Send] = []
    with catalog_with(late(UNKNOWN[0], on_their_way)), pytest.raises(CommitStateUnknownError):
        stream.committer().commit(manifest)
    assert isinstance(stream.committer().commit(manifest), Committed)
    with pytest.raises(CommitFailedException):
        on_their_way[0]()
    assert stream.ids() == [1]


def test_no_error_shows_the_password_of_the_catalog(remote: IcebergStream) -> None:
    error = requests.ConnectionError("https://me:s3cret-word@catalog.example/v1 refused")
    manifest = remote.prepare(1, [1])
    with catalog_with(not_sent(error)), pytest.raises(CommitStateUnknownError) as caught:
        remote.committer().commit(manifest)
    assert "s3cret-word" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
