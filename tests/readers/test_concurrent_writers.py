"""Readers beside writers: each commit is seen whole or not at all, and no file twice."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.lakes import LAKES, LakeTable

from penstock import reader
from penstock.readers.table import split

ROWS = 10
COMMITS = 12


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> LakeTable:
    made = LAKES[request.param](tmp_path)
    made.create(pa.schema([("commit", pa.int64())]))
    return made


def commit(lake: LakeTable, number: int) -> None:
    lake.append_rows(pa.table({"commit": pa.array([number] * ROWS, pa.int64())}))


def seen(table: reader.TableScan) -> Counter[int]:
    return Counter(table.to_reader().read_all()["commit"].to_pylist())


def test_each_commit_is_seen_whole_or_not_at_all(lake: LakeTable) -> None:
    def write() -> None:
        for number in range(COMMITS):
            commit(lake, number)

    writer = threading.Thread(target=write)
    writer.start()
    found: list[Counter[int]] = []
    while writer.is_alive():
        found.append(seen(reader.open_table(f"penstock.{lake.kind}", lake.options)))
    writer.join()
    found.append(seen(reader.open_table(f"penstock.{lake.kind}", lake.options)))
    assert found[-1] == dict.fromkeys(range(COMMITS), ROWS)
    for one in found:
        assert one == dict.fromkeys(range(len(one)), ROWS)


def test_a_version_that_was_opened_stays_as_it_is(lake: LakeTable) -> None:
    for number in range(3):
        commit(lake, number)
    before = reader.open_table(f"penstock.{lake.kind}", lake.options)
    commit(lake, 3)
    assert seen(before) == dict.fromkeys(range(3), ROWS)


def test_a_compaction_in_between_shows_no_file_twice(tmp_path: Path) -> None:
    lake = LAKES["delta"](tmp_path)
    lake.create(pa.schema([("commit", pa.int64())]))
    for number in range(5):
        commit(lake, number)
    before = reader.open_table("penstock.delta", lake.options)
    files = list(before.files())
    DeltaTable(str(lake.folder)).optimize.compact()
    after = reader.open_table("penstock.delta", lake.options)
    assert len(list(after.files())) == 1
    for table in (before, after):
        assert seen(table) == dict.fromkeys(range(5), ROWS)
    found = [row for batch in before.scan().read(files) for row in batch["commit"].to_pylist()]
    assert Counter(found) == dict.fromkeys(range(5), ROWS)


@pytest.mark.parametrize("part_bytes", [1, 10 * 2**20, 2**40])
def test_every_byte_of_every_file_is_in_one_part(part_bytes: int) -> None:
    sizes = [1, 1000, 5 * 2**20, 100 * 2**20, 1001 * 2**20]
    files = [reader.ScanFile(str(size), size) for size in sizes]
    parts = split(files, part_bytes, parts_min=3)
    pieces = sorted((piece for part in parts for piece in part), key=lambda piece: piece.start)
    for size in sizes:
        own = [piece for piece in pieces if piece.path == str(size)]
        ends = [piece.size_bytes if piece.end is None else piece.end for piece in own]
        assert [piece.start for piece in own] == [0, *ends[:-1]]
        assert ends[-1] == size
    assert split([], part_bytes, parts_min=3) == []
