"""The change data feed of a Delta table into which a query writes changes, read by the Delta library."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.committers.test_delta_changes import ROWS, Changed, foreign_append, foreign_delete, row

from penstock.committers.cleaning.cleanup import FileStatus, classify
from penstock.committers.contract import Committed, Conflict
from penstock.committers.delta import changes, deletion_vectors
from penstock.committers.delta.active_files import active_files
from penstock.committers.delta.snapshot_cache import SnapshotCache
from penstock.committers.errors import RetryableError, TableNotSupportedError
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.file_tables.shared_files import SHARES_PROPERTY
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.datasource.delta.sink import StoredDelta
from penstock.testing.faults import at_point

FEED = {"delta.enableChangeDataFeed": "true"}
WITH_FEED = {"tableProperties": json.dumps(FEED)}
REMOVES = {"delete", "update_preimage"}


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture
def changed(tmp_path: Path, store: SqlManifestStore) -> Changed:
    return Changed(tmp_path, store, dict(WITH_FEED))


def feed(changed: Changed) -> list[tuple[Any, ...]]:
    """Version, kind and values of each change, in the order of the versions."""
    names = ["_commit_version", "_change_type", *ROWS.names[:-1]]
    found = pa.table(changed.lake.load().load_cdf(starting_version=0)).select(names)
    return sorted(zip(*[column.to_pylist() for column in found.columns], strict=True))


def of_version(changed: Changed, version: int) -> list[tuple[Any, ...]]:
    return [(kind, key, v, p) for at, kind, key, _, v, p in feed(changed) if at == version]


def files_of_feed(changed: Changed) -> set[str]:
    return {path.name for path in (changed.lake.folder / "_change_data").rglob("*.parquet")}


@pytest.mark.parametrize("options", [{}, {"merge": "on-write"}, {"partitionBy": "p"}])
def test_the_feed_has_the_kind_of_each_change(changed: Changed, options: Mapping[str, str]) -> None:
    """A key that moves between partitions is one update. Rows that lose within the batch are none."""
    changed.options |= options
    changed.change([row(k, 1) for k in range(4)])
    assert not files_of_feed(changed), "readers take the rows of new files"
    lost = [row(1, 2), row(6, 2)]
    changed.change([*lost, row(2, 2, "d"), row(9, 2, "d")], [row(1, 3, p="a b%"), row(6, 3, "d"), row(7, 3)])
    assert of_version(changed, 2) == [
        ("delete", 2, 1, "a"),
        ("insert", 7, 3, "a"),
        ("update_postimage", 1, 3, "a b%"),
        ("update_preimage", 1, 1, "a"),
    ]
    changed.check()


def test_late_rows_are_no_changes(changed: Changed) -> None:
    changed.options |= {"lateRows": "ignore"}
    changed.change([row(1, 5), row(2, 5)])
    changed.change([row(1, 4), row(2, 6)])
    assert of_version(changed, 2) == [("update_postimage", 2, 6, "a"), ("update_preimage", 2, 5, "a")]


def test_of_several_rows_of_a_key_one_is_updated(changed: Changed) -> None:
    """Those of other writers."""
    changed.change([row(1, 1)])
    foreign_append(changed, row(1, 2), row(1, 3))
    changed.change([row(1, 4)])
    kinds = [kind for kind, *_ in of_version(changed, 3)]
    assert kinds == ["delete", "delete", "update_postimage", "update_preimage"]
    foreign_append(changed, row(7, 1), row(7, 2))
    changed.change([row(7, 3)])
    assert [kind for kind, *_ in of_version(changed, 5)] == ["delete", "update_postimage", "update_preimage"]
    changed.check()


@pytest.mark.parametrize(
    "seed", [0, 1, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12)]]
)
def test_the_feed_leads_from_each_version_to_the_next(
    seed: int, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", rng.choice([0, 2, 16]))
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES_MAX", rng.choice([0, 256]))
    changed.options |= {
        **rng.choice([{}, {"lateRows": "ignore"}]),
        **rng.choice([{}, {"merge": "on-read"}, {"merge": "on-write"}]),
        **rng.choice([{}, {"partitionBy": "p"}]),
    }
    size, order, tables = rng.choice([5, 60]), 0, dict[int, Counter[tuple[Any, ...]]]()
    for _ in range(7):
        rows = []
        for _ in range(rng.randrange(1, size)):
            order += 1
            rows.append(row(rng.randrange(size), order, rng.choice("uuud"), rng.choice("ab")))
        event = rng.randrange(5) if tables else 5
        if event == 0:
            foreign_append(changed, *[row(1000 + order, order), row(2000 + order, order)])
        elif event == 1 and changed.rows:
            foreign_delete(changed, rng.choice(list(changed.rows.values()))[0])
        elif event == 2:
            changed.lake.compact() if changed.options.get("merge") == "on-write" else changed.compact()
        changed.change(*[rows[i::3] for i in range(3)])
        tables[changed.lake.load().version()] = Counter(one[:4] for one in changed.rows.values())
    there = Counter[tuple[Any, ...]]()
    by_version: dict[int, list[tuple[Any, ...]]] = {}
    for version, *change in feed(changed):
        by_version.setdefault(version, []).append(tuple(change))
    for version in range(changed.lake.load().version() + 1):
        for kind, *values in by_version.get(version, ()):
            there[tuple(values)] += -1 if kind in REMOVES else 1
        assert min(there.values(), default=0) >= 0
        assert version not in tables or +there == tables[version]


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_attempt_leaves_no_file_of_the_feed(
    fails: bool, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "SMALL_FILES_MAX", 0)
    monkeypatch.setattr(deletion_vectors, "INLINE_BYTES_MAX", 0)
    changed.change([row(k, 1) for k in range(5)])
    manifest, target = changed.prepare([row(1, 2)]), changed.query.target()
    if fails:

        def fail(*_: object) -> None:
            raise RetryableError("the disk is full")

        monkeypatch.setattr(TableFiles, "create", fail)
        with pytest.raises(RetryableError):
            target.commit(manifest)
        assert not files_of_feed(changed)
        return
    with at_point("commit.start", lambda: foreign_append(changed, row(9, 1))):
        assert isinstance(target.commit(manifest), Conflict)
    assert not files_of_feed(changed)
    assert isinstance(target.commit(manifest), Committed)
    assert len(files_of_feed(changed)) == 1


def test_clean_up_keeps_files_of_the_feed_while_the_log_names_them(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(5)])
    changed.change([row(1, 2)])
    stored = StoredDelta(str(changed.lake.path), {})
    table, parse = stored.cleanable(changed.store), stored.name_parser([changed.query.stream])
    (name,) = files_of_feed(changed)
    assert name in set().union(*table.names())
    later = datetime.now(timezone.utc) + timedelta(days=1)
    found = {file.path: classify(file, parse(file.path), {"q1": 3}, later) for file in table.files()}
    assert found[f"_change_data/{name}"] is FileStatus.UNNEEDED, "unless its name is in the log"


def test_the_feed_of_a_table_that_shares_its_files_is_refused(changed: Changed) -> None:
    changed.lake.create(
        ROWS.remove(ROWS.get_field_index("op")),
        {**FEED, SHARES_PROPERTY: "iceberg:x"},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(TableNotSupportedError, match="change data feed"):
        changed.change([row(1, 1)])


@pytest.mark.parametrize("options", [{"updateColumns": "given"}, {"history": "true"}])
def test_computed_rows_are_refused_before_they_are_written(
    changed: Changed, store: SqlManifestStore, options: Mapping[str, str]
) -> None:
    """They would be missing in the feed."""
    changed.options |= options
    with pytest.raises(TableNotSupportedError, match="would be missing in the feed"):
        changed.query.plan(store, changed.query.batch(0), ROWS)


def test_files_of_the_feed_are_no_files_of_the_table(changed: Changed) -> None:
    changed.change([row(k, 1) for k in range(5)])
    changed.change([row(1, 2)])
    snapshot = SnapshotCache().load(str(changed.lake.path), {})
    assert snapshot is not None
    assert not [file for file in active_files(snapshot, {}) if "_change_data" in file.path]
