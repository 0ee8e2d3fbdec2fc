"""What the store promises about maintenance, on both databases."""

from __future__ import annotations

import pytest
from tests.support.stored_batches import HOUR, STREAM, UNKNOWN
from tests.support.stores import START

from penstock.committers.contract import StreamKey
from penstock.committers.errors import RetryableError
from penstock.committers.store.sql import SqlManifestStore, open_store


def test_the_last_time_of_each_step_is_kept_for_each_stream(store: SqlManifestStore, store_url: str) -> None:
    other = StreamKey("another", STREAM.table_uri)
    store.register_stream(other, "test")
    for step, at in (("compact", START), ("vacuum", START), ("compact", START + HOUR)):
        store.maintenance.note(STREAM, step, at)
    with open_store(store_url) as again:
        assert again.maintenance.done(STREAM) == {"compact": START + HOUR, "vacuum": START}
        assert again.maintenance.done(other) == {}


def test_a_stream_that_the_store_does_not_know_was_never_looked_after(store: SqlManifestStore) -> None:
    assert store.maintenance.done(UNKNOWN) == {}
    with pytest.raises(RetryableError, match="does not know the stream unknown"):
        store.maintenance.note(UNKNOWN, "compact", START)
