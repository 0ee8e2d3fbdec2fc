"""Files that are not Parquet: read back by other engines, and what they do not have."""

from __future__ import annotations

from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc
from tests.support.file_rows import canonical, rows_for, write
from tests.support.files import CSV, FilesHarness

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.datasource.files.options import FilesOptions
from penstock.datasource.files.sink import sink_of
from penstock.datasource.files.target import FilesTarget
from penstock.testing.duckdb_reader import connect, load_extensions
from penstock.writers.files.table_format import parse_name

IDS = pa.schema([("id", pa.int64())])
DUCKDB_TYPES = {
    "byte": "TINYINT",
    "single": "FLOAT",
    "wide": "DECIMAL(38, 10)",
    "instant": "TIMESTAMPTZ",
    "local": "TIMESTAMP",
    "flag": "BOOLEAN",
    "short": "SMALLINT",
    "double": "DOUBLE",
    "narrow": "DECIMAL(9, 2)",
    "text": "VARCHAR",
    "day": "DATE",
    "id": "BIGINT",
    "raw": "VARCHAR",
    "numbers": "BIGINT[]",
    "structs": "STRUCT(x BIGINT, t TIMESTAMPTZ)[]",
    "prices": "MAP(VARCHAR, DECIMAL(9, 2))",
}


def by_duckdb(function: str, path: Path, names: list[str], options: str) -> list[dict[str, Any]]:
    columns = ", ".join([f"{name}: '{DUCKDB_TYPES[name]}'" for name in names])
    decode = " REPLACE (from_base64(raw) AS raw)" if "raw" in names else ""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT *{decode} FROM {function}('{path}', columns = {{{columns}}}{options})"
        return connection.execute(query).to_arrow_table().to_pylist()


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "zstd"])
@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_duckdb_reads_texts_back(tmp_path: Path, file_format: str, codec: str) -> None:
    harness, rows = FilesHarness(tmp_path, file_format), rows_for(file_format)
    path = write(harness, rows, compression=codec)
    function, options = {"json": ("read_ndjson", ""), "csv": ("read_csv", f", {CSV}")}[file_format]
    options = options.replace(", union_by_name = true", "")

    found = by_duckdb(function, path, rows.column_names, options)
    assert canonical(found) == canonical(rows.to_pylist())
    assert path.name.endswith({"uncompressed": file_format, "gzip": ".gz", "zstd": ".zst"}[codec])
    parsed = parse_name(str(path))
    assert parsed is not None
    assert (parsed.query_id, parsed.batch_id) == ("q1", 0)


def test_fastavro_reads_avro_back(tmp_path: Path) -> None:
    rows = rows_for("avro")
    path = write(FilesHarness(tmp_path, "avro"), rows)

    with path.open("rb") as file:
        records: list[Any] = list(fastavro.reader(file))
    assert canonical(records) == canonical(rows.to_pylist())


def test_duckdb_reads_avro_back(tmp_path: Path) -> None:
    """Its decimals are bytes, its instants have no zone, and it does not know timestamps without zone."""
    rows = rows_for("avro").drop_columns(["local", "wide", "narrow", "prices", "structs"])
    path = write(FilesHarness(tmp_path, "avro"), rows)

    with connect() as connection:
        load_extensions(connection, "avro")
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(f"SELECT * FROM read_avro('{path}')").to_arrow_table().to_pylist()
    instants = rows["instant"].cast(pa.timestamp("us"))
    want = rows.set_column(rows.schema.names.index("instant"), "instant", instants)
    assert canonical(found) == canonical(want.to_pylist())


@pytest.mark.parametrize("codec", ["zstd", "zlib"])
def test_orc_is_read_back(tmp_path: Path, codec: str) -> None:
    """Arrow reads timestamps of ORC in nanoseconds, which have no year 9999. Spark's test reads these."""
    rows = rows_for("orc").drop_columns(["day", "instant"])
    path = write(FilesHarness(tmp_path, "orc"), rows, compression=codec)

    assert orc.ORCFile(path).compression == codec.upper()
    assert canonical(orc.read_table(path).to_pylist()) == canonical(rows.to_pylist())


def target_of(tmp_path: Path, file_format: str, **options: str) -> FilesTarget:
    harness = FilesHarness(tmp_path, file_format)
    target = sink_of(FilesOptions.parse({**harness.options, **options})).open_table()
    assert isinstance(target, FilesTarget)
    return target


@pytest.mark.parametrize(
    ("file_format", "name", "data_type"),
    [
        ("csv", "v", pa.list_(pa.int64())),
        ("csv", "v", pa.binary()),
        ("json", "v", pa.map_(pa.int64(), pa.int64())),
        ("json", "v", pa.list_(pa.time64("us"))),
        ("avro", "v", pa.list_(pa.map_(pa.int64(), pa.int64()))),
        ("avro", "v", pa.struct([("1st", pa.int64())])),
        ("avro", "a b", pa.int64()),
        ("avro", "v", pa.time64("us")),
        ("orc", "v", pa.list_(pa.timestamp("us"))),
    ],
)
def test_columns_that_a_format_does_not_have_are_refused(
    tmp_path: Path, file_format: str, name: str, data_type: pa.DataType
) -> None:
    schema = pa.schema([("id", pa.int64()), (name, data_type)])
    with pytest.raises(SchemaMismatchError, match=f"- {name}"):
        target_of(tmp_path, file_format).plan_batch(schema, "append", 0)
    assert list(tmp_path.iterdir()) == []


INSTANT, YEAR_1 = pa.timestamp("us", "UTC"), datetime(1, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("file_format", "value", "data_type", "message"),
    [
        ("csv", r"\N", pa.string(), r"a text in v is \\N"),
        *[(name, 3_000_000, pa.date32(), "a value in v") for name in ("csv", "json", "avro")],
        ("orc", datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=timezone.utc), INSTANT, "v has .* 1970"),
        ("orc", [YEAR_1], pa.list_(INSTANT), "v has .* 1970"),
        ("orc", {"t": YEAR_1}, pa.struct([("t", INSTANT)]), "v has .* 1970"),
        ("orc", date(1582, 10, 14), pa.date32(), "v has .* 1582"),
    ],
)
def test_values_that_a_format_does_not_have_are_refused(
    tmp_path: Path, file_format: str, value: object, data_type: pa.DataType, message: str
) -> None:
    rows = pa.table({"id": [1, 2], "v": pa.array([None, value], data_type)})
    with pytest.raises(SchemaMismatchError, match=f"(?i){message}"):
        write(FilesHarness(tmp_path, file_format), rows)


def test_a_value_in_a_partition_column_need_not_fit_the_format(tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "v": [r"\N"]})
    path = write(FilesHarness(tmp_path, "csv"), rows, partitionBy="v")
    assert path.parent.name == r"v=%5CN"


def test_a_null_is_a_row_of_a_file_with_one_column(tmp_path: Path) -> None:
    path = write(FilesHarness(tmp_path, "csv"), pa.table({"id": pa.array([None, 1], pa.int64())}))
    assert path.read_text() == '"id"\n\\N\n1\n'


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv", "avro", "orc"])
@pytest.mark.parametrize("codec", ["", "gzip"])
def test_rows_with_other_columns_than_the_files_are_refused(
    tmp_path: Path, file_format: str, codec: str
) -> None:
    options = {"compression": codec} if codec and file_format in ("json", "csv") else {}
    rows = rows_for(file_format).slice(0, 2)
    write(FilesHarness(tmp_path, file_format), rows, **options)
    target = target_of(tmp_path, file_format, **options)
    target.plan_batch(rows.schema, "append", 1)
    with pytest.raises(SchemaMismatchError, match="more"):
        target.plan_batch(rows.schema.append(pa.field("more", pa.int64())), "append", 1)
    lists = rows.schema.set(0, pa.field("id", pa.list_(pa.int64())))
    with pytest.raises(SchemaMismatchError, match="- id"):
        target.plan_batch(lists, "append", 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.parquet", b"", "is parquet, and the query writes json"),
        ("x.json", b"[\n{}]", "cannot be read as json"),
        ("x.json.gz", b"{}", "cannot be read as json"),
    ],
)
def test_folders_with_other_files_are_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / name).write_bytes(content)
    with pytest.raises(SchemaMismatchError, match=message):
        target_of(tmp_path, "json").plan_batch(IDS, "append", 0)


@pytest.mark.parametrize("name", ["_SUCCESS.json", ".part.csv", "_tmp/x.csv", "notes.txt"])
def test_files_that_readers_do_not_list_are_not_compared(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    target_of(tmp_path, "json").plan_batch(IDS, "append", 0)


@pytest.mark.parametrize(
    ("file_format", "codec"), [("json", "snappy"), ("avro", "zstd"), ("parquet", "zlib")]
)
def test_codecs_of_other_formats_are_refused(tmp_path: Path, file_format: str, codec: str) -> None:
    with pytest.raises(ConfigurationError, match=f"compression={codec} is no codec of the format"):
        target_of(tmp_path, file_format, compression=codec)


def test_avro_without_its_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.datasource.files.existing_files.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="penstock\\[files\\]"):
        target_of(tmp_path, "avro").plan_batch(IDS, "append", 0)
