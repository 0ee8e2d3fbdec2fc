"""A delivery process that starts while the database of its store is down."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from penstock.committers.errors import StoreUnreachableError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delivery import running
from penstock.datasource.delivery.running import Assignment, opened
from penstock.datasource.delivery.turns import ServiceSettings
from penstock.datasource.delivery.watchers import LastError
from penstock.datasource.table_access import TableAccess

DOWN = "postgresql+psycopg://me@127.0.0.1:1/db"


def assignment(url: str, *, waits: bool) -> Assignment:
    return Assignment(
        stores=(url,), access=TableAccess({}, {}), settings=ServiceSettings(), waits_for_stores=waits
    )


def test_a_database_that_is_down_is_an_error_unless_it_is_waited_for() -> None:
    with pytest.raises(StoreUnreachableError, match=r"refused.*Check host"):
        opened(DOWN, assignment(DOWN, waits=False), [], threading.Event())


def test_a_database_that_is_down_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first try is real; by the second one the database is there."""
    urls = iter((DOWN, f"sqlite:///{tmp_path}/store.db"))

    def open_next(_url: str, *, must_exist: bool) -> SqlManifestStore:
        return open_store(next(urls), must_exist=must_exist)

    monkeypatch.setattr(running, "open_store", open_next)
    errors = LastError()
    store = opened(DOWN, assignment(DOWN, waits=True), [errors], threading.Event())
    assert isinstance(errors.error, StoreUnreachableError)
    assert store is not None
    store.close()
    (warning,) = caplog.messages
    assert warning.startswith("Tried again in 1 s: ")
