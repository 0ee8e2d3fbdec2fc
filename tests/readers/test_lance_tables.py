"""Lance tables, of other writers too, are read with the rows that were written, or refused by name."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from penstock import ConfigurationError, RetryableError, TableNotSupportedError, reader
from penstock.readers.lance.filters import lance_filter
from penstock.readers.table import TableScan, split
from penstock.readers.where import parse_where

UTC = dt.timezone.utc
MOMENTS = [
    None if text is None else dt.datetime.fromisoformat(text)
    for text in ("0001-01-01", "1969-12-31T23:59:59.999999", None, "9999-12-31")
]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "i8": (pa.int8(), [-128, 0, None, 127]),
    "i64": (pa.int64(), [-(2**63), -1, 0, None, 2**63 - 1]),
    "f4": (pa.float32(), [-math.inf, -0.0, 0.0, 1.5, math.nan, None]),
    "f8": (pa.float64(), [-math.inf, -0.0, 0.0, 1.5, math.nan, None]),
    "price": (pa.decimal128(38, 10), [Decimal("-1.5"), Decimal(0), None, Decimal("9" * 28)]),
    "text": (pa.string(), ["", "a", "it's", "é", "ab\U0001f600", None]),
    "bin": (pa.binary(), [b"", b"\x00'", None]),
    "day": (pa.date32(), [moment and moment.date() for moment in MOMENTS]),
    "ntz": (pa.timestamp("us"), MOMENTS),
    "ts": (pa.timestamp("us", "UTC"), [moment and moment.replace(tzinfo=UTC) for moment in MOMENTS]),
    "Select": (pa.int32(), [1, None, 3]),
}
CONDITIONS = [
    "{c} = {v}", "{c} != {v}", "{c} < {v}", "{c} <= {v}", "{c} > {v}", "{c} >= {v}", "NOT ({c} = {v})",
    "{c} IN ({v}, {v})", "{c} NOT IN ({v})", "{c} IS NULL", "{c} IS NOT NULL", "{c} = {v} OR f8 > 0",
    "{c} >= {v} AND f8 > 0", "f4 IS NAN AND {c} < {v}", "NOT ({c} < {v} OR f8 = 0)",
]  # fmt: skip
NESTED = {
    "s": pa.array([{"a": 1, "b": [1, None]}, None, {"a": None, "b": None}] * 4),
    "m": pa.array([[("k", 1.5)], None, []] * 4, pa.map_(pa.string(), pa.float64())),
    "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]] * 4, pa.list_(pa.float16(), 2)),
}


def typed_rows() -> pa.Table:
    """Every value of every column, next to each other's."""
    values = {name: itertools.cycle(values) for name, (_, values) in COLUMNS.items()}
    count = 60
    return pa.table(
        {
            "id": list(range(count)),
            **{
                name: pa.array([next(values[name]) for _ in range(count)], kind)
                for name, (kind, _) in COLUMNS.items()
            },
        }
    )


def read(path: Path, **options: str) -> pa.Table:
    return reader.read("penstock.lance", path=str(path), **options).read_all()


def ids(path: Path, **options: str) -> list[int]:
    return sorted(read(path, columns="id", **options)["id"].to_pylist())


def literals(name: str) -> Iterator[str]:
    kind, values = COLUMNS[name]
    for value in values:
        if value is None or (isinstance(value, float) and not math.isfinite(value)) or kind == pa.binary():
            continue
        if isinstance(value, bool):
            yield str(value).lower()
        elif isinstance(value, int | float | Decimal):
            yield format(value, "f") if isinstance(value, Decimal) else repr(value)
        else:
            quoted = str(value).replace("'", "''")
            yield f"'{quoted}'"


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of several fragments, of which some rows are deleted."""
    path = tmp_path_factory.mktemp("lance") / "typed"
    lance.write_dataset(typed_rows(), str(path), max_rows_per_file=25)
    lance.dataset(str(path)).delete("id IN (1, 30, 59)")
    return path


def test_all_types_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = pa.table({**typed_rows().slice(0, 12).to_pydict(), **NESTED}, schema=_with_nested())
    lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.2")
    found = read(tmp_path / "t")
    assert found.schema == rows.schema
    assert repr(found.to_pylist()) == repr(rows.to_pylist())


def _with_nested() -> pa.Schema:
    nested = [pa.field(name, values.type) for name, values in NESTED.items()]
    return pa.schema([*typed_rows().schema, *nested])


@pytest.mark.parametrize("name", [name for name in COLUMNS if name != "bin"])
def test_a_condition_finds_what_it_finds_in_all_rows(name: str, typed: Path) -> None:
    """Lance is given a condition, and compares otherwise than Spark."""
    table = reader.open_table("penstock.lance", path=str(typed))
    files, rows = list(table.files()), table.to_reader().read_all().combine_chunks().to_batches()[0]
    assert rows.num_rows == 57
    for value, text in itertools.product(literals(name), CONDITIONS):
        where = parse_where(text.format(c=f'"{name}"', v=value), rows.schema)
        expected = rows.filter(where.mask(rows))["id"].to_pylist()
        found = replace(table, columns=("id",), where=where).scan().read(files)
        assert [row for batch in found for row in batch["id"].to_pylist()] == expected, (text, value)


def test_floats_are_not_compared_by_lance() -> None:
    """-0.0 is less than 0.0 there."""
    schema = pa.schema([("f", pa.float64()), ("i", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    for text in ("f = 0", "f < 0 OR i = 1", "s.a = 1", "s IS NULL"):
        assert lance_filter(parse_where(text, schema), schema) is None, text
    kept = lance_filter(parse_where("f < 0 AND i = 1", schema), schema)
    assert kept == "(`i` = CAST('1' AS BIGINT))"


def test_parts_of_a_fragment_have_each_row_once(tmp_path: Path) -> None:
    """Also where rows are deleted, which an offset does not count."""
    lance.write_dataset(pa.table({"id": range(10_000)}), str(tmp_path / "t"), max_rows_per_file=6000)
    lance.dataset(str(tmp_path / "t")).delete("id % 7 = 3")
    expected = [number for number in range(10_000) if number % 7 != 3]
    for where in (None, "id >= 0"):
        table = reader.open_table("penstock.lance", {"path": str(tmp_path / "t")}, **_given(where=where))
        files = [replace(file, size_bytes=1000) for file in table.files()]
        cuts = [0, 1, 333, 500, 999, 1000]
        parts = [
            replace(file, start=start, end=end) for file in files for start, end in itertools.pairwise(cuts)
        ]
        assert len(parts) == 10
        assert [row for part in parts for row in _ids(table, [part])] == expected


def _given(**options: str | None) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}


def _ids(table: TableScan, files: list[reader.ScanFile]) -> list[int]:
    return [row for batch in table.scan().read(files) for row in batch["id"].to_pylist()]


def test_large_fragments_are_divided(tmp_path: Path) -> None:
    vectors = pa.array([0.5] * 10_000 * 256).cast(pa.float32())
    rows = pa.table({"id": range(10_000), "v": pa.FixedSizeListArray.from_arrays(vectors, 256)})
    lance.write_dataset(rows, str(tmp_path / "t"), data_storage_version="2.0")
    table = reader.open_table("penstock.lance", path=str(tmp_path / "t"), columns="id")
    (file,) = table.files()
    parts = split([file], 2**22, 1)
    assert len(parts) == round(file.size_bytes / 2**22) > 1
    assert Counter(row for part in parts for row in _ids(table, part)) == Counter(range(10_000))


def test_batches_are_small(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"text": ["x" * 10_000] * 10_000}), str(tmp_path / "t"))
    sizes = [batch.nbytes for batch in reader.read("penstock.lance", path=str(tmp_path / "t"))]
    assert sum(sizes) > 100_000_000
    assert max(sizes) < 20_000_000


def three_versions(path: Path) -> None:
    for number in range(3):
        lance.write_dataset(pa.table({"id": [number]}), str(path), mode="append" if number else "create")


def test_earlier_versions_and_tags_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    three_versions(path)
    table = lance.dataset(str(path))
    table.tags.create("first", 1)
    stored = [one["timestamp"] for one in table.versions()]
    times = [time.astimezone(UTC).isoformat() for time in stored if isinstance(time, dt.datetime)]
    assert ids(path) == [0, 1, 2]
    assert ids(path, versionAsOf="2") == [0, 1]
    assert ids(path, tag="first") == [0]
    assert [ids(path, timestampAsOf=time) for time in times] == [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"versionAsOf": "9"}, r"has no version 9, or it was cleaned up. It has the versions 1 to 3"),
        ({"tag": "none"}, "has no tag 'none'"),
        ({"timestampAsOf": "1999-01-01"}, "has no version at 1999-01-01T00:00:00"),
        ({"versionAsOf": "1", "tag": "a"}, "versionAsOf and tag are given"),
        ({"columns": "nothing"}, "'nothing' is not in version 3 of the Lance table"),
        ({"where": "nothing = 1"}, "there is no column nothing"),
        ({"mergeSchema": "true"}, "mergeSchema is not an option"),
    ],
)
def test_what_is_not_there_is_said(options: dict[str, str], problem: str, tmp_path: Path) -> None:
    three_versions(tmp_path / "t")
    with pytest.raises(ConfigurationError, match=problem):
        read(tmp_path / "t", **options)


def test_a_missing_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="There is no Lance table"):
        read(tmp_path / "nothing")


UNREADABLE = {
    "time": pa.array([1], pa.time64("us")),
    "uuid": pa.array([b"0" * 16], pa.uuid()),
    "duration": pa.array([1], pa.duration("us")),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_column_that_cannot_be_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "s": pa.array([1]), name: UNREADABLE[name]})
    lance.write_dataset(rows, str(tmp_path / "t"))
    with pytest.raises(TableNotSupportedError, match=f"the column '{name}' is .* Nothing was read."):
        read(tmp_path / "t")
    assert read(tmp_path / "t", columns="s, id", where="id = 1").to_pylist() == [{"s": 1, "id": 1}]


def test_columns_of_other_writers_are_read_with_plain_types(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "large": pa.array(["a", None], pa.large_string()),
            "coded": pa.array(["a", None]).dictionary_encode(),
            "u8": pa.array([255, None], pa.uint8()),
            "half": pa.array([0.5, None], pa.float16()),
            "ms": pa.array([1, None], pa.timestamp("ms")),
        }
    )
    lance.write_dataset(rows, str(tmp_path / "t"))
    found = read(tmp_path / "t", where="large = 'a' AND coded = 'a' AND half < 1")
    assert found.schema.field("large").type == found.schema.field("coded").type == pa.string()
    assert found.to_pylist() == rows.slice(0, 1).to_pylist()


def test_columns_that_a_fragment_does_not_have_are_null(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "t"))
    lance.dataset(str(tmp_path / "t")).add_columns(pa.field("more", pa.string()))
    lance.write_dataset(pa.table({"id": [2], "more": ["x"]}), str(tmp_path / "t"), mode="append")
    assert read(tmp_path / "t").to_pylist() == [{"id": 1, "more": None}, {"id": 2, "more": "x"}]
    assert ids(tmp_path / "t", where="more IS NULL") == [1]


def test_a_version_that_was_cleaned_up_meanwhile_is_an_error(tmp_path: Path) -> None:
    three_versions(tmp_path / "t")
    table = reader.open_table("penstock.lance", path=str(tmp_path / "t"), versionAsOf="1")
    files = list(table.files())
    lance.dataset(str(tmp_path / "t")).cleanup_old_versions(older_than=dt.timedelta(0))
    with pytest.raises(RetryableError, match="was cleaned up, or the table was created again"):
        list(table.scan().read(files))


def test_a_table_that_was_created_again_meanwhile_is_an_error(tmp_path: Path) -> None:
    """Its versions and fragments have the same numbers."""
    three_versions(tmp_path / "t")
    table = reader.open_table("penstock.lance", path=str(tmp_path / "t"))
    files = list(table.files())
    shutil.rmtree(tmp_path / "t")
    three_versions(tmp_path / "t")
    with pytest.raises(RetryableError, match="the table was created again"):
        list(table.scan().read(files))


def test_a_data_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    three_versions(tmp_path / "t")
    table = reader.open_table("penstock.lance", path=str(tmp_path / "t"))
    next((tmp_path / "t" / "data").iterdir()).unlink()
    with pytest.raises(RetryableError, match="was cleaned up"):
        table.to_reader().read_all()
