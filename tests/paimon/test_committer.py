"""The guards of the Paimon committer: two drivers, other writers, tokens."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from tests.support.paimon_catalog import PaimonCatalogHarness
from tests.support.paimon_table import PaimonHarness
from tests.support.race import race

from penstock.committers.contract import BATCH_WRITE_PREFIX, AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import (
    TableChangedError,
)
from penstock.committers.paimon import folder
from penstock.committers.paimon.committer import PaimonTableCommitter
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query, ids
from penstock.testing.faults import at_point, crash_at

EVERYWHERE = pytest.mark.parametrize("harness", ["folder", "REST catalog"], indirect=True)

# Two committers ---------------------------------------------------------------------------------------


@EVERYWHERE
def test_two_processes_that_race_never_double_a_batch(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    batches = 6 if isinstance(harness, PaimonCatalogHarness) else 30
    query = query.with_options(newTarget="allow")  # no batch is prepared before
    manifests = [query.build(store, query.batch(number), ids(number)) for number in range(batches)]
    race(harness.new_committer, manifests)

    assert sorted(harness.ids()) == list(range(batches))
    assert list(harness.snapshots()) == list(range(1, batches + 1))
    assert harness.problems() == []


@EVERYWHERE
def test_a_commit_after_a_snapshot_of_others_is_tried_again(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = query.build(store, query.batch(1), ids(1))
    with at_point("commit.start", lambda: harness.append(100)):
        assert isinstance(query.target().commit(manifest), Conflict)
    assert sorted(harness.ids()) == [0, 100]
    assert harness.orphan_manifests() == []

    assert isinstance(query.target().commit(manifest), Committed)
    assert sorted(harness.ids()) == [0, 1, 100]
    assert harness.problems() == []


def test_a_snapshot_that_is_there_at_the_last_moment_is_not_replaced(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another query commits when the file is ready, and has not its name yet."""
    other = Query(harness, "q2", store=store)
    manifests = [query.build(store, query.batch(0), ids(0)), other.build(store, other.batch(0), ids(100))]
    real = folder._temporary
    others: list[Path] = []

    def temporary(target: Path, content: bytes) -> Path:
        ready = real(target, content)
        if target.name == "snapshot-1" and not others:
            others.append(target)
            other.target().commit(manifests[1])
        return ready

    monkeypatch.setattr(folder, "_temporary", temporary)
    assert isinstance(query.target().commit(manifests[0]), Conflict)
    assert harness.ids() == [100]
    assert harness.orphan_manifests() == []
    query.target().commit(manifests[0])
    assert sorted(harness.ids()) == [0, 100]


def test_a_snapshot_that_another_writer_has_replaced_is_noticed(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    """Paimon's commit to a file-system catalog renames a file over it, if both commit at once."""
    query.run(store, query.batch(0), ids(0))
    harness.append(100)
    snapshots = harness.path / "snapshot"
    foreign = json.loads((snapshots / "snapshot-2").read_text())
    (snapshots / "snapshot-2").unlink()
    (snapshots / "snapshot-1").write_text(json.dumps({**foreign, "id": 1}))

    with pytest.raises(TableChangedError, match="another writer has replaced the snapshot"):
        query.run(store, query.batch(1), ids(1))


# The token --------------------------------------------------------------------------------------------


@EVERYWHERE
def test_the_token_survives_the_expiry_of_its_snapshot(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    query.target().commit(manifest)
    for row_id in (100, 101):
        harness.append(row_id)
    harness.expire()
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    query.run(store, query.batch(1), ids(1))

    assert sorted(harness.ids()) == [0, 1, 100, 101]


@pytest.mark.parametrize("is_new", [True, False], ids=["first batch", "later batch"])
def test_an_interrupted_commit_is_found_unless_its_snapshot_may_have_expired(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, is_new: bool
) -> None:
    """The driver dies between the snapshot and the note."""
    if not is_new:
        query.run(store, query.batch(0), ids(0))
    manifest = query.with_options(newTarget="allow").build(store, query.batch(1), ids(1))
    with crash_at("commit.landed"):
        query.target().commit(manifest)
    harness.append(100)
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 1

    harness.expire()
    before = sorted(harness.ids())
    for _ in range(2):
        with pytest.raises(TableChangedError, match="unknown whether"):
            query.target().commit(manifest)
    with pytest.raises(TableChangedError, match="unknown whether"):
        query.target().token("q1")
    assert sorted(harness.ids()) == before


def test_an_interrupted_commit_without_its_snapshot_is_made_again(
    query: Query, store: SqlManifestStore, harness: PaimonHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", die)
        with pytest.raises(Died):
            query.target().commit(manifest)
    harness.append(100)

    assert isinstance(query.target().commit(manifest), Committed)
    assert sorted(harness.ids()) == [0, 100]


def test_without_its_note_a_batch_is_only_committed_if_no_snapshot_since_its_plan_has_expired(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    manifest = query.build(store, query.batch(0), ids(0))
    query.target().commit(manifest)
    harness.append(100)
    harness.expire()
    (harness.path / "penstock" / "q1.json").unlink()

    with pytest.raises(TableChangedError, match="unknown whether"):
        query.target().commit(manifest)


def test_a_note_that_was_changed_by_hand_is_reported(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    query.run(store, query.batch(0), ids(0))
    (harness.path / "penstock" / "q1.json").write_text("{}")

    with pytest.raises(TableChangedError, match="is not what Penstock"):
        query.target().token("q1")


def test_notes_of_old_batch_writes_are_deleted(
    query: Query, store: SqlManifestStore, harness: PaimonHarness
) -> None:
    write = Query(harness, f"{BATCH_WRITE_PREFIX}1", store=store)
    then = datetime.now(timezone.utc) - timedelta(days=8)
    manifest = write.build(store, write.batch(0), ids(0))
    PaimonTableCommitter(harness.in_catalog(), now_ms=lambda: int(then.timestamp() * 1000)).commit(manifest)
    young = Query(harness, f"{BATCH_WRITE_PREFIX}2", store=store)
    young.target().commit(young.build(store, young.batch(0), ids(1)))
    query.run(store, query.batch(0), ids(2))

    notes = {path.name for path in (harness.path / "penstock").iterdir()}
    assert notes == {f"{BATCH_WRITE_PREFIX}2.json", "q1.json"}


def test_a_snapshot_says_what_it_was(query: Query, store: SqlManifestStore, harness: PaimonHarness) -> None:
    query.with_options(newTarget="allow").run(store, query.batch(7), ids(0, 1))

    snapshot = harness.snapshots()[1]
    assert (snapshot["commitUser"], snapshot["commitIdentifier"]) == ("penstock-q1", 7)
    shown = {key: snapshot["properties"][f"penstock.{key}"] for key in ("query-id", "batch-id", "rows")}
    assert shown == {"query-id": "q1", "batch-id": "7", "rows": "2"}
