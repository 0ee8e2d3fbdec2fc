"""Five hundred batches while another program appends, overwrites, alters and expires the same table."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from tests.tables import IcebergOnDisk, rows

from penstock.committers.contract import Batch, Committable, StreamKey
from penstock.committers.lake_manifest import build_manifest
from penstock.committers.store.sql import open_store
from penstock.committers.two_phase import Decision, TwoPhaseCommitter
from penstock.datasource.options.iceberg import IcebergOptions
from penstock.datasource.sinks.iceberg import IcebergSink
from penstock.writers.data_files import DataFileWriter
from penstock.writers.plan import FileNames

FOREIGN_WRITER = Path(__file__).with_name("foreign_iceberg_writer.py")
SCHEMA = pa.schema([("id", pa.int64()), ("who", pa.string()), ("part", pa.int32())])
BATCHES, ROWS = 500, 10


@pytest.mark.slow
def test_500_batches_beside_a_foreign_writer_lose_and_double_nothing_of_either(tmp_path: Path) -> None:
    sink = IcebergSink(IcebergOptions(warehouse=str(tmp_path), table="lake.shared", commit_attempts_max=100))
    stream = Stream(sink, f"sqlite:///{tmp_path}/store.db")
    stream.run(0)
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
                stream.run(batch_id)
                assert foreign.poll() is None, foreign.communicate()[1]
        finally:
            stop.touch()
        assert foreign.wait(60) == 0, foreign.communicate()[1]

    theirs = json.loads(journal.read_text())
    wanted = Counter([*range(BATCHES * ROWS), *theirs["ids"]])
    table = IcebergOnDisk(tmp_path, "lake.shared")
    assert Counter(identifier for (identifier,) in rows(table, "id")) == wanted
    assert max(table.added().values()) == 1
    assert {what for what in theirs["done"] if "lost" not in what} == {
        "append",
        "overwrite",
        "schema",
        "expire",
    }
    assert stream.pending() == 0


class Stream:
    """What Spark and the sink do for batches of one query, without Spark."""

    def __init__(self, sink: IcebergSink, store_url: str) -> None:
        self._sink = sink
        self._store_url = store_url
        self._key = StreamKey("q", sink.table_uri)

    def run(self, batch_id: int) -> None:
        batch = Batch(self._key, batch_id, hashlib.sha256(str(batch_id).encode()).hexdigest())
        with open_store(self._store_url) as store:
            table = self._sink.open_table()
            assert TwoPhaseCommitter(store, table).begin(batch) is Decision.WRITE
            planned = self._sink.plan_table(table, SCHEMA, False, batch_id)
            store.register(self._key, self._sink.kind, table_id=planned.content.table_id)
        names = FileNames("q", "run", batch_id, 0, 0)
        writer = DataFileWriter(planned.files, names)
        ids = pa.array(range(batch_id * ROWS, (batch_id + 1) * ROWS), pa.int64())
        who = pa.array(["us"] * ROWS)
        writer.write(pa.record_batch([ids, who, pa.nulls(ROWS, pa.int32())], schema=SCHEMA))
        files = writer.close()
        with open_store(self._store_url) as store:
            manifest = build_manifest(batch, planned.content.with_files(files))
            committer = TwoPhaseCommitter(store, self._sink.open_table())
            committer.commit(manifest, [Committable(batch, "run", 0, 0, files)])
            self._sink.maintain(store, batch_id)

    def pending(self) -> int:
        with open_store(self._store_url) as store:
            return len(store.pending(self._key))
