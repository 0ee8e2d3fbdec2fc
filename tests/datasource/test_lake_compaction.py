"""Compaction of a Delta table and an Iceberg table that share their files: both get the same new ones."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from servers.s3 import BUCKET, s3_names, s3_properties, s3_server
from tests.support.cli import Ended
from tests.support.lake_pairs import (
    NO_RETENTION,
    LakePair,
    LakePlace,
    agree,
    by_all_readers,
    compacted,
    delivered,
    lake_pair,
    run,
    share,
    some,
)

from penstock.committers.crash_points import PAIR_POINTS
from penstock.testing.conformance import Query
from penstock.testing.faults import crash_at

UTC = timezone.utc


def test_small_files_of_each_partition_become_one_of_both_tables(pair: LakePair) -> None:
    query = pair.query(partitionBy="kind")
    for batch_id in range(4):
        run(pair, query, batch_id, some(batch_id * 3))
    assert pair.deliver().code == 0
    before = {reader: in_words(table) for reader, table in by_all_readers(pair).items()}
    old = share(pair)
    assert compacted(pair) == "compacted 12 files into 3"
    new = share(pair)
    assert (len(old), len(new), old & new) == (12, 3, set())
    assert {reader: in_words(table) for reader, table in by_all_readers(pair).items()} == before
    agree(pair, 12)
    (task,) = pair.iceberg.load().scan(row_filter="kind is null and id > 10").plan_files()
    assert task.file.record_count == 4
    assert compacted(pair) == ""
    run(pair, query, 4, some(12))
    assert pair.deliver().code == 0
    agree(pair, 15)
    assert not pair.store.compactions.of_stream(pair.stream("delta"))


def in_words(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.select(["id", "kind", "at", "list"]).to_pylist())


@pytest.mark.parametrize("point", PAIR_POINTS)
def test_a_crash_leaves_the_same_rows_and_the_next_run_goes_on(pair: LakePair, point: str) -> None:
    query = delivered(pair)
    with crash_at(point):
        pair.maintain()
    agree(pair, 8)
    run(pair, query, 4)
    assert pair.deliver().code == 0
    agree(pair, 10)
    assert compacted(pair).startswith("compacted")
    share(pair)
    agree(pair, 10)
    assert pair.store.compactions.of_stream(pair.stream("delta")) is None


def test_a_crash_between_the_tables_gives_the_second_the_files_of_the_first(pair: LakePair) -> None:
    delivered(pair)
    with crash_at("pair.first"):
        pair.maintain()
    new, old = pair.named()
    assert (len(new), len(old)) == (1, 8)
    assert compacted(pair) == "compacted 8 files into 1"
    assert share(pair) == new


def test_the_delivery_process_compacts_both(pair: LakePair) -> None:
    query = pair.query()
    for batch_id in range(4):
        run(pair, query, batch_id)
    for _ in range(2):  # the table that is delivered last may be the one without which nothing is compacted
        assert Ended("deliver", "--once", "--store", pair.store_url).code == 0
        for stream in pair.store.streams():
            pair.store.maintenance.note(stream.key, "compact", datetime(2020, 1, 1, tzinfo=UTC))
    assert len(share(pair)) == 1
    agree(pair, 8)


@pytest.mark.parametrize("option", [{"maintenance": "false"}, {"compactEverySeconds": "0"}])
def test_compaction_can_be_turned_off(pair: LakePair, option: dict[str, str]) -> None:
    delivered(pair, **option)
    assert "compact" not in pair.maintain() or not pair.maintain()["compact"].done
    assert len(share(pair)) == 8


def test_files_that_one_table_does_not_have_yet_wait(pair: LakePair) -> None:
    query = delivered(pair)
    for batch_id in range(4, 8):
        run(pair, query, batch_id)
    assert pair.deliver("delta").code == 0
    assert compacted(pair) == "compacted 8 files into 1"
    assert pair.deliver().code == 0
    agree(pair, 16)
    assert len(share(pair)) == 9


# Old files ------------------------------------------------------------------------------------------------


def test_old_files_are_deleted_when_neither_table_can_read_them(pair: LakePair) -> None:
    keep_one = {"target.iceberg.keepSnapshots": "1", "target.iceberg.snapshotGrace": "0s"}
    query = delivered(pair, **keep_one, **NO_RETENTION)
    old = share(pair)
    assert pair.iceberg.load().properties["gc.enabled"] == "false", "for other engines"
    before = pair.iceberg.load().current_snapshot()
    assert before is not None
    assert compacted(pair) == "compacted 8 files into 1"
    run(pair, query, 4)
    assert pair.deliver().code == 0
    new = share(pair)
    assert not pair.maintain()["vacuum"].done, "Iceberg's older snapshot has them"
    assert sorted(pair.iceberg.load().scan(snapshot_id=before.snapshot_id).to_arrow()["id"].to_pylist()) == [
        *range(8)
    ]
    for _ in range(2):  # the second one deletes the manifests of the first one's snapshots
        assert pair.maintain("iceberg")["expire"].error is None
    assert pair.iceberg.versions() == 1
    assert pair.maintain()["vacuum"].done == "deleted 8 files that both tables have removed"
    assert {Path(path).name for path in pair.files()} == new
    assert old.isdisjoint(new)
    agree(pair, 10)


def test_a_vacuum_keeps_files_that_a_prepared_batch_of_iceberg_lists(pair: LakePair) -> None:
    query = delivered(pair, **NO_RETENTION)
    run(pair, query, 4)
    assert pair.deliver("delta").code == 0
    DeltaTable(str(pair.delta.path)).delete()
    assert pair.maintain()["vacuum"].error is None
    assert pair.deliver().code == 0
    assert pair.iceberg.ids() == list(range(10))


def test_a_delta_table_that_only_takes_appends_is_compacted(pair: LakePair) -> None:
    """Compaction changes no rows."""
    delivered(pair, **{"target.delta.tableProperties": json.dumps({"delta.appendOnly": "true"})})
    assert compacted(pair) == "compacted 8 files into 1"
    assert len(share(pair)) == 1
    agree(pair, 8)


# Object stores --------------------------------------------------------------------------------------------


def test_on_s3_the_options_of_the_store_are_given_once(tmp_path: Path) -> None:
    with s3_server() as storage, lake_pair(tmp_path) as pair:
        catalog = {"uri": f"sqlite:///{tmp_path}/catalog.sqlite", "warehouse": f"s3://{BUCKET}/warehouse"}
        where = {
            "path": f"s3a://{BUCKET}/table",
            "table": "lake.ids",
            "catalog": "local",
            "catalog.type": "sql",
            **{f"catalog.{key}": value for key, value in catalog.items()},
            **{f"storage.{key}": value for key, value in storage.items()},
        }
        query = Query(LakePlace(where))
        parts = [pa.table({"id": pa.array([n], pa.int64()), "day": ["d:1"]}) for n in range(4)]
        query = query.with_options(partitionBy="day")
        query.run(pair.store, query.batch(0), *parts)
        given = [f"--storage={key}={value}" for key, value in storage.items()]
        given += [f"--catalog={key}={value}" for key, value in {**catalog, "type": "sql"}.items()]
        given += [f"--catalog={key}={value}" for key, value in s3_properties(storage).items()]
        for _ in range(2):  # the second one compacts what both tables have then
            ended = Ended("deliver", "--once", "--store", pair.store_url, *given)
            assert ended.code == 0, ended.err
            for stream in pair.store.streams():
                pair.store.maintenance.note(stream.key, "compact", datetime(2020, 1, 1, tzinfo=UTC))
        iceberg = SqlCatalog("local", **catalog, **s3_properties(storage)).load_table("lake.ids")
        delta = DeltaTable(f"s3://{BUCKET}/table", storage_options=storage)
        rows = [
            one.sort_by("id").to_pylist() for one in (delta.to_pyarrow_table(), iceberg.scan().to_arrow())
        ]
        assert rows[0] == rows[1] == [{"id": n, "day": "d:1"} for n in range(4)]
        assert len(delta.file_uris()) == len(list(iceberg.scan().plan_files())) == 1
        assert len([name for name in s3_names(storage) if name.endswith(".parquet")]) == 4 + 1
        gc = Ended("gc", "--store", pair.store_url, "--older-than", "1h", "--delete", *given)
        assert gc.code == 0, gc.err
