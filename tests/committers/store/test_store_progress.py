"""What the store promises about the progress of streams, on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.stored_batches import STREAM, UNKNOWN

from penstock.committers.contract import StreamKey, Token
from penstock.committers.errors import FencedError, RetryableError
from penstock.committers.progress import BatchInDelivery, Progress, StoresProgress, with_store
from penstock.committers.store.sql import SqlManifestStore, open_store

HALF = BatchInDelivery(4, "d4", "files of 4", 1_000_000)


def test_a_stream_without_progress_has_delivered_nothing(store: SqlManifestStore) -> None:
    assert store.progress.read(STREAM) == Progress(0, None, None)
    assert store.progress.read(UNKNOWN) == Progress()


def test_progress_reads_back_as_written_for_each_stream(store: SqlManifestStore, store_url: str) -> None:
    other = StreamKey("another", STREAM.table_uri)
    store.register_stream(other, "test")
    first = store.progress.write(STREAM, Progress(), None, HALF)
    second = store.progress.write(STREAM, first, Token(4, "d4"))
    with open_store(store_url) as again:
        assert (first, second) == (Progress(1, None, HALF), Progress(2, Token(4, "d4"), None))
        assert again.progress.read(STREAM) == second
        assert again.progress.read(other) == Progress()


@pytest.mark.parametrize("has_begun", [False, True])
def test_progress_that_another_process_has_changed_is_not_overwritten(
    store: SqlManifestStore, store_url: str, has_begun: bool
) -> None:
    expected = store.progress.write(STREAM, Progress(), None, HALF) if has_begun else Progress()
    with open_store(store_url) as other:
        theirs = other.progress.write(STREAM, expected, Token(5, "d5"))
    with pytest.raises(FencedError, match=r"is batch 5, and this process expected no batch"):
        store.progress.write(STREAM, expected, None, HALF)

    assert store.progress.read(STREAM) == theirs


def test_progress_that_was_put_back_to_an_earlier_state_is_not_the_expected_one(
    store: SqlManifestStore,
) -> None:
    """The same batch and position again, after others: the revision differs."""
    seen = store.progress.write(STREAM, Progress(), None, HALF)
    back = store.progress.write(STREAM, store.progress.write(STREAM, seen, Token(5, "d5")), None, HALF)
    with pytest.raises(FencedError):
        store.progress.write(STREAM, seen, Token(4, "d4"))

    assert store.progress.read(STREAM) == back


def test_progress_of_a_store_that_was_replaced_is_not_written(store: SqlManifestStore) -> None:
    with pytest.raises(FencedError):
        store.progress.write(STREAM, Progress(7, Token(4, "d4")), Token(5, "d5"))
    with pytest.raises(RetryableError, match="does not know the stream unknown"):
        store.progress.write(UNKNOWN, Progress(), Token(0, "d0"))

    assert store.progress.read(STREAM) == Progress()


class Stored:
    """A table with its token in the store."""

    progress: object = None

    def with_progress(self, progress: object) -> Stored:
        copy = Stored()
        copy.progress = progress
        return copy


@pytest.mark.parametrize("table", [Stored, object])
def test_only_a_table_that_needs_it_gets_the_progress(
    store: SqlManifestStore, table: Callable[[], object]
) -> None:
    one = table()
    opened = with_store(one, store)
    if isinstance(one, StoresProgress):
        assert opened is not one
        assert getattr(opened, "progress", None) is store.progress
    else:
        assert opened is one
