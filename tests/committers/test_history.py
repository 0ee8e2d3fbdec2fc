"""The versions of a key, against lists of versions; and what a deletion and a late row do to them."""

from __future__ import annotations

import random

import pytest
from tests.support.histories import Histories, versions_with

from penstock.committers.changes.history import Event, Version, timeline


def applied(
    versions: list[tuple[int, int | None, str]], *batches: dict[int, str | None]
) -> list[tuple[int, int | None, str]]:
    """Return versions after batches of changes, as `timeline` makes them."""
    old = [Version(number, begin, end) for number, (begin, end, _) in enumerate(versions)]
    contents: list[str] = []
    events: list[list[Event]] = []
    begins: list[int] = []
    for batch in batches:
        events.append([])
        for at, content in batch.items():
            events[-1].append(Event(len(contents), at, content is None))
            contents.append(content or "")
            begins.append(at)
    line = timeline(old, events)
    kept = [(versions[number][0], end, versions[number][2]) for number, end in line.kept.items()]
    added = [(begins[number], end, contents[number]) for number, end in line.added.items()]
    for number, before in line.replaced.items():
        assert versions[before][0] == begins[number]
        assert number in line.added
        assert before not in line.kept
    return sorted(kept + added)


@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ([], {1: "a"}, [(1, None, "a")]),
        ([(1, None, "a")], {5: "b"}, [(1, 5, "a"), (5, None, "b")]),
        ([(1, None, "a")], {5: None}, [(1, 5, "a")]),
        ([(1, 5, "a"), (5, None, "c")], {3: "b"}, [(1, 3, "a"), (3, 5, "b"), (5, None, "c")]),
        ([(3, None, "b")], {1: "a"}, [(1, 3, "a"), (3, None, "b")]),
        ([(1, 3, "a")], {2: "b"}, [(1, 2, "a"), (2, 3, "b")]),  # deleted at 3, as before
        ([(1, 3, "a")], {4: "b"}, [(1, 3, "a"), (4, None, "b")]),
        ([(1, 3, "a"), (9, None, "c")], {4: "b"}, [(1, 3, "a"), (4, 9, "b"), (9, None, "c")]),
        ([(1, 9, "a"), (9, None, "b")], {5: None}, [(1, 5, "a"), (9, None, "b")]),
        ([(1, 9, "a"), (9, None, "b")], {9: "c"}, [(1, 9, "a"), (9, None, "c")]),
        ([(1, 9, "a"), (9, None, "b")], {9: None}, [(1, 9, "a")]),
        ([(1, 9, "a"), (9, None, "b")], {1: None}, [(9, None, "b")]),
        ([(1, 3, "a")], {5: None}, [(1, 3, "a")]),  # there is no row that could tell
        ([], {1: None}, []),
    ],
)
def test_changes_of_a_key(
    before: list[tuple[int, int | None, str]],
    changes: dict[int, str | None],
    after: list[tuple[int, int | None, str]],
) -> None:
    assert applied(before, changes) == after
    assert applied(after, changes) == after, "an event that comes again changes nothing"
    assert versions_with(before, changes) == after


def test_batches_of_a_delivery_count_one_after_the_other() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        model = Histories()
        model.apply(("k", rng.randrange(12), rng.choice("abc")) for _ in range(rng.randrange(5)))
        before = model.versions.get("k", [])
        batches = [
            {rng.randrange(12): rng.choice(["a", "b", "c", None]) for _ in range(rng.randrange(1, 5))}
            for _ in range(rng.randrange(1, 5))
        ]
        for batch in batches:
            model.apply(("k", at, content) for at, content in batch.items())
        assert applied(before, *batches) == model.versions.get("k", []), seed


def test_the_order_in_which_versions_arrive_does_not_matter() -> None:
    """Nor does it matter which of them are in one batch. Deletions may be forgotten."""
    for seed in range(100):
        rng = random.Random(seed)
        changes: list[tuple[int, str | None]] = [(at, rng.choice("abc")) for at in rng.sample(range(20), 8)]
        batches: list[dict[int, str | None]] = [{} for _ in range(4)]
        for at, content in changes:
            rng.choice(batches)[at] = content
        assert applied([], *filter(None, batches)) == versions_with([], dict(changes))
