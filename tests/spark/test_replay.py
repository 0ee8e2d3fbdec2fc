"""Replays through a real Spark: the same offsets are skipped, other offsets are an error, never a loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from tests.support.id_stream import IdStream, write_ids
from tests.support.lakes import IcebergLake

pytestmark = pytest.mark.spark

OFFSET_LOG = "spark.sql.streaming.offsetLog.formatVersion"
SOURCE_NAMES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"


@pytest.fixture(
    params=[1, pytest.param(2, marks=pytest.mark.campaign)], ids=["offsets-v1", "offsets-v2"], autouse=True
)
def offset_log_version(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[int]:
    """Each version that Spark can write: the checkpoint's first batch decides."""
    version: int = request.param
    if version > 1 and tuple(map(int, spark.version.split(".")[:2])) < (4, 2):
        pytest.skip("version 2 of the offset log needs Spark 4.2")
    spark.conf.set(OFFSET_LOG, str(version))
    yield version
    spark.conf.unset(OFFSET_LOG)


def test_the_offset_log_has_the_version_under_test(delta_ids: IdStream, offset_log_version: int) -> None:
    delta_ids.add_files(1)
    delta_ids.run()

    log = (delta_ids.checkpoint / "offsets" / "0").read_text()
    assert log.startswith(f"v{offset_log_version}\n")


def test_a_replayed_batch_writes_no_data_file(ids: IdStream) -> None:
    ids.add_files(3)
    ids.run()
    files, commits = ids.data_files(), ids.commits()
    ids.forget_commit(2)
    ids.run()

    assert ids.data_files() == files
    assert ids.commits() == commits
    assert (ids.checkpoint / "commits" / "2").exists()


def test_a_replay_after_the_store_was_lost_adds_no_rows(ids: IdStream) -> None:
    """The token in the table identifies the last batch."""
    ids.add_files(3)
    ids.run()
    files = ids.data_files()
    ids.forget_commit(2)
    for path in ids.checkpoint.glob("penstock.sqlite*"):
        path.unlink()
    ids.add_files(1)
    ids.run()

    assert len(ids.data_files() - files) == 1
    assert ids.findings().rows == 400
    assert ids.findings().problems == []


def test_a_rewound_checkpoint_that_reads_other_rows_is_an_error(delta_ids: IdStream) -> None:
    delta_ids.add_files(3)
    delta_ids.run()
    _rewind(delta_ids, to_batch=1)
    (delta_ids.source / "00001.parquet").rename(delta_ids.source / "renamed.parquet")
    files = delta_ids.data_files()
    message = delta_ids.fails_with()

    assert "CheckpointMismatchError" in message
    assert "penstock show" in message
    assert "penstock reset-query-id" in message
    assert delta_ids.data_files() == files


def test_a_rewound_checkpoint_that_reads_the_same_rows_is_harmless(delta_ids: IdStream) -> None:
    delta_ids.add_files(3)
    delta_ids.run()
    files = delta_ids.data_files()
    for batch_id in (1, 2):
        delta_ids.forget_commit(batch_id)
    (delta_ids.checkpoint / "offsets" / "2").unlink()
    (delta_ids.checkpoint / "offsets" / ".2.crc").unlink()
    delta_ids.run()

    assert delta_ids.data_files() == files
    assert delta_ids.findings().problems == []


@pytest.mark.parametrize("offset_log_version", [2], indirect=True, ids=["offsets-v2"])
def test_named_sources_are_read_by_their_names(delta_ids: IdStream, tmp_path: Path) -> None:
    """Another order of the sources is harmless, another file of one of them is an error."""
    ids, other = delta_ids, tmp_path / "other"
    ids.spark.conf.set(SOURCE_NAMES, "true")
    other.mkdir()
    for number in range(2):
        write_ids(other / f"{number}.parquet", range(number * 100 + 1000, number * 100 + 1100), number)
    ids.add_files(2)
    sources = [(ids.source, "ids"), (other, "other")]
    try:
        ids.run(_union(ids, sources))
        files = ids.data_files()
        ids.forget_commit(1)
        ids.run(_union(ids, sources[::-1]))
        assert ids.data_files() == files
        assert {path.name for path in (ids.checkpoint / "sources").iterdir()} == {"ids", "other"}

        _rewind(ids, to_batch=1)
        (other / "1.parquet").rename(other / "renamed.parquet")
        assert "CheckpointMismatchError" in ids.fails_with(_union(ids, sources))
        assert ids.data_files() == files
    finally:
        ids.spark.conf.unset(SOURCE_NAMES)


def _union(ids: IdStream, sources: Sequence[tuple[Path, str]]) -> DataFrame:
    """File sources that have names, one file of each a batch."""
    readers = [
        ids.spark.readStream.name(name)
        .schema("id LONG, day STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        for folder, name in sources
    ]
    return reduce(DataFrame.union, readers)


def _rewind(ids: IdStream, to_batch: int) -> None:
    """Delete all batches from `to_batch` on from the checkpoint, as an operator would."""
    sources = [path.relative_to(ids.checkpoint) for path in (ids.checkpoint / "sources").iterdir()]
    for folder in (Path("offsets"), Path("commits"), *sources):
        for path in (ids.checkpoint / folder).iterdir():
            name = path.name.strip(".").removesuffix(".crc")
            if name.isdecimal() and int(name) >= to_batch:
                path.unlink()


def test_checkpoint_forks_with_the_same_offsets_deliver_each_row_once(ids: IdStream) -> None:
    """Both have the query id: a batch that one has committed is a replay to the other."""
    ids.add_files(2)
    ids.run()
    copy = ids.copy_checkpoint("copy")
    ids.add_files(1)
    ids.run()
    ids.add_files(1)
    ids.run(checkpointLocation=str(copy))
    ids.run()

    assert ids.findings().rows == 400
    assert ids.findings().problems == []


def test_a_checkpoint_fork_with_other_offsets_is_an_error(delta_ids: IdStream) -> None:
    delta_ids.add_files(2)
    delta_ids.run()
    copy = delta_ids.copy_checkpoint("copy")
    delta_ids.add_files(2)
    two_at_once = delta_ids.rows(files_per_batch=2)
    delta_ids.run()
    files = delta_ids.data_files()

    assert "CheckpointMismatchError" in delta_ids.fails_with(two_at_once, checkpointLocation=str(copy))
    assert delta_ids.data_files() == files
    assert delta_ids.findings().problems == []


def test_a_fresh_checkpoint_is_a_new_stream(ids: IdStream) -> None:
    """Batch ids restart at 0 under another query id: its rows are new rows, not replays."""
    ids.add_files(2)
    ids.run()
    shutil.rmtree(ids.checkpoint)
    ids.run()

    assert ids.findings().rows == 400


def test_a_dropped_table_is_an_error(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run()
    ids.table.drop()
    ids.add_files(1)

    assert "TableChangedError" in ids.fails_with()


def test_a_table_that_was_dropped_and_created_again_is_an_error(ids: IdStream) -> None:
    ids.add_files(1)
    ids.run()
    ids.table.drop()
    ids.table.create(pa.schema([("id", pa.int64()), ("day", pa.string())]))
    ids.add_files(1)

    assert "dropped and re-created" in ids.fails_with()


def test_a_table_rolled_back_to_before_the_token_is_an_error(ids: IdStream) -> None:
    """Delta's RESTORE and Iceberg's rollback take back rows, but not tokens."""
    ids.add_files(3)
    ids.run()
    ids.table.roll_back()
    ids.add_files(1)
    message = ids.fails_with()

    assert "TableChangedError" in message
    assert "was restored" in message or "rolled back" in message


def test_a_stream_continues_after_compaction_and_vacuum_of_its_delta_table(delta_ids: IdStream) -> None:
    delta_ids.add_files(3)
    delta_ids.run()
    table = DeltaTable(delta_ids.table.options["path"])
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    delta_ids.forget_commit(2)
    delta_ids.add_files(1)
    delta_ids.run()

    assert delta_ids.findings().rows == 400
    assert delta_ids.findings().lost == 0


def test_a_stream_continues_after_rewrite_and_expiry_of_its_iceberg_table(
    iceberg_ids: IdStream, iceberg_table: IcebergLake
) -> None:
    """The snapshots with the batches' summaries have expired; the token is in the table's properties."""
    iceberg_ids.add_files(3)
    iceberg_ids.run()
    table = iceberg_table.load()
    table.overwrite(table.scan().to_arrow())
    old = [snapshot.snapshot_id for snapshot in table.snapshots()[:-1]]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    iceberg_ids.forget_commit(2)
    iceberg_ids.add_files(1)
    iceberg_ids.run()

    assert iceberg_ids.findings().rows == 400
    assert iceberg_ids.findings().problems == []
    assert iceberg_ids.commits() == 1 + 1
