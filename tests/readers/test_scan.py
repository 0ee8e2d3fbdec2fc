"""Parquet files of which not all rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import PenstockError
from penstock.readers.scan import Scan, ScanFile

ROWS, GROUP_ROWS = 30, 10
IDS = pa.schema([("id", pa.int64())])


@dataclass(frozen=True)
class Files:
    """See `DataFiles`."""

    deleted: Sequence[int] | None = None
    only: Sequence[int] | None = None

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        return pa.OSFile(path)

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        return None if self.deleted is None else pa.array(self.deleted, pa.int64())

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        return None if self.only is None else pa.array(self.only, pa.int64())

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        return pa.scalar(value, data_type)


@pytest.fixture
def damaged(tmp_path: Path) -> ScanFile:
    """Three row groups, of which the second cannot be read."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(ROWS)}, schema=IDS), path, row_group_size=GROUP_ROWS)
    column = pq.read_metadata(path).row_group(1).column(0)
    content = bytearray(path.read_bytes())
    first = column.dictionary_page_offset or column.data_page_offset
    content[first : first + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    return ScanFile(str(path), len(content))


OTHERS = [*range(GROUP_ROWS), *range(2 * GROUP_ROWS, ROWS)]


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        (Files(deleted=[3, *range(GROUP_ROWS, 2 * GROUP_ROWS)]), [one for one in OTHERS if one != 3]),
        (Files(only=[2, 25]), [2, 25]),
    ],
    ids=["deleted", "only"],
)
def test_row_groups_of_which_no_row_is_left_are_not_read(
    damaged: ScanFile, files: Files, ids: list[int]
) -> None:
    found = Scan("a table", IDS, IDS, files).read([damaged])
    assert [one for batch in found for one in batch["id"].to_pylist()] == ids


@pytest.mark.parametrize(
    "files", [Files(deleted=range(10, 19)), Files(only=[2, 19])], ids=["deleted", "only"]
)
def test_row_groups_with_a_row_that_is_left_are_read(damaged: ScanFile, files: Files) -> None:
    with pytest.raises(PenstockError, match="cannot be read"):
        list(Scan("a table", IDS, IDS, files).read([damaged]))


def test_a_file_of_which_no_row_is_wanted_is_not_opened(tmp_path: Path) -> None:
    missing = ScanFile(str(tmp_path / "missing.parquet"), 1)
    assert list(Scan("a table", IDS, IDS, Files(only=[])).read([missing])) == []
