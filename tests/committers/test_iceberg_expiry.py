"""Snapshots expire. A grace period later their files are deleted, and no file that is still needed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import Mock
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import MetadataLogEntry
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate
from tests.support.iceberg_history import GRACE, NAME, POLICY, History

from penstock.committers.errors import RetryableError
from penstock.committers.iceberg.expiry import PLAN_KEPT_FOR, Expired, SnapshotExpiry
from penstock.committers.iceberg.file_deletion import delete_old_metadata
from penstock.committers.iceberg.reachability import decode_expired
from penstock.testing.faults import Crash

_T = TypeVar("_T")

KEEP = POLICY.keep_snapshots_max


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "lake")
    yield made
    made.close()


# What expires ---------------------------------------------------------------------------------------


def test_nothing_expires_until_there_are_twice_as_many_as_are_kept(history: History) -> None:
    history.append(2 * KEEP)
    assert history.run() == Expired()
    history.append()
    assert history.run() == Expired(snapshots=KEEP + 1)
    assert len(history.snapshot_ids) == KEEP
    history.check_readable()


def test_files_stay_for_the_grace_period_and_then_go(history: History) -> None:
    history.append(2 * KEEP + 1)
    history.run()
    history.wait(GRACE - timedelta(seconds=1))
    assert history.run() == Expired()
    history.check_readable()
    history.wait(timedelta(seconds=1))
    assert history.run().files > 0
    history.check_readable()
    history.check_nothing_left()
    assert history.run() == Expired()


def test_the_grace_period_starts_at_the_commit_not_at_the_plan(history: History) -> None:
    """A process may be paused in between, while readers continue."""
    history.append(2 * KEEP + 1)
    history.at_step(2, lambda: history.wait(3 * GRACE))
    history.run()
    assert history.run() == Expired()
    history.check_readable()


def test_tags_and_heads_of_branches_stay_however_old(history: History) -> None:
    history.append()
    first = history.snapshot_ids[0]
    history.table().manage_snapshots().create_tag(first, "first").commit()
    history.append(3)
    history.table().manage_snapshots().create_branch(history.snapshot_ids[3], "audit").commit()
    history.append(10)
    refs = history.table().metadata.refs
    assert history.run().snapshots > KEEP
    assert history.table().metadata.refs == refs
    history.settle_and_check()
    assert first in history.snapshot_ids


def test_a_branch_keeps_what_its_retention_asks_for(history: History) -> None:
    history.append(4 * KEEP)
    heads = history.snapshot_ids
    history.table().manage_snapshots().create_branch(
        heads[5], "counted", min_snapshots_to_keep=4
    ).create_branch(heads[1], "aged", max_snapshot_age_ms=int(GRACE.total_seconds() * 1000)).commit()
    history.append(10)
    history.run()
    assert set(heads[:2]) | set(heads[2:6]) <= set(history.snapshot_ids)
    history.wait()
    history.append(10)
    history.run()
    assert set(heads[2:6]) <= set(history.snapshot_ids)
    history.check_readable()


@pytest.mark.parametrize(
    "properties",
    [{"history.expire.min-snapshots-to-keep": "7"}, {"history.expire.max-snapshot-age-ms": "3600000"}],
    ids=["count", "age"],
)
def test_the_retention_of_the_table_is_followed(tmp_path: Path, properties: dict[str, str]) -> None:
    history = History(tmp_path / "lake", properties)
    history.append(7)
    assert history.run() == Expired()
    history.close()


def test_nothing_expires_with_garbage_collection_off(history: History) -> None:
    """Also files of earlier expiries: they may belong to another table."""
    history.append(2 * KEEP + 1)
    history.run()
    history.append(2 * KEEP + 1)
    with history.table().transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = history.on_disk()
    history.wait(2 * GRACE)
    assert history.run() == Expired()
    assert history.on_disk() == before


def test_snapshots_that_a_rollback_left_expire_too(history: History) -> None:
    history.append(3)
    history.table().manage_snapshots().rollback_to_snapshot(history.snapshot_ids[0]).commit()
    history.append(10)
    history.settle_and_check()


def test_manifests_that_later_snapshots_have_as_well_stay(tmp_path: Path) -> None:
    history = History(tmp_path / "lake", {"commit.manifest-merge.enabled": "false"})
    history.append(2 * KEEP + 1)
    assert history.run().snapshots == KEEP + 1
    (plan,) = history.expiries.of_table(str(history.table().metadata.table_uuid))
    files = decode_expired(plan.content)
    assert (files.data_files, files.manifests, len(files.others)) == ((), (), KEEP + 1)
    history.settle_and_check()
    history.close()


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_data_files_that_a_rewritten_manifest_keeps_stay(history: History) -> None:
    """Their old manifest is deleted. Only the new manifest has their names."""
    history.append(3)
    history.table().delete("id = 0")
    history.remember()
    history.append(2 * KEEP)
    history.run()
    (plan,) = history.expiries.of_table(str(history.table().metadata.table_uuid))
    needed = [history.snapshots[snapshot_id].files for snapshot_id in history.snapshot_ids]
    assert set(decode_expired(plan.content).paths).isdisjoint(set[str]().union(*needed))
    history.settle_and_check()


def test_overwritten_data_files_go(history: History) -> None:
    overwrite(history, 2 * KEEP + 1)
    history.settle_and_check()
    assert len(list(history.folder.rglob("*.parquet"))) <= 2 * KEEP


def overwrite(history: History, times: int) -> None:
    for _ in range(times):
        with catch_warnings():
            simplefilter("ignore")  # the first finds nothing to delete
            history.table().overwrite(history.rows())
        history.remember()


def test_statistics_of_expired_snapshots_go(history: History) -> None:
    history.append(2)
    paths = [f"{history.table().location()}/metadata/{n}.puffin" for n in range(3)]
    for path in paths:
        Path(path.removeprefix("file://")).write_bytes(b"PFA1")
    first, second = history.snapshot_ids
    with history.table().update_statistics() as update:
        update.set_statistics(statistics_of(first, paths[0]))
        update.set_statistics(statistics_of(second, paths[1]))
    partitions = {"snapshot-id": first, "statistics-path": paths[2], "file-size-in-bytes": 4}
    update_partitions = SetPartitionStatisticsUpdate.model_validate({"partition-statistics": partitions})
    history.catalog.commit_table(history.table(), (), (update_partitions,))
    history.table().manage_snapshots().create_tag(second, "second").commit()
    history.append(2 * KEEP)
    history.settle()
    assert [path for path in paths if path in history.on_disk()] == [paths[1]]
    metadata = history.table().metadata
    assert [one.snapshot_id for one in metadata.statistics] == [second]
    assert metadata.partition_statistics == []


def statistics_of(snapshot_id: int, path: str) -> StatisticsFile:
    sizes = {"file-size-in-bytes": 4, "file-footer-size-in-bytes": 4}
    of_file = {"snapshot-id": snapshot_id, "statistics-path": path, "blob-metadata": []}
    return StatisticsFile.model_validate(of_file | sizes)


def test_data_files_outside_of_the_tables_location_stay(history: History, tmp_path: Path) -> None:
    """Added in place: another table may have them too."""
    import pyarrow.parquet as pq

    foreign = tmp_path / "lake" / "lake" / "events2.parquet"
    history.append()
    pq.write_table(pa.table({"id": pa.array([99])}), foreign)
    history.table().add_files([f"file://{foreign}"])
    history.remember()
    overwrite(history, 2 * KEEP + 2)
    history.settle()
    assert foreign.exists()


@pytest.mark.parametrize(
    "notation", ["file://{0}", "{0}", "file:{0}", "{1}/../{2}", "{1}/%2e%2e/{2}", "{1}/data/link/v"]
)
@pytest.mark.parametrize("planted_in", ["plan", "statistics"])
def test_a_file_outside_of_the_table_is_never_deleted(
    history: History, tmp_path: Path, notation: str, planted_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = history.table()
    location = table.location().removeprefix("file://")
    victim = Path(location).with_name("v")
    victim.write_bytes(b"not this table's")
    history.append(1)
    Path(location, "data", "link").symlink_to(victim.parent)
    path = notation.format(victim, location, victim.name)
    if planted_in == "statistics":
        with history.table().update_statistics() as update:
            update.set_statistics(statistics_of(history.snapshot_ids[0], path))
    history.append(2 * KEEP + 1)
    history.run()
    if planted_in == "plan":
        (plan,) = history.expiries.of_table(str(table.metadata.table_uuid))
        files = replace(decode_expired(plan.content), others=(path,))
        history.expiries.remove(plan)
        history.expiries.put(replace(plan, content=files.encode()))
    history.wait()
    assert history.run().files > 0
    assert victim.exists()
    assert "did not delete 1 file(s)" in caplog.text


def test_an_old_metadata_file_outside_of_the_table_is_not_deleted(history: History, tmp_path: Path) -> None:
    victim = tmp_path / "v.metadata.json"
    victim.touch()
    base = history.table()
    entry = MetadataLogEntry(metadata_file=f"file://{victim}", timestamp_ms=1)  # type: ignore[call-arg]
    properties = {"write.metadata.delete-after-commit.enabled": "true"}
    base.metadata = base.metadata.model_copy(update={"metadata_log": [entry], "properties": properties})
    delete_old_metadata(base, base.metadata.model_copy(update={"metadata_log": []}))
    assert victim.exists()


# What it costs --------------------------------------------------------------------------------------


def test_appends_expire_without_manifests(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones are merged into bigger ones all the time, and these hold the whole table."""
    history.append(10)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", Mock(side_effect=AssertionError))
    assert history.expiry().run().snapshots > 0
    history.wait()
    assert history.expiry().run().files > 0


def test_a_run_deletes_no_more_than_its_share_and_the_next_continues(history: History) -> None:
    history.append(10)
    history.run()
    history.wait()
    history.policy = replace(POLICY, files_per_run_max=3)
    counts = [history.run().files for _ in range(8)]
    assert max(counts) == 3
    assert counts[-1] == 0
    history.check_nothing_left()
    history.check_readable()


# Others at the same time ----------------------------------------------------------------------------


def test_a_commit_of_somebody_else_in_between_only_postpones(history: History) -> None:
    history.append(2 * KEEP + 1)
    history.at_step(2, history.append)
    assert history.run() == Expired()
    assert history.expiries.of_table(str(history.table().metadata.table_uuid)) == []
    history.check_readable()
    assert history.run().snapshots == KEEP + 2


@pytest.mark.parametrize("make", ["tag", "branch", "retention"])
def test_a_tag_or_branch_that_somebody_sets_in_between_is_not_taken_out(history: History, make: str) -> None:
    """Iceberg's own requirements do not check it, and removing a snapshot removes its tags."""
    history.append(2 * KEEP + 1)
    old = history.snapshot_ids[0]

    def change() -> None:
        manage = history.table().manage_snapshots()
        if make == "tag":
            manage.create_tag(old, "mine").commit()
        elif make == "branch":
            manage.create_branch(old, "mine").commit()
        else:
            manage.remove_branch("main").create_branch(
                history.snapshot_ids[-1], "main", None, None, 9
            ).commit()

    history.at_step(2, change)
    history.run()
    assert old in history.snapshot_ids
    assert make == "retention" or "mine" in history.table().metadata.refs


class _Server:
    """No catalog of the tests is one: as a server, they then check Iceberg's own requirements only."""


@pytest.mark.parametrize("window", ["after the plan", "right before the commit"])
def test_where_a_server_checks_a_tag_set_in_between_costs_no_file(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, window: str
) -> None:
    monkeypatch.setattr("penstock.committers.iceberg.expiry_commit.MetastoreCatalog", _Server)
    history.append(2 * KEEP + 1)
    old, before = history.snapshot_ids[0], history.on_disk()

    def tag() -> None:
        history.table().manage_snapshots().create_tag(old, "mine").commit()

    number, after = (1, True) if window == "after the plan" else (2, False)
    history.at_step(number, tag, after=after)
    done = history.run()
    if window == "after the plan":
        assert done == Expired()
        assert "mine" in history.table().metadata.refs
    else:  # Iceberg's protocol has no requirement for it
        assert "another user set 'mine'" in caplog.text
        history.wait()
        history.run()
        assert before <= history.on_disk()


@pytest.mark.parametrize("is_tagged", [True, False])
@pytest.mark.parametrize("failure", ["crash", "outage"])
def test_a_check_for_lost_tags_that_failed_is_made_by_the_next_run(
    history: History,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: str,
    is_tagged: bool,
) -> None:
    monkeypatch.setattr("penstock.committers.iceberg.expiry_commit.MetastoreCatalog", _Server)
    history.append(2 * KEEP + 1)
    old, before = history.snapshot_ids[0], history.on_disk()

    def change() -> None:
        if is_tagged:
            history.table().manage_snapshots().create_tag(old, "mine").commit()
        else:
            set_property(history)

    history.at_step(2, change)
    with monkeypatch.context() as patch:
        error = OSError("the storage is down") if failure == "outage" else Crash()
        reader = Mock(table_metadata=Mock(side_effect=error))
        patch.setattr("penstock.committers.iceberg.expiry_commit.FromInputFile", reader)
        with pytest.raises((RetryableError, Crash)):
            history.run()
    history.forget_step()
    history.remember()
    set_property(history)
    history.settle()
    history.check_readable()
    assert ("another user set 'mine'" in caplog.text) is is_tagged
    if is_tagged:
        assert before <= history.on_disk()
    else:
        history.check_nothing_left()


def set_property(history: History) -> None:
    with history.table().transaction() as change:
        change.set_properties({"n": str(history.now)})


@pytest.mark.parametrize("is_missing", [True, False])
def test_files_stay_and_are_logged_if_a_lost_tag_can_never_be_checked_for(
    history: History, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_missing: bool
) -> None:
    monkeypatch.setattr("penstock.committers.iceberg.expiry_commit.MetastoreCatalog", _Server)
    history.append(2 * KEEP + 1)
    before = history.on_disk()
    history.at_step(3, crash)
    with pytest.raises(Crash):
        history.run()
    history.forget_step()
    history.remember()
    metadata = Path(history.table().metadata.metadata_log[-1].metadata_file.removeprefix("file://"))
    if is_missing:
        metadata.unlink()
    else:
        metadata.write_text("{")
        with pytest.raises(RetryableError, match="the next run continues"):
            history.run()
        history.wait(PLAN_KEPT_FOR)
    history.wait(timedelta(seconds=1))
    assert history.run() == Expired()
    assert "can no longer be checked" in caplog.text
    assert history.expiries.of_table(str(history.table().metadata.table_uuid)) == []
    history.wait()
    assert history.run() == Expired()
    assert before <= history.on_disk()


def test_a_table_created_again_under_the_name_keeps_all_its_files(history: History) -> None:
    history.append(2 * KEEP + 1)
    history.run()
    table = history.table()
    schema, location = table.schema(), table.location()
    history.catalog.drop_table(NAME)
    history.catalog.create_table(NAME, schema, location=location)
    history.snapshots.clear()
    history.append(2)
    before = history.on_disk()
    history.wait()
    assert history.run() == Expired()
    assert history.on_disk() == before


def test_snapshots_that_somebody_puts_back_keep_their_files(history: History) -> None:
    overwrite(history, 2 * KEEP + 1)
    before = history.table().metadata_location
    history.run()
    history.catalog.drop_table(NAME)
    history.catalog.register_table(NAME, before)
    history.removed_at.clear()
    history.policy = replace(POLICY, keep_snapshots_max=20)
    history.wait()
    assert history.run() == Expired()
    history.check_readable()
    assert history.expiries.of_table(str(history.table().metadata.table_uuid)) == []


def test_a_data_file_that_somebody_adds_again_stays(history: History) -> None:
    """Within the grace period, with another notation of its path."""
    history.append()
    (data_file,) = [path for path in history.on_disk() if path.endswith(".parquet")]
    overwrite(history, 2 * KEEP + 1)
    history.run()
    history.table().add_files([data_file.removeprefix("file://")])
    history.remember()
    history.wait()
    assert history.run().files > 0
    history.check_readable()


def test_the_files_of_a_snapshot_that_lost_its_manifest_list_are_no_obstacle(history: History) -> None:
    """Other tools' clean-up of orphans may be faster."""
    history.append(2 * KEEP + 1)
    oldest = history.table().metadata.snapshots[0]
    Path(oldest.manifest_list.removeprefix("file://")).unlink()
    del history.snapshots[oldest.snapshot_id]
    assert history.run().snapshots == KEEP + 1
    history.settle()
    history.check_readable()


def test_a_storage_that_does_not_answer_is_retryable_and_shows_no_secret(history: History) -> None:
    def load() -> Table:
        raise ConnectionError("token=s3cr3t")

    expiry = SnapshotExpiry(
        load, history.expiries, "lake:events", POLICY, lambda: history.now, lambda error: type(error).__name__
    )
    with pytest.raises(
        RetryableError, match=r"lake:events could not be expired: ConnectionError\."
    ) as caught:
        expiry.run()
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


# Crashes and concurrent runs ------------------------------------------------------------------------


def crash(*_: object) -> Any:
    raise Crash


def test_the_files_of_snapshots_that_a_crash_left_in_the_table_stay(history: History) -> None:
    """Between plan and commit; later runs keep more snapshots."""
    history.append(2 * KEEP + 1)
    history.at_step(2, crash)
    with pytest.raises(Crash):
        history.run()
    history.forget_step()
    history.policy = replace(POLICY, keep_snapshots_max=20)
    history.settle_and_check()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(history: History, after: bool) -> None:
    history.policy = replace(POLICY, files_per_run_max=2)
    reached = []
    for number in range(1, 11):
        history.append(KEEP + 2)
        history.at_step(number, crash, after=after)
        for _ in range(3):
            with suppress(Crash):
                history.run()
            history.remember()
        reached += history.steps[number - 1 : number]
        history.check_readable()
        history.wait()
    assert {"put", "commit", "delete", "add_deleted"} <= set(reached)
    history.forget_step()
    history.policy = POLICY
    history.append(2 * KEEP + 1)
    history.settle_and_check()


@pytest.mark.parametrize("number", range(1, 16))
def test_a_concurrent_run_at_any_step_does_no_harm(history: History, number: int) -> None:
    """It does all the work while the first run is between two steps."""
    history.append(2 * KEEP + 1)
    history.run()
    history.append(2 * KEEP + 1)
    history.wait()
    other: list[Expired] = []
    history.at_step(number, lambda: other.append(history.run()))
    history.run()
    assert len(history.snapshot_ids) == KEEP
    assert bool(other) is (len(history.steps) >= number)
    history.check_readable()
    history.settle_and_check()


def test_a_plan_whose_commit_never_came_is_dropped(history: History) -> None:
    history.append(2 * KEEP + 1)
    history.at_step(2, crash)
    with pytest.raises(Crash):
        history.run()
    history.policy = replace(POLICY, keep_snapshots_max=20)
    table_id = str(history.table().metadata.table_uuid)
    for wait, left in [(PLAN_KEPT_FOR, 1), (GRACE, 0)]:
        history.wait(wait)
        assert history.run() == Expired()
        assert len(history.expiries.of_table(table_id)) == left
    history.check_readable()


def test_a_plan_of_which_a_tag_keeps_one_snapshot_is_dropped(history: History) -> None:
    """Its commit never came. A later plan, without the tagged snapshot, has removed the others."""
    history.append(2 * KEEP + 1)
    history.at_step(2, crash)
    with pytest.raises(Crash):
        history.run()
    table_id = str(history.table().metadata.table_uuid)
    (planned,) = history.expiries.of_table(table_id)
    in_plan = decode_expired(planned.content).snapshot_ids
    oldest = next(one for one in history.snapshot_ids if one in in_plan)
    history.table().manage_snapshots().create_tag(oldest, "kept").commit()
    history.append(2 * KEEP + 1)
    history.run()
    history.wait(PLAN_KEPT_FOR)
    history.wait(GRACE)
    history.run()
    assert planned.expiry_id not in [one.expiry_id for one in history.expiries.of_table(table_id)]
    history.check_readable()


# Any history ----------------------------------------------------------------------------------------

CHANGES = (
    *("append", "append", "append", "overwrite", "delete_some", "delete_all", "roll_back"),
    *("tag", "untag", "branch", "append_to_branch", "unbranch", "expire_by_others"),
    *("run", "run", "crash", "wait_a_little", "wait"),
)


class Changes:
    """Changes by streams, other engines and operators. `pick` makes the choices."""

    def __init__(self, history: History, pick: Callable[[int], int]) -> None:
        self.history = history
        self.pick = pick

    def apply(self, change: str) -> None:
        getattr(self, change)()
        self.history.remember()
        self.history.check_readable()

    def one_of(self, items: Sequence[_T]) -> _T:
        return items[self.pick(len(items))]

    def snapshot(self) -> int | None:
        ids = self.history.snapshot_ids
        return self.one_of(ids) if ids else None

    def refs(self, kind: SnapshotRefType) -> list[str]:
        refs = self.history.table().metadata.refs
        return sorted(name for name, ref in refs.items() if ref.snapshot_ref_type is kind and name != "main")

    def append(self) -> None:
        self.history.append(1 + self.pick(3))

    def overwrite(self) -> None:
        self.history.table().overwrite(self.history.rows())

    def delete_some(self) -> None:
        self.history.table().delete(f"id > {self.pick(self.history.next_id + 1)}")

    def delete_all(self) -> None:
        self.history.table().delete()

    def roll_back(self) -> None:
        table = self.history.table()
        line = [
            entry.snapshot_id for entry in table.history() if entry.snapshot_id in self.history.snapshot_ids
        ]
        if line:
            table.manage_snapshots().set_current_snapshot(self.one_of(line)).commit()

    def tag(self) -> None:
        snapshot = self.snapshot()
        if snapshot is not None:
            self.history.table().manage_snapshots().create_tag(snapshot, f"t{self.pick(2)}").commit()

    def untag(self) -> None:
        for name in self.refs(SnapshotRefType.TAG):
            self.history.table().manage_snapshots().remove_tag(name).commit()

    def branch(self) -> None:
        snapshot = self.snapshot()
        if snapshot is not None:
            self.history.table().manage_snapshots().create_branch(snapshot, f"b{self.pick(2)}").commit()

    def append_to_branch(self) -> None:
        for name in self.refs(SnapshotRefType.BRANCH):
            self.history.append(1 + self.pick(4), branch=name)

    def unbranch(self) -> None:
        for name in self.refs(SnapshotRefType.BRANCH):
            self.history.table().manage_snapshots().remove_branch(name).commit()

    def expire_by_others(self) -> None:
        heads = {ref.snapshot_id for ref in self.history.table().metadata.refs.values()}
        free = [one for one in self.history.snapshot_ids if one not in heads]
        if free:
            removed = self.one_of(free)
            self.history.table().maintenance.expire_snapshots().by_id(removed).commit()
            self.history.expired_by_others.add(removed)

    def run(self) -> None:
        refs = self.history.table().metadata.refs
        self.history.run()
        assert self.history.table().metadata.refs == refs

    def crash(self) -> None:
        self.history.at_step(1 + self.pick(8), crash, after=bool(self.pick(2)))
        with suppress(Crash):
            self.history.run()
        self.history.forget_step()

    def wait_a_little(self) -> None:
        self.history.wait(GRACE / 3)

    def wait(self) -> None:
        self.history.wait()


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    changes=st.lists(st.sampled_from(CHANGES), min_size=5, max_size=20),
    seed=st.randoms(use_true_random=False),
    format_version=st.sampled_from(["1", "2"]),
)
def test_exactly_the_unused_files_are_deleted(changes: list[str], seed: Random, format_version: str) -> None:
    """Whatever has happened: each snapshot of the table, and in its grace period, can be read all along."""
    with TemporaryDirectory() as folder:
        history = History(Path(folder) / "lake", {"format-version": format_version})
        model = Changes(history, seed.randrange)
        for change in ["append", "append", *changes]:
            model.apply(change)
        history.append(2 * KEEP + 2)
        history.settle_and_check()
        history.close()


# Metadata files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_wanted", [True, False])
def test_old_metadata_files_are_deleted_if_the_table_says_so(is_wanted: bool, tmp_path: Path) -> None:
    properties = {
        "write.metadata.previous-versions-max": "3",
        "write.metadata.delete-after-commit.enabled": str(is_wanted).lower(),
    }
    history = History(tmp_path / "lake", properties)
    for _ in range(6):
        base = history.table()
        with base.transaction() as change:
            change.set_properties({"n": str(len(base.metadata.properties))})
            updates, requirements = change._updates, change._requirements
            response = history.catalog.commit_table(base, requirements, updates)
            change._updates = ()
        delete_old_metadata(base, response.metadata)
    log = {entry.metadata_file for entry in history.table().metadata.metadata_log}
    on_disk = {f"file://{path}" for path in history.folder.rglob("*.metadata.json")}
    named = log | {history.table().metadata_location}
    assert on_disk == named if is_wanted else on_disk > named
    history.close()
