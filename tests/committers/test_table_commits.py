"""What one commit of a file table promises beside other commits, in both formats."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.lakes import rows
from tests.support.streams import SCHEMA, VIEWS, TableStream, stream_of

from penstock.committers.contract import Committed, Conflict, Manifest, Mode, Outcome
from penstock.testing.faults import at_point

WIDER = pa.schema([*SCHEMA, ("note", pa.int32())])


@pytest.fixture(params=[*(f"delta, {snapshot_cache}" for snapshot_cache in sorted(VIEWS)), "iceberg"])
def stream(tmp_path: Path, request: pytest.FixtureRequest) -> TableStream:
    kind, _, snapshot_cache = request.param.partition(", ")
    return stream_of(kind, tmp_path, snapshot_cache)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_version_taken_between_look_and_commit_is_a_conflict(stream: TableStream, mode: Mode) -> None:
    """The rows of the other writer stay, unless the next attempt overwrites them."""
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], mode=mode)
    with at_point("commit.start", lambda: stream.lake.append(100)):
        assert isinstance(stream.committer().commit(manifest), Conflict)
    assert stream.ids() == [1, 100]
    assert stream.lake.orphan_manifests() == set()
    assert isinstance(stream.committer().commit(manifest), Committed)
    assert stream.ids() == ([1, 2, 100] if mode == "append" else [2])


@pytest.mark.parametrize("schema", [SCHEMA, WIDER], ids=["same columns", "new column"])
def test_a_twin_that_lands_between_look_and_commit_is_seen(stream: TableStream, schema: pa.Schema) -> None:
    """The check and the commit are on one handle: a token that came in between makes the commit fail."""
    stream.commit(0, [1])
    manifest = stream.prepare(1, [2], schema=schema, evolve=True)
    point = "evolve.done" if stream.lake.kind == "delta" and schema is WIDER else "commit.start"
    with at_point(point, lambda: stream.committer().commit(manifest)):
        assert not isinstance(stream.committer().commit(manifest), Conflict)
    assert rows(stream.lake, schema.names[-1]) == [(None,), (None,)]
    assert stream.ids() == [1, 2]
    assert [batch_id for _, batch_id, _ in stream.lake.tokens()] == [0, 1]


def test_a_driver_that_wakes_up_late_adds_nothing(stream: TableStream) -> None:
    """While it slept, its twin has committed the batch, and the next one."""
    manifest = stream.prepare(0, [1])

    def go_on() -> None:
        stream.committer().commit(manifest)
        stream.commit(1, [2])

    with at_point("commit.start", go_on):
        stream.committer().commit(manifest)
    assert stream.ids() == [1, 2]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_of_many_twins_exactly_one_lands(stream: TableStream, mode: Mode) -> None:
    batches = 25 if stream.lake.kind == "delta" else 6
    for batch_id in range(batches):
        manifest = stream.prepare(batch_id, [batch_id], mode=mode)
        start = threading.Barrier(4)

        def twin(manifest: Manifest = manifest, start: threading.Barrier = start) -> Outcome:
            start.wait()
            return stream.commit_until_it_ends(manifest)

        with ThreadPoolExecutor(4) as pool:
            [future.result() for future in [pool.submit(twin) for _ in range(4)]]
    assert stream.lake.versions() - stream.lake.versions_when_new == batches
    assert stream.ids() == (list(range(batches)) if mode == "append" else [batches - 1])


def test_of_two_processes_with_one_manifest_exactly_one_lands(stream: TableStream, tmp_path: Path) -> None:
    program = """
import pickle, sys
from penstock.committers.contract import Conflict
new_committer, arguments, manifests = pickle.load(open(sys.argv[1], "rb"))
sys.stdin.readline()
for manifest in manifests:
    while isinstance(new_committer(*arguments).commit(manifest), Conflict):
        pass
"""

    manifests = [stream.prepare(batch_id, [batch_id]) for batch_id in range(8)]
    (tmp_path / "manifests").write_bytes(pickle.dumps((*stream.committer_arguments(), manifests)))
    twins = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "manifests")], stdin=subprocess.PIPE)
        for _ in range(2)
    ]
    for twin in twins:
        assert twin.stdin is not None
        twin.stdin.write(b"go\n")
        twin.stdin.close()
    assert [twin.wait(60) for twin in twins] == [0, 0]
    assert stream.ids() == list(range(8))
    assert stream.lake.versions() - stream.lake.versions_when_new == 8
