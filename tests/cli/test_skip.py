"""`penstock skip` saves the rows of the batch, says what is there, and `penstock status` reports it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from servers.http_rows import HttpRows
from tests.support.cli import Ended
from tests.support.dead_letters import BAD, ROWS, Letters, letters_of, rows_with

from penstock.committers.contract import ManifestState
from penstock.committers.store.sql import SqlManifestStore
from penstock.delivery.metrics import STREAM_METRICS
from penstock.operating import dead_letters
from penstock.testing.faults import crash_at

REASON = ("--reason", "sensor 7", "--yes")
EITHER = pytest.mark.parametrize("letters", [("postgres", "delta"), ("http", "delta")], indirect=True)


@pytest.fixture
def letters(
    request: pytest.FixtureRequest, tmp_path: Path, store: SqlManifestStore, http_server: HttpRows
) -> Letters:
    """A stream that is parked because the destination refuses the row 3 of batch 1."""
    made = letters_of(request, tmp_path, store, http_server)
    made.decouple(badRows="fail", deliveryTries="1")
    if made.is_http:
        made.query = made.query.with_options(format="row", maxInFlightRequests="1")
    else:
        lake: Any = made.query.harness
        lake.sql("ALTER TABLE events ALTER name DROP NOT NULL")
        lake.sql(f"ALTER TABLE events ADD CONSTRAINT c CHECK (id NOT IN {BAD})")
    made.run(0, rows_with(1, 2))
    made.run(1, rows_with(4, 5, 3), rows_with(6, 8))
    made.run(2, rows_with(9))
    for _ in range(3):  # all batches, then one by one
        made.deliver()
    assert store.deliveries.state(made.query.stream).parked_at is not None
    return made


def correct(letters: Letters, server: HttpRows | None) -> None:
    """Let the destination accept all rows."""
    if server is not None and letters.is_http:
        server.set(deduplicate=True, refused=())
    else:
        lake: Any = letters.query.harness
        lake.sql("ALTER TABLE events DROP CONSTRAINT c")


def go_on(letters: Letters) -> None:
    assert Ended("retry", "q1").code == 0
    letters.deliver()


@EITHER
def test_skip_saves_the_rows_and_resend_sends_them(letters: Letters, http_server: HttpRows) -> None:
    skipped = Ended("skip", "q1", "1", *REASON, "--json").json
    there = 2 if letters.is_http else 0
    assert (skipped["rows_delivered"], skipped["rows_missing"]) == (there, 5 - there)
    go_on(letters)
    assert sorted(letters.ids()) == ([1, 2, 4, 5, 9] if letters.is_http else [1, 2, 9])
    shown = Ended("dead-letters", "show", "q1", "--code", "skipped", "--json").json["letters"]
    assert len(shown) == 5 - there
    assert {one["message"].partition(": ")[2] for one in shown} == {"sensor 7"}
    correct(letters, http_server)
    assert Ended("dead-letters", "resend", "q1", "--yes", "--json").json["rows"] == 5 - there
    assert Ended("dead-letters", "resend", "q1", "--yes", "--json").json["rows"] == 0

    assert sorted(letters.ids()) == [1, 2, 3, 4, 5, 6, 8, 9]


@EITHER
def test_skip_says_what_the_destination_has(letters: Letters) -> None:
    ended = Ended("skip", "q1", "1", "--reason", "x", answer="n\n")
    assert "Batch 1 of" in ended.err
    assert "has 5 rows" in ended.err
    if letters.is_http:
        assert "2 of them, from the first one on, are in" in ended.err
        assert "The other 3 are not acknowledged" in ended.err
    else:
        assert "They will not be in" in ended.err
    assert str(letters.table.path) in ended.err.replace("\n", "")  # type: ignore[union-attr]
    assert letters.query.state(letters.store, 1) is ManifestState.PREPARED


@EITHER
@pytest.mark.parametrize("point", ["prepare.done", "commit.landed", "mark.done", "skip.saved"])
@pytest.mark.parametrize("is_finished", [True, False], ids=["skipped again", "delivered"])
def test_a_skip_that_dies_doubles_and_loses_nothing(
    letters: Letters, http_server: HttpRows, point: str, is_finished: bool
) -> None:
    with crash_at(point):
        Ended("skip", "q1", "1", *REASON)
    assert letters.query.state(letters.store, 1) is ManifestState.PREPARED
    if is_finished:
        assert Ended("skip", "q1", "1", *REASON).code == 0
    correct(letters, http_server)
    go_on(letters)
    sent = Ended("dead-letters", "resend", "q1", "--yes", "--json").json["rows"]

    assert sent == ((3 if letters.is_http else 5) if is_finished else 0)
    assert sorted(letters.ids()) == [1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
def test_rows_that_a_task_has_refused_are_saved_with_the_others(letters: Letters) -> None:
    """They would have become dead letters with their batch."""
    letters.query = letters.query.with_options(badRows="deadLetter")
    odd = pa.table({"id": pa.array([20, 21], pa.int64()), "name": ["a\0b", "c"]}, schema=ROWS)
    letters.run(3, odd)
    assert Ended("skip", "q1", "3", *REASON).code == 0
    shown = Ended("dead-letters", "show", "q1", "--json").json["letters"]

    assert [(one["code"], json.loads(one["row"])["id"]) for one in shown] == [
        ("skipped", 21),
        ("does_not_fit", 20),
    ]
    assert letters.stored() == 0


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
def test_several_skipped_batches_are_saved_in_any_order(letters: Letters, http_server: HttpRows) -> None:
    for batch_id in ("2", "1"):
        assert Ended("skip", "q1", batch_id, *REASON).code == 0
    correct(letters, http_server)
    assert Ended("dead-letters", "resend", "q1", "--yes", "--json").json["rows"] == 6

    assert sorted(letters.ids()) == [1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
@pytest.mark.parametrize("is_older", [True, False], ids=["of an older version", "refused"])
def test_a_resend_that_the_table_refuses_does_not_hold_up_others(
    letters: Letters, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    for batch_id in ("1", "2"):
        assert Ended("skip", "q1", batch_id, *REASON).code == 0
    with monkeypatch.context() as older:
        if is_older:  # they left the refused batch PREPARED
            older.setattr(dead_letters, "_give_up", lambda *_: None)
        ended = Ended("dead-letters", "resend", "q1", "--yes")
    assert ended.code == 3
    assert "None of these rows was sent" in ended.err
    pending = [one for stream in letters.store.streams() for one in letters.store.pending(stream.key)]
    assert bool(pending) is is_older
    assert Ended("dead-letters", "resend", "q1", "--batch", "2", "--yes", "--json").json["rows"] == 1
    assert sorted(letters.ids()) == [1, 2, 9]

    correct(letters, None)
    assert Ended("dead-letters", "resend", "q1", "--yes", "--json").json["rows"] == 5
    assert sorted(letters.ids()) == [1, 2, 3, 4, 5, 6, 8, 9]


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
@pytest.mark.parametrize("place", ["default", "--save-to", "--discard-rows"])
def test_without_a_dead_letter_table_the_rows_are_saved_beside_the_checkpoint(
    letters: Letters, tmp_path: Path, place: str
) -> None:
    options = {key: value for key, value in letters.query.options.items() if "deadLetter" not in key}
    letters.query = type(letters.query)(letters.query.harness, options=options)
    letters.run(3, rows_with(10))
    more = {"--save-to": (place, str(tmp_path / "elsewhere")), "--discard-rows": (place,)}.get(place, ())
    saved = Ended("skip", "q1", "1", *REASON, *more, "--json").json["saved_to"]
    expected = {
        "default": str(tmp_path / "checkpoint" / "penstock-skipped"),
        "--save-to": str(tmp_path / "elsewhere"),
        "--discard-rows": None,
    }[place]
    assert saved == expected
    if saved:
        found = Ended("dead-letters", "show", "q1", "--json").json["letters"]
        assert len(found) == 5
        (listed,) = Ended("dead-letters", "list", "--json").json["streams"]
        assert (listed["dead_letter_uri"], listed["skipped_uris"]) == ("", [saved])
        assert [(one["code"], one["letters"]) for one in listed["delivered"]] == [("skipped", 5)]


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
def test_rows_that_cannot_be_read_are_not_skipped(letters: Letters) -> None:
    lake: Any = letters.query.harness
    for name in lake.staged():
        lake.sql(f"DROP TABLE {name}")
    ended = Ended("skip", "q1", "1", *REASON)
    assert ended.code == 2
    assert "was not skipped" in ended.err
    assert "--discard-rows" in ended.err
    assert letters.query.state(letters.store, 1) is ManifestState.PREPARED
    assert Ended("skip", "q1", "1", *REASON, "--discard-rows").code == 0


@pytest.mark.parametrize("letters", [("postgres", "delta")], indirect=True)
def test_skipped_rows_are_reported_until_they_are_acknowledged(letters: Letters) -> None:
    assert Ended("status").code == 0
    Ended("skip", "q1", "1", *REASON)
    status = Ended("status", "--json")
    (stream, *_) = [one for one in status.json["streams"] if one["query_id"] == "q1"]
    assert status.code == 1
    assert stream["skipped"] == {"batches": [1], "rows": 5, "unacknowledged": [1]}
    assert "penstock acknowledge q1" in Ended("status", columns=200).out
    history = Ended("history", "q1", "--json").json["batches"]
    assert [one["batch_id"] for one in history if one["is_skipped"]] == [1]
    assert "SKIPPED" in Ended("history", "q1").out

    assert Ended("acknowledge", "q1", "--reason", "seen", "--json").json["batches"] == [1]
    assert Ended("status").code == 0
    assert Ended("acknowledge", "q1", "--json").json["batches"] == []
    Ended("skip", "q1", "2", *REASON)
    status = Ended("status", "--json")
    (stream, *_) = [one for one in status.json["streams"] if one["query_id"] == "q1"]
    assert (status.code, stream["skipped"]["unacknowledged"]) == (1, [2])
    letters.store.prune(letters.query.stream, 0, 0, 1000)
    (found, *_) = [one for one in letters.store.streams() if one.key == letters.query.stream]
    assert (found.skipped.batch_ids, found.skipped.rows) == ((1, 2), 6)
    values = {metric.name: metric.value(found, found.created_at) for metric in STREAM_METRICS}
    assert (values["penstock_skipped_rows"], values["penstock_skipped_unacknowledged"]) == (6, 1)
