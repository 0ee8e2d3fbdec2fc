"""A small Iceberg table. The rows and files of each snapshot are remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from tests.support.lakes import files_of
from tests.support.readers import duckdb_with_iceberg

from penstock.committers.iceberg.expiry import Expired, ExpiryPolicy, ExpiryStore, SnapshotExpiry
from penstock.committers.store.sql import open_store_in_memory

_C = TypeVar("_C", bound=SqlCatalog)

NAME = "lake.events"
POLICY = ExpiryPolicy(keep_snapshots_max=2, grace_s=3600)
GRACE = timedelta(seconds=POLICY.grace_s)
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "3",
}


@dataclass(frozen=True)
class Remembered:
    """A snapshot as it was when it was new."""

    metadata_location: str
    ids: list[int]
    files: frozenset[str]


Hook = Callable[[str], None]


class SteppingStore:
    """Calls `step` around every change of the store."""

    def __init__(self, store: ExpiryStore, step: Callable[[str], AbstractContextManager[None]]) -> None:
        self._store = store
        self._step = step

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "of_table":
            return method

        def stepping(*arguments: Any) -> None:
            with self._step(name):
                method(*arguments)

        return stepping


class SteppingCatalog(SqlCatalog):
    """Calls `step` around every commit, and around every deletion of a file through its tables."""

    step: Callable[[str], AbstractContextManager[None]]

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        table = super().load_table(identifier)
        delete = table.io.delete

        def stepping_delete(location: Any) -> None:
            with self.step("delete"):
                delete(location)

        table.io.delete = stepping_delete  # type: ignore[method-assign]
        return table

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        with self.step("commit"):
            return super().commit_table(*arguments)


@dataclass
class History:
    """The table, the snapshots that it ever had, and a clock that is moved by hand."""

    folder: Path
    properties: dict[str, str] = field(default_factory=dict)
    policy: ExpiryPolicy = POLICY

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.now = datetime.now(timezone.utc)
        self.store = open_store_in_memory()
        self.expiries = self.store.expiries
        self.steps: list[str] = []
        self.before: Hook = lambda step: None
        self.after: Hook = lambda step: None
        self.duckdb: duckdb.DuckDBPyConnection = duckdb_with_iceberg()
        self.catalog = self.open_catalog(SqlCatalog)
        self.stepping = self.open_catalog(SteppingCatalog)
        self.stepping.step = self.step
        self.catalog.create_namespace("lake")
        schema = pa.schema([("id", pa.int64())])
        self.catalog.create_table(NAME, schema, properties=PROPERTIES | self.properties)
        self.snapshots: dict[int, Remembered] = {}
        self.removed_at: dict[int, datetime] = {}
        self.expired_by_others: set[int] = set()
        self.next_id = 0

    def open_catalog(self, kind: type[_C]) -> _C:
        uri, warehouse = f"sqlite:///{self.folder}/catalog.sqlite", f"file://{self.folder}"
        return kind("test", uri=uri, warehouse=warehouse)

    def close(self) -> None:
        self.catalog.close()
        self.stepping.close()
        self.store.close()
        self.duckdb.close()

    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    @property
    def snapshot_ids(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.table().metadata.snapshots]

    # Writing ----------------------------------------------------------------------------------------

    def append(self, times: int = 1, branch: str = "main") -> None:
        for _ in range(times):
            self.table().append(self.rows(), branch=branch)
            self.remember()

    def rows(self) -> pa.Table:
        """Two, so that deleting one rewrites their file."""
        self.next_id += 2
        return pa.table({"id": pa.array([self.next_id - 2, self.next_id - 1])})

    def remember(self) -> None:
        """Remember new snapshots, and the time at which others were removed."""
        table = self.table()
        there = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        for snapshot_id in self.snapshots.keys() - there.keys() - self.removed_at.keys():
            self.removed_at[snapshot_id] = self.now
        for snapshot_id in there.keys() - self.snapshots.keys():
            ids = self.ids_at(table.metadata_location, snapshot_id)
            files = frozenset(files_of(table, there[snapshot_id]))
            self.snapshots[snapshot_id] = Remembered(table.metadata_location, ids, files)

    # Expiry -----------------------------------------------------------------------------------------

    def expiry(self) -> SnapshotExpiry:
        """Calls `before` and `after` at each step that has an effect outside of the process."""
        store: Any = SteppingStore(self.expiries, self.step)
        load = partial(self.stepping.load_table, NAME)
        return SnapshotExpiry(load, store, "lake:events", self.policy, lambda: self.now)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.steps.append(name)
        self.before(name)
        yield
        self.after(name)

    def forget_step(self) -> None:
        self.steps.clear()
        self.before = self.after = lambda step: None

    def at_step(self, number: int, do: Callable[[], object], *, after: bool = False) -> None:
        """Once, before (or after) the step with this number of the next runs."""
        self.forget_step()

        def hook(_: str) -> None:
            if len(self.steps) == number:
                self.before = self.after = lambda step: None
                do()

        setattr(self, "after" if after else "before", hook)

    def run(self) -> Expired:
        done = self.expiry().run()
        self.remember()
        return done

    def wait(self, time: timedelta = GRACE) -> None:
        self.now += time

    def settle(self) -> None:
        """Run until nothing is left to do."""
        for _ in range(50):
            self.wait()
            if self.run() == Expired() and not self.expiries.of_table(str(self.table().metadata.table_uuid)):
                return
        raise AssertionError("expiry never ends")

    def settle_and_check(self) -> None:
        self.settle()
        self.check_readable()
        self.check_nothing_left()

    # Checks -----------------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """Every snapshot of the table, and every one that left it less than a grace period ago."""
        location = self.table().metadata_location
        there = set(self.snapshot_ids)
        for snapshot_id, remembered in self.snapshots.items():
            if snapshot_id in there:
                assert self.ids_at(location, snapshot_id) == remembered.ids
            elif self.now - self.removed_at[snapshot_id] < GRACE:
                assert self.ids_at(remembered.metadata_location, snapshot_id) == remembered.ids

    def check_nothing_left(self) -> None:
        """But for what the table needs, what others have expired, and what no snapshot ever named.

        The last is pyiceberg's: a merge of manifests leaves the one that it wrote for the new files.
        """
        kept = {*self.snapshot_ids, *self.expired_by_others}
        needed = set[str]().union(*(self.snapshots[snapshot_id].files for snapshot_id in kept))
        named = set[str]().union(*(remembered.files for remembered in self.snapshots.values()))
        left = (self.on_disk() & named) - needed
        assert not left, left

    def ids_at(self, metadata_location: str, snapshot_id: int) -> list[int]:
        path = metadata_location.removeprefix("file://")
        scan = f"iceberg_scan('{path}', snapshot_from_id={snapshot_id})"
        return [row[0] for row in self.duckdb.execute(f"SELECT id FROM {scan} ORDER BY id").fetchall()]

    def on_disk(self) -> set[str]:
        """Data files, manifests, manifest lists and statistics."""
        return {
            f"file://{path}"
            for end in ("avro", "parquet", "puffin")
            for path in self.folder.rglob(f"*.{end}")
        }
