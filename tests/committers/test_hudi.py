"""Commits to Hudi tables: what readers see at each moment, and what other writers do in between."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.hudi import META, HudiLake, dying_in

from penstock.committers.contract import AlreadyCommitted, Committed, Conflict, Manifest, Outcome
from penstock.committers.errors import PenstockError, RetryableError, SchemaMismatchError, TableChangedError
from penstock.committers.hudi import committer as hudi_committer
from penstock.committers.hudi import table as hudi_table
from penstock.committers.hudi.committer import HudiTableCommitter
from penstock.committers.hudi.publishing import Publishing
from penstock.committers.hudi.storage import HudiStorage
from penstock.committers.hudi.table import HudiTableFiles
from penstock.committers.hudi.timeline import Timeline
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.hudi.sink import HudiTarget
from penstock.delivery.compaction import DeliveryCompactor
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import ids, payloads, task
from penstock.testing.faults import Crash, lossy

DAYS = pa.schema([("id", pa.int64()), ("day", pa.string())])


@pytest.fixture(params=[6, 9])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> HudiLake:
    return HudiLake(tmp_path, request.param)


@pytest.fixture
def query(lake: HudiLake, store: SqlManifestStore) -> Query:
    return Query(lake, store=store)


FAR_DAY = pa.array([3_000_000], pa.int32()).cast(pa.date32())
"""In the year 10183."""


def days(**values: str | None) -> pa.Table:
    """Rows by their partition value; the ids are counted from 0."""
    return pa.table({"id": range(len(values)), "day": list(values.values())}, schema=DAYS)


# What a commit makes visible ------------------------------------------------------------------------


def test_the_columns_of_hudi_name_instant_key_partition_and_file(
    lake: HudiLake, store: SqlManifestStore
) -> None:
    query = Query(lake, options={"recordKey": "id", "partitionBy": "day"}, store=store)
    query.run(store, query.batch(0), days(a="2026/1", b="b c", c=None))

    (instant,) = lake.commits()
    paths = sorted(lake.visible_files())
    assert [path.rpartition("/")[0] for path in paths] == [
        "day=2026%2F1",
        "day=__HIVE_DEFAULT_PARTITION__",
        "day=b c",
    ]
    stored = {path: pq.read_table(lake.folder / path, partitioning=None).to_pylist() for path in paths}
    for path, rows in stored.items():
        partition, _, name = path.rpartition("/")
        (row,) = rows
        assert list(row)[: len(META)] == META
        assert (row["_hoodie_commit_time"], row["_hoodie_record_key"]) == (instant, str(row["id"]))
        assert (row["_hoodie_partition_path"], row["_hoodie_file_name"]) == (partition, name)
        assert name.endswith(f"_0-0-0_{instant}.parquet")
        assert "partitionDepth=1" in (lake.folder / partition / ".hoodie_partition_metadata").read_text()
    assert len({row["_hoodie_commit_seqno"] for rows in stored.values() for row in rows}) == 3
    stats = lake.commit(instant)["partitionToWriteStats"]
    assert {stat["path"]: stat["numWrites"] for (stat,) in stats.values()} == dict.fromkeys(paths, 1)
    assert sorted((row["id"], row["day"]) for row in lake.rows()) == [(0, "2026/1"), (1, "b c"), (2, None)]


def test_several_key_columns_and_plain_partition_folders(lake: HudiLake, store: SqlManifestStore) -> None:
    options = {"recordKey": "id, day", "partitionBy": "day", "hiveStylePartitions": "false"}
    query = Query(lake, options=options, store=store)
    query.run(store, query.batch(0), days(a="x"))

    (path,) = lake.visible_files()
    assert path.startswith("x/penstock-q1-")
    assert lake.read()["_hoodie_record_key"].to_pylist() == ["id:0,day:x"]


@pytest.mark.parametrize("damage", ["no JSON", '{"instant": "../../../x"}', '{"instant": 7}', "{}"])
def test_a_damaged_claim_is_named_and_nothing_is_written(
    lake: HudiLake, query: Query, store: SqlManifestStore, damage: str
) -> None:
    query.run(store, query.batch(0), ids(1))
    (claim,) = (path for path in lake.folder.rglob("*") if re.fullmatch(r"0{19}\.0", path.name))
    claim.write_text(damage)
    with pytest.raises(TableChangedError, match="is not what Penstock has written"):
        query.run(store, query.batch(1), ids(2))
    assert sorted(lake.ids()) == [1]


def test_files_are_not_placed_behind_a_link(lake: HudiLake, store: SqlManifestStore, tmp_path: Path) -> None:
    query = Query(lake, options={"partitionBy": "day"}, store=store)
    manifest = query.prepare(store, query.batch(0), days(a="x"))
    (tmp_path / "elsewhere").mkdir()
    (lake.folder / "day=x").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TableChangedError, match="does not lie below"):
        query.target().commit(manifest)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_generated_keys_are_unique(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), ids(*range(10)), ids(*range(10)))

    assert len(set(lake.read()["_hoodie_record_key"].to_pylist())) == 40


def test_readers_follow_the_timeline(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    for batch_id in range(3):
        query.run(store, query.batch(batch_id), ids(batch_id))

    first, second, _ = lake.commits()
    assert [row["id"] for row in lake.rows(as_of=first)] == [0]
    assert sorted(row["id"] for row in lake.rows(as_of=second)) == [0, 1]
    assert sorted(row["id"] for row in lake.rows(after=lake.end_of(first))) == [1, 2]


def test_files_of_a_failed_attempt_never_become_visible(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """They have the instant of the commit in their names, and a reader would take them for its files."""
    plan = query.plan(store, query.batch(0))
    query.write_and_die(plan, ids(1))
    lost = plan.write(ids(1).to_batches(), task(plan.batch, 7))  # its answer did not arrive
    query.commit(store, query.write(plan, [ids(1)]))

    assert lost.committable.payload
    assert lake.ids() == [1]
    assert len(lake.visible_files()) == 1


def test_a_crash_before_the_commit_shows_nothing_and_is_finished_by_the_next_start(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(store, query.batch(0), ids(0))
    with dying_in(monkeypatch, "complete"):
        query.run(store, query.batch(1), ids(1))
    assert (lake.ids(), len(lake.visible_files()), len(lake.pending())) == ([0], 2, 1)

    query.recover(store)
    assert lake.ids() == [0, 1]
    assert not lake.pending()
    assert not list(lake.meta.rglob("*.marker.CREATE"))
    assert not list((lake.meta / ".temp").iterdir())


def test_what_an_abandoned_batch_has_left_is_withdrawn(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are in the places of readers, who would take them as committed after an archival."""
    query.run(store, query.batch(0), ids(0))
    with dying_in(monkeypatch, "complete"):
        query.run(store, query.batch(1), ids(1))
    assert store.deliveries.skip(query.stream, 1, "me", "bad rows")
    query.run(store, query.batch(2), ids(2), run_id="r2")

    assert lake.ids() == [0, 2]
    assert len(lake.visible_files()) == 2
    assert not lake.pending()


# Other writers --------------------------------------------------------------------------------------


def test_files_that_a_rollback_deletes_before_the_commit_are_put_back(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of Hudi that cleans eagerly rolls back the pending instants of others."""
    complete = Publishing.complete

    def after_rollback(self: Publishing, metadata: bytes) -> bool:
        for path in lake.visible_files():
            (lake.folder / path).unlink()
        return complete(self, metadata)

    monkeypatch.setattr(Publishing, "complete", after_rollback)
    query.run(store, query.batch(0), ids(1))

    assert lake.ids() == [1]


def test_two_streams_that_plan_in_one_millisecond_get_different_instants(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(store, query.batch(0), ids(0))
    now = datetime.now(timezone.utc) + timedelta(minutes=1)
    monkeypatch.setattr(hudi_table, "table_now", lambda _: now)
    other = Query(lake, "q2", {"newTarget": "allow"}, store=store)
    messages = [(one, one.write(one.plan(store, one.batch(1)), [ids(1)])) for one in (query, other)]
    for one, written in messages:
        one.commit(store, written)

    assert lake.ids() == [0, 1, 1]
    assert len(lake.commits()) == 3
    assert not list((lake.meta / ".penstock" / "instants").iterdir())


def test_an_instant_that_another_writer_has_taken_is_not_used(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Its clock is ahead. The next start writes the batch with another instant."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    lake.append(100, instant=str(_instant(lake)))
    with pytest.raises(SchemaMismatchError, match="has used the instant"):
        query.target().commit(manifest)
    query.run(store, query.batch(0), ids(1), run_id="r2")

    assert lake.ids() == [1, 100]


def test_a_pending_instant_of_another_writer_is_not_withdrawn(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
    pending = [lake.timeline / f"{_instant(lake)}.{end}" for end in ("commit.requested", "inflight")]
    for path in pending:
        path.touch()
    query.target().discard(payloads(messages))

    assert all(path.exists() for path in pending)
    assert not lake.uncommitted()


def test_a_batch_that_is_planned_before_the_first_rows_of_another_stream_is_committed(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Readers take files that are older than the first commit as committed, so a table begins with one."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    other = Query(lake, "q2", store=store)
    other.run(store, other.batch(0), ids(2))
    query.target().commit(manifest)

    assert lake.ids() == [1, 2]


def test_a_table_whose_properties_are_being_replaced_is_not_created_again(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Hudi's writers delete them for a moment, and leave a backup."""
    query.run(store, query.batch(0), ids(0))
    properties = lake.meta / "hoodie.properties"
    backup = properties.rename(lake.meta / "hoodie.properties.backup")
    query.run(store, query.batch(1), ids(1))
    backup.unlink()
    with pytest.raises(PenstockError, match=r"no hoodie\.properties"):
        Query(lake, "q2", store=store).plan(store, Query(lake, "q2").batch(0))

    assert not properties.exists()


def _instant(lake: HudiLake) -> int:
    (path,) = lake.uncommitted()
    return int(path.removesuffix(".parquet").rpartition("_")[2])


def test_a_later_commit_of_another_writer_is_reported(
    lake: HudiLake, query: Query, store: SqlManifestStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Since version 8 incremental readers go by the completions, so that they see the rows."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    lake.append(100)
    seen = lake.end_of(lake.commits()[-1])
    with caplog.at_level(logging.WARNING):
        query.target().commit(manifest)

    assert ("Incremental queries that have read up to" in caplog.text) == (lake.version == 6)
    assert [row["id"] for row in lake.rows(after=seen)] == ([] if lake.version == 6 else [1])
    assert lake.ids() == [1, 100]


@pytest.mark.parametrize("is_marked", [True, False])
def test_a_commit_that_hudi_has_archived_is_not_made_again(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    """Without the mark, because the process has died right after the commit, the archive shows it.

    Clustering has replaced its file, and cleaning has deleted it: it is not put back either.
    """
    manifest = query.prepare(store, query.batch(0), ids(1))
    _commit(query, manifest, monkeypatch if not is_marked else None)
    (path,) = lake.visible_files()
    (lake.folder / path).unlink()
    lake.append(100)
    lake.archive()

    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == 0
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert len(lake.commits()) == 1
    assert lake.ids() == [100]


def test_a_file_that_clustering_has_replaced_is_not_put_back(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be visible again once the replacement is archived."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    _commit(query, manifest, monkeypatch)
    (path,) = lake.visible_files()
    (lake.folder / path).unlink()
    lake.completed(str(int(lake.commits()[-1]) + 1), "replacecommit").write_text("{}")
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)

    assert not lake.visible_files()


def test_the_claim_of_an_archived_commit_is_not_discarded(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark aborts a batch whose commit has failed, although it may be in the table."""
    messages = query.write(query.plan(store, query.batch(0)), [ids(1)])
    with dying_in(monkeypatch, "heal"):
        query.target().commit(query.manifest(messages))
    lake.append(100)
    lake.archive()
    query.target().discard(payloads(messages))

    assert query.target().token("q1") is not None


def _commit(query: Query, manifest: Manifest, dying: pytest.MonkeyPatch | None) -> None:
    """Commit; the process dies right afterwards, if `dying` is given."""
    if dying is None:
        query.target().commit(manifest)
        return
    with dying_in(dying, "heal"):
        query.target().commit(manifest)


def test_a_batch_that_was_not_committed_is_not_taken_for_an_archived_one(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instant is older than the timeline: the process died after its claim, then Hudi archived."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    with dying_in(monkeypatch, "request"):
        query.target().commit(manifest)
    lake.append(100)
    lake.archive()

    assert query.target().token("q1") is None
    with pytest.raises(SchemaMismatchError, match="has archived its timeline"):
        query.target().commit(manifest)
    query.run(store, query.batch(0), ids(1), run_id="r2")
    assert lake.ids() == [1, 100]


def test_a_rollback_of_a_batch_stops_the_stream(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), ids(batch_id))
    lake.roll_back()
    with pytest.raises(TableChangedError, match="rolled back"):
        query.run(store, query.batch(2), ids(2))

    assert lake.ids() == [0]


def test_a_commit_that_was_rolled_back_is_not_made_again(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """The process has died before the store knew of the commit."""
    query.run(store, query.batch(0), ids(0))
    manifest = query.prepare(store, query.batch(1), ids(1))
    query.target().commit(manifest)
    lake.roll_back()
    for _ in range(2):
        with pytest.raises(TableChangedError, match="rolled back"):
            query.target().commit(manifest)

    assert not lake.pending()
    assert lake.ids() == [0]


# Two drivers ----------------------------------------------------------------------------------------


@pytest.fixture
def two_manifests(
    query: Query, store: SqlManifestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Manifest, Manifest]:
    """Of two drivers with a store each. The first one has died in its commit."""
    first = query.prepare(store, query.batch(0), ids(1))
    with open_store(f"sqlite:///{tmp_path}/copy.db") as other_store:
        second = query.prepare(other_store, query.batch(0), ids(1), run_id="r2")
    with dying_in(monkeypatch, "complete"):
        query.target().commit(first)
    return first, second


def test_a_batch_that_another_driver_commits_is_not_committed_with_other_files(
    lake: HudiLake, query: Query, two_manifests: tuple[Manifest, Manifest]
) -> None:
    """Without its claim both would complete an instant of their own."""
    first, second = two_manifests
    assert isinstance(query.target().commit(second), Conflict)
    assert isinstance(query.target().commit(first), Committed)
    assert isinstance(query.target().commit(second), AlreadyCommitted)
    assert lake.ids() == [1]


def test_the_claim_of_a_dead_driver_is_taken_over_after_a_while(
    lake: HudiLake, query: Query, two_manifests: tuple[Manifest, Manifest]
) -> None:
    first, second = two_manifests
    later = HudiTableCommitter(str(lake.folder), now=_in(timedelta(minutes=11)))
    assert isinstance(later.commit(second), Committed)
    assert lake.ids() == [1]
    assert not lake.pending()
    assert isinstance(query.target().commit(first), AlreadyCommitted)
    assert len(lake.visible_files()) == 1


def _in(wait: timedelta) -> Callable[[], datetime]:
    return lambda: datetime.now(timezone.utc) + wait


def test_a_request_that_failed_leaves_no_claim(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    """The batch may then be written again with other files at once."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    with lossy(Publishing, "complete", "request", OSError("the disk is full")), pytest.raises(RetryableError):
        query.target().commit(manifest)

    assert lake.ids() == []
    assert not lake.visible_files()
    assert not lake.pending()
    assert not list((lake.meta / ".penstock" / "claims").rglob("*.0"))
    assert isinstance(query.target().commit(manifest), Committed)


def test_a_delivery_of_batches_that_another_one_commits_is_not_committed(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has more batches, so that its claim has another batch id. It has died in its commit."""
    decoupled = Query(lake, options={"delivery": "decoupled"}, store=store)
    batches = [decoupled.prepare(store, decoupled.batch(number), ids(number)) for number in range(2)]
    wide = rewritten(decoupled, batches)
    with dying_in(monkeypatch, "complete"):
        decoupled.target().commit(wide)

    assert isinstance(decoupled.target().commit(rewritten(decoupled, batches[:1])), Conflict)
    assert isinstance(decoupled.target().commit(wide), Committed)
    assert lake.ids() == [0, 1]


def rewritten(decoupled: Query, batches: Sequence[Manifest]) -> Manifest:
    """The manifest of a delivery."""
    target = decoupled.target()
    assert isinstance(target, HudiTarget)
    merged = target.merge(batches, None)
    return DeliveryCompactor(target, GroupRewriter(InlineExecutor()))(merged, "delivery") or merged


# The time of the completion, since version 8 ------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each completion gets a time of its own, a second after the one before."""
    seconds = count()
    now = datetime.now(timezone.utc)
    monkeypatch.setattr(hudi_committer, "table_now", lambda _: now + timedelta(seconds=next(seconds)))


@pytest.mark.usefixtures("clock")
def test_two_attempts_complete_an_instant_once(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is suspended just before it completes the instant, with a name that it has chosen."""
    manifest = query.prepare(store, query.batch(0), ids(1))
    outcomes = outcomes_of_two(query, manifest, r"\.commit$", monkeypatch)

    assert [type(one) for one in outcomes] == [Committed, AlreadyCommitted]
    assert len(lake.commits()) == 1
    assert lake.ids() == [1]


@pytest.mark.usefixtures("clock")
def test_the_time_of_a_completion_is_known_after_it(
    lake9: HudiLake, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt is suspended before it chooses the time; the second one commits, and cleans up."""
    query = Query(lake9, store=store)
    manifest = query.prepare(store, query.batch(0), ids(1))
    outcomes = outcomes_of_two(query, manifest, "/completions/", monkeypatch)

    assert [type(one) for one in outcomes] == [Committed, AlreadyCommitted]
    assert len(lake9.commits()) == 1


def outcomes_of_two(
    query: Query, manifest: Manifest, suspended_at: str, monkeypatch: pytest.MonkeyPatch
) -> list[Outcome]:
    """One attempt is suspended before it creates an object with a path like this; another one commits."""
    outcomes: list[Outcome] = []
    create = HudiStorage.create
    with monkeypatch.context() as patched:

        def suspended(self: HudiStorage, path: str, content: bytes = b"") -> bool:
            if re.search(suspended_at, path):
                patched.undo()
                outcomes.append(query.target().commit(manifest))
            return create(self, path, content)

        patched.setattr(HudiStorage, "create", suspended)
        outcomes.append(query.target().commit(manifest))
    return outcomes


@pytest.mark.usefixtures("clock")
def test_many_drivers_with_one_manifest_commit_it_once(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), ids(0))
    manifest = query.prepare(store, query.batch(1), ids(1))
    targets = [query.target() for _ in range(8)]
    with ThreadPoolExecutor(len(targets)) as threads:
        outcomes = list(threads.map(lambda target: target.commit(manifest), targets))

    assert all(isinstance(one, Committed | AlreadyCommitted) for one in outcomes)
    assert len(lake.commits()) == 2
    assert lake.ids() == [0, 1]


@pytest.mark.usefixtures("clock")
def test_an_attempt_after_a_crash_takes_the_time_of_the_first_one(
    lake9: HudiLake,
    store: SqlManifestStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Readers that have read a later completion miss the rows, which is reported."""
    query, create = Query(lake9, store=store), HudiStorage.create
    manifest = query.prepare(store, query.batch(0), ids(1))

    def dying(self: HudiStorage, path: str, content: bytes = b"") -> bool:
        if path.endswith(".commit"):
            raise Crash(path)
        return create(self, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(HudiStorage, "create", dying)
        with pytest.raises(Crash):
            query.target().commit(manifest)
    (record,) = (lake9.meta / ".penstock" / "completions").iterdir()
    recorded = record.read_text()
    assert record.name in lake9.pending()
    lake9.append(100)
    with caplog.at_level(logging.WARNING):
        query.recover(store)

    assert "with the time" in caplog.text
    assert lake9.end_of(record.name) == recorded
    assert lake9.ids() == [1, 100]


def test_times_of_archived_completions_are_deleted(lake9: HudiLake, store: SqlManifestStore) -> None:
    query = Query(lake9, store=store)
    for batch_id in range(3):
        query.run(store, query.batch(batch_id), ids(batch_id))
    lake9.archive()
    query.run(store, query.batch(3), ids(3))

    recorded = {path.name for path in (lake9.meta / ".penstock" / "completions").iterdir()}
    assert recorded == set(lake9.commits())
    assert len(recorded) == 2


@pytest.fixture
def lake9(tmp_path: Path) -> HudiLake:
    return HudiLake(tmp_path, 9)


# Decoupled delivery ---------------------------------------------------------------------------------


@pytest.fixture
def decoupled(lake: HudiLake, store: SqlManifestStore) -> Query:
    return Query(lake, options={"delivery": "decoupled", "partitionBy": "day"}, store=store)


def test_a_delivery_has_one_instant_in_rows_names_and_timeline(
    lake: HudiLake, decoupled: Query, store: SqlManifestStore
) -> None:
    """Incremental readers filter the rows by the instant in them. One partition has only one file."""
    for batch_id in range(3):
        decoupled.run(store, decoupled.batch(batch_id), days(a="x", b="y"), days(a="x"))
    decoupled.run(store, decoupled.batch(3), days(a="z"))
    deliver(store)

    (instant,) = lake.commits()
    assert len(lake.visible_files()) == 3
    for path in lake.visible_files():
        assert path.endswith(f"_{instant}.parquet")
        stored = pq.read_table(lake.folder / path, partitioning=None)
        assert set(stored["_hoodie_commit_time"].to_pylist()) == {instant}
        assert set(stored["_hoodie_file_name"].to_pylist()) == {path.rpartition("/")[2]}
    rows = lake.read()
    assert sorted(rows["id"].to_pylist()) == [0] * 7 + [1] * 3
    assert len(set(rows["_hoodie_record_key"].to_pylist())) == 10
    assert lake.rows(after=lake.end_of(instant)) == []
    assert len(lake.rows(after=str(int(instant) - 1))) == 10
    assert "0:" in json.loads(lake.commit(instant)["extraMetadata"]["penstock"])["merged"]


def test_a_batch_that_is_delivered_late_gets_a_new_instant(lake: HudiLake, store: SqlManifestStore) -> None:
    """Its own is older than a commit that incremental readers have seen, and than the whole timeline."""
    decoupled = Query(lake, options={"delivery": "decoupled"}, store=store)
    lake.create()
    lake.append(99)
    decoupled.run(store, decoupled.batch(0), ids(0))
    for row_id in (100, 101):
        lake.append(row_id)
    lake.archive()
    (seen,) = lake.commits()
    deliver(store)

    assert [row["id"] for row in lake.rows(after=lake.end_of(seen))] == [0]


def test_without_compaction_each_batch_has_a_commit_of_its_own(
    lake: HudiLake, decoupled: Query, store: SqlManifestStore
) -> None:
    apart = decoupled.with_options(compactWith="none")
    for batch_id in range(2):
        apart.run(store, apart.batch(batch_id), days(a="x"))
    deliver(store)

    assert len(lake.commits()) == 2


# Columns --------------------------------------------------------------------------------------------


def test_a_new_column_is_null_in_earlier_rows(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), ids(0))
    wider = Query(lake, options={"schemaEvolution": "addColumns"}, store=store)
    wider.run(store, wider.batch(1), pa.table({"id": [1], "day": ["x"]}, schema=DAYS))
    query.run(store, query.batch(2), ids(2), run_id="r3")

    assert sorted((row["id"], row["day"]) for row in lake.rows()) == [(0, None), (1, "x"), (2, None)]


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (days(a=None), {"recordKey": "day"}, "NULL in day"),
        (days(a=""), {"recordKey": "day"}, "'day' is NULL or empty"),
        (days(a="__HIVE_DEFAULT_PARTITION__"), {"partitionBy": "day"}, "readers interpret as NULL"),
        (days(a="x" * 300), {"partitionBy": "day"}, "longer than a directory name"),
        (days(a=".x"), {"partitionBy": "day", "hiveStylePartitions": "false"}, "readers skip folders"),
        (
            pa.table({"id": [0], "day": FAR_DAY}),
            {"partitionBy": "day"},
            "'day' is outside the years 1 to 9999",
        ),
    ],
)
def test_values_that_hudi_cannot_store_are_refused(
    lake: HudiLake, store: SqlManifestStore, rows: pa.Table, options: dict[str, str], message: str
) -> None:
    query = Query(lake, options=options, store=store)
    with pytest.raises(PenstockError, match=message):
        query.run(store, query.batch(0), rows)

    assert lake.ids() == []


# The timeline ---------------------------------------------------------------------------------------


def test_a_timeline_has_completed_and_pending_instants() -> None:
    timeline = Timeline.of(
        [
            "20260101000000001.commit",
            "20260101000000002.commit.requested",
            "20260101000000002.inflight",
            "20260101000000003.replacecommit",
            "20260101000000003.replacecommit.inflight",
            "20260101000000004.clean.requested",
            "20260101000000005.rollback",
            "20260101000000005.rollback.requested",
            "hoodie.properties",
            ".20260101000000009.commit.crc",
        ]
    )

    assert [instant[-1] for instant, _ in timeline.commits] == ["1", "3"]
    assert sorted(instant[-1] for instant in timeline.pending) == ["2", "4"]
    assert (timeline.first[-1], timeline.latest[-1]) == ("1", "5")


def test_commits_that_a_savepoint_keeps_do_not_begin_the_timeline() -> None:
    """With hoodie.archive.beyond.savepoint, Hudi archives later commits before them."""
    names = ["1.commit", "1.savepoint", "5.commit"]
    timeline = Timeline.of([f"2026010100000000{name}" for name in names])

    assert timeline.first == "20260101000000005"
    assert timeline.is_archived("20260101000000003")
    assert not timeline.is_archived("20260101000000001")


def test_an_unchanged_timeline_is_read_once(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    files = HudiTableFiles(query.sink().table_uri, {})
    query.run(store, query.batch(0), ids(0))
    before = files.timeline()
    assert files.timeline() is before
    query.run(store, query.batch(1), ids(1))
    assert len(files.timeline().commits) == len(before.commits) + 1
