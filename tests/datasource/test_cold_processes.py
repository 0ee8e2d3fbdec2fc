"""What a batch loads in the processes that Spark starts for it: they end after a minute without work, and the
first batch after a pause waits for every import again.
"""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.datasource.lake_source import LakeDataSource
from penstock.datasource.task import TaskAttempt

QUERY = "11111111-1111-1111-1111-111111111111"

PLAN = """
import json, pickle, sys
from penstock import {source}
from pyspark.sql.types import LongType, StringType, StructType
source = {source}(json.loads(sys.argv[1]))
writer = source.streamWriter(StructType().add("id", LongType()).add("day", StringType()), overwrite=False)
with open(sys.argv[2], "wb") as file:
    pickle.dump((source, writer), file)
print(json.dumps(sorted(sys.modules)))
"""

COMMIT = """
import json, pickle, sys
from pyspark.sql.types import LongType, StringType, StructType
with open(sys.argv[1], "rb") as file:
    source, messages = pickle.load(file)
writer = source.streamWriter(StructType().add("id", LongType()).add("day", StringType()), overwrite=False)
writer.commit(messages, 0)
print(json.dumps(sorted(sys.modules)))
"""


def loaded_by(program: str, *arguments: str) -> set[str]:
    """The modules that are loaded after the program, in a fresh interpreter."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(json.loads(done.stdout))


def checkpoint(folder: Path) -> str:
    """As Spark leaves it for the sink of the first batch."""
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    (folder / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n7')
    return str(folder)


OPTIONS: dict[str, dict[str, str]] = {
    "DeltaDataSource": {"path": "{}/t", "partitionby": "day"},
    "IcebergDataSource": {"warehouse": "{}/wh", "table": "db.t", "partitionspec": "day"},
}


@pytest.mark.parametrize("source", OPTIONS)
def test_neither_plan_nor_commit_loads_pandas(source: str, tmp_path: Path) -> None:
    """A third of a second each, where it is installed: `pa.array` and `pyarrow.dataset` load it unasked."""
    pytest.importorskip("pandas")
    options = {key: text.format(tmp_path) for key, text in OPTIONS[source].items()}
    options["checkpointlocation"] = checkpoint(tmp_path / "checkpoint")
    planned, committed = tmp_path / "planned", tmp_path / "committed"

    modules = loaded_by(PLAN.format(source=source), json.dumps(options), str(planned))
    assert not modules & {"pandas", "pyarrow.dataset"}

    rows = pa.record_batch(
        {"id": [1, 2], "day": ["a", None]}, pa.schema([("id", "int64"), ("day", "string")])
    )
    data_source, writer = pickle.loads(planned.read_bytes())
    message: Any = writer._plan.write([rows], TaskAttempt(0, 0, "run", QUERY, 0))
    committed.write_bytes(pickle.dumps((data_source, [message])))
    modules = loaded_by(COMMIT, str(committed))
    assert not modules & {"pandas", "pyarrow.dataset"}


class Broken(LakeDataSource):
    """Its table library does not load."""

    def sink(self) -> Any:
        raise ImportError("collects garbage" if gc.isenabled() else "collects none")


def test_no_garbage_is_looked_for_while_libraries_load_and_then_it_is_again() -> None:
    for ask in (Broken({}).streamWriter, Broken({}).writer):
        with pytest.raises(ImportError, match="collects none"):
            ask(None, False)  # type: ignore[arg-type]
        assert gc.isenabled()
