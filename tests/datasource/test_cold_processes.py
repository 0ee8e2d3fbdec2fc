"""What a batch loads in the processes that Spark starts for it: they end after a minute without work, and the
first batch after a pause waits for every import again.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.datasource.spark.base_source import PenstockDataSource

QUERY = "11111111-1111-1111-1111-111111111111"

PLAN = """
import json, pickle, sys
from penstock import {source}
from pyspark.sql.types import StructType
source = {source}(json.loads(sys.argv[1]))
writer = source.streamWriter(StructType.fromJson({schema}), overwrite=False)
with open(sys.argv[2], "wb") as file:
    pickle.dump((source, writer), file)
"""

WRITE = """
import pickle, sys
import pyarrow as pa
from penstock.datasource.spark.task import TaskAttempt
with open(sys.argv[1], "rb") as file:
    _, writer = pickle.load(file)
with pa.memory_map(sys.argv[2]) as file:
    rows = pa.ipc.open_file(file).read_all()
message = writer._plan.write(rows.to_batches(1000), TaskAttempt(0, 0, "run", "{query}", 0))
with open(sys.argv[3], "wb") as file:
    pickle.dump([message], file)
"""

COMMIT = """
import pickle, sys
from pyspark.sql.types import StructType
with open(sys.argv[1], "rb") as file:
    source, _ = pickle.load(file)
with open(sys.argv[2], "rb") as file:
    messages = pickle.load(file)
writer = source.streamWriter(StructType.fromJson({schema}), overwrite=False)
writer.commit(messages, 0)
"""


WATCHED = """
import gc
searched = [0]
def note(phase, info):
    if (phase, info["generation"]) == ("start", 2):
        searched.append(len(gc.get_objects()))
gc.callbacks.append(note)
"""
SEARCHED_MAX = 70_000
"""Objects: those of Spark. With the table libraries, there are 110,000 to 160,000."""


def loaded_by(program: str, *arguments: str) -> set[str]:
    """The modules that are loaded after the program, in a fresh interpreter. No search for garbage visits
    the objects of these modules: that takes a quarter of a second.
    """
    program = f"{WATCHED}{program}import json, sys; print(json.dumps([max(searched), *sorted(sys.modules)]))"
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    searched, *modules = json.loads(done.stdout)
    assert searched < SEARCHED_MAX
    return set(modules)


def checkpoint(folder: Path) -> str:
    """As Spark leaves it for the sink of the first batch."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    (folder / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n7')
    return str(folder)


COLUMNS = {
    "id": "long",
    "day": "string",
    "n": "integer",
    "f": "double",
    "g": "float",
    "at": "timestamp",
    "flags": {"type": "array", "elementType": "boolean", "containsNull": True},
}
SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True} for name, kind in COLUMNS.items()],
}

OPTIONS: dict[str, dict[str, str]] = {
    "DeltaDataSource": {"path": "{}/t", "partitionby": "day, n"},
    "IcebergDataSource": {
        "warehouse": "{}/wh",
        "table": "db.t",
        "partitionspec": "day, g, hour(at), bucket(4, id)",
        "sortorder": "f DESC, id",
    },
}


def some_rows() -> pa.Table:
    """Enough rows for a choice of encodings, in several table partitions."""
    hour = datetime(2026, 1, 1, tzinfo=timezone.utc)
    return pa.table(
        {
            "id": range(4000),
            "day": ["a", None, "", "b"] * 1000,
            "n": pa.array([1, None] * 2000, pa.int32()),
            "f": [0.5, float("nan")] * 2000,
            "g": pa.array([0.5, float("nan")] * 2000, pa.float32()),
            "at": pa.array([hour, hour + timedelta(hours=1)] * 2000, pa.timestamp("us", "UTC")),
            "flags": [[True, None], []] * 2000,
        }
    )


@pytest.mark.parametrize("source", OPTIONS)
def test_neither_plan_nor_task_nor_commit_loads_pandas(source: str, tmp_path: Path) -> None:
    """A quarter of a second each, where it is installed: `pa.array` and `pyarrow.dataset` load it unasked."""
    pytest.importorskip("pandas")
    options = {key: text.format(tmp_path) for key, text in OPTIONS[source].items()}
    options["checkpointlocation"] = checkpoint(tmp_path / "checkpoint")
    planned, written, rows = (str(tmp_path / name) for name in ("planned", "written", "rows"))
    with pa.OSFile(rows, "wb") as file, pa.ipc.new_file(file, some_rows().schema) as writer:
        writer.write_table(some_rows())

    modules = loaded_by(PLAN.format(source=source, schema=SCHEMA), json.dumps(options), planned)
    assert not modules & {"pandas", "pyarrow.dataset"}
    modules = loaded_by(WRITE.format(query=QUERY), planned, rows, written)
    assert not modules & {"pandas", "pyarrow.dataset"}
    modules = loaded_by(COMMIT.format(schema=SCHEMA), planned, written)
    assert not modules & {"pandas", "pyarrow.dataset"}
    assert duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/**/*.parquet'").fetchall() == [(4000,)]


RARE = """
import pyarrow as pa
from penstock.committers.arrow_values import string_array
from penstock.writers.parquet.schema_projection import SchemaProjector
from penstock.writers.iceberg.partitions import hash_directories
rows = pa.RecordBatch.from_arrays([string_array(["{query}", None])], names=["u"])
assert SchemaProjector(pa.schema([("u", pa.uuid())]), "here")(rows).num_rows == 2
assert hash_directories("data/file.parquet")
"""


def test_neither_uuids_nor_hashed_paths_load_pandas() -> None:
    pytest.importorskip("pandas")
    assert "pandas" not in loaded_by(RARE.format(query=QUERY))


class Broken(PenstockDataSource):
    """Its table library does not load."""

    def sink(self) -> Any:
        raise ImportError("collects garbage" if gc.isenabled() else "collects none")


def test_garbage_is_not_collected_while_libraries_load() -> None:
    for ask in (Broken({}).streamWriter, Broken({}).writer):
        with pytest.raises(ImportError, match="collects none"):
            ask(None, False)  # type: ignore[arg-type]
        assert gc.isenabled()
