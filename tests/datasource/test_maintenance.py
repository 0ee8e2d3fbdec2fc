"""When each step of the maintenance runs, and the steps on real tables with a real store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.stored_lake import NOW, Lake, files_of, lake_of_small_files

from penstock.committers.delta.maintenance import MAINTENANCE_PROPERTY
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.compaction import BATCHES_AHEAD_MIN
from penstock.committers.iceberg.properties import EXPIRE_PROPERTY
from penstock.committers.iceberg.properties import MAINTENANCE_PROPERTY as ICEBERG_MAINTENANCE_PROPERTY
from penstock.committers.maintenance import MaintenancePolicy, Step
from penstock.committers.protocol.batch_writes import GIVEN_UP_AFTER
from penstock.delivery import compaction, rewriting
from penstock.delivery.maintenance_steps import MaintenanceRunner, StepResult, maintenance_runner
from penstock.writers.parquet.compaction import rewrite_group
from penstock.writers.parquet.file_names import parse_file_name

START = datetime(2026, 11, 21, tzinfo=timezone.utc)
BATCHES = 6
KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


# When ---------------------------------------------------------------------------------------------


class Steps:
    """Steps that note that they ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def step(self, name: str, every_s: float, error: Exception | None = None, **options: Any) -> Step:
        def run() -> str:
            self.ran.append(name)
            if error is not None:
                raise error
            return f"did {name}"

        return Step(name, every_s, run, **options)


class Log(dict[str, datetime]):
    """When each step was last done, in memory."""

    def done(self) -> Mapping[str, datetime]:
        return dict(self)

    def note(self, step: str, at: datetime) -> None:
        self[step] = at


def maintenance(
    *steps: Step, is_wanted: Callable[[], bool] = lambda: True, log: Log | None = None
) -> MaintenanceRunner:
    log = Log() if log is None else log
    return MaintenanceRunner(steps, is_wanted, log.done, log.note, monotonic=lambda: 0.0)


def test_each_step_has_an_interval_of_its_own() -> None:
    steps = Steps()
    one = maintenance(steps.step("often", 10), steps.step("seldom", 25))
    for second in range(0, 51, 5):
        one.run_due(after(second))
    often = ["often"]
    assert steps.ran == ["often", "seldom", *often * 2, "seldom", *often * 2, "often", "seldom"]


def test_an_interval_continues_after_the_end_of_a_process() -> None:
    """For example of each run by cron."""
    steps, log = Steps(), Log()
    daily = steps.step("daily", 86_400)
    assert maintenance(daily, log=log).run_due(START) == [StepResult("daily", 0.0, "did daily")]
    assert maintenance(daily, log=log).run_due(after(86_399)) == []
    assert maintenance(daily, log=log).run_due(after(86_400)) == [StepResult("daily", 0.0, "did daily")]


def test_a_step_that_a_clock_far_ahead_has_noted_is_due() -> None:
    steps = Steps()
    one = maintenance(steps.step("daily", 86_400), log=Log(daily=after(365 * 86_400)))
    one.run_due(START)
    assert steps.ran == ["daily"]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_failed_or_was_not_wanted_is_not_noted_and_waits_in_this_process(is_wanted: bool) -> None:
    steps, log = Steps(), Log()
    step = steps.step("step", 10, RetryableError("no network"))
    one = maintenance(step, is_wanted=lambda: is_wanted, log=log)
    assert len(one.run_due(START)) == 1
    assert one.run_due(after(9)) == []
    assert log == {}
    assert len(maintenance(step, is_wanted=lambda: is_wanted, log=log).run_due(after(9))) == 1


def test_a_step_that_fails_is_reported_and_holds_up_no_other() -> None:
    steps, error = Steps(), RetryableError("no network")
    one = maintenance(steps.step("bad", 10, error), steps.step("good", 10))
    assert one.run_due(after(10)) == [
        StepResult("bad", 0.0, error=error),
        StepResult("good", 0.0, "did good"),
    ]


def test_an_interval_of_zero_is_never() -> None:
    steps = Steps()
    one = maintenance(steps.step("off", 0))
    assert one.run_due(after(10**6)) == []


def test_a_table_that_is_not_ours_gets_only_what_is_asked_for_by_name() -> None:
    steps = Steps()
    one = maintenance(
        steps.step("compact", 10), steps.step("expire", 10, decides_itself=True), is_wanted=lambda: False
    )
    one.run_due(after(10))
    assert steps.ran == ["expire"]


def test_what_is_due_waits_for_something_more_urgent() -> None:
    steps = Steps()
    one = maintenance(steps.step("first", 10), steps.step("second", 10))
    one.run_due(after(10), until=lambda: bool(steps.ran))
    assert steps.ran == ["first"]
    one.run_due(after(11))
    assert steps.ran == ["first", "second"]


def test_a_step_that_had_to_end_early_is_not_noted() -> None:
    steps, log = Steps(), Log()
    maintenance(steps.step("step", 10), log=log).run_due(START, until=lambda: bool(steps.ran))
    assert (steps.ran, log) == (["step"], {})


# What ---------------------------------------------------------------------------------------------


@pytest.fixture
def lake(tmp_path: Path, kind: str) -> Lake:
    """A table of twelve small files, in two partitions."""
    return lake_of_small_files(tmp_path, kind, BATCHES)


days = count()


def run(
    lake: Lake, policy: MaintenancePolicy | None = None, later: timedelta = timedelta()
) -> list[StepResult]:
    """All steps: a day after the last run."""
    one = maintenance_runner(
        lake.sink, lake.store, lake.stream, policy or MaintenancePolicy(), now=lambda: NOW + later
    )
    results = one.run_due(START + timedelta(days=next(days)))
    assert [result.error for result in results] == [None] * len(results)
    return results


def done(results: list[StepResult]) -> dict[str, str]:
    return {result.step: result.done for result in results}


@KINDS
def test_a_table_that_penstock_created_is_maintained(lake: Lake) -> None:
    rows = lake.rows()
    results = done(run(lake))
    assert results["compact"] == "compacted 12 files into 2"
    steps = {
        "delta": ["compact", "checkpoint", "vacuum", "orphans"],
        "iceberg": ["compact", "expire", "orphans"],
    }
    assert list(results) == steps[lake.kind]
    assert lake.rows() == rows
    assert done(run(lake))["compact"] == ""


@KINDS
def test_a_table_that_others_created_is_left_alone_unless_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    lake = foreign(tmp_path, kind)
    assert set(done(run(lake)).values()) == {""}
    assert "compacted" in done(run(lake, MaintenancePolicy(is_wanted=True)))["compact"]


def foreign(folder: Path, kind: str) -> Lake:
    lake = Lake(folder, kind=kind)
    if kind == "delta":
        DeltaTable(str(lake.table)).alter.set_table_properties(
            {MAINTENANCE_PROPERTY: "false"}, raise_if_not_exists=False
        )
    else:
        remove_properties(lake, EXPIRE_PROPERTY, ICEBERG_MAINTENANCE_PROPERTY)
    for batch_id in range(BATCHES):
        lake.commit(batch_id, lake.write(batch_id))
    return lake


@KINDS
def test_a_table_that_penstock_created_is_left_alone_on_demand(lake: Lake) -> None:
    assert done(run(lake, MaintenancePolicy(is_wanted=False)))["compact"] == ""


def remove_properties(lake: Lake, *names: str) -> None:
    with lake.iceberg.load().transaction() as transaction:
        transaction.remove_properties(*names)


@pytest.mark.parametrize("kind", ["iceberg"])
@pytest.mark.parametrize("is_of_early_version", [False, True])
def test_a_table_whose_snapshots_do_not_expire_is_maintained(lake: Lake, is_of_early_version: bool) -> None:
    lake.iceberg.set_properties({EXPIRE_PROPERTY: "false"})
    if is_of_early_version:
        remove_properties(lake, ICEBERG_MAINTENANCE_PROPERTY)
    before = lake.lake.versions()
    orphans = lake.write(BATCHES - 1)
    assert done(run(lake))["compact"] == "compacted 12 files into 2"
    assert not any((lake.table / file.path).exists() for file in orphans)
    assert lake.lake.versions() > before


@pytest.mark.parametrize("kind", ["iceberg"])
def test_the_maintenance_of_an_iceberg_table_is_switched_off_by_its_property(lake: Lake) -> None:
    lake.iceberg.set_properties({ICEBERG_MAINTENANCE_PROPERTY: "false"})
    assert set(done(run(lake)).values()) == {""}


@KINDS
def test_files_of_pending_batches_survive_it_all(lake: Lake) -> None:
    """They are old, and no version of the table names them."""
    pending = lake.prepare(BATCHES, lake.write(BATCHES))
    orphans = lake.write(BATCHES - 1)
    run(lake)
    for file in orphans:
        assert not (lake.table / file.path).exists(), "what nothing names is deleted"
    assert lake.committer().missing(pending) == []
    lake.recover()
    assert len(lake.rows()) == 2 * (BATCHES + 1)


@KINDS
def test_files_of_a_batch_write_whose_driver_died_are_deleted(lake: Lake) -> None:
    lost, running = (
        {file.path for file in files_of(lake.batch_write(GIVEN_UP_AFTER + since))}
        for since in (timedelta(hours=1), timedelta(hours=-1))
    )
    run(lake)
    assert lake.on_disk() & (lost | running) == running


@pytest.mark.parametrize("kind", ["iceberg"])
def test_snapshots_expire(lake: Lake) -> None:
    for row_id in range(45):
        lake.lake.append(1000 + row_id)
    run(lake)
    assert len(lake.iceberg.load().metadata.snapshots) == 20


@KINDS
def test_a_compaction_ends_early_for_something_more_urgent(lake: Lake) -> None:
    one = maintenance_runner(
        lake.sink, lake.store, lake.stream, MaintenancePolicy(), now=lambda: NOW, stop=lambda: True
    )
    assert done(one.run_due(START))["compact"] == ""
    assert len(lake.on_disk()) == 12


# Rewriting ----------------------------------------------------------------------------------------


@KINDS
def test_files_are_of_a_batch_that_the_stream_has_yet_to_reach(lake: Lake) -> None:
    """Clean-up deletes no file of such a batch."""
    before = lake.on_disk()
    run(lake)
    new = lake.on_disk() - before
    assert len(new) == 2
    batches = {name.batch_id for path in new if (name := parse_file_name(path)) is not None}
    assert batches
    assert min(batches) >= BATCHES - 1 + BATCHES_AHEAD_MIN


@KINDS
def test_files_with_other_columns_are_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    layout_in = compaction._layout_in

    def read(filesystem: Any, path: str) -> str:
        reads.append(path)
        return layout_in(filesystem, path) + "other"

    monkeypatch.setattr(compaction, "_layout_in", read)
    rewriter, planned = lake.rewriter(), lake.plan()
    files = tuple(lake.write(BATCHES)[:1] + lake.write(BATCHES)[:1])
    assert rewriter(planned.content, [files], 99) == []
    assert rewriter(planned.content, [files], 99) == []
    assert len(reads) == 2


@KINDS
def test_groups_that_are_not_rewritten_yet_are_left_for_something_more_urgent(lake: Lake) -> None:
    first, second = lake.write(BATCHES), lake.write(BATCHES)
    before = lake.on_disk()
    rewriter = lake.rewriter(rewriting.InlineExecutor(stop=lambda: lake.on_disk() != before))
    groups = [(first[0], second[0]), (first[1], second[1])]
    (done,) = rewriter(lake.plan().content, groups, 99)
    assert done.sources == groups[0]
    assert len(lake.on_disk() - before) == 1


@KINDS
def test_files_are_not_read_if_something_is_urgent(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(compaction, "_layout_in")
    files = tuple(lake.write(BATCHES)[:1] + lake.write(BATCHES)[:1])
    assert lake.rewriter(stop=lambda: True)(lake.plan().content, [files], 99) == []


@KINDS
def test_a_failure_leaves_no_new_file(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [rewrite_group]

    def rewrite(*args: Any) -> Any:
        if not calls:
            raise RetryableError("disk full")
        return calls.pop()(*args)

    monkeypatch.setattr(rewriting, "rewrite_group", rewrite)
    first, second = lake.write(BATCHES), lake.write(BATCHES)
    before = lake.on_disk()
    groups = [(first[0], second[0]), (first[1], second[1])]
    with pytest.raises(RetryableError, match="disk full"):
        lake.rewriter()(lake.plan().content, groups, 99)
    assert lake.on_disk() == before
