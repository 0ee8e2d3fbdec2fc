"""Changes by key in Hudi tables: what readers see of file groups, and what other writers do in between."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.hudi import META, HudiLake, dying_in

from penstock.cli.gc import clean_table
from penstock.committers.contract import AlreadyCommitted, Committed, Conflict
from penstock.committers.errors import (
    CommitStateUnknownError,
    ConfigurationError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.manifest import decode
from penstock.committers.hudi.change_log import ChangeLog
from penstock.committers.hudi.publishing import Publishing
from penstock.committers.hudi.storage import HudiStorage
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.testing.conformance import Query
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import NO_ACCESS
from penstock.testing.conformance.upserts import OPTIONS, changes
from penstock.testing.faults import Crash, lossy

Done = tuple[int, int, "str | None"]


@pytest.fixture(params=[6, pytest.param(9, marks=pytest.mark.campaign)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> HudiLake:
    return HudiLake(tmp_path, request.param)


@pytest.fixture
def query(lake: HudiLake, store: SqlManifestStore) -> Query:
    return changing(lake, store)


def changing(lake: HudiLake, store: SqlManifestStore, query_id: str = "q1", **options: str) -> Query:
    return Query(lake, query_id, options={**OPTIONS, **options}, store=store)


def rows(lake: HudiLake, **options: str) -> list[Done]:
    return sorted((row["id"], row["n"], row["text"]) for row in lake.rows(**options))


def by_id(lake: HudiLake) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in lake.rows()}


@contextmanager
def before(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> Iterator[None]:
    """Let something happen once before a step of the next commit."""
    original, done = getattr(Publishing, step), list[bool]()

    def patched(self: Publishing, *args: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return original(self, *args)

    with monkeypatch.context() as context:
        context.setattr(Publishing, step, patched)
        yield
    assert done


def other_upsert(lake: HudiLake, *added: tuple[int, int, str], action: str = "commit") -> str:
    """Another writer rewrites the newest file of a file group, with more rows in it."""
    path = max(lake.visible_files(), key=lambda one: one[:-8].rpartition("_")[2])
    instant = lake.later()
    schema = pq.read_schema(lake.folder / path)
    old = pq.read_table(lake.folder / path, partitioning=None)
    name = f"{Path(path).name.partition('_')[0]}_1-2-3_{instant}.parquet"
    new = [
        {**dict.fromkeys(META, ""), "_hoodie_commit_time": instant, "id": one, "n": n, "text": text}
        for one, n, text in added
    ]
    target = str(Path(path).parent / name)
    pq.write_table(pa.concat_tables([old, pa.Table.from_pylist(new, schema)]), lake.folder / target)
    lake.complete(instant, action, {"fileId": name.partition("_")[0], "path": target})
    return instant


# What a commit writes -------------------------------------------------------------------------------


def test_rows_that_stay_keep_their_own_columns(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    """Time and number of the commit that has written them, key and partition; the file is the new one."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    before = by_id(lake)
    query.run(store, query.batch(1), changes((2, 2, "B"), (3, 2)))
    after = by_id(lake)

    first, second = lake.commits()
    assert rows(lake) == [(1, 1, "a"), (2, 2, "B")]
    kept, old = after[1], before[1]
    assert {name: kept[name] for name in META[:4]} == {name: old[name] for name in META[:4]}
    assert kept["_hoodie_commit_time"] == first
    assert (after[2]["_hoodie_commit_time"], after[2]["_hoodie_record_key"]) == (second, "2")
    (slice_,) = (stat for stat in lake.stats(second) if stat["prevCommit"] != "null")
    (added,) = (stat for stat in lake.stats(second) if stat["prevCommit"] == "null")
    assert Path(slice_["path"]).name == kept["_hoodie_file_name"]
    assert slice_["fileId"] == old["_hoodie_file_name"].partition("_")[0]
    assert (slice_["prevCommit"], slice_["numWrites"], slice_["numDeletes"], slice_["numInserts"]) == (
        first,
        1,
        2,
        0,
    )
    assert (added["numWrites"], added["numDeletes"], added["numInserts"]) == (1, 0, 1)
    assert lake.commit(second)["operationType"] == "UPSERT"
    assert rows(lake, as_of=first) == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]
    assert rows(lake, after=lake.end_of(first)) == [(2, 2, "B")]


def test_a_file_group_without_rows_stays_empty(lake: HudiLake, query: Query, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    query.run(store, query.batch(1), changes((1, 2), (2, 2)))
    assert rows(lake) == []
    query.run(store, query.batch(2), changes((1, 3, "again"), (9, 1)))
    assert rows(lake) == [(1, 3, "again")]


def test_numbers_of_rows_are_unique_in_a_commit(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Also if one task's file is written again, since a row of it loses, and another one is not."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 2, "b")), changes((3, 1, "c"), (2, 1, "x")))
    assert rows(lake) == [(1, 1, "a"), (2, 2, "b"), (3, 1, "c")]
    numbers = Counter(row["_hoodie_commit_seqno"] for row in lake.rows())
    assert max(numbers.values()) == 1


def test_a_key_moves_between_partitions(lake: HudiLake, store: SqlManifestStore) -> None:
    query = changing(lake, store, partitionBy="text")
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "a"), (3, 1, "b")))
    query.run(store, query.batch(1), changes((1, 2, "b c/d"), (3, 2, None)))
    assert rows(lake) == [(1, 2, "b c/d"), (2, 1, "a"), (3, 2, None)]
    assert by_id(lake)[2]["_hoodie_partition_path"] == "text=a"
    assert by_id(lake)[1]["_hoodie_partition_path"] == "text=b c%2Fd"


def test_columns_that_others_have_added_are_kept(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    plan = query.plan(store, query.batch(1), changes().schema)
    wider = changing(lake, store, "q2", schemaEvolution="addColumns")
    more = changes((3, 1, "c"), (5, 1, "e")).append_column("more", pa.array([7, 8], pa.int64()))
    wider.run(store, wider.batch(0), more)
    query.commit(store, query.write(plan, [changes((3, 0), (1, 2, "A"), (4, 1, "d"))]))
    assert rows(lake) == [(1, 2, "A"), (2, 1, "b"), (4, 1, "d"), (5, 1, "e")]
    assert {key: row["more"] for key, row in by_id(lake).items()} == {1: None, 2: None, 4: None, 5: 8}


# Instants -------------------------------------------------------------------------------------------


def test_a_commit_is_later_than_what_it_rewrites(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Readers take the file with the latest instant. So a batch that was planned before gets a new one."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    manifest = query.prepare(store, query.batch(1), changes((1, 3, "A"), (5, 1, "e")))
    other = changing(lake, store, "q2")
    other.run(store, other.batch(0), changes((2, 2, "B"), (1, 2, "x")))
    query.recover(store)

    first, second, third = lake.commits()
    assert first < second < third
    assert rows(lake) == [(1, 3, "A"), (2, 2, "B"), (5, 1, "e")]
    assert {by_id(lake)[one]["_hoodie_commit_time"] for one in (1, 5)} == {third}
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert not list(lake.uncommitted())


def test_a_delivery_has_one_instant(lake: HudiLake, store: SqlManifestStore) -> None:
    query = changing(lake, store, delivery="decoupled", compactWith="none")
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    query.run(store, query.batch(1), changes((1, 2, "A"), (3, 1, "c")))
    deliver(store)
    (instant,) = lake.commits()
    assert {row["_hoodie_commit_time"] for row in lake.rows()} == {instant}
    assert rows(lake) == [(1, 2, "A"), (2, 1, "b"), (3, 1, "c")]
    assert not list(lake.uncommitted())


# Other writers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["request", "place_files"])
def test_rows_that_another_writer_adds_to_a_file_group_are_kept(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It rewrites a file that this commit is about to rewrite. The commit is given up, and looks again."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    manifest = query.prepare(store, query.batch(1), changes((1, 2, "A"), (4, 2)))
    target = query.target()
    with before(monkeypatch, step, lambda: other_upsert(lake, (4, 1, "d"), (5, 1, "e"))):
        outcome = target.commit(manifest)
    assert isinstance(outcome, Conflict)
    assert "rewritten" in outcome.reason
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c"), (4, 1, "d"), (5, 1, "e")]
    assert not lake.pending()
    assert isinstance(target.commit(manifest), Committed)
    assert rows(lake) == [(1, 2, "A"), (2, 1, "b"), (3, 1, "c"), (5, 1, "e")]


@pytest.mark.parametrize(
    ("ending", "step"),
    [("commit.requested", ""), ("inflight", "place_files"), ("replacecommit.requested", "")],
)
def test_changes_wait_for_a_pending_instant_of_another_writer(
    lake: HudiLake,
    query: Query,
    store: SqlManifestStore,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    step: str,
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a")))
    manifest = query.prepare(store, query.batch(1), changes((1, 2, "A")))
    path = lake.timeline / f"{lake.later()}.{ending}"
    if step:
        with before(monkeypatch, step, path.touch):
            outcome = query.target().commit(manifest)
    else:
        path.touch()
        outcome = query.target().commit(manifest)
    assert isinstance(outcome, Conflict)
    assert "pending" in outcome.reason
    assert rows(lake) == [(1, 1, "a")]
    path.unlink()
    query.recover(store)
    assert rows(lake) == [(1, 2, "A")]


def test_changes_do_not_wait_for_appends_of_other_queries(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a")))
    appending = Query(lake, "q2", store=store)
    with dying_in(monkeypatch, "complete"):
        appending.run(store, appending.batch(0), changes((7, 1, "g")).drop_columns("op"))
    query.run(store, query.batch(1), changes((1, 2, "A")))
    assert rows(lake) == [(1, 2, "A")]
    appending.recover(store)
    query.run(store, query.batch(2), changes((7, 2)))
    assert rows(lake) == [(1, 2, "A")]


def test_file_groups_that_clustering_has_replaced_are_not_read(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Their rows are in other files. The old ones are there until they are cleaned."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    lake.cluster()
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b")]
    query.run(store, query.batch(1), changes((1, 2, "A")))
    assert rows(lake) == [(1, 2, "A"), (2, 1, "b")]
    assert len([stat for stat in lake.stats(lake.commits()[-1]) if stat["prevCommit"] != "null"]) == 1


def test_a_file_that_is_no_data_file_of_hudi_is_named(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a")))
    (lake.folder / "copy.parquet").touch()
    with pytest.raises(TableNotSupportedError, match=r"copy\.parquet"):
        query.run(store, query.batch(1), changes((1, 2, "A")))
    (lake.folder / "copy.parquet").unlink()
    query.recover(store)
    assert rows(lake) == [(1, 2, "A")]


def test_two_queries_that_change_the_same_rows_at_once_lose_none(
    lake: HudiLake, store: SqlManifestStore, tmp_path: Path
) -> None:
    """Each commit rewrites the files of the other query's last one."""
    first = changing(lake, store, "q0")
    first.run(store, first.batch(0), changes(*((row, 0, "old") for row in range(8))))
    errors: list[BaseException] = []

    def drive(number: int) -> None:
        try:
            with open_store(f"sqlite:///{tmp_path}/{number}.db") as own:
                query = changing(lake, own, f"q{number}")
                for batch_id in range(4):
                    some = [(row, batch_id + 1, f"{number}.{batch_id}") for row in range(number % 2, 8, 2)]
                    query.run(own, query.batch(batch_id), changes(*some))
        except BaseException as error:  # noqa: BLE001  reported below
            errors.append(error)

    threads = [threading.Thread(target=drive, args=[number]) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert rows(lake) == [(row, 4, f"{2 - row % 2}.3") for row in range(8)]
    assert len(lake.commits()) == 9


# Crashes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        "request",
        "place_files",
        "complete",
        "heal",
        "clean_up",
    ],
)
@pytest.mark.parametrize("next_query", ["q1", "q2"])
def test_whoever_comes_next_completes_a_commit_that_was_decided_on(
    lake: HudiLake,
    query: Query,
    store: SqlManifestStore,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    next_query: str,
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b"), (3, 1, "c")))
    with dying_in(monkeypatch, step):
        query.run(store, query.batch(1), changes((1, 2, "A"), (2, 2)))
    following = changing(lake, store, next_query)
    number = 2 if next_query == "q1" else 0
    if next_query == "q1":
        query.recover(store)
    following.run(store, following.batch(number), changes((3, 2, "C")), run_id="r2")
    assert rows(lake) == [(1, 2, "A"), (3, 2, "C")]
    token = query.target().token("q1")
    assert token is not None
    assert token.batch_id == (2 if next_query == "q1" else 1)
    query.recover(store)
    assert rows(lake) == [(1, 2, "A"), (3, 2, "C")]
    assert not lake.pending()
    assert not list(lake.uncommitted())


def test_clean_up_finds_what_a_commit_has_left(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before the commit is decided on. The next one writes the files again."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    parts = changes((1, 2, "A"), (4, 1, "d")), changes((1, 3, "AA"), (3, 1, "c"))
    with monkeypatch.context() as patched:
        patched.setattr(ChangeLog, "add", Mock(side_effect=Crash))
        with pytest.raises(Crash):
            query.run(store, query.batch(1), *parts)
    query.recover(store)
    assert len(lake.uncommitted()) == 2
    later = datetime.now(timezone.utc) + timedelta(days=3)
    cleaned = clean_table(store, [query.status(store)], NO_ACCESS, later, timedelta(days=1), delete=True)
    assert (cleaned.error, cleaned.deleted) == (None, 2)
    assert rows(lake) == [(1, 3, "AA"), (2, 1, "b"), (3, 1, "c"), (4, 1, "d")]


def test_a_commit_whose_request_failed_may_still_be_completed(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a")))
    manifest = query.prepare(store, query.batch(1), changes((1, 2, "A")))
    lost = lossy(Publishing, "complete", "request", OSError("the connection was lost"))
    with pytest.raises(CommitStateUnknownError), lost:
        query.target().commit(manifest)
    assert isinstance(query.target().commit(manifest), AlreadyCommitted)
    assert rows(lake) == [(1, 2, "A")]


def test_a_commit_that_was_decided_on_is_given_up_with_its_batch(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is skipped: its files are discarded, and nobody completes its instant, although all files
    that it needs are there.
    """
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    with dying_in(monkeypatch, "complete"):
        query.run(store, query.batch(1), changes((2, 2)))
    manifest = store.manifest(query.stream, 1)
    assert manifest is not None
    target = query.target()
    target.discard([decode(manifest).files])
    other = changing(lake, store, "q2")
    other.run(store, other.batch(0), changes((3, 1, "c")))
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]
    assert not lake.pending()
    assert not list(lake.uncommitted())


def test_a_process_that_was_suspended_leaves_no_file_of_a_commit_that_was_given_up(
    lake: HudiLake, query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers would take such a file for committed once its instant is older than the timeline."""
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    manifest = query.prepare(store, query.batch(1), changes((2, 2)))

    def skip() -> None:
        query.target().discard([decode(manifest).files])

    place = Publishing.place_files
    with monkeypatch.context() as context:

        def suspended(self: Publishing) -> None:
            place(self)
            slices = {path: path.read_bytes() for path in lake.meta.rglob("slices/**/*.parquet")}
            skip()
            for path, content in slices.items():  # those that this process has read already
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            place(self)

        context.setattr(Publishing, "place_files", suspended)
        assert isinstance(query.target().commit(manifest), Conflict)
    assert not lake.pending()
    assert len(lake.visible_files()) == 1
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b")]


def test_a_rollback_of_changes_stops_the_stream(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    query.run(store, query.batch(0), changes((1, 1, "a"), (2, 1, "b")))
    query.run(store, query.batch(1), changes((1, 2, "A")))
    lake.roll_back()
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b")]
    with pytest.raises(TableChangedError, match="rolled back"):
        query.run(store, query.batch(2), changes((1, 3, "AA")), run_id="r2")
    other = changing(lake, store, "q2")
    other.run(store, other.batch(0), changes((3, 1, "c")))
    assert rows(lake) == [(1, 1, "a"), (2, 1, "b"), (3, 1, "c")]


def test_records_of_commits_are_not_created_behind_newer_ones(
    lake: HudiLake, query: Query, store: SqlManifestStore
) -> None:
    """Old ones are deleted, so that a slow process finds their number free."""
    for batch_id in range(3):
        query.run(store, query.batch(batch_id), changes((1, batch_id, "a")))
    log = ChangeLog(HudiStorage(str(lake.folder), {}), "")
    newest = log.newest()
    assert newest is not None
    assert newest.number == 2
    assert newest.is_done
    assert not log.add(replace(newest, number=1))
    assert log.newest() == newest
    assert log.add(replace(newest, number=3))
    assert not log.add(replace(newest, number=3, instant="7"))


# Which tables -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record_key", "message"),
    [("", "has no record key"), ("text", "record key of the Hudi table .* is text, .* by id")],
)
def test_a_table_with_another_record_key_is_refused(
    lake: HudiLake, store: SqlManifestStore, record_key: str, message: str
) -> None:
    options = {"recordKey": record_key} if record_key else {}
    appending = Query(lake, "q2", options=options, store=store)
    appending.run(store, appending.batch(0), changes((7, 1, "g")).drop_columns("op"))
    query = changing(lake, store)
    with pytest.raises(ConfigurationError, match=message):
        query.plan(store, query.batch(0), changes().schema)


def test_keys_that_hudi_does_not_spell_are_refused(lake: HudiLake, store: SqlManifestStore) -> None:
    query = changing(lake, store)
    decimals = pa.schema([pa.field("id", pa.decimal128(5, 2)), *list(changes().schema)[1:]])
    with pytest.raises(SchemaMismatchError, match="not allowed in the record key"):
        query.plan(store, query.batch(0), decimals)
    assert not lake.exists
