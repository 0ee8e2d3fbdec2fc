"""The harness of the plug-in for the conformance suite."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

import duckdb
from penstock_jsonlines import DESTINATION

from penstock.testing.conformance import DestinationHarness, Lost, Promises
from penstock.testing.faults import lossy


class JsonLinesHarness(DestinationHarness):
    """A directory, read by duckdb."""

    destination = DESTINATION
    promises = Promises(
        name="Lines of JSON (the example of a plug-in)",
        payload="files in a directory that readers skip",
        commit="a rename under a lock",
        token="the name of the batch's file",
        overwrites=False,
        checks_schema=False,
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "rows"

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self._folder)}

    def ids(self) -> list[int]:
        if not list(self._folder.glob("*.jsonl")):
            return []
        columns = "columns = {id: 'BIGINT'}, maximum_object_size = 10000000"
        rows = duckdb.sql(f"SELECT id FROM read_json('{self._folder}/*.jsonl', {columns})").fetchall()
        return [row[0] for row in rows]

    def uncommitted(self) -> Collection[str]:
        return {path.name for path in self._folder.glob(".parts/[!.]*")}

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        return lossy(Path, "rename", lost, OSError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self._folder / ".parts" / name).unlink()

    def append(self, row_id: int) -> None:
        (self._folder / f"others-{row_id}.jsonl").write_text(json.dumps({"id": row_id}))

    def drop(self) -> None:
        shutil.rmtree(self._folder)
