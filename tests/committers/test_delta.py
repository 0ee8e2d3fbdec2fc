"""A batch is committed once to a Delta table. Rows are read back with duckdb."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.support.streams import VIEWS, DeltaStream, stream_in

from penstock.committers.contract import Committed
from penstock.committers.delta.files import delta_files
from penstock.committers.errors import PenstockError, RetryableError, TableNotSupportedError


@pytest.fixture(params=sorted(VIEWS))
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaStream:
    return stream_in(tmp_path, snapshot_cache=VIEWS[request.param]())


# The token --------------------------------------------------------------------------------------------


def test_the_token_survives_checkpoints_and_transaction_retention(stream: DeltaStream) -> None:
    properties = {"delta.setTransactionRetentionDuration": "interval 0 seconds"}
    stream.commit(0, [1], properties=properties)
    assert stream.committer().token("query-1") is not None
    table = DeltaTable(stream.uri)
    table.create_checkpoint()
    (Path(stream.uri) / "_delta_log" / f"{1:020}.json").unlink()
    token = stream.committer().token("query-1")
    assert token is not None
    assert token.batch_id == 0
    assert token.matches(stream.batch(0).digest)
    assert not token.matches(stream.batch(0, "other").digest)


def test_leading_zeros_of_a_digest_are_kept(stream: DeltaStream) -> None:
    offsets = next(n for n in map(str, range(10_000)) if stream.batch(0, n).digest.startswith("00"))
    stream.commit(0, [1], offsets=offsets)
    token = stream.committer().token("query-1")
    assert token is not None
    assert token.matches(stream.batch(0, offsets).digest)


def test_the_commit_names_its_query_and_batch(stream: DeltaStream) -> None:
    stream.commit(3, [1, 2])
    (info, *_) = DeltaTable(stream.uri).history(1)
    assert json.loads(info["userMetadata"])["penstock"] == {
        "query_id": "query-1",
        "batch_id": 3,
        "digest": stream.batch(3).digest,
        "files": 1,
        "rows": 2,
    }
    assert info["isBlindAppend"] is True


# Conflicts --------------------------------------------------------------------------------------------


def test_rows_of_concurrent_writers_are_each_in_the_table_once(stream: DeltaStream) -> None:
    stream.commit(0, [0])

    def append_all(first: int) -> None:
        for n in range(10):
            stream.lake.append(first + n)

    with ThreadPoolExecutor(3) as pool:
        foreign = [pool.submit(append_all, first) for first in (1000, 2000)]
        for batch_id in range(1, 15):
            stream.commit_until_it_ends(stream.prepare(batch_id, [batch_id]))
        [future.result() for future in foreign]
    assert stream.ids() == [*range(15), *range(1000, 1010), *range(2000, 2010)]


# Overwrite --------------------------------------------------------------------------------------------


def test_overwrite_of_an_append_only_table_is_refused_by_name(stream: DeltaStream) -> None:
    stream.commit(0, [1], properties={"delta.appendOnly": "true"})
    with pytest.raises(TableNotSupportedError, match=r"delta\.appendOnly"):
        stream.prepare(1, [2], mode="overwrite")
    stream.commit(1, [2])
    assert stream.ids() == [1, 2]


# Files and storage ------------------------------------------------------------------------------------


def test_the_files_of_a_big_manifest_are_listed_by_directory(tmp_path: Path) -> None:
    names = [f"day={n % 3}/a%2F b{n}" for n in range(100)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / names[50]).unlink()
    files = delta_files(str(tmp_path), {})
    assert files.missing([*names, "day=9/x"]) == [names[50], "day=9/x"]
    assert files.delete(names) == 99
    assert delta_files(str(tmp_path / "missing"), {}).missing(["a"]) == ["a"]


def test_a_full_disk_loses_nothing_and_the_next_attempt_succeeds(stream: DeltaStream, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk."""
    program = """
import pickle, resource, signal, sys
from penstock.committers.delta.committer import DeltaTableCommitter
manifest = pickle.load(open(sys.argv[1], "rb"))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
try:
    DeltaTableCommitter(manifest.batch.stream.table_uri).commit(manifest)
except Exception as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(type(error).__name__, error)
"""

    manifest = stream.prepare(0, [1])
    (tmp_path / "manifest").write_bytes(pickle.dumps(manifest))
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "manifest")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith("RetryableError"), run.stdout + run.stderr
    assert "The batch was not committed" in run.stdout
    assert stream.committer().commit(manifest) == Committed(1)
    assert stream.ids() == [1]


def test_a_damaged_table_is_reported_as_unreadable(stream: DeltaStream) -> None:
    manifest = stream.prepare(0, [1])
    (Path(stream.uri) / "_delta_log" / f"{0:020}.json").write_text("{damaged")
    with pytest.raises(RetryableError, match="cannot be read") as caught:
        stream.committer().commit(manifest)
    assert isinstance(caught.value, PenstockError)
    assert "\n" not in str(caught.value), "no message has the library's backtrace"
