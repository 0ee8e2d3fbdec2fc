"""Folders of files on S3: lost requests, other writers, lost uploads, and storages without conditions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import botocore.retries.standard
import polars as pl
import pyarrow as pa
import pytest
from botocore.awsrequest import AWSResponse
from servers.lossy_proxy import Fault, LossyProxy, lossy_proxy
from servers.s3 import BUCKET
from tests.support.files_s3 import S3FilesHarness

from penstock.committers.contract import (
    AlreadyCommitted,
    AttemptId,
    Batch,
    Committed,
    Conflict,
    Manifest,
    StreamKey,
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
from penstock.committers.files import s3_folder
from penstock.committers.files.bucket import open_bucket
from penstock.committers.files.committer import MANIFESTS, FilesCommitter
from penstock.committers.files.staged import UploadedFile
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.files.sink import FilesTarget, sink_of
from penstock.testing.faults import Crash, at_point, crash_at
from penstock.writers.parquet.uploads import PART_BYTES

ROWS = pa.schema([("id", pa.int64()), ("day", pa.string())])
PART_BYTES_MIN = 5 * 1024 * 1024
"""Limit of S3 for all parts but the last."""


@pytest.fixture(scope="module")
def proxy(s3: dict[str, str]) -> Iterator[LossyProxy]:
    with lossy_proxy(s3["AWS_ENDPOINT_URL"]) as proxy:
        yield proxy


@pytest.fixture
def harness(
    s3: dict[str, str], proxy: LossyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> S3FilesHarness:
    proxy.spend()
    monkeypatch.setattr(botocore.retries.standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
    return S3FilesHarness({**s3, "AWS_ENDPOINT_URL": proxy.url}, tmp_path)


def target_of(harness: S3FilesHarness, **options: str) -> FilesTarget:
    target = sink_of(FilesOptions.parse({**harness.options, **options})).open_table()
    assert isinstance(target, FilesTarget)
    return target


def committer_of(harness: S3FilesHarness) -> FilesCommitter:
    return FilesCommitter(harness.uri, harness.storage)


def staged(
    harness: S3FilesHarness, batch_id: int = 0, *, run_id: str = "run", rows: pa.RecordBatch | None = None
) -> Manifest:
    """A batch of two files, in two partitions."""
    target = target_of(harness, partitionBy="day", compression="uncompressed")
    planned = target.plan_batch(ROWS, "append", batch_id)
    writer = planned.writers.open(AttemptId("q1", run_id, batch_id, 0, 0))
    if rows is None:
        rows = pa.record_batch({"id": [2 * batch_id, 2 * batch_id + 1], "day": ["x", "y z"]}, schema=ROWS)
    writer.write(rows)
    batch = Batch(StreamKey("q1", harness.uri), batch_id, "a" * 64)
    return target.manifest(batch, planned.content, [writer.finish()])


def ids(harness: S3FilesHarness) -> list[int]:
    frame = read(harness)
    assert set(frame["day"]) <= {"x", "y z"}
    return sorted(frame["id"])


def read(harness: S3FilesHarness) -> pl.DataFrame:
    files = f"{harness.uri}/**/*.parquet"
    return pl.read_parquet(files, storage_options=harness.storage, hive_partitioning=True)


def test_a_batch_is_marked_once_its_uploads_are_completed(harness: S3FilesHarness) -> None:
    target = target_of(harness, partitionBy="day", successFiles="partition", batchManifests="true")
    for batch_id in range(2):
        target.commit(staged(harness, batch_id))
    bucket = open_bucket(harness.uri, harness.storage)
    manifests = sorted(bucket.paths("_manifest/"))
    assert manifests == [f"_manifest/q1-{batch_id:020}.manifest" for batch_id in range(2)]
    stored = bucket.get(manifests[1])
    assert stored is not None
    for file in json.loads(stored.content)["files"]:
        assert f"{file['path'].partition('/')[0]}/_SUCCESS" in list(bucket.paths())
        assert file["path"] in list(bucket.paths())
    assert ids(harness) == [0, 1, 2, 3]


FAULTS: list[Fault] = ["request lost", "response lost", "committed, answered 503", "sent twice"]
STEPS = {"journal": "PUT .journal", "completion": "POST uploadId"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_single_fault_is_repeated_within_the_commit(
    harness: S3FilesHarness, proxy: LossyProxy, step: str, fault: Fault
) -> None:
    manifest = staged(harness)
    proxy.spend(fault, on=STEPS[step])
    assert isinstance(committer_of(harness).commit(manifest), Committed)
    assert len(proxy.spent()) == 1

    assert ids(harness) == [0, 1]
    assert not harness.uncommitted()
    assert {path.partition("/")[0] for path in harness.paths()} == {"_penstock", "day=x", "day=y z"}


@pytest.mark.parametrize("fault", FAULTS[:3])
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_storage_that_stops_answering_leaves_the_rest_to_the_next_attempt(
    harness: S3FilesHarness, proxy: LossyProxy, step: str, fault: Fault
) -> None:
    committer, manifest = committer_of(harness), staged(harness)
    proxy.spend(*[fault] * 40, on=STEPS[step])
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
    harness: S3FilesHarness, proxy: LossyProxy
) -> None:
    committer = committer_of(harness)
    committer.commit(staged(harness))
    first = staged(harness, 1)
    late: list[Fault] = ["request late"] * 4
    proxy.spend(*late, on="PUT .journal")
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


@contextmanager
def answered(harness: S3FilesHarness, operation: str, status: int, code: str) -> Iterator[None]:
    """Answer requests as another server would, without sending them."""
    events = open_bucket(harness.uri, harness.storage)._client.meta.events

    def answer(request: Any, **_: Any) -> AWSResponse:
        raw = BytesIO(f"<Error><Code>{code}</Code></Error>".encode())
        raw.stream = lambda **_: iter([raw.getvalue()])  # type: ignore[attr-defined]
        return AWSResponse(request.url, status, {}, raw)

    events.register(f"before-send.s3.{operation}", answer)
    try:
        yield
    finally:
        events.unregister(f"before-send.s3.{operation}", answer)


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchUpload"), (412, "PreconditionFailed"), (500, "")])
def test_a_completed_upload_is_found_by_its_nonce_whatever_the_storage_answers(
    harness: S3FilesHarness, status: int, code: str
) -> None:
    manifest = staged(harness)
    with crash_at("commit.landed"):
        committer_of(harness).commit(manifest)
    bucket = open_bucket(harness.uri, harness.storage)
    for file in MANIFESTS.decode(manifest):
        assert isinstance(file, UploadedFile)
        assert file.upload is not None
        bucket.complete(file.path, file.upload)
    with answered(harness, "CompleteMultipartUpload", status, code):
        token = committer_of(harness).token("q1")

    assert token is not None
    assert ids(harness) == [0, 1]


def test_a_file_of_another_writer_is_refused_before_the_commit(harness: S3FilesHarness) -> None:
    manifest = staged(harness)
    path = sorted(harness.uncommitted())[0]
    harness.put(path, b"others")
    with pytest.raises(TableChangedError, match="exists already"):
        committer_of(harness).commit(manifest)
    assert committer_of(harness).token("q1") is None


def test_a_file_that_another_writer_adds_during_the_commit_is_not_overwritten(
    harness: S3FilesHarness,
) -> None:
    manifest = staged(harness)
    path = sorted(harness.uncommitted())[0]
    with (
        at_point("commit.landed", lambda: harness.put(path, b"others")),
        pytest.raises(TableChangedError, match="another writer"),
    ):
        committer_of(harness).commit(manifest)
    found = harness.client.get_object(Bucket=BUCKET, Key=f"{harness.name}/{path}")
    assert found["Body"].read() == b"others"


@pytest.mark.parametrize("batch_id", [0, 1])
def test_two_drivers_with_other_files_of_one_batch_commit_those_of_one(
    harness: S3FilesHarness, batch_id: int
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


def test_two_processes_that_publish_one_batch_do_not_disturb_each_other(harness: S3FilesHarness) -> None:
    """The files are deleted by their owner before the slow process completes its uploads."""
    manifest = staged(harness)

    def publish_and_delete() -> None:
        committer_of(harness).token("q1")
        for path in harness.paths():
            if path.endswith(".parquet"):
                harness.client.delete_object(Bucket=BUCKET, Key=f"{harness.name}/{path}")

    publish, others = s3_folder.S3Folder.publish, [publish_and_delete]

    def slow(place: s3_folder.S3Folder, files: Any) -> None:
        if others:
            others.pop()()
        publish(place, files)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3_folder.S3Folder, "publish", slow)
        assert isinstance(committer_of(harness).commit(manifest), Committed)


def test_uploads_that_a_lifecycle_rule_has_aborted_are_an_error_that_names_it(
    harness: S3FilesHarness,
) -> None:
    manifest, committer = staged(harness), committer_of(harness)
    harness.delete_uncommitted()
    assert len(committer.missing(manifest)) == 2
    assert all("lifecycle rule" in why for why in committer.missing(manifest))
    with pytest.raises(RetryableError, match="lifecycle rule"):
        committer.commit(manifest)
    assert committer.token("q1") is None


def test_a_committed_batch_whose_uploads_were_aborted_is_an_error(harness: S3FilesHarness) -> None:
    manifest = staged(harness)
    with crash_at("commit.landed"):
        committer_of(harness).commit(manifest)
    harness.delete_uncommitted()
    for _ in range(2):
        with pytest.raises(TableChangedError, match="lifecycle rule"):
            committer_of(harness).token("q1")


CONDITIONS = [
    ("PutObject", "If-None-Match"),
    ("PutObject", "If-Match"),
    ("CompleteMultipartUpload", "If-None-Match"),
]


@pytest.mark.parametrize(("operation", "header"), CONDITIONS)
def test_a_storage_that_ignores_a_condition_is_refused_before_any_row_is_written(
    harness: S3FilesHarness, operation: str, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_folder, "_checked", set())
    events = open_bucket(harness.uri, harness.storage)._client.meta.events

    def ignore(request: Any, **_: Any) -> None:
        del request.headers[header]

    events.register(f"before-sign.s3.{operation}", ignore)
    try:
        with pytest.raises(ConfigurationError, match=f"ignores the condition {header} of {operation},"):
            staged(harness)
    finally:
        events.unregister(f"before-sign.s3.{operation}", ignore)
    assert not [path for path in harness.uncommitted() if not path.startswith("_penstock")]
    staged(harness)


def test_the_conditions_are_checked_once_in_a_process(
    harness: S3FilesHarness, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_folder, "_checked", set())
    staged(harness)
    assert "_penstock/probe" in harness.paths()
    proxy.spend("denied", on="PUT probe")
    staged(harness, 1)
    assert proxy.spent() == []


def test_a_large_file_is_uploaded_in_parts_that_s3_accepts(harness: S3FilesHarness) -> None:
    count = 6 * PART_BYTES // 5 // 8
    values = pa.py_buffer(random.Random(1).randbytes(8 * count))  # they are not compressed
    numbers = pa.Array.from_buffers(pa.int64(), count, [None, values])
    rows = pa.record_batch({"id": numbers, "day": ["x"] * count}, schema=ROWS)
    manifest = staged(harness, rows=rows)
    (file,) = MANIFESTS.decode(manifest)
    assert isinstance(file, UploadedFile)
    assert file.upload is not None
    key = {"Bucket": BUCKET, "Key": f"{harness.name}/{file.path}", "UploadId": file.upload.upload_id}
    sizes = [part["Size"] for part in harness.client.list_parts(**key)["Parts"]]
    assert len(sizes) == len(file.upload.etags) > 1
    assert min(sizes[:-1]) >= PART_BYTES_MIN
    assert sum(sizes) == file.size_bytes

    committer_of(harness).commit(manifest)
    assert read(harness)["id"].sort().equals(pl.Series(numbers).sort())


def test_a_task_that_cannot_upload_leaves_no_upload(harness: S3FilesHarness, proxy: LossyProxy) -> None:
    planned = target_of(harness).plan_batch(ROWS, "append", 0)
    writer = planned.writers.open(AttemptId("q1", "run", 0, 0, 0))
    writer.write(pa.record_batch({"id": [1], "day": ["x"]}, schema=ROWS))
    proxy.spend("denied", on="PUT partNumber")
    with pytest.raises(AccessRefusedError, match="could not be uploaded"):
        writer.finish()
    writer.abort()
    assert not harness.uncommitted()


def test_several_batches_are_committed_at_once(harness: S3FilesHarness) -> None:
    """As a delivery does."""
    committer, manifests = committer_of(harness), [staged(harness, batch_id) for batch_id in range(3)]
    merged = committer.merge(committer.mergeable(manifests), None)
    assert isinstance(committer.commit(merged), Committed)
    assert ids(harness) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "path", ["_delta_log/0.json", "metadata/v1.metadata.json", ".hoodie/hoodie.properties"]
)
def test_tables_of_other_formats_are_refused(harness: S3FilesHarness, path: str) -> None:
    harness.put(path, b"")
    with pytest.raises(TableNotSupportedError, match="is a table of"):
        staged(harness)


def test_rows_that_do_not_fit_the_files_are_refused(harness: S3FilesHarness) -> None:
    committer_of(harness).commit(staged(harness))
    other = pa.schema([("id", pa.string()), ("day", pa.string())])
    with pytest.raises(SchemaMismatchError, match=r"id: .* has int64, the rows have string"):
        target_of(harness, partitionBy="day").plan_batch(other, "append", 1)


def test_a_crash_between_two_completions_is_finished_by_the_next_process(
    harness: S3FilesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, left = s3_folder.S3Folder._publish, ["one"]

    def dies_after_one(place: s3_folder.S3Folder, file: Any) -> None:
        try:
            left.pop()
        except IndexError:
            raise Crash("between two completions") from None
        publish(place, file)

    manifest = staged(harness)
    with monkeypatch.context() as patch:
        patch.setattr(s3_folder.S3Folder, "_publish", dies_after_one)
        with pytest.raises(Crash):
            committer_of(harness).commit(manifest)
    assert len(ids(harness)) == 1
    assert committer_of(harness).token("q1") is not None
    assert ids(harness) == [0, 1]
