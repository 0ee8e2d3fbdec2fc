"""Reading Spark's checkpoint: which batch runs, and what tells its rows from other rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from penstock import CheckpointGoneError, ConfigurationError, RetryableError
from penstock.datasource.checkpoint import Checkpoint
from penstock.writers.delta.table_format import DeltaFormat

QUERY_ID = "32538359-987d-4cf2-964a-3f0751795c53"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("offsets", "commits", "sources/0"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    return tmp_path


@pytest.fixture
def checkpoint(root: Path) -> Checkpoint:
    return Checkpoint(LocalFileSystem(), str(root), str(root))


def log_offsets(root: Path, batch_id: int, offsets: Sequence[str], timestamp: int = 1) -> None:
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": timestamp, "conf": {}})
    (root / "offsets" / str(batch_id)).write_text("\n".join(["v1", metadata, *offsets]))


def log_files(root: Path, name: str, entries: Sequence[tuple[str, int]]) -> None:
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch_id}) for path, batch_id in entries]
    (root / "sources/0" / name).write_text("\n".join(["v1", *lines]))


def test_the_running_batch_is_the_newest_of_the_offset_log(root: Path, checkpoint: Checkpoint) -> None:
    """By number, not by name: 10 comes after 9."""
    for batch_id in (8, 9, 10):
        log_offsets(root, batch_id, ["7"])
    (root / "offsets" / ".10.crc").write_text("")
    (root / "offsets" / ".11.tmp").write_text("")

    running = checkpoint.running_batch()

    assert (running.query_id, running.batch_id) == (QUERY_ID, 10)


def test_a_replay_has_the_same_digest_whatever_the_clock_says(root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(root, 0, ['{"partition":{"0":5}}'], timestamp=1)
    first = checkpoint.digest(0)
    log_offsets(root, 0, ['{"partition":{"0":5}}'], timestamp=2)

    assert checkpoint.digest(0) == first


@pytest.mark.parametrize("offsets", [["6"], ["5", "5"], ["-"]])
def test_other_source_offsets_have_another_digest(
    root: Path, checkpoint: Checkpoint, offsets: list[str]
) -> None:
    log_offsets(root, 0, ["5"])
    first = checkpoint.digest(0)
    log_offsets(root, 0, offsets)

    assert checkpoint.digest(0) != first


def test_another_beginning_is_another_digest(root: Path, checkpoint: Checkpoint) -> None:
    """A checkpoint that was rewound cuts its batches elsewhere, and comes to the same end."""
    log_offsets(root, 0, ["5"])
    log_offsets(root, 1, ["9"])
    first = checkpoint.digest(1)
    log_offsets(root, 0, ["7"])

    assert checkpoint.digest(1) != first


def test_other_files_at_the_same_position_have_another_digest(root: Path, checkpoint: Checkpoint) -> None:
    """A file source's offset is only a position in its own log: after a reset it stands for other files."""
    log_offsets(root, 0, ['{"logOffset":0}'])
    log_files(root, "0", [("a.parquet", 0)])
    first = checkpoint.digest(0)
    log_files(root, "0", [("b.parquet", 0)])

    assert checkpoint.digest(0) != first


def both_ways(change: Callable[[Path], None], root: Path, checkpoint: Checkpoint) -> tuple[str, str]:
    before = checkpoint.digest(1)
    change(root)
    return before, checkpoint.digest(1)


def test_files_of_earlier_batches_do_not_count(root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(root, 0, ['{"logOffset":1}'])
    log_offsets(root, 1, ['{"logOffset":3}'])
    for position in range(4):
        log_files(root, str(position), [(f"{position}.parquet", position)])

    before, after = both_ways(lambda _: log_files(root, "1", [("other", 1)]), root, checkpoint)
    assert before == after
    before, after = both_ways(lambda _: log_files(root, "2", [("other", 2)]), root, checkpoint)
    assert before != after


def test_a_compacted_file_log_gives_the_same_digest(root: Path, checkpoint: Checkpoint) -> None:
    """Spark folds every tenth entry and all before it into `<n>.compact`."""
    log_offsets(root, 0, ['{"logOffset":7}'])
    log_offsets(root, 1, ['{"logOffset":9}'])
    entries = [(f"{position}.parquet", position) for position in range(10)]
    for path, position in entries:
        log_files(root, str(position), [(path, position)])

    def compact(root: Path) -> None:
        log_files(root, "9.compact", entries)
        for _, position in entries:
            (root / "sources/0" / str(position)).unlink()

    before, after = both_ways(compact, root, checkpoint)
    assert before == after


def test_a_file_log_with_a_hole_is_refused(root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(root, 0, ['{"logOffset":0}'])

    with pytest.raises(ConfigurationError, match="sources/0 has no entry 0"):
        checkpoint.digest(0)


def test_a_directory_without_offsets_is_not_the_query_s_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the very directory that Spark uses"):
        Checkpoint(LocalFileSystem(), str(tmp_path), "given/by/user").running_batch()


def test_a_checkpoint_without_metadata_is_refused_by_name(root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(root, 0, ["5"])
    (root / "metadata").unlink()

    with pytest.raises(ConfigurationError, match="metadata does not exist"):
        checkpoint.running_batch()


# The commits log -------------------------------------------------------------------------------------


def checkpoint_at(root: Path, batches: int, query_id: str = "q") -> Checkpoint:
    (root / "commits").mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": query_id}))
    for batch_id in range(batches):
        (root / "commits" / str(batch_id)).write_text("v1\n{}")
        (root / "commits" / f".{batch_id}.crc").write_text("")
    return Checkpoint(LocalFileSystem(), str(root), str(root))


@pytest.mark.parametrize(("batches", "last"), [(0, -1), (1, 0), (12, 11)])
def test_the_last_commit_is_the_highest_batch_in_the_commits_log(
    tmp_path: Path, batches: int, last: int
) -> None:
    assert checkpoint_at(tmp_path / "cp", batches).last_commit("q") == last


def test_a_query_that_has_committed_nothing_yet_has_no_log(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path / "cp", 0)
    (tmp_path / "cp" / "commits").rmdir()
    assert checkpoint.last_commit() == -1


def test_a_checkpoint_that_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path / "cp", 3)
    shutil.rmtree(tmp_path / "cp")
    with pytest.raises(CheckpointGoneError, match="is not there any more"):
        checkpoint.last_commit()


def test_the_checkpoint_of_another_query_in_its_place_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointGoneError, match="is the query other's now"):
        checkpoint_at(tmp_path / "cp", 3, "other").last_commit("q")


def test_a_place_that_does_not_answer_is_not_gone() -> None:
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    filesystem, place = DeltaFormat(()).open_filesystem("s3://bucket/cp", {**options, **keys})
    with pytest.raises(RetryableError, match="cannot be read now"):
        Checkpoint(filesystem, place, "s3://bucket/cp").last_commit("q")
