"""Reading Spark's checkpoint: the running batch, and the digest of its source offsets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from penstock import CheckpointGoneError, ConfigurationError, RetryableError
from penstock.datasource.spark.checkpoint import Checkpoint
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


class OffsetLog:
    """Writes Spark's offset log in one of its versions."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.version = version

    def __call__(self, batch_id: int, offsets: Sequence[str] | Mapping[str, str], timestamp: int = 1) -> None:
        """Version 1 does not take names of sources; version 2 has their positions if none are given."""
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": timestamp, "conf": {}})
        lines = list(offsets)
        if self.version > 1:
            named = offsets if isinstance(offsets, Mapping) else dict(zip("0123", offsets, strict=False))
            lines = [f"{source}:{offset}" for source, offset in named.items()]
        text = "\n".join([f"v{self.version}", metadata, *lines])
        (self.root / "offsets" / str(batch_id)).write_text(text)


@pytest.fixture(params=[1, 2])
def log_offsets(request: pytest.FixtureRequest, root: Path) -> OffsetLog:
    """In each version of the offset log."""
    return OffsetLog(root, request.param)


@pytest.fixture
def named_offsets(root: Path) -> OffsetLog:
    """In the version that names sources."""
    return OffsetLog(root, 2)


def log_files(root: Path, name: str, entries: Sequence[tuple[str, int]], source: str = "0") -> None:
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch_id}) for path, batch_id in entries]
    (root / "sources" / source).mkdir(exist_ok=True)
    (root / "sources" / source / name).write_text("\n".join(["v1", *lines]))


def test_the_running_batch_is_the_newest_offset(
    log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    """By number, not by name: 10 comes after 9."""
    for batch_id in (8, 9, 10):
        log_offsets(batch_id, ["7"])
    (root / "offsets" / ".10.crc").write_text("")
    (root / "offsets" / ".11.tmp").write_text("")

    running = checkpoint.running_batch()

    assert (running.query_id, running.batch_id) == (QUERY_ID, 10)


def test_a_replay_has_the_same_digest_at_any_time(log_offsets: OffsetLog, checkpoint: Checkpoint) -> None:
    log_offsets(0, ['{"partition":{"0":5}}'], timestamp=1)
    first = checkpoint.digest(0)
    log_offsets(0, ['{"partition":{"0":5}}'], timestamp=2)

    assert checkpoint.digest(0) == first


@pytest.mark.parametrize("offsets", [["6"], ["5", "5"], ["-"]])
def test_other_offsets_have_another_digest(
    log_offsets: OffsetLog, checkpoint: Checkpoint, offsets: list[str]
) -> None:
    log_offsets(0, ["5"])
    first = checkpoint.digest(0)
    log_offsets(0, offsets)

    assert checkpoint.digest(0) != first


def test_another_beginning_is_another_digest(log_offsets: OffsetLog, checkpoint: Checkpoint) -> None:
    """A checkpoint that was rewound cuts its batches elsewhere, and comes to the same end."""
    log_offsets(0, ["5"])
    log_offsets(1, ["9"])
    first = checkpoint.digest(1)
    log_offsets(0, ["7"])

    assert checkpoint.digest(1) != first


def test_other_files_at_the_same_position_have_another_digest(
    log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    """A file source's offset is only a position in its own log: after a reset it stands for other files."""
    log_offsets(0, ['{"logOffset":0}'])
    log_files(root, "0", [("a.parquet", 0)])
    first = checkpoint.digest(0)
    log_files(root, "0", [("b.parquet", 0)])

    assert checkpoint.digest(0) != first


def changes(checkpoint: Checkpoint, change: Callable[[], object]) -> bool:
    """Does the change give batch 1 another digest?"""
    before = checkpoint.digest(1)
    change()
    return checkpoint.digest(1) != before


def test_a_later_source_changes_no_earlier_batch(
    root: Path, checkpoint: Checkpoint, log_offsets: OffsetLog
) -> None:
    """It logs its first files, or its position, only once it has something."""
    log_offsets(0, ["3", "-"])
    before = checkpoint.digest_of_logged(0)
    (root / "sources" / "1").mkdir()
    (root / "sources" / "1" / "0").write_text('v1\n{"path":"file:///b/0.json","timestamp":1,"batchId":0}')
    log_offsets(1, ["4", '{"logOffset":0}'])
    assert checkpoint.digest_of_logged(0) == before


def test_earlier_batches_are_ignored(log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(0, ['{"logOffset":1}'])
    log_offsets(1, ['{"logOffset":3}'])
    for position in range(4):
        log_files(root, str(position), [(f"{position}.parquet", position)])

    assert not changes(checkpoint, lambda: log_files(root, "1", [("other", 1)]))
    assert changes(checkpoint, lambda: log_files(root, "2", [("other", 2)]))


def test_a_compacted_log_has_the_same_digest(
    log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    """Spark folds every tenth entry and all before it into `<n>.compact`."""
    log_offsets(0, ['{"logOffset":7}'])
    log_offsets(1, ['{"logOffset":9}'])
    entries = [(f"{position}.parquet", position) for position in range(10)]
    for path, position in entries:
        log_files(root, str(position), [(path, position)])

    def compact() -> None:
        log_files(root, "9.compact", entries)
        for _, position in entries:
            (root / "sources/0" / str(position)).unlink()

    assert not changes(checkpoint, compact)


def test_a_file_log_with_a_hole_is_refused(log_offsets: OffsetLog, checkpoint: Checkpoint) -> None:
    log_offsets(0, ['{"logOffset":0}'])

    with pytest.raises(ConfigurationError, match="sources/0 has no entry 0"):
        checkpoint.digest(0)


def test_the_order_of_the_sources_is_ignored(named_offsets: OffsetLog, checkpoint: Checkpoint) -> None:
    """Spark writes version 2 from a hash map."""
    named_offsets(0, {"0": "5", "1": "6", "a": "7"})
    first = checkpoint.digest(0)
    named_offsets(0, {"a": "7", "1": "6", "0": "5"})

    assert checkpoint.digest(0) == first


@pytest.mark.parametrize("offsets", [{"a": "6", "b": "5"}, {"a": "5", "c": "6"}, {"a": "5"}])
def test_each_offset_belongs_to_the_source_of_its_name(
    named_offsets: OffsetLog, checkpoint: Checkpoint, offsets: dict[str, str]
) -> None:
    named_offsets(0, {"a": "5", "b": "6"})
    first = checkpoint.digest(0)
    named_offsets(0, offsets)

    assert checkpoint.digest(0) != first


def test_a_source_begins_where_the_one_of_its_name_has_ended(
    named_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    """Another source was put before it: by its position it would begin somewhere else."""
    named_offsets(0, {"b": '{"logOffset":0}'})
    named_offsets(1, {"a": '{"logOffset":0}', "b": '{"logOffset":1}'})
    for source, position in (("a", 0), ("b", 0), ("b", 1)):
        log_files(root, str(position), [(f"{source}{position}", position)], source)

    assert not changes(checkpoint, lambda: log_files(root, "0", [("other", 0)], "b"))
    assert changes(checkpoint, lambda: log_files(root, "1", [("other", 1)], "b"))
    assert changes(checkpoint, lambda: log_files(root, "0", [("other", 0)], "a"))


def test_another_first_position_has_another_digest(
    log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    """Kafka logs where it begins in its own folder: the first batch has no other beginning."""
    log_offsets(0, ['{"topic":{"0":9}}'])
    log_offsets(1, ['{"topic":{"0":12}}'])
    digests = []
    for first in (b'\0v1\n{"topic":{"0":0}}', b'\0v1\n{"topic":{"0":5}}', b"\xff"):
        (root / "sources/0/0").write_bytes(first)
        digests.append((checkpoint.digest(0), checkpoint.digest(1)))

    assert len({first for first, _ in digests}) == 3
    assert len({second for _, second in digests}) == 1


def test_an_offset_log_of_an_unknown_version_is_refused_by_number(root: Path, checkpoint: Checkpoint) -> None:
    OffsetLog(root, 3)(0, ["5"])

    with pytest.raises(ConfigurationError, match=r"offsets/0 has version 3 .* supports only 1 and 2"):
        checkpoint.running_batch()


def test_an_unknown_file_source_is_refused(
    log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint
) -> None:
    log_offsets(0, ['{"logOffset":0}'])
    (root / "sources/0/0.compact").write_text("v2\n{}")

    with pytest.raises(ConfigurationError, match=r"sources/0/0\.compact has version 2 .* supports only 1 "):
        checkpoint.digest(0)


@pytest.mark.parametrize("text", ["", "v1", "v2\n{}\n5", "{}", "vx\n{}"])
def test_an_incomplete_offset_log_is_refused(root: Path, checkpoint: Checkpoint, text: str) -> None:
    (root / "offsets/0").write_text(text)

    with pytest.raises(ConfigurationError, match="offsets/0 is not a complete Spark log file"):
        checkpoint.digest(0)


def test_a_directory_without_offsets_is_not_the_query_s_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the directory that Spark uses"):
        Checkpoint(LocalFileSystem(), str(tmp_path), "given/by/user").running_batch()


def test_missing_metadata_is_refused(log_offsets: OffsetLog, root: Path, checkpoint: Checkpoint) -> None:
    log_offsets(0, ["5"])
    (root / "metadata").unlink()

    with pytest.raises(ConfigurationError, match="metadata does not exist"):
        checkpoint.running_batch()


# The commits log -------------------------------------------------------------------------------------


def checkpoint_at(root: Path, batches: int, query_id: str = "q", entry: str = "v1\n{}") -> Checkpoint:
    (root / "commits").mkdir(parents=True)
    (root / "metadata").write_text(json.dumps({"id": query_id}))
    for batch_id in range(batches):
        (root / "commits" / str(batch_id)).write_text(entry)
        (root / "commits" / f".{batch_id}.crc").write_text("")
    return Checkpoint(LocalFileSystem(), str(root), str(root))


@pytest.mark.parametrize(("batches", "last"), [(0, -1), (1, 0), (12, 11)])
def test_the_last_commit_is_the_highest_batch(tmp_path: Path, batches: int, last: int) -> None:
    assert checkpoint_at(tmp_path / "cp", batches).last_commit("q") == last


@pytest.mark.parametrize("entry", ['v2\n{"stateUniqueIds":{}}', 'v3\n{"sinkMetadataMap":{}}'])
def test_the_version_of_the_commits_log_does_not_count(tmp_path: Path, entry: str) -> None:
    """Its entries are not read. Version 2 comes with state checkpoints, version 3 with several sinks."""
    assert checkpoint_at(tmp_path / "cp", 3, entry=entry).last_commit("q") == 2


def test_a_query_that_has_committed_nothing_yet_has_no_log(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path / "cp", 0)
    (tmp_path / "cp" / "commits").rmdir()
    assert checkpoint.last_commit() == -1


def test_a_missing_checkpoint_is_an_error_of_its_own(tmp_path: Path) -> None:
    checkpoint = checkpoint_at(tmp_path / "cp", 3)
    shutil.rmtree(tmp_path / "cp")
    with pytest.raises(CheckpointGoneError, match="does not exist"):
        checkpoint.last_commit()


def test_the_checkpoint_of_another_query_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointGoneError, match="now belongs to the query other"):
        checkpoint_at(tmp_path / "cp", 3, "other").last_commit("q")


def test_a_checkpoint_whose_storage_does_not_answer_is_not_missing() -> None:
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    filesystem, place = DeltaFormat(()).open_filesystem("s3://bucket/cp", {**options, **keys})
    with pytest.raises(RetryableError, match="cannot be read: Generic"):
        Checkpoint(filesystem, place, "s3://bucket/cp").last_commit("q")
