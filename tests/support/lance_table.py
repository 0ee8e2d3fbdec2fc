"""A Lance table on the local disk for tests, written by other programs too."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import lance
import pyarrow as pa
from tests.support.harness import CRASH_POINTS, FileTableHarness

from penstock.datasource.lance.sink import DESTINATION
from penstock.testing.conformance import SECRET, Lost, Promises
from penstock.testing.conformance.harness import ChangedRow
from penstock.testing.faults import lossy

IDS = pa.schema([("id", pa.int64())])


class LanceHarness(FileTableHarness):
    """No other engine here reads Lance: its own reader checks each file against the table."""

    destination = DESTINATION
    promises = Promises(
        name="Lance tables",
        payload="data files in the table's folder, which no version names",
        commit="the next version's manifest, created if it is not there",
        token="the schema's metadata in the same version",
        changes="masks them with deletion files",
        ignores_late_rows=False,
        shows_secrets_to_tasks=True,
        narrows=True,
        quarantines=True,
        reserved_columns=("_rowid", "_distance", "_score"),
        crash_points=(*CRASH_POINTS, "evolve.done"),
    )
    secrets: ClassVar = {"storage.AWS_SECRET_ACCESS_KEY": SECRET}

    def __init__(self, folder: Path) -> None:
        self.path = folder / "table.lance"

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.path)}

    @property
    def read_options(self) -> dict[str, str]:
        return self.options

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {
            "path": "s3://bucket/table",
            "storage.AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.unreachable_port}",
            "storage.AWS_ALLOW_HTTP": "true",
            "storage.AWS_ACCESS_KEY_ID": "key",
            "storage.AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def table(self) -> lance.LanceDataset:
        return lance.dataset(str(self.path))

    @property
    def exists(self) -> bool:
        return (self.path / "_versions").exists()

    def ids(self) -> list[int]:
        """Read by SQL (DataFusion), which plans on the table's metadata and not on one version's handle."""
        if not self.exists:
            return []
        rows = self.table().sql("SELECT id FROM dataset").build().to_batch_records()
        return [row_id for batch in rows for row_id in batch.column("id").to_pylist()]

    def changed_rows(self) -> Sequence[ChangedRow]:
        if not self.exists:
            return []
        rows = self.table().sql("SELECT id, n, text FROM dataset").build().to_batch_records()
        return [tuple(row.values()) for batch in rows for row in batch.to_pylist()]

    def committed(self) -> list[str]:
        """The names of the data files in the newest version, each as often as it is listed."""
        if not self.exists:
            return []
        fragments = self.table().get_fragments()
        return [file.path for fragment in fragments for file in fragment.metadata.files]

    def uncommitted(self) -> Collection[str]:
        written = {path.name for folder in ("data", "_penstock") for path in self.path.glob(f"{folder}/*")}
        return written - self._of_all_versions()

    def _of_all_versions(self) -> set[str]:
        if not self.exists:
            return set()
        files = self.table().tracked_files().read_all().to_pylist()
        return {Path(file["path"]).name for file in files if file["type"] == "data file"}

    def problems(self) -> list[str]:
        """No file referenced twice, none missing, rows as many as the fragments say."""
        if not self.exists:
            return []
        names, table = self.committed(), self.table()
        table.validate()  # type: ignore[no-untyped-call]
        twice = {name for name in names if names.count(name) > 1}
        missing = {name for name in names if not (self.path / "data" / name).exists()}
        return [f"listed twice: {name}" for name in twice] + [f"missing: {name}" for name in missing]

    @contextmanager
    def losing(self, lost: Lost) -> Iterator[None]:
        """Lose a commit of rows. The commit that gives a new table its id passes."""
        real = lance.LanceDataset.commit

        class Rows:
            commit = staticmethod(real)

        def commit(table: lance.LanceDataset, transaction: lance.Transaction, **options: Any) -> Any:
            is_config = isinstance(transaction.operation, lance.LanceOperation.UpdateConfig)
            return (real if is_config else Rows.commit)(table, transaction, **options)

        with (
            mock.patch.object(lance.LanceDataset, "commit", commit),
            lossy(Rows, "commit", lost, OSError("the connection was lost")),
        ):
            yield

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self.path / "data" / name).unlink()

    def append(self, row_id: int) -> None:
        self.append_rows(pa.table({"id": [row_id]}, schema=IDS))

    def append_rows(self, rows: pa.Table) -> None:
        lance.write_dataset(rows, str(self.path), mode="append")

    def create(self, rows: pa.Table, **options: object) -> lance.LanceDataset:
        """Create the table as another program."""
        return lance.write_dataset(rows, str(self.path), **options)  # type: ignore[arg-type]

    def drop(self) -> None:
        shutil.rmtree(self.path)

    def recreate(self) -> None:
        self.drop()
        self.create(IDS.empty_table())

    def roll_back(self) -> None:
        table = self.table()
        table.checkout_version(table.version - 1).restore()  # type: ignore[no-untyped-call]
