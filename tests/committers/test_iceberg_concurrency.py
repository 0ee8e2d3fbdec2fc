"""Hundreds of batches while another program appends, overwrites, alters and expires the same table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import foreign_iceberg_writer
from tests.support.lakes import IcebergLake
from tests.support.query import Batches, Query

from penstock.committers.store.sql import open_store

FOREIGN_WRITER = Path(foreign_iceberg_writer.__file__)
SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("part", pa.int32())])
BATCHES, ROWS = 200, 10
PAUSE_S = 0.5


@pytest.mark.slow
def test_200_batches_and_a_foreign_writer_lose_and_double_nothing(tmp_path: Path) -> None:
    table = IcebergLake(tmp_path, "lake.shared")
    store_url = f"sqlite:///{tmp_path}/store.db"
    stream = Batches(Query(table, options={"store": store_url, "maxCommitAttempts": "100"}))
    stream.run(our_rows(0))
    stop, journal = tmp_path / "stop", tmp_path / "journal.json"
    command = [
        sys.executable,
        str(FOREIGN_WRITER),
        str(tmp_path),
        "lake.shared",
        str(stop),
        str(journal),
        "7",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as foreign:
        try:
            for batch_id in range(1, BATCHES):
                stream.run(our_rows(batch_id))
                assert foreign.poll() is None, foreign.communicate()[1]
        finally:
            stop.touch()
        # It runs until each of its kinds of write has succeeded once. The stream continues with pauses:
        # without pauses, the slower of two writers may lose every race.
        batches = BATCHES
        while foreign.poll() is None:
            stream.run(our_rows(batches))
            batches += 1
            time.sleep(PAUSE_S)
        assert foreign.returncode == 0, foreign.communicate()[1]

    theirs = json.loads(journal.read_text())
    wanted = Counter([*range(batches * ROWS), *theirs["ids"]])
    assert Counter(table.ids()) == wanted
    assert max(table.added().values()) == 1
    assert {"append", "overwrite", "schema", "expire"} <= theirs["done"].keys()
    with open_store(store_url) as store:
        assert [known.pending for known in store.streams()] == [0]


def our_rows(batch_id: int) -> pa.Table:
    ids = pa.array(range(batch_id * ROWS, (batch_id + 1) * ROWS), pa.int64())
    return pa.table([ids, pa.array(["us"] * ROWS), pa.nulls(ROWS, pa.int32())], schema=SCHEMA)
