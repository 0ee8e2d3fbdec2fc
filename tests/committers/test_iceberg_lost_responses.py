"""Lost requests, lost responses and late requests of a commit to an Iceberg catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import requests
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from pyiceberg.table import CommitTableResponse
from tests.support.catalog_faults import Send, at_request, late
from tests.support.streams import IcebergStream

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import CommitStateUnknownError, RetryableError
from penstock.testing.faults import lossy

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
"""What catalogs raise if it is unknown whether the request was executed."""

CONFLICT = CommitFailedException("branch main has changed")


@pytest.fixture(params=[False, True], ids=["embedded", "named"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> IcebergStream:
    """With batch 0 in the table."""
    stream = IcebergStream(tmp_path, is_named=request.param)
    stream.commit(0, [0])
    return stream


@pytest.fixture
def remote(tmp_path: Path) -> IcebergStream:
    """The catalog may be a server: a request may be executed much later. With batch 0."""
    stream = IcebergStream(tmp_path, is_named=True)
    stream.commit(0, [0])
    return stream


def polars_ids(stream: IcebergStream) -> list[int]:
    return sorted(stream.lake.scan().select("id").collect()["id"].to_list())


# Committed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [*UNKNOWN, CONFLICT], ids=lambda error: type(error).__name__)
def test_a_batch_with_a_lost_response_is_not_added_again(stream: IcebergStream, error: Exception) -> None:
    """A conflict may be its own: the client or a proxy has repeated the request."""
    manifest = stream.prepare(1, [1, 2])
    with lossy(SqlCatalog, "commit_table", "response", error):
        outcome = stream.committer().commit(manifest)
    assert outcome == Committed(stream.head.snapshot_id)
    assert stream.committer().commit(manifest) == AlreadyCommitted(stream.head.snapshot_id)
    assert stream.ids() == polars_ids(stream) == [0, 1, 2]
    assert stream.lake.orphan_manifests() == set()


@pytest.mark.parametrize("error", [UNKNOWN[0], CONFLICT], ids=lambda error: type(error).__name__)
def test_a_committed_batch_is_found_by_the_attempt_after_an_outage(
    stream: IcebergStream, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifests stay: they are in the table."""
    manifest = stream.prepare(1, [1])

    def send_before_an_outage(send: Send) -> CommitTableResponse:
        send()
        monkeypatch.setattr(SqlCatalog, "load_table", Mock(side_effect=requests.ConnectionError("refused")))
        raise error

    with at_request(send_before_an_outage), pytest.raises(CommitStateUnknownError, match="may or may not"):
        stream.committer().commit(manifest)
    monkeypatch.undo()
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert stream.ids() == [0, 1]


def test_a_committed_batch_whose_snapshot_has_expired_is_not_added_again(stream: IcebergStream) -> None:
    """The token is in a table property: snapshots come and go."""
    manifest = stream.prepare(1, [1])

    def commit_and_expire(send: Send) -> CommitTableResponse:
        send()
        stream.lake.append(100)
        stream.lake.expire()
        raise UNKNOWN[0]

    with at_request(commit_and_expire):
        assert isinstance(stream.committer().commit(manifest), Committed)
    assert isinstance(stream.committer().commit(manifest), AlreadyCommitted)
    assert stream.ids() == [0, 1, 100]


def test_a_failed_metadata_deletion_is_ignored(
    stream: IcebergStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after the commit do not change its outcome."""

    manifest = stream.prepare(1, [1])
    monkeypatch.setattr(
        "penstock.committers.iceberg.snapshot.delete_old_metadata", Mock(side_effect=OSError("no permission"))
    )
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


# Not committed -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
def test_a_lost_request_leaves_the_state_unknown(remote: IcebergStream, error: Exception) -> None:
    """Its manifests are kept: the request may be executed later."""
    manifest = remote.prepare(1, [1])
    with lossy(SqlCatalog, "commit_table", "request", error):
        with pytest.raises(
            CommitStateUnknownError, match=r"may or may not be in the Iceberg table .*recover"
        ):
            remote.committer().commit(manifest)
    assert len(remote.lake.orphan_manifests()) == 2
    assert isinstance(remote.committer().commit(manifest), Committed)
    assert remote.ids() == [0, 1]


def test_a_failed_request_to_the_embedded_catalog_commits_nothing(tmp_path: Path) -> None:
    """SQLite has answered, so no request is pending: the manifests are deleted."""
    stream = IcebergStream(tmp_path)
    stream.commit(0, [0])
    manifest = stream.prepare(1, [1])
    error = sa.exc.OperationalError("UPDATE", {}, Exception("disk I/O error"))
    with lossy(SqlCatalog, "commit_table", "request", error):
        with pytest.raises(RetryableError, match="was not committed"):
            stream.committer().commit(manifest)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


def test_a_refused_request_is_a_conflict_and_its_manifests_are_deleted(stream: IcebergStream) -> None:
    manifest = stream.prepare(1, [1])
    with lossy(SqlCatalog, "commit_table", "request", CONFLICT):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


def test_an_unknown_outcome_after_a_commit_of_another_is_a_conflict(remote: IcebergStream) -> None:
    """The request requires the old head, so it can never succeed. The next one does."""
    manifest = remote.prepare(1, [1])
    late_requests: list[Send] = []

    def another_is_faster(send: Send) -> CommitTableResponse:
        late_requests.append(send)
        remote.lake.append(100)
        raise UNKNOWN[0]

    with at_request(another_is_faster):
        assert isinstance(remote.committer().commit(manifest), Conflict)
    with pytest.raises(CommitFailedException):
        late_requests[0]()
    assert isinstance(remote.committer().commit(manifest), Committed)
    assert remote.ids() == [0, 1, 100]


def test_a_failed_write_leaves_no_manifests(stream: IcebergStream, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = stream.prepare(1, [1])

    full = Mock(side_effect=OSError("No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr("pyiceberg.table.update.snapshot.write_manifest_list", full)
        with pytest.raises(RetryableError, match=r"(?s)could not be\s+written.*No space left"):
            stream.committer().commit(manifest)
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == [0, 1]


# Late --------------------------------------------------------------------------------------------------


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

    with at_request(both):
        retry()


ARRIVALS = (arrives_before_the_retry, arrives_after_the_retry, arrives_while_the_retry_is_sent)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize("arrive", ARRIVALS)
def test_a_late_request_adds_no_rows_twice(
    remote: IcebergStream, arrive: Callable[[Send, Callable[[], object]], None], mode: str
) -> None:
    manifest = remote.prepare(1, [1, 2], mode=mode)  # type: ignore[arg-type]
    with late(UNKNOWN[0]) as late_requests, pytest.raises(CommitStateUnknownError):
        remote.committer().commit(manifest)
    arrive(late_requests[0], lambda: remote.committer().commit(manifest))
    assert remote.ids() == polars_ids(remote) == ([0, 1, 2] if mode == "append" else [1, 2])
    assert len(list(remote.lake.tokens())) == 2


def test_a_late_request_after_the_next_batch_adds_nothing(remote: IcebergStream) -> None:
    manifest = remote.prepare(1, [1])
    with late(UNKNOWN[0]) as late_requests, pytest.raises(CommitStateUnknownError):
        remote.committer().commit(manifest)
    remote.committer().commit(manifest)
    remote.commit(2, [2])
    with pytest.raises(CommitFailedException):
        late_requests[0]()
    assert remote.ids() == [0, 1, 2]


def test_a_late_request_for_the_first_snapshot_of_a_table_adds_no_rows_twice(tmp_path: Path) -> None:
    """The table has no head yet that could move."""
    stream = IcebergStream(tmp_path, is_named=True)
    manifest = stream.prepare(0, [1])
    with late(UNKNOWN[0]) as late_requests, pytest.raises(CommitStateUnknownError):
        stream.committer().commit(manifest)
    assert isinstance(stream.committer().commit(manifest), Committed)
    with pytest.raises(CommitFailedException):
        late_requests[0]()
    assert stream.ids() == [1]


def test_no_error_shows_the_password_of_the_catalog(remote: IcebergStream) -> None:
    error = requests.ConnectionError("https://me:s3cret-word@catalog.example/v1 refused")
    manifest = remote.prepare(1, [1])
    with (
        lossy(SqlCatalog, "commit_table", "request", error),
        pytest.raises(CommitStateUnknownError) as caught,
    ):
        remote.committer().commit(manifest)
    assert "s3cret-word" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
