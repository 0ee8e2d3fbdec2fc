"""Changes by key into a Delta table and an Iceberg table with the same files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.lake_pairs import LakePair, age_files, run

from penstock.committers.errors import ConfigurationError, TableNotSupportedError
from penstock.testing.conformance.query import Query
from penstock.testing.conformance.upserts import OPTIONS, Row, changes, messages
from penstock.writers.changes.rewriting import FileRewriter


def query(pair: LakePair, **more: str) -> Query:
    return pair.query(**OPTIONS, **more)


def rows(pair: LakePair) -> list[list[tuple[object, ...]]]:
    """What duckdb reads of each table."""
    return [sorted(table.rows("id, n, text"), key=str) for table in pair.tables]


def test_both_tables_have_the_rows_of_the_changes(pair: LakePair) -> None:
    changing = query(pair)
    run(pair, changing, 0, changes((1, 1, "a"), (2, 1, "b")), changes((3, 1, "c")))
    run(pair, changing, 1, changes((1, 2, "A"), (2, 2)), changes((1, 3, "AA"), (4, 1, "d")))
    assert pair.deliver("iceberg").code == 0
    assert rows(pair)[1] == [(1, 3, "AA"), (3, 1, "c"), (4, 1, "d")]
    run(pair, changing, 2, changes((3, 2)))
    assert pair.deliver().code == 0
    assert rows(pair) == [[(1, 3, "AA"), (4, 1, "d")]] * 2
    assert not pair.store.streams(is_pending=True)


@pytest.mark.slow
def test_both_tables_have_the_rows_of_messages(pair: LakePair) -> None:
    options = {"writeMode": "upsert", "keys": "id", "changes": "debezium"}
    changing = pair.query(**options, valueColumns="id BIGINT, n BIGINT, text STRING")
    run(pair, changing, 0, messages(("c", 1, None, (1, 1, "a")), ("c", 2, None, (2, 1, "b"))))
    run(pair, changing, 1, messages(("u", 3, (1,), (3, 2, "A")), ("d", 4, (2,), None)))
    assert pair.deliver().code == 0
    assert rows(pair) == [[(3, 2, "A")]] * 2


@pytest.mark.parametrize("seed", range(4))
def test_the_tables_agree_after_any_changes(pair: LakePair, seed: int) -> None:
    """They are delivered at different times, with and without partitions."""
    rng, order, expected = random.Random(seed), 0, dict[int, Row]()
    changing = query(pair, **({"partitionBy": "text"} if seed % 2 else {}))
    for number in range(6):
        parts: list[list[Any]] = [[], []]
        for _ in range(rng.randrange(1, 30)):
            order += 1
            key = rng.randrange(12)
            one: Any = (key, order) if rng.random() < 0.3 else (key, order, rng.choice("xyz"))
            rng.choice(parts).append(one)
            expected.pop(key, None)
            if len(one) == 3:
                expected[key] = one
        run(pair, changing, number, *map(_rows, parts))
        if rng.random() < 0.6:
            assert pair.deliver(rng.choice([None, "delta", "iceberg"])).code == 0
    assert pair.deliver().code == 0
    assert rows(pair) == [sorted(expected.values(), key=str)] * 2


def _rows(some: list[Any]) -> pa.Table:
    return changes(*some)


def test_key_files_stay_until_both_tables_have_the_batch(pair: LakePair) -> None:
    changing = query(pair)
    run(pair, changing, 0, changes((1, 1, "a")))
    run(pair, changing, 1, changes((1, 2, "b")))
    assert pair.deliver("delta").code == 0
    assert len([name for name in pair.files() if ".keys." in name]) == 2
    assert pair.deliver().code == 0
    age_files(pair)
    pair.maintain()
    assert not [name for name in pair.files() if ".keys." in name]
    assert rows(pair) == [[(1, 2, "b")]] * 2


def test_a_vacuum_of_the_delta_table_leaves_the_deletes_of_the_other(pair: LakePair) -> None:
    changing = query(pair)
    run(pair, changing, 0, changes((1, 0, "a"), (2, 0, "b"), (3, 0, "c")))
    run(pair, changing, 1, changes((1, 1, "A"), (2, 1)))
    for target in ("delta", "iceberg"):
        assert pair.deliver(target).code == 0
    run(pair, changing, 2, changes((3, 1, "C"), (4, 1, "d")))
    run(pair, changing, 3, changes((4, 2)))
    assert pair.deliver().code == 0
    pair.delta.vacuum(orphans=False)
    assert rows(pair) == [[(1, 1, "A"), (3, 1, "C")]] * 2
    assert list(pair.delta.folder.rglob("*.deletes.parquet"))
    named = [Path(str(task)) for task in pair.iceberg.folder.parent.rglob("*.deletes.parquet")]
    assert not named
    assert all(path.parent.name == "_penstock" for path in pair.delta.folder.rglob("*.deletes.parquet"))


def test_files_are_never_written_again_for_one_of_the_tables(
    pair: LakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not small ones, which a Delta table alone rewrites."""
    rewritten: list[object] = []
    monkeypatch.setattr(FileRewriter, "__call__", lambda *given: rewritten.append(given))
    with pytest.raises(ConfigurationError, match="merge=on-write"):
        run(pair, query(pair, merge="on-write"), 0, changes((1, 1, "a")))
    plain = pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([1], pa.int64()), "text": ["a"]})
    run(pair, pair.query(), 0, plain)
    assert pair.deliver().code == 0
    with pytest.raises(TableNotSupportedError, match="merge=on-read"):
        run(pair, query(pair), 1, changes((1, 2, "b")))
    run(pair, query(pair, merge="on-read"), 1, changes((1, 2, "b")))
    assert pair.deliver().code == 0
    assert rows(pair) == [[(1, 2, "b")]] * 2
    assert not rewritten
