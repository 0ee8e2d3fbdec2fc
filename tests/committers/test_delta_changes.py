"""Upserts and deletes by key into Delta tables. A dictionary of rows decides; DuckDB and Polars read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from obstore.exceptions import GenericError
from tests.support.histories import Histories
from tests.support.lakes import DeltaLake

from penstock.committers.cleaning.cleanup import FileStatus, classify
from penstock.committers.contract import AlreadyCommitted, Committed, Conflict, DataFile, Manifest, Token
from penstock.committers.delta import changes, deletion_vectors
from penstock.committers.delta.active_files import active_files
from penstock.committers.delta.compaction import DeltaCompactableTable
from penstock.committers.delta.deletion_vectors import (
    DeletionVector,
    NewVectors,
    parse_vector_name,
    read_vector,
    vector_path,
)
from penstock.committers.delta.log_files import StoredLogFiles
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.errors import (
    ConfigurationError,
    PenstockError,
    RetryableError,
    TableNotSupportedError,
)
from penstock.committers.file_tables.compaction import Compaction, CompactionPolicy, Rewritten
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.datasource.delta.sink import DESTINATION, DeltaTarget, StoredDelta
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance.query import Query
from penstock.testing.faults import at_point, crash_at
from penstock.writers.delta.partitions import serialize

ROWS = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("v", pa.int64()), ("p", pa.string()), ("op", pa.string())]
)
Row = tuple[int, str | None, int, str | None, str]
UPSERT = {"writeMode": "upsert", "orderBy": "v", "deleteWhen": "op = 'd'", "dropColumns": "op"}


def row(k: int, v: int, op: str = "u", p: str | None = "a", s: str | None = "") -> Row:
    return k, f"s{k % 7}" if s == "" else s, v, p, op


def table_of(rows: Sequence[Row]) -> pa.Table:
    columns = [pa.array([one[i] for one in rows], column.type) for i, column in enumerate(ROWS)]
    return pa.table(columns, schema=ROWS)


@dataclass
class Place:
    options: dict[str, str]
    destination: Any = DESTINATION


@dataclass
class Changed:
    """A table that a query changes, and what it should contain."""

    folder: Path
    store: SqlManifestStore
    options: dict[str, str] = field(default_factory=dict)
    keys: str = "k"
    rows: dict[object, Row] = field(default_factory=dict)
    deleted: dict[object, int] = field(default_factory=dict)
    batches: int = 0
    run_id: str = "r1"
    partition_by: ClassVar[str] = "p"

    @property
    def lake(self) -> DeltaLake:
        return DeltaLake(self.folder / "table")

    @property
    def query(self) -> Query:
        return Query(Place({**self.lake.options, **UPSERT, "keys": self.keys, **self.options}))

    def key(self, one: Row) -> object:
        return tuple(one[ROWS.names.index(name)] for name in self.keys.split(","))

    def run(self, *parts: Sequence[Row]) -> None:
        batch = self.query.batch(self.batches)
        self.query.run(self.store, batch, *map(table_of, parts), run_id=self.run_id)

    def change(self, *parts: Sequence[Row]) -> None:
        self.run(*parts)
        self.expect(*parts)

    def prepare(self, *parts: Sequence[Row]) -> Manifest:
        batch = self.query.batch(self.batches)
        return self.query.prepare(self.store, batch, *map(table_of, parts), run_id=self.run_id)

    def expect(self, *parts: Sequence[Row]) -> None:
        """Apply a batch to the expected rows."""
        self.batches += 1
        ignores = self.options.get("lateRows") == "ignore"
        of_keys: dict[object, list[Row]] = {}
        for one in sorted((one for part in parts for one in part), key=lambda one: one[2]):
            of_keys.setdefault(self.key(one), []).append(one)
        for key, rows in of_keys.items():
            newest = max(self.rows[key][2] if key in self.rows else -1, self.deleted.get(key, -1))
            if ignores and newest > rows[-1][2]:
                continue
            for one in rows:
                before = self.rows.pop(key, None)
                if one[4] == "d":
                    self.deleted[key] = one[2]
                else:
                    self.rows[key] = self.completed(one, before)

    def completed(self, one: Row, before: Row | None) -> Row:
        """Keep the values of columns that the row leaves as they are."""
        kept = {"given": ["s", "p"], "all": []}.get(partial := self.options.get("updateColumns", "all"))
        names = partial.split(",") if kept is None else kept
        pairs = zip(ROWS.names, one, before or one, strict=True)
        whole = [old if value is None and name in names else value for name, value, old in pairs]
        return cast("Row", tuple(whole))

    def check(self) -> None:
        """Compare with DuckDB, and the number of rows with the other readers."""
        expected = sorted((one[:4] for one in self.rows.values()), key=str)
        assert sorted(self.lake.rows("k, s, v, p"), key=str) == expected
        assert self.lake.scan().collect().height == len(expected)

    def stored(self, rows: Sequence[Row]) -> pa.Table:
        """Return rows as another writer adds them."""
        return table_of(rows).drop_columns(["op"])

    def added(self, rows: Sequence[Row]) -> None:
        """Another writer has added rows."""
        self.rows.update({self.key(one): one for one in rows})

    def removed(self, k: int) -> None:
        self.rows = {key: one for key, one in self.rows.items() if one[0] != k}

    def compact(self, **policy: Any) -> str:
        """Compact as the delivery process does."""
        uri = str(self.lake.path)
        table = DeltaCompactableTable(uri, {}, self.query.query_id, serialize)
        target = self.query.sink().open_table()
        assert isinstance(target, DeltaTarget)
        rewrite = TableFileRewriter(
            self.query.query_id, target.rewrite_config, GroupRewriter(InlineExecutor())
        )
        sizes = {"target_file_bytes": 2**27, "small_file_bytes": 2**26, **policy}
        return Compaction(table, rewrite, CompactionPolicy(**sizes), sleep=lambda _: None).run().summary()

    def vectors(self) -> list[DeletionVector]:
        snapshot = SnapshotCache().load(str(self.lake.path), {})
        assert snapshot is not None
        return [file.vector for file in active_files(snapshot, {}) if file.vector is not None]


@dataclass
class Versioned(Changed):
    """The table has all versions of the rows."""

    versions: Histories = field(default_factory=Histories)
    partition_by: ClassVar[str] = "is_current"

    def __post_init__(self) -> None:
        self.options = {"history": "true", **self.options}

    def expect(self, *parts: Sequence[Row]) -> None:
        self.batches += 1
        rows = [one for part in parts for one in part]
        self.versions.apply((self.key(one), one[2], None if one[4] == "d" else one[:4]) for one in rows)

    def stored(self, rows: Sequence[Row]) -> pa.Table:
        table = super().stored(rows)
        ends = (pa.nulls(len(rows), pa.int64()), pa.array([True] * len(rows)))
        columns = zip(("valid_from", "valid_to", "is_current"), (table["v"], *ends), strict=True)
        for name, column in columns:
            table = table.append_column(name, column)
        return table

    def added(self, rows: Sequence[Row]) -> None:
        self.versions.apply((self.key(one), one[2], one[:4]) for one in rows)

    def removed(self, k: int) -> None:
        versions = self.versions.versions.items()
        self.versions.versions = {key: some for key, some in versions if some and some[0][2][0] != k}

    def check(self) -> None:
        expected = [(*one, begin, end, end is None) for begin, end, one in self.versions.rows()]
        found = self.lake.rows("k, s, v, p, valid_from, valid_to, is_current")
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert self.lake.scan().collect().height == len(expected)


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture
def changed(tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """No file of its table is small enough to be rewritten, unless a test says so."""
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", 0)
    return Changed(tmp_path, store)


# Histories ------------------------------------------------------------------------------------------


def seeds(fast: Mapping[type[Changed], int], count: int) -> list[Any]:
    """Return a kind of table and a seed for each test, of which some are fast enough for every run."""
    return [
        pytest.param(
            kind,
            seed,
            marks=[] if seed < few else [pytest.mark.slow if seed < few + 3 else pytest.mark.campaign],
        )
        for kind, few in fast.items()
        for seed in range(count)
    ]


@pytest.mark.parametrize(("kind", "seed"), seeds({Changed: 4, Versioned: 1}, 14))
def test_any_history_makes_the_rows_of_the_changes(
    kind: type[Changed], seed: int, tmp_path: Path, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, crashes, conflicts, replays, and other writers that append, delete, compact and vacuum."""
    rng, changed = random.Random(seed), kind(tmp_path, store)
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", rng.choice([0, 1, 3, 16]))
    monkeypatch.setattr(changes, "SMALL_BYTES", rng.choice([1_000, 2_000, 1024**2]))
    changed.keys = rng.choice(["k", "k", "k,p", "s,k"])
    changed.options |= {
        **({"lateRows": "ignore"} if rng.random() < 0.5 and kind is Changed else {}),
        **rng.choice([{}, {}, {"merge": "on-read"}, {"merge": "on-write"}]),
        **({"partitionBy": kind.partition_by} if rng.random() < 0.4 else {}),
        "tableProperties": json.dumps({"delta.checkpointInterval": rng.choice(["3", "100"])}),
    }
    if changed.keys == "k" and rng.random() < 0.6 and kind is Changed:
        changed.options["updateColumns"] = rng.choice(["given", "s", "p,s"])
    empty = 0.4 if "updateColumns" in changed.options else 0
    size = rng.choice([5, 60, 900 if kind is Changed else 200])
    order = 0
    for number in range(14):
        rows: dict[object, Row] = {}
        for _ in range(rng.randrange(1, size)):
            order += 1
            place = order if rng.random() < 0.8 else order // 2
            p = None if rng.random() < empty else rng.choice("ab")
            s = None if rng.random() < empty else rng.choice("xyz") if empty else ""
            one = row(rng.randrange(size), place, rng.choice("uuud"), p, s)
            rows[changed.key(one), place] = one
        shuffled = rng.sample(list(rows.values()), len(rows))
        parts = [shuffled[i::3] for i in range(3)]
        event = rng.randrange(9) if number else 8
        if event == 0:
            with crash_at(rng.choice(["prepare.start", "prepare.done", "commit.start", "commit.landed"])):
                changed.run(*parts)
            changed.run_id = f"r{number + 2}"
            changed.change(*parts[::-1])
        elif event == 1:
            parts[1].append(row(10_000 + number, order + 1, p="b", s=None if empty else ""))
            manifest = changed.prepare(*parts)
            foreign_append(changed, row(10_000 + number, order, p="b"))
            with suppress(PenstockError):
                changed.query.target().commit(manifest)
            changed.query.recover(changed.store)
            changed.expect(*parts)
        elif event == 2:
            changed.prepare(*parts)
            foreign_delete(changed, rng.randrange(size))
            changed.query.recover(changed.store)
            changed.expect(*parts)
        elif event == 3:
            changed.prepare(*parts)
            if not changed.vectors():  # the library's own loses the rows of files with vectors
                changed.lake.compact()
            changed.query.recover(changed.store)
            changed.expect(*parts)
        elif event == 4:
            changed.change(*parts)
            changed.compact(files_min=2)
        elif event == 5:
            changed.change(*parts)
            changed.lake.vacuum(orphans=False)
        else:
            changed.change(*parts)
        changed.check()


def foreign_append(changed: Changed, *rows: Row) -> None:
    changed.lake.append_rows(changed.stored(rows))
    changed.added(rows)


def foreign_delete(changed: Changed, k: int) -> None:
    """Without a vector: the library rewrites the file."""
    changed.lake.load().delete(f"k = {k}")
    changed.removed(k)


@pytest.mark.parametrize(("kind", "seed"), seeds({Changed: 2, Versioned: 2}, 20))
def test_a_delivery_makes_the_rows_of_its_batches(
    kind: type[Changed], seed: int, tmp_path: Path, store: SqlManifestStore
) -> None:
    """One after the other, also if rows leave columns as they are: then older rows of the batches count."""
    rng, changed = random.Random(seed), kind(tmp_path, store)
    changed.options |= {
        **({"lateRows": "ignore"} if seed % 2 and kind is Changed else {}),
        **({"merge": "on-write"} if rng.random() < 0.3 else {}),
        **({"updateColumns": rng.choice(["given", "s"])} if kind is Changed else {}),
    }
    changed.change([row(0, 0)])
    for _ in range(3):
        manifests, orders = [], rng.sample(range(1000), 60)
        for _ in range(rng.randrange(1, 4)):
            rows = [
                row(
                    rng.randrange(4),
                    orders.pop() if rng.random() < 0.5 else changed.batches * 1000 + orders.pop(),
                    rng.choice("uuuuud"),
                    rng.choice(["a", "b", None]),
                    rng.choice(["x", "y", None, None]),
                )
                for _ in range(rng.randrange(1, 9))
            ]
            parts = [rows[number::2] for number in range(2)]
            batch = changed.query.batch(changed.batches)
            manifests.append(changed.query.build(changed.store, batch, *map(table_of, parts)))
            changed.expect(*parts)
        target: Any = changed.query.target()
        merged = target.merge(manifests, None).merging(manifests)
        assert isinstance(target.commit(merged), Committed)
        changed.check()


def test_equal_versions_of_two_tasks_are_one(tmp_path: Path, store: SqlManifestStore) -> None:
    """Though one task knows the end of its version, which is in another partition then."""
    changed = Versioned(tmp_path, store, {"partitionBy": "is_current"})
    changed.change([row(1, 1), row(1, 2)], [row(1, 1)], [row(1, 2), row(1, 3, "d")])
    changed.check()
    changed.change([row(1, 2)], [row(1, 2)])
    changed.check()


# Small files ----------------------------------------------------------------------------------------


def test_small_files_are_rewritten_together_without_their_masked_rows(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    changed.change([row(k, 0) for k in range(9)])
    for number in range(1, 4):
        changed.change([row(number, number), row(8, number)])
    assert len(changed.lake.load().file_uris()) == 2, "of the last batch, and of the others together"
    foreign_append(changed, row(50, 1), row(51, 1), row(52, 1))
    foreign_delete(changed, 52)  # the library notes in the new file that it had views of strings
    changed.change([row(50, 2)])
    assert changed.vectors() == []
    changed.check()


def test_a_commit_rewrites_only_small_files_and_not_many(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    for first, count in [(0, 5), (100, 50), (1000, 900)]:
        changed.change([row(first + k, 0) for k in range(count)])
    sizes = sorted(path.stat().st_size for path in changed.lake.folder.glob("*.parquet"))
    monkeypatch.setattr(changes, "SMALL_BYTES", sizes[1])
    changed.change([row(0, 1), row(100, 1), row(1000, 1)])
    assert [vector.rows for vector in changed.vectors()] == [1], "the largest one"
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", 1)
    changed.change([row(0, 2), row(101, 2), row(1001, 2)])
    assert sorted(vector.rows for vector in changed.vectors()) == [1, 2], "the smallest one has none"
    monkeypatch.setattr(changes, "SMALL_BYTES_MAX", 1)
    changed.change([row(1, 3), row(101, 3), row(1002, 3)])
    assert sorted(vector.rows for vector in changed.vectors()) == [1, 2, 3]
    changed.check()


def test_small_files_that_cannot_be_rewritten_get_vectors(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    changed.change([row(k, 1) for k in range(5)])
    monkeypatch.setattr(DeltaTarget, "rewrite_config", lambda *_: None)
    changed.change([row(1, 2)])
    assert [vector.rows for vector in changed.vectors()] == [1]
    changed.check()


@pytest.mark.parametrize("fails", [False, True])
def test_a_conflict_leaves_no_rewritten_file_behind(
    fails: bool, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none if what the commit needs besides cannot be written."""
    changed.change([row(k, 1) for k in range(900)])
    changed.change([row(1000, 1), row(1001, 1)])
    manifest = changed.prepare([row(1, 2), row(1000, 2)])
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", 1)
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
    before = set(changed.lake.folder.rglob("*.parquet"))

    def fail(*_: object) -> None:
        raise RetryableError("the disk is full")

    if fails:
        monkeypatch.setattr(TableFiles, "create", fail)
        with pytest.raises(RetryableError):
            changed.query.target().commit(manifest)
    else:
        with at_point("commit.start", lambda: foreign_append(changed, row(9000, 1))):
            assert isinstance(changed.query.target().commit(manifest), Conflict)
    foreign = {path for path in changed.lake.folder.rglob("*.parquet") if "part-" in path.name}
    assert set(changed.lake.folder.rglob("*.parquet")) - foreign == before - foreign


def test_partition_values_that_have_no_zone_are_not_guessed(tmp_path: Path, store: SqlManifestStore) -> None:
    """Of files that others have written. Penstock's own have one."""
    at = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    lake = DeltaLake(tmp_path / "table")
    options = {**lake.options, "writeMode": "upsert", "keys": "k", "orderBy": "v", "updateColumns": "given"}
    query = Query(Place({**options, "partitionBy": "t"}))

    def rows(k: int, v: int, value: datetime | None) -> pa.Table:
        return pa.table([[k], [v], pa.array([value], schema.field("t").type)], schema=schema)

    query.run(store, query.batch(0), rows(1, 1, at))
    query.run(store, query.batch(1), rows(1, 2, None))
    assert lake.rows("k, v, t") == [(1, 2, at)]
    entry = sorted((lake.folder / "_delta_log").glob("*.json"))[-1]
    entry.write_text(entry.read_text().replace("2026-01-01T02:00:00.000000Z", "2026-01-01 02:00:00"))
    with pytest.raises(TableNotSupportedError, match="does not have the columns t"):
        query.run(store, query.batch(2), rows(1, 3, None))


# A conflict -----------------------------------------------------------------------------------------


def test_after_a_conflict_only_new_files_are_searched(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed.change([row(k, 1) for k in range(5)])
    manifest = changed.prepare([row(1, 2), row(9, 2)])
    target = changed.query.target()
    opened: list[object] = []
    with at_point("commit.start", lambda: foreign_append(changed, row(9, 1))):
        assert isinstance(target.commit(manifest), Conflict)
    real = pq.ParquetFile

    def opening(source: object, **more: Any) -> pq.ParquetFile:
        opened.append(source)
        return real(source, **more)

    monkeypatch.setattr(pq, "ParquetFile", opening)
    target.commit(manifest)
    monkeypatch.undo()
    changed.expect([row(1, 2), row(9, 2)])
    changed.check()
    assert len(opened) == 1


@pytest.mark.parametrize("kind", [Changed, Versioned])
def test_rows_are_computed_again_after_a_compaction_by_others(
    kind: type[Changed], tmp_path: Path, store: SqlManifestStore
) -> None:
    """Between two attempts: the rows that the first one has found are in another file."""
    changed = kind(tmp_path, store, {"merge": "on-write"})
    if kind is Changed:
        changed.options["updateColumns"] = "given"
    for k in range(3):
        changed.change([row(k, 1)])
    parts = [row(1, 2, s=None), row(2, 3, "d")], [row(0, 2, s=None), row(1, 4, s=None)]
    manifest, target = changed.prepare(*parts), changed.query.target()
    with at_point("commit.start", lambda: changed.lake.compact()):
        assert isinstance(target.commit(manifest), Conflict)
    assert isinstance(target.commit(manifest), Committed)
    changed.expect(*parts)
    changed.check()


def test_an_outage_of_the_object_store_while_the_log_is_read_is_tried_again(changed: Changed) -> None:
    changed.change([row(1, 1)])
    snapshot = SnapshotCache().load(str(changed.lake.path), {})
    assert snapshot is not None
    assert snapshot.tail is not None
    lost = Mock(side_effect=GenericError("connection reset"))
    store = StoredLogFiles(snapshot.table_uri, Mock(get=lost, head=lost))
    with pytest.raises(RetryableError, match="connection reset"):
        active_files(replace(snapshot, tail=replace(snapshot.tail, version=9, files=store)), {})


def test_a_batch_that_another_process_commits_meanwhile_is_a_conflict(changed: Changed) -> None:
    """That process has deleted the key files after its commit."""
    manifest = changed.prepare([row(1, 1), row(2, 1, op="d")])
    target, other = changed.query.target(), changed.query.target()

    def commit_first(_: Token | None) -> None:
        other.commit(manifest)

    assert isinstance(target.commit(manifest, commit_first), Conflict)
    assert isinstance(target.commit(manifest), AlreadyCommitted)
    changed.expect([row(1, 1), row(2, 1, op="d")])
    changed.check()


def test_a_conflict_leaves_no_vector_file_behind(changed: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
    changed.change([row(k, 1) for k in range(5)])
    manifest = changed.prepare([row(1, 2)])
    with at_point("commit.start", lambda: foreign_append(changed, row(9, 1))):
        assert isinstance(changed.query.target().commit(manifest), Conflict)
    assert not list(changed.lake.folder.glob("*.bin"))
    changed.query.recover(changed.store)
    assert len(list(changed.lake.folder.glob("*.bin"))) == 1


# merge ----------------------------------------------------------------------------------------------


def test_a_new_table_has_deletion_vectors_unless_the_query_rewrites_files(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(5)])
    changed.change([row(1, 2)])
    assert len(changed.vectors()) == 1
    other = Changed(changed.folder / "other", changed.store, {"merge": "on-write"})
    other.change([row(k, 1) for k in range(5)])
    other.change([row(1, 2)])
    assert not other.vectors()
    assert "deletionVectors" not in (other.lake.load().protocol().reader_features or ())
    for one in (changed, other):
        one.check()


def test_a_table_without_vectors_gets_them_only_with_the_option(changed: Changed) -> None:
    changed.lake.create(ROWS.remove(ROWS.get_field_index("op")))
    foreign_append(changed, *[row(k, 1) for k in range(5)])
    changed.change([row(1, 2)])
    assert changed.lake.load().protocol().min_reader_version == 1
    changed.options = {"merge": "on-read"}
    changed.change([row(2, 2)])
    assert len(changed.vectors()) == 1
    changed.check()


def test_a_table_that_no_row_may_leave_is_refused(changed: Changed) -> None:
    changed.lake.create(ROWS.remove(ROWS.get_field_index("op")), {"delta.appendOnly": "true"})
    with pytest.raises(TableNotSupportedError, match="append-only"):
        changed.change([row(1, 1)])


def test_a_log_that_only_the_library_reaches_is_refused(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.committers.delta.change_features.open_log_files", lambda *_: None)
    with pytest.raises(ConfigurationError, match="writeMode=upsert cannot write the log"):
        changed.change([row(1, 1)])


def test_the_contents_of_a_table_count_its_deleted_rows(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(20)])
    changed.change([row(k, 2, "d") for k in range(5)])
    contents = StoredDelta(str(changed.lake.path), {}).contents()
    assert contents is not None
    assert (len(contents.sizes), contents.rows, contents.deleted_rows) == (1, 20, 5)


# Compaction -----------------------------------------------------------------------------------------


def test_files_with_many_deleted_rows_are_rewritten_and_no_row_comes_back(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(20)])
    changed.change([row(k, 2, "d") for k in range(5)])
    assert changed.compact(small_file_bytes=0) == "compacted 1 files into 1"
    assert not changed.vectors()
    changed.check()
    changed.change([row(7, 3, "d")])
    assert changed.compact(small_file_bytes=0) == ""
    changed.check()


def test_a_compaction_gives_way_to_rows_that_are_deleted_meanwhile(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(20)])
    changed.change([row(k, 2, "d") for k in range(5)])
    uri = str(changed.lake.path)
    rewritten: list[Rewritten] = []
    table = DeltaCompactableTable(uri, {}, changed.query.query_id, serialize)
    target = changed.query.sink().open_table()
    assert isinstance(target, DeltaTarget)
    rewrite = TableFileRewriter(
        changed.query.query_id, target.rewrite_config, GroupRewriter(InlineExecutor())
    )

    def rewrite_slowly(
        content: LakeManifest,
        groups: Sequence[tuple[DataFile, ...]],
        batch_id: int,
        deleted: Mapping[str, pa.Array] = MappingProxyType({}),
    ) -> Sequence[Rewritten]:
        rewritten.extend(rewrite(content, groups, batch_id, deleted))
        changed.change([row(9, 3, "d")])
        return rewritten

    done = Compaction(
        table, rewrite_slowly, CompactionPolicy(2**27, small_file_bytes=0), sleep=lambda _: None
    ).run()
    assert (done.sources, done.given_up) == (0, "other writers have removed or changed the same files")
    assert rewritten
    changed.check()


# Clean-up -------------------------------------------------------------------------------------------


def test_clean_up_keeps_vectors_that_a_version_names_and_deletes_others(
    changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
    changed.options = {"tableProperties": json.dumps({"delta.checkpointInterval": "2"})}
    for number in range(4):
        changed.change([row(k, number) for k in range(number, number + 3)])
    folder = changed.lake.folder
    vectors = {path.name for path in folder.glob("*.bin")}
    orphan = Path(vector_path(_place_of("q1", 2)))
    (folder / orphan.name).write_bytes(b"\1")
    stored = StoredDelta(str(changed.lake.path), {})
    table = stored.cleanable(changed.store)
    assert vectors <= set().union(*table.names())
    parse = stored.name_parser([changed.query.stream])
    later = datetime.now(timezone.utc) + timedelta(days=1)
    found = {file.path: classify(file, parse(file.path), {"q1": 3}, later) for file in table.files()}
    assert found[orphan.name] is FileStatus.UNNEEDED
    assert parse("deletion_vector_0b1e7a3c-9f55-4b44-8f22-3c9b8f6f2a11.bin") is None


@pytest.mark.parametrize("kind", [Changed, Versioned])
def test_rows_that_a_lost_attempt_has_computed_are_orphans(
    kind: type[Changed], tmp_path: Path, store: SqlManifestStore
) -> None:
    """A conflict deletes them, a crash leaves them to clean-up."""
    changed = kind(tmp_path, store)
    if kind is Changed:
        changed.options["updateColumns"] = "given"
    changed.change([row(1, 1), row(2, 1)])
    manifest = changed.prepare([row(1, 2, s=None)])
    folder, snapshots = changed.lake.folder, SnapshotCache()

    def stored() -> set[str]:
        return {path.name for path in folder.glob("*.parquet")}

    def named() -> set[str]:
        table = snapshots.load(str(changed.lake.path), {})
        assert table is not None
        return {file.path for file in active_files(table, {})}

    before = stored()
    with at_point("commit.start", lambda: foreign_append(changed, row(9, 1))):
        assert isinstance(changed.query.target().commit(manifest), Conflict)
    (appended,) = stored() - before
    assert appended in named()
    with crash_at("commit.start"):
        changed.query.recover(changed.store)
    orphans = stored() - before - {appended}
    assert len(orphans) == 2, "the computed row, and the small files without the row that it replaces"
    changed.query.recover(changed.store)
    changed.expect([row(1, 2, s=None)])
    changed.check()
    assert not orphans & named()
    stored_table = StoredDelta(str(changed.lake.path), {})
    parse, later = stored_table.name_parser([changed.query.stream]), datetime.now(timezone.utc)
    table = stored_table.cleanable(changed.store)
    files = {file.path: file for file in table.files()}
    for orphan in orphans:
        status = classify(files[orphan], parse(orphan), {"q1": 1}, later + timedelta(days=1))
        assert status is FileStatus.UNNEEDED
    assert not orphans & set().union(*table.names())


def _place_of(query_id: str, batch_id: int) -> str:
    return deletion_vectors._encode85(deletion_vectors.vector_id(query_id, batch_id).bytes)


# Vectors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[0], [1, 5, 7], list(range(5000)), [3, 2**33, 2**33 + 1]])
def test_a_vector_is_read_as_it_was_written(rows: list[int]) -> None:
    vectors = NewVectors("q1", 7)
    small, other = vectors.add(pa.array(rows, pa.int64())), vectors.add(pa.array([9] * 1, pa.int64()))
    files = dict([vectors.file] if vectors.file else [])
    for vector, expected in ((small, rows), (other, [9])):
        again = DeletionVector.of(json.loads(json.dumps(vector.to_action())))
        assert read_vector(again, lambda path: files[path], "t").to_pylist() == expected
    for name in files:
        named = parse_vector_name(name, ["q0", "q1"])
        assert named is not None
        assert (named.query_id, named.batch_id) == ("q1", 7)


@pytest.mark.parametrize("change", ["checksum", "size", "rows", "magic", "text", "type"])
def test_a_damaged_vector_is_refused(change: str) -> None:
    vectors = NewVectors("q1", 7)
    vector = vectors.add(pa.array(range(0, 5000, 3), pa.int64()))
    assert vectors.file is not None
    _, content = vectors.file
    action = vector.to_action()
    if change == "checksum":
        content = content[:40] + bytes([content[40] ^ 1]) + content[41:]
    elif change == "size":
        action["sizeInBytes"] += 1
    elif change == "rows":
        action["cardinality"] += 1
    elif change == "magic":
        action = {**action, "storageType": "i", "pathOrInlineDv": "0" * 20, "sizeInBytes": 16}
    elif change == "text":
        action = {**action, "storageType": "i", "pathOrInlineDv": "~~~~~"}
    else:
        action = {**action, "storageType": "p", "pathOrInlineDv": "/tmp/vector.bin"}
    with pytest.raises(TableNotSupportedError, match="deletion vector"):
        read_vector(DeletionVector.of(action), lambda _: content, "t")


def test_bounds_that_deleted_rows_have_are_marked_as_loose(changed: Changed) -> None:
    """`tightBounds` of the Delta protocol: readers must not take them for the bounds of the rows."""
    changed.change([row(k, 1) for k in range(5)])
    changed.change([row(4, 2, "d")])
    entry = (changed.lake.folder / "_delta_log" / f"{2:020d}.json").read_text()
    (added,) = [json.loads(line)["add"] for line in entry.splitlines() if '"add"' in line]
    statistics = json.loads(added["stats"])
    assert (statistics["tightBounds"], statistics["numRecords"]) == (False, 5)


def test_the_library_reads_appends_to_and_deletes_from_a_table_with_vectors(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(20)])
    changed.change([row(k, 2, "d") for k in range(5)])
    foreign_append(changed, row(100, 1))
    changed.change([row(100, 2), row(6, 3)])
    changed.check()
    table = DeltaTable(str(changed.lake.path))
    assert pa.table(table.scan()).num_rows == len(changed.rows)


def test_a_shallow_clone_is_refused(changed: Changed) -> None:
    """Its files belong to another table."""
    changed.change([row(1, 1)])
    log = changed.lake.folder / "_delta_log" / f"{1:020d}.json"
    log.write_text(log.read_text().replace('"path":"', '"path":"file:///elsewhere/'))
    with pytest.raises(PenstockError, match="shallow clone"):
        changed.change([row(1, 2)])
