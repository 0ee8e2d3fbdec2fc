"""What the store promises about dead letters, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.stored_batches import COMMITTED, STREAM, UNKNOWN, batch, deliver, own
from tests.support.stores import START, HandClock

from penstock.committers.contract import AbortedBy, Batch, DeadLetter, Token
from penstock.committers.dead_letters import LETTERS_BYTES_MAX, LetterBox
from penstock.committers.deliveries.contract import Lease
from penstock.committers.errors import FencedError, SchemaMismatchError
from penstock.committers.progress import Progress
from penstock.committers.store import dead_letters
from penstock.committers.store.dead_letters import LetterCount
from penstock.committers.store.sql import SqlManifestStore


def letter(number: int, code: str = "422", stage: str = "send") -> DeadLetter:
    at = START + timedelta(seconds=number)
    return DeadLetter(f"{stage}-00000-{number:012}", f"id {number}", code, "not \0 accepted", at, b"\x00row")


def stored(store: SqlManifestStore, of: Batch) -> list[DeadLetter]:
    return [one for some in store.dead_letters.of_batch(of) for one in some]


def prepare(store: SqlManifestStore, batch_id: int, *letters: DeadLetter) -> None:
    store.prepare(replace(own(batch_id), dead_letters=letters), "r1")


def test_dead_letters_of_a_manifest_wait_once_it_is_committed(store: SqlManifestStore) -> None:
    prepare(store, 0, letter(1), letter(0))
    prepare(store, 1)
    assert store.dead_letters.waiting(STREAM) == []
    assert [one.dead_letters_waiting for one in store.streams()] == [0]
    store.finish(batch(0), COMMITTED)
    store.finish(batch(1), COMMITTED)
    assert store.dead_letters.waiting(STREAM) == [batch(0)]
    assert [one.dead_letters_waiting for one in store.streams()] == [2]
    assert store.dead_letters.waiting(UNKNOWN) == []

    expected = [replace(one, message="not  accepted") for one in (letter(0), letter(1))]
    assert stored(store, batch(0)) == expected
    assert store.dead_letters.delete(batch(0)) == 2
    assert store.dead_letters.delete(batch(0)) == 0
    assert store.dead_letters.waiting(STREAM) == []


def test_dead_letters_are_read_some_at_a_time(
    store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_AT_ONCE", 2)
    prepare(store, 0, *map(letter, range(5)))
    assert [len(some) for some in store.dead_letters.of_batch(batch(0))] == [2, 2, 1]


def test_they_are_counted_by_code(store: SqlManifestStore) -> None:
    prepare(store, 0, letter(1), letter(5), letter(2, "does_not_fit"))
    assert store.dead_letters.counts(STREAM) == []
    store.finish(batch(0), COMMITTED)

    one, two, five = (START + timedelta(seconds=number) for number in (1, 2, 5))
    assert store.dead_letters.counts(STREAM) == [
        LetterCount("422", 2, one, five),
        LetterCount("does_not_fit", 1, two, two),
    ]


@pytest.mark.parametrize("what", ["aborted", "replaced"])
def test_a_manifest_that_is_prepared_again_has_only_its_own(store: SqlManifestStore, what: str) -> None:
    prepare(store, 0, letter(1), letter(2))
    record = store.record(STREAM, 0)
    assert record is not None
    new = replace(own(0), content=b"others", dead_letters=(letter(3),))
    if what == "aborted":
        assert store.abort_from(record, "its replay has other rows")
    store.prepare(new, "r1", replacing=None if what == "aborted" else record)
    store.finish(batch(0), COMMITTED)

    assert [one.letter_id for one in stored(store, batch(0))] == [letter(3).letter_id]


def test_those_of_a_skipped_batch_never_wait(store: SqlManifestStore) -> None:
    prepare(store, 0, letter(1))
    assert store.deliveries.skip(STREAM, 0, "me", "it is wrong")
    record = store.record(STREAM, 0)
    assert record is not None
    assert record.aborted_by is AbortedBy.SKIP
    assert store.dead_letters.waiting(STREAM) == []


def test_a_manifest_of_another_run_does_not_bring_its_own(store: SqlManifestStore) -> None:
    """First prepared wins, with its dead letters."""
    prepare(store, 0, letter(1))
    store.claim(STREAM, "r2")
    assert not store.prepare(replace(own(0), dead_letters=(letter(2),)), "r2").is_ours
    assert [one.letter_id for one in stored(store, batch(0))] == [letter(1).letter_id]


def test_those_of_a_delivery_are_stored_with_its_progress_once(store: SqlManifestStore) -> None:
    progress = store.progress
    first = progress.write(STREAM, Progress(), None, None, {4: [letter(1)], 5: [letter(1)]})
    progress.write(STREAM, first, Token(4, "d4"), None, {4: [letter(1), letter(2)]})

    assert [one.letter_id for one in stored(store, batch(4))] == [letter(1).letter_id, letter(2).letter_id]
    assert progress.dead_letters(STREAM, 4) == 2
    assert progress.dead_letters(STREAM, 5) == 1
    assert progress.dead_letters(UNKNOWN, 5) == 0


def committed_rows(store: SqlManifestStore) -> int:
    (status,) = store.streams()
    return status.committed_rows


def test_rows_that_the_table_refuses_in_the_commit_are_not_counted_as_committed(
    store: SqlManifestStore,
) -> None:
    """The manifest has ten rows; those that tasks have refused are not among them."""
    prepare(store, 0, letter(1, stage="write"))
    store.finish(batch(0), COMMITTED, dead_letters={0: [letter(1, stage="commit")]})
    assert committed_rows(store) == 9
    prepare(store, 1)
    store.finish(batch(1), COMMITTED, dead_letters={1: [letter(1, stage="commit")]}, dropped_rows=1)
    assert committed_rows(store) == 18, "a dead letter is also one of the dropped rows"
    prepare(store, 2)
    store.finish(batch(2), COMMITTED, dropped_rows=2)
    assert committed_rows(store) == 26


def test_rows_that_are_refused_in_a_delivery_are_not_counted_as_committed(
    store: SqlManifestStore, lease: Lease
) -> None:
    for batch_id in range(4):
        prepare(store, batch_id, letter(1, stage="write"))
    first = deliver(store, lease, 0, 1)
    refused = {0: [letter(1, stage="commit")], 1: [letter(1, stage="commit")]}
    assert store.deliveries.finish(first, 7, refused, 2)
    assert committed_rows(store) == 18
    assert store.deliveries.finish(deliver(store, lease, 2, 3), 8, dropped_rows=3)
    assert committed_rows(store) == 35


def test_rows_that_a_service_has_refused_are_not_counted_as_committed(store: SqlManifestStore) -> None:
    """They are stored before the batch is marked, maybe by an earlier process."""
    prepare(store, 4)
    store.progress.write(STREAM, Progress(), Token(4, "d4"), None, {4: [letter(1), letter(2)]})
    store.finish(batch(4), COMMITTED)
    assert committed_rows(store) == 8


def test_those_of_a_task_do_not_count_for_a_delivery(store: SqlManifestStore) -> None:
    prepare(store, 4, letter(1, stage="write"), letter(1))
    assert store.progress.dead_letters(STREAM, 4) == 1


def test_those_of_a_fenced_delivery_are_not_stored(store: SqlManifestStore) -> None:
    store.progress.write(STREAM, Progress(), Token(3, "d3"))
    with pytest.raises(FencedError):
        store.progress.write(STREAM, Progress(), Token(4, "d4"), None, {4: [letter(1)]})
    assert stored(store, batch(4)) == []


def test_pruning_keeps_the_record_of_a_batch_whose_dead_letters_wait(
    store: SqlManifestStore, clock: HandClock
) -> None:
    for batch_id in range(4):
        prepare(store, batch_id, *([letter(1)] if batch_id in (1, 2) else []))
        if batch_id == 2:
            store.deliveries.skip(STREAM, 2, "me", "it is wrong")
        else:
            store.finish(batch(batch_id), COMMITTED)
    clock.advance(3600)
    assert store.prune(STREAM, 60, 100, 1000) == 1, "the record of a skipped batch stays"
    assert store.dead_letters.waiting(STREAM) == [batch(1)]
    assert stored(store, batch(2)) == [], "they are saved with the rows of a skipped batch"
    store.dead_letters.delete(batch(1))
    assert store.prune(STREAM, 60, 100, 1000) == 1


def test_a_box_is_bounded() -> None:
    box = LetterBox()
    large = replace(letter(1), content=b"x" * (LETTERS_BYTES_MAX // 2))
    box.add(large)
    with pytest.raises(SchemaMismatchError, match="have more than 8,388,608 bytes"):
        box.add(large)
