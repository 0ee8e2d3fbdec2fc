"""Compaction of files that a table has already, on real tables of both formats, read back by duckdb."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.types import StringType
from tests.support.stored_lake import GRACE, NOW, Lake, lake_of_small_files

from penstock.committers.contract import (
    AlreadyCommitted,
    AttemptId,
    Batch,
    Conflict,
    DataFile,
    ManifestRecord,
    StreamKey,
)
from penstock.committers.delta.compaction import DeltaCompactableTable
from penstock.committers.delta.log_entry import logged_path
from penstock.committers.errors import CommitStateUnknownError, RetryableError
from penstock.committers.file_tables.compaction import (
    BATCHES_AHEAD_MAX,
    BATCHES_AHEAD_MIN,
    CompactableTable,
    Compaction,
    CompactionPolicy,
    Replacement,
    batch_ahead,
    choose_groups,
)
from penstock.committers.file_tables.manifest import build_manifest
from penstock.committers.iceberg.catalog import CatalogConfig
from penstock.committers.iceberg.compaction import IcebergCompactableTable
from penstock.committers.iceberg.terms import parse_partition_spec
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.testing.faults import Crash, lossy
from penstock.writers.delta.partitions import serialize
from penstock.writers.parquet.file_names import parse_file_name

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
POLICY = CompactionPolicy(target_file_bytes=128 * 1024**2, small_file_bytes=96 * 1024**2)
BATCHES = 6


def compactable(lake: Lake) -> CompactableTable:
    sink: Any = lake.sink
    if lake.kind == "delta":
        return DeltaCompactableTable(sink.table_uri, {}, lake.query_id, serialize)
    return IcebergCompactableTable(sink.catalog, sink.address, lake.query_id)


def compaction(
    lake: Lake,
    table: CompactableTable | None = None,
    recent: Callable[[], Sequence[ManifestRecord]] = tuple,
    **policy: Any,
) -> Compaction:
    return Compaction(
        table or compactable(lake),
        lake.rewriter(),
        CompactionPolicy(POLICY.target_file_bytes, POLICY.small_file_bytes, **policy),
        recent=recent,
        sleep=lambda seconds: None,
    )


def before_commit(lake: Lake, action: Callable[[], object]) -> CompactableTable:
    """The table. The action runs before the first attempt to commit."""
    table, left = compactable(lake), [action]
    replace = table.replace

    def replace_after(*args: Any) -> Replacement:
        if left:
            left.pop()()
        return replace(*args)

    table.replace = replace_after  # type: ignore[method-assign, assignment]
    return table


@pytest.fixture
def lake(tmp_path: Path, kind: str) -> Lake:
    """A table of twelve small files, in two partitions."""
    return lake_of_small_files(tmp_path, kind, BATCHES)


def files(lake: Lake) -> list[str]:
    visible = compactable(lake).visible_files()
    assert visible is not None
    return [file.path for file in visible.content.files]


def commit_of(lake: Lake) -> tuple[Any, str]:
    """The class and the method of the library that commits a compaction."""
    return (DeltaTable, "create_write_transaction") if lake.kind == "delta" else (SqlCatalog, "commit_table")


# What it does -------------------------------------------------------------------------------------


@KINDS
def test_many_small_files_become_one_for_each_partition_with_the_same_rows(lake: Lake) -> None:
    rows, before = lake.rows(), lake.committer().token(lake.query_id)
    compacted = compaction(lake).run()
    assert (compacted.sources, compacted.files) == (12, 2)
    assert len(files(lake)) == 2
    assert lake.rows() == rows
    assert lake.committer().token(lake.query_id) == before
    assert compaction(lake).run().sources == 0


@KINDS
def test_the_stream_continues_after_a_compaction(lake: Lake) -> None:
    """It is not taken for a RESTORE or a rollback, and the last batch is still known."""
    last = lake.prepare(BATCHES, lake.write(BATCHES))
    lake.recover()
    compaction(lake).run()
    table = lake.committer()
    table.check_unchanged(lake.query_id, lake.table_id, None)
    assert isinstance(table.commit(last), AlreadyCommitted)
    lake.commit(BATCHES + 1, lake.write(BATCHES + 1))
    assert len(lake.rows()) == 2 * (BATCHES + 2)


@KINDS
def test_versions_from_before_stay_readable(lake: Lake) -> None:
    version, rows = lake.lake.version(), lake.rows()
    compaction(lake).run()
    if lake.kind == "delta":
        assert pl.read_delta(str(lake.table), version=version).height == len(rows)
    else:
        assert lake.iceberg.load().scan(snapshot_id=version).to_arrow().num_rows == len(rows)


@pytest.mark.parametrize("kind", ["delta"])
def test_the_delta_log_has_no_data_change(lake: Lake) -> None:
    compaction(lake).run()
    log = sorted((lake.table / "_delta_log").glob("*.json"))[-1].read_text().splitlines()
    actions = [json.loads(line) for line in log]
    changes = [
        action[kind]["dataChange"] for action in actions for kind in ("add", "remove") if kind in action
    ]
    assert changes == [False] * 14
    assert not any("txn" in action for action in actions)
    info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    assert info["isBlindAppend"] is False
    assert "compaction" in json.loads(info["userMetadata"])["penstock"]


@pytest.mark.parametrize("kind", ["iceberg"])
def test_iceberg_calls_it_a_replacement_and_adds_up_the_totals(lake: Lake) -> None:
    compaction(lake).run()
    head = lake.iceberg.load().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation.value == "replace"
    totals = head.summary.additional_properties
    assert (totals["total-data-files"], totals["total-records"]) == ("2", "12")
    assert (totals["deleted-data-files"], totals["added-data-files"]) == ("12", "2")


# What it leaves alone -----------------------------------------------------------------------------


def of_size(size_bytes: int, partition: str = "a") -> DataFile:
    return DataFile(f"{partition}/{size_bytes}", size_bytes, 1, (("p", partition),))


def test_partitions_with_few_small_files_or_none_are_left_alone() -> None:
    policy = CompactionPolicy(target_file_bytes=1000, small_file_bytes=750)
    large = [of_size(750 + i, "large") for i in range(9)]
    few = [of_size(10 + i, "few") for i in range(3)]
    many = [of_size(10 + i, "many") for i in range(4)]
    assert choose_groups([*large, *few, *many], policy) == [tuple(many)]


def test_a_file_is_not_rewritten_for_the_sake_of_much_smaller_ones() -> None:
    policy = CompactionPolicy(target_file_bytes=1000, small_file_bytes=750)
    small = [of_size(10 + i) for i in range(4)]
    assert choose_groups([of_size(700), *small], policy) == [tuple(small)]


def test_a_run_reads_no_more_than_it_may() -> None:
    policy = CompactionPolicy(target_file_bytes=1000, small_file_bytes=750, run_bytes_max=100)
    groups = choose_groups([of_size(10 + i) for i in range(50)], policy)
    assert [sum(file.size_bytes for file in group) <= 100 for group in groups] == [True]


@KINDS
def test_files_from_before_a_column_was_added_are_left_alone(lake: Lake) -> None:
    if lake.kind == "delta":
        table = DeltaTable(str(lake.table))
        table.alter.add_columns([Field("more", PrimitiveType("string"))])
    else:
        with lake.iceberg.load().update_schema() as update:
            update.add_column("more", StringType())
    rows = lake.rows()
    assert compaction(lake).run().sources == 0
    assert lake.rows() == rows


@KINDS
def test_nothing_is_done_before_the_stream_s_first_batch(tmp_path: Path, kind: str) -> None:
    assert compaction(Lake(tmp_path, kind=kind)).run().sources == 0


def test_files_with_a_deletion_vector_are_left_alone(tmp_path: Path) -> None:
    """Their removal would have to name the vector. Otherwise they would stay in the table."""
    fixture = Path(__file__).parents[1] / "fixtures" / "delta" / "deletion_vectors"
    shutil.copytree(fixture, tmp_path / "table")
    table = DeltaTable(str(tmp_path / "table"))
    table.create_write_transaction(
        [AddAction("plain.parquet", 1, {}, 1, True, '{"numRecords":1}')], mode="append", schema=table.schema()
    )
    compactable = DeltaCompactableTable(str(tmp_path / "table"), {}, "q", serialize)
    plain = compactable._plain_files(DeltaTable(str(tmp_path / "table")))
    assert [file.path for file in plain] == ["plain.parquet"]


@pytest.mark.parametrize("kind", ["delta"])
def test_a_deletion_vector_in_the_middle_is_not_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file still has its name, but fewer rows."""
    path = files(lake)[0]

    def delete() -> None:
        monkeypatch.setattr(
            "penstock.committers.delta.compaction._names_with_deletion_vectors",
            lambda table: {Path(path).name},
        )

    assert compaction(lake, before_commit(lake, delete)).run().sources == 6
    monkeypatch.undo()
    assert path in files(lake)


def test_paths_are_encoded_as_the_delta_library_encodes_them(tmp_path: Path) -> None:
    """The library removes files by this path. With another path, the old file would stay in the table."""
    characters = [chr(code) for code in range(33, 0x250) if chr(code) not in "/\x7f"] + ["日", "😀"]
    raw = [f"p{character}q/x.parquet" for character in characters]
    DeltaTable.create(str(tmp_path), pa.schema([("id", pa.int64())]))
    table = DeltaTable(str(tmp_path))
    table.create_write_transaction(
        [AddAction(path, 1, {}, 1, True, '{"numRecords":1}') for path in raw],
        mode="append",
        schema=table.schema(),
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    logged = pa.table(DeltaTable(str(tmp_path)).get_add_actions()).column("path").to_pylist()
    assert sorted(logged) == sorted(map(logged_path, raw))


@pytest.mark.parametrize("kind", ["delta"])
def test_a_file_whose_path_another_engine_has_encoded_otherwise_is_left_alone(lake: Lake) -> None:
    """As Spark does with `é`; the library would remove a file of another name."""
    folder = lake.table / "day=é"
    folder.mkdir()
    write_deltalake(
        str(lake.table), pa.table({"id": pa.array([99], pa.int64()), "day": ["é"]}), mode="append"
    )
    log = sorted((lake.table / "_delta_log").glob("*.json"))[-1]
    log.write_text(log.read_text().replace("%25C3%25A9", "é").replace("%C3%A9", "é"))
    assert "é/" in log.read_text()
    assert not [path for path in files(lake) if "é" in path]


@pytest.mark.parametrize("kind", ["iceberg"])
def test_iceberg_tables_with_deletes_are_left_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManifestFile, "content", property(lambda self: ManifestContent.DELETES))
    assert files(lake) == []


# Others at the same time --------------------------------------------------------------------------


@KINDS
def test_an_append_in_the_middle_is_kept(lake: Lake) -> None:
    table = before_commit(lake, lambda: lake.lake.append(1000))
    compacted = compaction(lake, table).run()
    assert compacted.sources == 12
    assert len(lake.rows()) == 13


@KINDS
def test_a_delete_in_the_middle_is_not_undone(lake: Lake) -> None:
    """Rows 1 to 6 go; a group of which a file was touched is left out of the commit."""

    def delete() -> None:
        if lake.kind == "delta":
            DeltaTable(str(lake.table)).delete("id = 1")
        else:
            lake.iceberg.load().delete("id = 1")

    table = before_commit(lake, delete)
    compacted = compaction(lake, table).run()
    assert compacted.sources == 6
    assert [row[0] for row in lake.rows()] == list(range(2, 13))
    if lake.kind == "delta":
        others = [parse_file_name(path) for path in lake.on_disk() - set(files(lake))]
        assert not [name for name in others if name is None or name.batch_id >= BATCHES]


@KINDS
def test_two_compactions_at_once_double_no_row(lake: Lake) -> None:
    rows = lake.rows()
    others: list[int] = []
    table = before_commit(lake, lambda: others.append(compaction(lake).run().sources))
    compacted = compaction(lake, table).run()
    assert others == [12]
    assert (compacted.sources, bool(compacted.given_up)) == (0, True)
    assert lake.rows() == rows
    assert len(files(lake)) == 2


@pytest.mark.parametrize("kind", ["delta"])
def test_a_delta_table_that_others_compact_is_left_to_them(lake: Lake) -> None:
    """The Delta library's `optimize` does not notice that another one has replaced its files meanwhile."""
    rows = lake.rows()
    table = before_commit(lake, lake.lake.compact)
    compacted = compaction(lake, table).run()
    assert (compacted.sources, compacted.given_up) == (0, "others compact the table")
    for batch_id in range(BATCHES, BATCHES + 4):
        lake.commit(batch_id, lake.write(batch_id))
    assert compaction(lake, table).run().sources == 0
    assert compaction(lake).run().sources == 0, "another process sees it in the log"
    assert len(lake.rows()) == len(rows) + 8


@KINDS
def test_a_commit_that_conflicts_on_every_attempt_is_left_for_the_next_run(lake: Lake) -> None:
    table = Mock(wraps=compactable(lake))
    table.replace.side_effect = lambda *_: Conflict("taken")
    compacted = compaction(lake, table, attempts_max=3).run()
    assert (compacted.conflicts, compacted.given_up, table.replace.call_count) == (3, "taken", 3)
    assert len(files(lake)) == 12
    assert lake.on_disk() >= set(files(lake))
    assert len(lake.on_disk()) == 12, "the new files are deleted"


@KINDS
def test_another_writer_that_commits_first_wins(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the load of a version and the commit of the next one."""
    owner, name = commit_of(lake)
    others, commit = [1000, 1001], getattr(owner, name)

    def others_first(*args: Any, **options: Any) -> Any:
        if others:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, commit)
                lake.lake.append(others.pop())
        return commit(*args, **options)

    monkeypatch.setattr(owner, name, others_first)
    compacted = compaction(lake).run()
    assert (compacted.conflicts, compacted.sources) == (2, 12)
    assert len(lake.rows()) == 14


@KINDS
def test_a_table_that_is_altered_in_the_middle_is_left_alone(lake: Lake) -> None:
    def alter() -> None:
        if lake.kind == "delta":
            DeltaTable(str(lake.table)).alter.add_columns([Field("more", PrimitiveType("string"))])
        else:
            lake.iceberg.load().update_schema().rename_column("id", "number").commit()

    compacted = compaction(lake, before_commit(lake, alter)).run()
    assert (compacted.sources, compacted.given_up) == (0, "the table was altered in the meantime")
    assert len(files(lake)) == 12


# Crashes and lost answers -------------------------------------------------------------------------


def clean_up(lake: Lake) -> int:
    later = NOW + 2 * GRACE + timedelta(days=1)
    one = lake.cleanup()
    return sum(one.delete(one.find(later, GRACE)))


def slow(lake: Lake, every: timedelta) -> Callable[[], Sequence[ManifestRecord]]:
    """The stream's records, as if it had prepared a batch so often."""
    records = lake.store.history(lake.stream, 100)
    return lambda: [replace(one, prepared_at=NOW + every * one.batch.batch_id) for one in records]


@KINDS
def test_a_kill_between_rewriting_and_commit_leaves_orphans_that_clean_up_finds(lake: Lake) -> None:
    """Once the stream has got to the batch that they carry: until then a commit may still add them."""
    rows = lake.rows()
    with pytest.raises(Crash):
        compaction(lake, before_commit(lake, Mock(side_effect=Crash))).run()
    assert lake.rows() == rows
    assert len(lake.on_disk()) == 14
    assert clean_up(lake) == 0
    last = BATCHES - 1 + BATCHES_AHEAD_MAX
    lake.commit(last, lake.write(last))
    assert clean_up(lake) == 2
    assert len(lake.rows()) == len(rows) + 2


@KINDS
def test_clean_up_finds_orphans_of_a_slow_stream_after_a_few_batches(lake: Lake) -> None:
    recent = slow(lake, timedelta(hours=1))
    with pytest.raises(Crash):
        compaction(lake, before_commit(lake, Mock(side_effect=Crash)), recent).run()
    assert clean_up(lake) == 0
    for batch_id in range(BATCHES, BATCHES + BATCHES_AHEAD_MIN):
        lake.commit(batch_id, lake.write(batch_id))
    assert clean_up(lake) == 2


@pytest.mark.parametrize(
    ("every_s", "ahead"), [(86_400, BATCHES_AHEAD_MIN), (60, 60), (1, 3600), (0.01, BATCHES_AHEAD_MAX)]
)
def test_a_run_may_take_about_an_hour_of_batches(tmp_path: Path, every_s: float, ahead: int) -> None:
    """Counted from the newest prepared batch: those that wait may be delivered meanwhile."""
    lake = Lake(tmp_path)
    for batch_id in range(3):
        lake.prepare(batch_id, lake.write(batch_id))
    assert batch_ahead(0, slow(lake, timedelta(seconds=every_s))()) == 2 + ahead


@KINDS
def test_files_that_clean_up_may_have_deleted_are_not_committed(lake: Lake) -> None:
    """A process that slept before its commit, while the stream has passed the batch of its files."""
    last = BATCHES - 1 + BATCHES_AHEAD_MAX

    table = before_commit(lake, lambda: lake.commit(last, lake.write(last)))
    compacted = compaction(lake, table).run()
    assert (compacted.sources, bool(compacted.given_up)) == (0, True)
    assert len(lake.rows()) == 14


@KINDS
def test_new_files_that_are_missing_are_not_committed(lake: Lake) -> None:
    def lose() -> None:
        for path in lake.on_disk() - set(files(lake)):
            (lake.table / path).unlink()

    compacted = compaction(lake, before_commit(lake, lose)).run()
    assert compacted.sources == 0
    assert "are missing" in compacted.given_up
    assert len(lake.rows()) == 12


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("delta", ConnectionError("lost")),
        ("delta", OSError("disk")),
        ("iceberg", ConnectionError("lost")),
        ("iceberg", CommitFailedException("its own")),
    ],
)
def test_a_lost_response_to_the_commit_is_no_failure(lake: Lake, error: Exception) -> None:
    rows = lake.rows()
    with lossy(*commit_of(lake), "response", error):
        assert compaction(lake).run().sources == 12
    assert lake.rows() == rows


@KINDS
def test_a_commit_that_fails_for_sure_leaves_no_file(lake: Lake) -> None:
    with lossy(*commit_of(lake), "request", OSError("disk full")), pytest.raises(RetryableError):
        compaction(lake).run()
    assert len(lake.on_disk()) == 12


@pytest.mark.parametrize("kind", ["iceberg"])
def test_after_an_unknown_outcome_no_file_is_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that is a server may still commit it."""
    monkeypatch.setattr(CatalogConfig, "is_embedded", False)
    with lossy(*commit_of(lake), "request", ConnectionError("no answer")):
        with pytest.raises(CommitStateUnknownError):
            compaction(lake).run()
    assert len(lake.on_disk()) == 14


# Partition values ---------------------------------------------------------------------------------

KEYS = {
    "b": pa.array([True, None, False]),
    "i": pa.array([-1, None, 2**31 - 1], pa.int32()),
    "l": pa.array([-(2**62), None, 7], pa.int64()),
    "s": pa.array(["a b%/c=é", None, "日"]),
    "d": pa.array([date(1969, 12, 31), None, date(2026, 11, 21)]),
    "m": pa.array([Decimal("-1.20"), None, Decimal("99.99")], pa.decimal128(6, 2)),
    "t": pa.array([datetime(1969, 1, 1, 1, 2, 3, 4, timezone.utc), None, NOW], pa.timestamp("us", "UTC")),
    "n": pa.array([-62_135_596_800_000_000, None, 5], pa.timestamp("us")),
}
OF_ICEBERG_ONLY = {
    "f": pa.array([0.1, None, -0.0], pa.float32()),
    "x": pa.array([b"\x00\xff", None, b"a"], pa.binary()),
}
TRANSFORMS = "b, i, truncate(10, l), bucket(4, s), s, d, m, t, day(t), hour(n), month(d), f, x"


@KINDS
def test_partition_values_come_back_as_they_were_written(tmp_path: Path, kind: str) -> None:
    """The new files are filed under them. From the log's types, or the manifests', back to the same text."""
    keys = KEYS if kind == "delta" else {**KEYS, **OF_ICEBERG_ONLY}
    rows = pa.record_batch({"id": pa.array([1, 2, 3], pa.int64()), **keys})
    sink: Any
    if kind == "delta":
        sink = DeltaSink(DeltaOptions(path=str(tmp_path / "t"), partition_by=tuple(KEYS)))
        table: CompactableTable = DeltaCompactableTable(sink.table_uri, {}, "q", serialize)
    else:
        spec = parse_partition_spec(TRANSFORMS)
        options = IcebergOptions(warehouse=str(tmp_path / "w"), table="a.b", partition_spec=spec)
        sink = IcebergSink(options)
        table = IcebergCompactableTable(sink.catalog, sink.address, "q")
    planned = sink.open_table().plan_batch(rows.schema, "append", 0)
    writer = planned.writers.open(AttemptId("q", "run", 0, 0, 0))
    writer.write(rows)
    written = writer.finish()
    batch = Batch(StreamKey("q", sink.table_uri), 0, "0" * 64)
    sink.open_table().commit(build_manifest(batch, planned.content.with_files(written)))
    visible = table.visible_files()
    assert visible is not None
    assert {file.path: file.partition_values for file in visible.content.files} == {
        file.path: file.partition_values for file in written
    }
    assert len(written) == 3
