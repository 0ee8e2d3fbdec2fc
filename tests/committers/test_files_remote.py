"""Folders of files on S3 and Azure: lost requests, other writers, lost uploads, and storages without
conditions.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.s3 import s3_options
from tests.support.file_rows import stage, target_of
from tests.support.files_remote import AzureFilesHarness, RemoteFilesHarness, S3FilesHarness

from penstock.committers.contract import (
    AlreadyCommitted,
    AttemptId,
    Committed,
    Conflict,
    Manifest,
)
from penstock.committers.errors import (
    AccessRefusedError,
    CommitStateUnknownError,
    ConfigurationError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from penstock.committers.files import object_folder
from penstock.committers.files.committer import FilesCommitter
from penstock.committers.files.manifests import MANIFESTS
from penstock.committers.files.object_folder import ObjectFolder
from penstock.committers.files.staged import UploadedFile
from penstock.testing.faults import Crash, at_point, crash_at
from penstock.writers.parquet.uploads import PART_BYTES

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])
PART_BYTES_MIN = 5 * 1024 * 1024
"""Limit of S3 for all parts but the last."""


@pytest.fixture(scope="module", params=["S3", "Azure"])
def proxy(request: pytest.FixtureRequest) -> Iterator[LossyProxy]:
    """In front of a server of each storage."""
    is_s3 = request.param == "S3"
    url = request.getfixturevalue("s3")["AWS_ENDPOINT_URL"] if is_s3 else request.getfixturevalue("azure")
    with lossy_proxy(url) as proxy:
        yield proxy


@pytest.fixture
def harness(
    proxy: LossyProxy, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RemoteFilesHarness:
    proxy.spend()
    harness: RemoteFilesHarness
    if request.node.callspec.params["proxy"] == "S3":
        harness = S3FilesHarness(s3_options(proxy.url), tmp_path)
    else:
        harness = AzureFilesHarness(proxy.url, tmp_path)
    harness.without_delays(monkeypatch)
    return harness


def committer_of(harness: RemoteFilesHarness) -> FilesCommitter:
    return FilesCommitter(harness.uri, harness.storage)


def staged(
    harness: RemoteFilesHarness,
    batch_id: int = 0,
    *,
    run_id: str = "run",
    rows: pa.Table | None = None,
    **options: str,
) -> Manifest:
    """A batch of two files, in two partitions."""
    if rows is None:
        rows = pa.table({"id": [2 * batch_id, 2 * batch_id + 1], "day": ["x", "y z"]}, schema=ROWS)
    target = target_of(harness, partitionBy="day", compression="uncompressed", **options)
    return stage(target, rows, batch_id, run_id=run_id)


def ids(harness: RemoteFilesHarness) -> list[int]:
    frame = read(harness)
    assert set(frame["day"]) <= {"x", "y z"}
    return sorted(frame["id"])


def read(harness: RemoteFilesHarness) -> pl.DataFrame:
    files = f"{harness.uri}/**/*.parquet"
    return pl.read_parquet(files, storage_options=harness.storage, hive_partitioning=True)


def test_a_batch_is_marked_once_its_uploads_are_completed(harness: RemoteFilesHarness) -> None:
    for batch_id in range(2):
        manifest = staged(harness, batch_id, successFiles="partition", batchManifests="true")
        committer_of(harness).commit(manifest)
    paths = harness.paths()
    manifests = sorted(path for path in paths if path.startswith("_manifest/"))
    assert manifests == [f"_manifest/q1-{batch_id:020}.manifest" for batch_id in range(2)]
    for file in json.loads(harness.read(manifests[1]))["files"]:
        assert {file["path"], f"{file['path'].partition('/')[0]}/_SUCCESS"} <= {*paths}
    assert ids(harness) == [0, 1, 2, 3]


FAULTS: list[Fault] = ["request lost", "response lost", "committed, answered 503", "sent twice"]
STEPS = ("completion", "journal")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", STEPS)
def test_a_single_fault_is_repeated_within_the_commit(
    harness: RemoteFilesHarness, proxy: LossyProxy, step: str, fault: Fault
) -> None:
    manifest = staged(harness)
    proxy.spend(fault, on=harness.steps[step])
    assert isinstance(committer_of(harness).commit(manifest), Committed)
    assert len(proxy.spent()) == 1

    assert ids(harness) == [0, 1]
    assert not harness.uncommitted()
    assert {path.partition("/")[0] for path in harness.paths()} == {"_penstock", "day=x", "day=y z"}


@pytest.mark.parametrize("fault", FAULTS[:3])
@pytest.mark.parametrize("step", STEPS)
def test_a_storage_that_stops_answering_leaves_the_rest_to_the_next_attempt(
    harness: RemoteFilesHarness, proxy: LossyProxy, step: str, fault: Fault
) -> None:
    committer, manifest = committer_of(harness), staged(harness)
    proxy.spend(*[fault] * 40, on=harness.steps[step])
    try:
        committer.commit(manifest)
    except CommitStateUnknownError:
        """It may be committed."""
    assert len(proxy.spent()) >= 4
    proxy.spend()

    assert isinstance(committer.commit(manifest), Committed | AlreadyCommitted)
    assert ids(harness) == [0, 1]
    assert not harness.uncommitted()


def test_a_late_commit_of_a_journal_that_was_replaced_meanwhile_is_refused(
    harness: RemoteFilesHarness, proxy: LossyProxy
) -> None:
    committer = committer_of(harness)
    committer.commit(staged(harness))
    first = staged(harness, 1)
    late: list[Fault] = ["request late"] * 4
    proxy.spend(*late, on=harness.steps["journal"])
    with pytest.raises(CommitStateUnknownError, match="may or may not"):
        committer.commit(first)
    proxy.spend()
    committer.commit(first)
    committer.commit(staged(harness, 2))
    assert proxy.deliver_late() == [412] * 4

    token = committer.token("q1")
    assert token is not None
    assert token.batch_id == 2
    assert ids(harness) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("answer", ["missing", "exists", "outage"])
def test_a_completed_upload_is_found_by_its_nonce_whatever_the_storage_answers(
    harness: RemoteFilesHarness, answer: str
) -> None:
    manifest = staged(harness)
    with crash_at("commit.landed"):
        committer_of(harness).commit(manifest)
    for file in MANIFESTS.decode(manifest):
        assert isinstance(file, UploadedFile)
        assert file.upload is not None
        harness.store.complete(file.path, file.upload)
    with harness.answering(*harness.answers[answer]):
        token = committer_of(harness).token("q1")

    assert token is not None
    assert ids(harness) == [0, 1]


def test_a_file_of_another_writer_is_refused_before_the_commit(harness: RemoteFilesHarness) -> None:
    manifest = staged(harness)
    path = sorted(harness.uncommitted())[0]
    harness.put(path, b"others")
    with pytest.raises(TableChangedError, match="exists already"):
        committer_of(harness).commit(manifest)
    assert committer_of(harness).token("q1") is None


def test_a_file_that_another_writer_adds_during_the_commit_is_not_overwritten(
    harness: RemoteFilesHarness,
) -> None:
    manifest = staged(harness)
    path = sorted(harness.uncommitted())[0]
    with (
        at_point("commit.landed", lambda: harness.put(path, b"others")),
        pytest.raises(TableChangedError, match="another writer"),
    ):
        committer_of(harness).commit(manifest)
    assert harness.read(path) == b"others"


@pytest.mark.parametrize("batch_id", [0, 1])
def test_two_drivers_with_other_files_of_one_batch_commit_those_of_one(
    harness: RemoteFilesHarness, batch_id: int
) -> None:
    """The second one had read the journal before the first one replaced or created it."""
    for earlier in range(batch_id):
        committer_of(harness).commit(staged(harness, earlier))
    slow, fast = staged(harness, batch_id, run_id="slow"), staged(harness, batch_id, run_id="fast")
    with at_point("commit.start", lambda: committer_of(harness).commit(fast)):
        outcome = committer_of(harness).commit(slow)
    assert isinstance(outcome, Conflict)
    assert isinstance(committer_of(harness).commit(slow), AlreadyCommitted)

    assert ids(harness) == list(range(2 * batch_id + 2))


def test_two_processes_that_publish_one_batch_do_not_disturb_each_other(harness: RemoteFilesHarness) -> None:
    """The files are deleted by their owner before the slow process completes its uploads."""
    manifest = staged(harness)

    def publish_and_delete() -> None:
        committer_of(harness).token("q1")
        for path in harness.paths():
            if path.endswith(".parquet"):
                harness.delete(path)

    publish, others = ObjectFolder.publish, [publish_and_delete]

    def slow(place: ObjectFolder, files: Any) -> None:
        if others:
            others.pop()()
        publish(place, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ObjectFolder, "publish", slow)
        assert isinstance(committer_of(harness).commit(manifest), Committed)


def test_uploads_that_a_rule_has_deleted_are_an_error_that_names_it(
    harness: RemoteFilesHarness,
) -> None:
    manifest, committer = staged(harness), committer_of(harness)
    harness.delete_uncommitted()
    assert len(committer.missing(manifest)) == 2
    assert all(harness.rule in why for why in committer.missing(manifest))
    with pytest.raises(RetryableError, match=harness.rule):
        committer.commit(manifest)
    assert committer.token("q1") is None


def test_a_committed_batch_whose_uploads_were_aborted_is_an_error(harness: RemoteFilesHarness) -> None:
    manifest = staged(harness)
    with crash_at("commit.landed"):
        committer_of(harness).commit(manifest)
    harness.delete_uncommitted()
    for _ in range(2):
        with pytest.raises(TableChangedError, match=harness.rule):
            committer_of(harness).token("q1")


@pytest.mark.parametrize("request_name", ["create", "replace", "complete"])
def test_a_storage_that_ignores_a_condition_is_refused_before_any_row_is_written(
    harness: RemoteFilesHarness, request_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_folder, "_checked", set())
    condition = harness.store.conditions[request_name]
    header, _, operation = condition.partition(" of ")
    with (
        harness.ignoring(header, operation),
        pytest.raises(ConfigurationError, match=f"ignores the condition {condition},"),
    ):
        staged(harness)
    assert not [path for path in harness.uncommitted() if not path.startswith("_penstock")]
    staged(harness)


def test_the_conditions_are_checked_once_in_a_process(
    harness: RemoteFilesHarness, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_folder, "_checked", set())
    staged(harness)
    assert "_penstock/probe" in harness.paths()
    proxy.spend("denied", on="PUT probe")
    staged(harness, 1)
    assert proxy.spent() == []


def test_a_large_file_is_uploaded_in_parts_that_the_storage_accepts(harness: RemoteFilesHarness) -> None:
    count = 6 * PART_BYTES // 5 // 8
    values = pa.py_buffer(random.Random(1).randbytes(8 * count))  # they are not compressed
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, values])
    rows = pa.table({"id": numbers, "day": ["x"] * count}, schema=ROWS)
    manifest = staged(harness, rows=rows)
    (file,) = MANIFESTS.decode(manifest)
    assert isinstance(file, UploadedFile)
    assert file.upload is not None
    sizes = harness.part_sizes(file.path, file.upload)
    assert len(sizes) == len(file.upload.parts) > 1
    assert min(sizes[:-1]) >= PART_BYTES_MIN
    assert sum(sizes) == file.size_bytes

    committer_of(harness).commit(manifest)
    assert read(harness)["id"].sort().equals(pl.Series(numbers).sort())


def test_a_task_that_cannot_upload_leaves_no_upload(harness: RemoteFilesHarness, proxy: LossyProxy) -> None:
    planned = target_of(harness).plan_batch(ROWS, "append", 0)
    writer = planned.writers.open(AttemptId("q1", "run", 0, 0, 0))
    writer.write(pa.record_batch({"id": [1], "day": ["x"]}, schema=ROWS))
    proxy.spend("denied", on=harness.steps["part"])
    with pytest.raises(AccessRefusedError, match="could not be uploaded"):
        writer.finish()
    writer.abort()
    assert not harness.uncommitted()


def test_several_batches_are_committed_at_once(harness: RemoteFilesHarness) -> None:
    """As a delivery does."""
    committer, manifests = committer_of(harness), [staged(harness, batch_id) for batch_id in range(3)]
    merged = committer.merge(committer.mergeable(manifests), None)
    assert isinstance(committer.commit(merged), Committed)
    assert ids(harness) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "path", ["_delta_log/0.json", "metadata/v1.metadata.json", ".hoodie/hoodie.properties"]
)
def test_tables_of_other_formats_are_refused(harness: RemoteFilesHarness, path: str) -> None:
    harness.put(path, b"")
    with pytest.raises(TableNotSupportedError, match="is a table of"):
        staged(harness)


def test_rows_that_do_not_fit_the_files_are_refused(harness: RemoteFilesHarness) -> None:
    committer_of(harness).commit(staged(harness))
    other = pa.schema([("id", pa.string()), ("day", pa.string())])
    with pytest.raises(SchemaMismatchError, match=r"id: .* has int64, the rows have string"):
        target_of(harness, partitionBy="day").plan_batch(other, "append", 1)


def test_a_crash_between_two_completions_is_finished_by_the_next_process(
    harness: RemoteFilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, left = ObjectFolder._publish, ["one"]

    def dies_after_one(place: ObjectFolder, file: Any) -> None:
        try:
            left.pop()
        except IndexError:
            raise Crash("between two completions") from None
        publish(place, file)

    manifest = staged(harness)
    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "_publish", dies_after_one)
        with pytest.raises(Crash):
            committer_of(harness).commit(manifest)
    assert len(ids(harness)) == 1
    assert committer_of(harness).token("q1") is not None
    assert ids(harness) == [0, 1]
