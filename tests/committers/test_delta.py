"""A batch lands once: replays, other offsets, twins, racing writers. Rows are read back with duckdb."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.committers.delta_stream import SCHEMA, VIEWS, DeltaStream, stream_in
from tests.readers import delta_rows

from penstock.committers.contract import Committed, Conflict, Manifest, Outcome
from penstock.committers.errors import (
    PenstockError,
    RetryableError,
    TableNotSupportedError,
)
from penstock.testing.faults import at_point, crash_at


@pytest.fixture(params=sorted(VIEWS))
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> DeltaStream:
    return stream_in(tmp_path, snapshot_cache=VIEWS[request.param]())


def ids(stream: DeltaStream) -> list[object]:
    return [row[0] for row in delta_rows(Path(stream.uri), "id")]


def commit_until_it_ends(stream: DeltaStream, manifest: Manifest) -> Outcome:
    """What the two-phase committer does, without waiting."""
    for _ in range(1000):
        outcome = stream.committer().commit(manifest)
        if not isinstance(outcome, Conflict):
            return outcome
    raise AssertionError("1000 conflicts")


def append_as_another(stream: DeltaStream, *some: int) -> None:
    write_deltalake(stream.uri, pa.table({"id": some, "name": ["foreign"] * len(some)}), mode="append")


# The token -------------------------------------------------------------------------------------------


def test_the_token_is_in_the_table_and_survives_checkpoints_and_transaction_retention(
    stream: DeltaStream,
) -> None:
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


def test_the_commit_says_who_made_it(stream: DeltaStream) -> None:
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


def test_a_version_taken_between_look_and_commit_is_a_conflict(stream: DeltaStream) -> None:
    manifest = stream.prepare(0, [1])
    with at_point("commit.start", lambda: append_as_another(stream, 100)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert ids(stream) == [100]
    assert stream.committer().commit(manifest) == Committed(2)
    assert ids(stream) == [1, 100]


def test_a_twin_that_lands_between_look_and_commit_is_seen(stream: DeltaStream) -> None:
    """The check and the commit are on one handle: a token that came in between makes the commit fail."""
    manifest = stream.prepare(0, [1])
    with at_point("commit.start", lambda: stream.committer().commit(manifest)):
        outcome = stream.committer().commit(manifest)
    assert not isinstance(outcome, Conflict)
    assert ids(stream) == [1]


def test_a_driver_that_wakes_up_late_adds_nothing(stream: DeltaStream) -> None:
    """While it slept, its twin has committed the batch, and the next one."""
    manifest = stream.prepare(0, [1])

    def go_on() -> None:
        stream.committer().commit(manifest)
        stream.commit(1, [2])

    with at_point("commit.start", go_on):
        stream.committer().commit(manifest)
    assert ids(stream) == [1, 2]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_of_many_twins_exactly_one_lands(stream: DeltaStream, mode: str) -> None:
    for batch_id in range(25):
        manifest = stream.prepare(batch_id, [batch_id], mode=mode)  # type: ignore[arg-type]
        start = threading.Barrier(4)

        def twin(manifest: Manifest = manifest, start: threading.Barrier = start) -> Outcome:
            start.wait()
            return commit_until_it_ends(stream, manifest)

        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(twin) for _ in range(4)]
            [future.result() for future in futures]
    assert DeltaTable(stream.uri).version() == 25
    assert ids(stream) == (list(range(25)) if mode == "append" else [24])


def test_of_two_processes_with_one_manifest_exactly_one_lands(stream: DeltaStream, tmp_path: Path) -> None:
    program = """
import pickle, sys
from penstock.committers.contract import Conflict
from penstock.committers.delta.committer import DeltaTableCommitter
manifests = pickle.load(open(sys.argv[1], "rb"))
sys.stdin.readline()
for manifest in manifests:
    while isinstance(DeltaTableCommitter(manifest.batch.stream.table_uri).commit(manifest), Conflict):
        pass
"""

    manifests = [stream.prepare(batch_id, [batch_id]) for batch_id in range(30)]
    (tmp_path / "manifests").write_bytes(pickle.dumps(manifests))
    twins = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "manifests")], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for twin in twins:
        assert twin.stdin is not None
        twin.stdin.write(b"go\n")
        twin.stdin.close()
    assert [twin.wait(60) for twin in twins] == [0, 0]
    assert ids(stream) == list(range(30))


def test_rows_of_racing_writers_are_all_there_once(stream: DeltaStream) -> None:
    stream.commit(0, [0])

    def append_all(first: int) -> None:
        for n in range(10):
            append_as_another(stream, first + n)

    with ThreadPoolExecutor(3) as pool:
        foreign = [pool.submit(append_all, first) for first in (1000, 2000)]
        for batch_id in range(1, 15):
            commit_until_it_ends(stream, stream.prepare(batch_id, [batch_id]))
        [future.result() for future in foreign]
    assert ids(stream) == [*range(15), *range(1000, 1010), *range(2000, 2010)]


# Overwrite --------------------------------------------------------------------------------------------


def test_overwrite_replaces_rows_appended_while_it_was_committed(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], mode="overwrite")
    with at_point("commit.start", lambda: append_as_another(stream, 100)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert ids(stream) == [1, 100]
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert ids(stream) == [2]


def test_overwrite_of_an_append_only_table_is_refused_by_name(stream: DeltaStream) -> None:
    stream.commit(0, [1], properties={"delta.appendOnly": "true"})
    with pytest.raises(TableNotSupportedError, match=r"delta\.appendOnly"):
        stream.prepare(1, [2], mode="overwrite")
    stream.commit(1, [2])
    assert ids(stream) == [1, 2]


# New columns ------------------------------------------------------------------------------------------


def test_new_columns_are_added_with_the_batch_that_brings_them(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    wider = pa.schema([*SCHEMA, ("extra", pa.timestamp("us"))])
    assert stream.commit(1, [2], schema=wider, evolve=True) == Committed(3)
    assert delta_rows(Path(stream.uri), "id, name, extra") == [(1, None, None), (2, None, None)]


def test_a_crash_after_adding_columns_is_finished_by_the_next_attempt(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    wider = pa.schema([*SCHEMA, ("extra", pa.int32())])
    manifest = stream.prepare(1, [2], schema=wider, evolve=True)
    with crash_at("evolve.done"):
        stream.committer().commit(manifest)
    assert ids(stream) == [1]
    assert stream.committer().commit(manifest) == Committed(3)
    assert ids(stream) == [1, 2]


def test_twins_that_add_the_same_column_land_once(stream: DeltaStream) -> None:
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], schema=pa.schema([*SCHEMA, ("extra", pa.int32())]), evolve=True)
    with at_point("evolve.done", lambda: stream.committer().commit(manifest)):
        stream.committer().commit(manifest)
    assert ids(stream) == [1, 2]
    assert DeltaTable(stream.uri).version() == 3


# Files and storage ------------------------------------------------------------------------------------


def test_missing_files_are_named_and_deleting_them_twice_is_no_error(stream: DeltaStream) -> None:
    manifest = stream.prepare(0, [1])
    other = stream.prepare(0, [2])
    (path,) = [file.name for file in Path(stream.uri).glob("*.parquet") if _holds(file, 1)]
    committer = stream.committer()
    assert committer.missing(manifest) == []
    assert committer.delete_files([path, "never/there.parquet"]) == 1
    assert committer.delete_files([path]) == 0
    assert committer.missing(manifest) == [path]
    assert committer.missing(other) == []


def _holds(file: Path, number: int) -> bool:
    return pl.read_parquet(file)["id"].to_list() == [number]


def test_the_files_of_a_big_manifest_are_looked_for_by_directory(stream: DeltaStream, tmp_path: Path) -> None:
    from penstock.committers.delta.files import delta_files

    names = [f"day={n % 3}/a%2F b{n}" for n in range(100)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / names[50]).unlink()
    files = delta_files(str(tmp_path), {})
    assert files.missing([*names, "day=9/x"]) == [names[50], "day=9/x"]
    assert files.delete(names) == 99


def test_files_below_a_location_that_is_gone_are_missing(stream: DeltaStream, tmp_path: Path) -> None:
    from penstock.committers.delta.files import delta_files

    assert delta_files(str(tmp_path / "gone"), {}).missing(["a"]) == ["a"]


def test_a_full_disk_loses_nothing_and_the_next_attempt_lands(stream: DeltaStream, tmp_path: Path) -> None:
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
    assert ids(stream) == [1]


def test_a_table_that_is_damaged_is_said_to_be_unreadable(stream: DeltaStream) -> None:
    manifest = stream.prepare(0, [1])
    (Path(stream.uri) / "_delta_log" / f"{0:020}.json").write_text("{damaged")
    with pytest.raises(RetryableError, match="cannot be read") as caught:
        stream.committer().commit(manifest)
    assert isinstance(caught.value, PenstockError)
    assert "\n" not in str(caught.value), "the library's backtrace belongs into no message"
