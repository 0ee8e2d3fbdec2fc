"""A Lance table that others write through pylance, with the methods of `tests.support.lakes`."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
from tests.support.lakes import IDS, ids_alone


class LanceLake:
    """Args:
    stable_row_ids: rows keep their ids when they are compacted
    """

    source = "penstock.lance"
    kind = "lance"

    def __init__(self, folder: Path, *, stable_row_ids: bool = False) -> None:
        self.folder = folder
        self.stable_row_ids = stable_row_ids

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    def load(self) -> lance.LanceDataset:
        return lance.dataset(str(self.folder))

    def create(self, schema: pa.Schema) -> None:
        lance.write_dataset(schema.empty_table(), str(self.folder), enable_stable_row_ids=self.stable_row_ids)

    def append(self, *ids: int) -> None:
        self.append_rows(ids_alone(IDS, ids))

    def append_rows(self, rows: pa.Table) -> None:
        lance.write_dataset(rows, str(self.folder), mode="append")

    def compact(self) -> None:
        self.load().optimize.compact_files()

    def delete(self, number: int) -> None:
        self.load().delete(f"id = {number}")

    def update(self, change: str, condition: str) -> None:
        column, value = change.split(" = ")
        self.load().update({column: value}, where=condition)

    def alter(self, **change: object) -> None:
        """Rename or cast a column."""
        self.load().alter_columns(change)  # type: ignore[arg-type]

    def overwrite(self, rows: pa.Table) -> None:
        lance.write_dataset(rows, str(self.folder), mode="overwrite")

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def add_column(self) -> None:
        self.load().add_columns(pa.field("more", pa.string()))

    def version(self) -> int:
        return self.load().version

    def count(self) -> int:
        return self.load().count_rows()

    def expire(self) -> None:
        """All versions but the newest."""
        self.load().cleanup_old_versions(older_than=timedelta(0))

    def recreate(self) -> None:
        self.drop()
        self.create(IDS)
