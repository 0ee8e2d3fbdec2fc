"""A delivery's small files are compacted before the table names them, with the same rows."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from servers.s3 import BUCKET, s3_client, s3_properties
from tests.support.lakes import LAKES, IcebergLake, rows

from penstock.committers.contract import AttemptId, Batch, Committed, Manifest, Mode, StreamKey
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.evolution import SchemaEvolution
from penstock.committers.file_tables.manifest import build_manifest, decode
from penstock.committers.file_tables.merge import merge
from penstock.committers.iceberg.terms import parse_partition_spec
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.delivery.compaction import DeliveryCompactor
from penstock.delivery.rewriting import GroupRewriter, LocalExecutor, OnProgress
from penstock.writers.parquet.compaction import RewriteGroup
from penstock.writers.parquet.compaction_process import RewriteProcess
from penstock.writers.parquet.file_names import parse_file_name

FORMATS = ("delta", "iceberg")
NAN = float("nan")
INNER = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("at_local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("number", pa.int32()),
        ("amount", pa.decimal128(38, 10)),
        ("flag", pa.bool_()),
        ("double", pa.float64()),
        ("real", pa.float32()),
        ("bytes", pa.binary()),
        ("list", pa.list_(INNER)),
        ("map", pa.map_(pa.string(), INNER)),
        ("struct", pa.struct([("inner", INNER), ("d", pa.decimal128(9, 2))])),
    ]
)
PARTS = ["a b%20/c", "é=ü", None, "x'y\"z", "#?&"]
ODD = [NAN, -0.0, 0.0, None, float("inf"), 5e-324]
DAYS = [date(1970, 1, 1), date(1969, 12, 31), None, date(2024, 2, 29)]


def row(n: int) -> dict[str, Any]:
    at = datetime(1969, 12, 31, 23, 59, 59, 999_999, timezone.utc) + timedelta(hours=n % 5, microseconds=n)
    return {
        "id": n,
        "part": PARTS[n % len(PARTS)],
        "at": at if n % 7 else None,
        "at_local": datetime(1, 1, 1) if n % 2 else datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
        "day": DAYS[n % len(DAYS)],
        "number": n % 3 - 1,
        "amount": Decimal("-9999999999999999999999999999.9999999999") if n % 2 else Decimal("0.0000000001"),
        "flag": [True, False, None][n % 3],
        "double": ODD[n % len(ODD)],
        "real": ODD[n % len(ODD)] if n % 6 != 5 else 1.5,
        "bytes": bytes([n % 4, 0, 255]),
        "list": [None, {"x": -0.0, "y": [None, ""]}, {"x": None, "y": None}] if n % 3 else None,
        "map": [("k", None), ("", {"x": NAN, "y": []})] if n % 2 else [],
        "struct": None if n % 5 else {"inner": None, "d": Decimal("9999999.99")},
    }


class Backlog:
    """Batches of a stream that are prepared, each of several small files."""

    def __init__(
        self, sink: FileTableSink, schema: pa.Schema = SCHEMA, batches: int = 6, rows: int = 8
    ) -> None:
        self.sink = sink
        self.stream = StreamKey("q0", sink.table_uri)
        self.manifests = [self.prepare(number, schema, rows) for number in range(batches)]

    def prepare(self, number: int, schema: pa.Schema, rows: int, mode: Mode = "append") -> Manifest:
        planned = self.sink.open_table().plan_batch(schema, mode, number)
        writer = planned.writers.open(AttemptId("q0", "run", number, 0, number))
        values = [row(n) for n in range(number * rows, (number + 1) * rows)]
        given = [{name: value[name] for name in schema.names} for value in values]
        writer.write(pa.RecordBatch.from_pylist(given, schema))
        batch = Batch(self.stream, number, f"{number:064x}")
        event = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=number)
        return replace(
            build_manifest(batch, planned.content.with_files(writer.finish())), oldest_event_at=event
        )

    @property
    def merged(self) -> Manifest:
        return merge(self.manifests)

    def compactor(
        self, processes: int = 0, on_progress: OnProgress = lambda done, groups: None
    ) -> DeliveryCompactor:
        return DeliveryCompactor(self.sink.open_table(), GroupRewriter(LocalExecutor(processes), on_progress))

    def compact(self, **arguments: Any) -> Manifest:
        compacted = self.compactor(**arguments)(self.merged, "delivery-1")
        assert compacted is not None
        return compacted

    def commit(self, manifest: Manifest) -> None:
        assert isinstance(self.sink.open_table().commit(manifest), Committed)


def delta_sink(folder: Path, **options: Any) -> DeltaSink:
    return DeltaSink(DeltaOptions(path=str(folder / "table"), **options))


def iceberg_sink(folder: Path, **options: Any) -> IcebergSink:
    return IcebergSink(IcebergOptions(warehouse=str(folder / "warehouse"), table="lake.ids", **options))


def by_duckdb(folder: Path, kind: str) -> list[str]:
    """Every row with all bits that the engine shows."""
    return [repr(found) for found in rows(LAKES[kind](folder), order="id")]


def files_on_disk(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("penstock-*.parquet")}


def names(manifest: Manifest) -> set[str]:
    return {file.path.rpartition("/")[2] for file in decode(manifest).files}


DELTA = [(), ("part",), ("day", "flag"), ("at",), ("amount", "number"), ("at_local",)]
ICEBERG = [
    "",
    "part",
    "bucket(3, part), truncate(2, part)",
    "day(at), flag",
    "hour(at)",
    "year(day), bucket(2, amount)",
    "month(day), truncate(10, number)",
    "truncate(1, bytes)",
    "real",
    "bucket(2, id), day",
]


@pytest.mark.parametrize("partition_by", DELTA, ids="-".join)
def test_a_compacted_delta_table_has_the_same_rows(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    check_same_rows("delta", tmp_path, lambda folder: delta_sink(folder, partition_by=partition_by))


@pytest.mark.parametrize("spec", ICEBERG)
def test_a_compacted_iceberg_table_has_the_same_rows(tmp_path: Path, spec: str) -> None:
    parsed = parse_partition_spec(spec) if spec else ()
    check_same_rows("iceberg", tmp_path, lambda folder: iceberg_sink(folder, partition_spec=parsed))


def check_same_rows(kind: str, folder: Path, sink_in: Callable[[Path], FileTableSink]) -> None:
    plain, compacted = Backlog(sink_in(folder / "plain")), Backlog(sink_in(folder / "compacted"))
    partitions = {file.partition_values for file in decode(plain.merged).files}
    manifest = compacted.compact()
    assert {file.partition_values for file in decode(manifest).files} == partitions
    assert manifest.files == len(partitions) < compacted.merged.files
    plain.commit(plain.merged)
    compacted.commit(manifest)

    rows = by_duckdb(folder / "compacted", kind)
    assert rows == by_duckdb(folder / "plain", kind)
    assert len(rows) == 48
    assert by_polars(folder / "compacted", kind).equals(by_polars(folder / "plain", kind), null_equal=True)


def by_polars(folder: Path, kind: str) -> pl.DataFrame:
    lake: Any = LAKES[kind](folder)
    columns = ["id", "part", "at", "amount", "double", "bytes", "struct"]
    if kind == "delta":
        return pl.scan_delta(str(lake.folder)).select(columns).sort("id").collect()
    return pl.scan_iceberg(lake.load(), reader_override="native").select(columns).sort("id").collect()


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backlog(kind: str, tmp_path: Path) -> Backlog:
    return Backlog(partitioned_sink(kind, tmp_path))


def partitioned_sink(kind: str, folder: Path, **options: Any) -> FileTableSink:
    if kind == "delta":
        return delta_sink(folder, partition_by=("flag",), **options)
    return iceberg_sink(folder, partition_spec=parse_partition_spec("flag"), **options)


# What comes out -----------------------------------------------------------------------------------


def test_a_compacted_manifest_is_of_the_same_batches(backlog: Backlog) -> None:
    merged, compacted = backlog.merged, backlog.compact()
    assert (compacted.batch, compacted.merged) == (merged.batch, merged.merged)
    assert (compacted.oldest_event_at, compacted.rows) == (merged.oldest_event_at, merged.rows)
    assert compacted.files == 3
    assert decode(compacted).with_files(()) == decode(merged).with_files(())


def test_new_files_are_named_for_the_last_batch_and_their_group(backlog: Backlog) -> None:
    parsed = [parse_file_name(file.path) for file in decode(backlog.compact()).files]
    assert [(p.query_id, p.batch_id, p.partition, p.attempt) for p in parsed if p] == [
        ("q0", 5, group, 0) for group in range(3)
    ]


def test_processes_make_the_same_files(
    backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.delivery.rewriting.INLINE_FILES_MAX", 1)
    progress: list[tuple[int, int]] = []
    here = backlog.compact()
    there = backlog.compactor(processes=2, on_progress=lambda *done: progress.append(done))(
        backlog.merged, "delivery-2"
    )
    assert there is not None
    assert progress == [(1, 3), (2, 3), (3, 3)]

    def contents(manifest: Manifest) -> list[bytes]:
        by_name = {path.name: path.read_bytes() for path in tmp_path.rglob("penstock-*.parquet")}
        return [by_name[file.path.rpartition("/")[2]] for file in decode(manifest).files]

    assert contents(there) == contents(here)
    assert not names(there) & names(here)


def test_files_of_the_target_size_stay_in_the_manifest(backlog: Backlog) -> None:
    large = backlog.prepare(6, SCHEMA, 6000)
    backlog.manifests.append(large)
    target = max(file.size_bytes for file in decode(large).files)
    sink: Any = backlog.sink
    backlog.sink = type(sink)(replace(sink.options, target_file_bytes=target))
    whole = {file for file in decode(large).files if file.size_bytes >= 0.75 * target}
    compacted = decode(backlog.compact()).files
    assert whole <= set(compacted)
    assert len(compacted) < backlog.merged.files


def test_a_backlog_that_overwrites_the_table_still_does(backlog: Backlog, kind: str, tmp_path: Path) -> None:
    backlog.commit(backlog.manifests[0])
    rest = [backlog.prepare(n, SCHEMA, 8, "overwrite" if n == 3 else "append") for n in range(10, 13)]
    overwriting = backlog.prepare(20, SCHEMA, 8, "overwrite")
    backlog.manifests = [*rest, overwriting, backlog.prepare(21, SCHEMA, 8)]
    manifest = backlog.compact()
    assert decode(manifest).mode == "overwrite"
    backlog.commit(manifest)
    assert [json.loads(r.split(",")[0][1:]) for r in by_duckdb(tmp_path, kind)] == list(range(160, 176))


def test_new_columns_come_with_the_compacted_files(kind: str, tmp_path: Path) -> None:
    few = pa.schema([field for field in SCHEMA if field.name in ("id", "flag")])
    many = pa.schema([field for field in SCHEMA if field.name in ("id", "flag", "list", "struct")])
    backlog = Backlog(
        partitioned_sink(kind, tmp_path, schema_evolution=SchemaEvolution.ADD_COLUMNS), few, batches=1
    )
    backlog.commit(backlog.manifests[0])
    backlog.manifests = [backlog.prepare(n, many, 8) for n in range(1, 4)]
    backlog.commit(backlog.compact())
    rows = by_duckdb(tmp_path, kind)
    assert len(rows) == 32
    assert rows[0] != rows[1]
    assert "None, None" in rows[0]


def test_an_order_by_columns_that_older_batches_lack_is_followed_as_far_as_it_goes(backlog: Backlog) -> None:
    sink: Any = backlog.sink
    backlog.sink = type(sink)(replace(sink.options, sort_within=("NUMBER", "not_yet_there", "id")))
    assert backlog.compact().files == 3


# What is left alone -------------------------------------------------------------------------------


def test_one_file_is_not_worth_rewriting(kind: str, tmp_path: Path) -> None:
    backlog = Backlog(partitioned_sink(kind, tmp_path), batches=1)
    assert backlog.merged.files == 3
    assert backlog.compactor()(backlog.merged, "delivery-1") is None


def test_a_table_that_refuses_the_files_is_left_alone(backlog: Backlog, kind: str, tmp_path: Path) -> None:
    before = files_on_disk(tmp_path)
    lake = LAKES[kind](tmp_path)
    if isinstance(lake, IcebergLake):
        with lake.load().update_spec() as update:
            update.add_identity("number")
        assert backlog.compactor()(backlog.merged, "delivery-1") is None
    lake.replace()
    assert backlog.compactor()(backlog.merged, "delivery-1") is None
    lake.drop()
    assert backlog.compactor()(backlog.merged, "delivery-1") is None
    assert files_on_disk(tmp_path) <= before


def test_a_table_created_again_is_left_alone(backlog: Backlog, kind: str, tmp_path: Path) -> None:
    """With the same columns: only its id is another."""
    LAKES[kind](tmp_path).forget()
    merged = backlog.merged
    backlog.sink.open_table().plan_batch(SCHEMA, "append", 0)
    assert backlog.compactor()(merged, "delivery-1") is None


def test_new_files_are_in_the_location_of_the_manifest(tmp_path: Path) -> None:
    """A manifest has one location for all of its files."""
    backlog = Backlog(iceberg_sink(tmp_path))
    table: Any = LAKES["iceberg"](tmp_path)
    with table.load().transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file://{tmp_path}/elsewhere"})
    backlog.commit(backlog.compact())
    assert len(by_duckdb(tmp_path, "iceberg")) == 48


def test_an_invalid_property_changes_no_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backlog = Backlog(iceberg_sink(tmp_path))
    table: Any = LAKES["iceberg"](tmp_path)
    with table.load().transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "large"})
    with caplog.at_level(logging.WARNING):
        assert backlog.compactor()(backlog.merged, "delivery-1") is None
    assert "write.target-file-size-bytes" in caplog.text
    backlog.commit(backlog.merged)


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [0, 2])
def test_a_missing_source_is_named_and_all_new_files_are_deleted(
    backlog: Backlog, tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one of the last group, when the others are done."""
    monkeypatch.setattr("penstock.delivery.rewriting.INLINE_FILES_MAX", 1)
    last = decode(backlog.merged).files[2].partition_values
    missing = [file for file in decode(backlog.merged).files if file.partition_values == last][-1]
    (path,) = tmp_path.rglob(missing.path.rpartition("/")[2])
    path.unlink()
    before = files_on_disk(tmp_path)
    with pytest.raises(RetryableError, match=path.name):
        backlog.compact(processes=processes)
    assert files_on_disk(tmp_path) == before


def test_an_error_of_on_progress_deletes_the_new_files(backlog: Backlog, tmp_path: Path) -> None:
    before = files_on_disk(tmp_path)

    def stop(done: int, groups: int) -> None:
        assert (done, groups) == (1, 3)
        raise InterruptedError("stopped")

    with pytest.raises(InterruptedError):
        backlog.compact(on_progress=stop)
    assert files_on_disk(tmp_path) == before


def test_what_other_processes_make_meanwhile_is_waited_for_and_deleted_too(
    backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know the names of their files."""
    monkeypatch.setattr("penstock.delivery.rewriting.INLINE_FILES_MAX", 1)
    before, made, rewrite = files_on_disk(tmp_path), set[int](), RewriteProcess.rewrite
    has_second, has_first_made = threading.Event(), threading.Event()

    def slow(process: RewriteProcess, plan: Any, names: Any, group: RewriteGroup) -> Any:
        if group.number == 0:
            assert has_second.wait(60)
        else:
            has_second.set()
        files = rewrite(process, plan, names, group)
        if group.number > 0:
            assert has_first_made.wait(60)
            time.sleep(0.5)
        made.add(group.number)
        has_first_made.set()
        return files

    def stop(done: int, groups: int) -> None:
        raise InterruptedError("stopped")

    monkeypatch.setattr(RewriteProcess, "rewrite", slow)
    with pytest.raises(InterruptedError):
        backlog.compact(processes=2, on_progress=stop)
    assert made >= {0, 1}
    assert files_on_disk(tmp_path) == before


def test_the_crash_points_lie_around_the_rewriting(backlog: Backlog, reached: list[tuple[str, int]]) -> None:
    """Before the first no file is there, after the last all of them; a restart makes others."""
    compacted = backlog.compact()
    of_compaction = [(n, point) for n, (point, _) in enumerate(reached) if point.startswith("compact.")]
    assert of_compaction == [(0, "compact.start"), (len(reached) - 1, "compact.done")]
    assert {batch_id for _, batch_id in reached} == {5}
    again = backlog.compactor()(backlog.merged, "delivery-2")
    assert again is not None
    assert not names(again) & names(compacted)
    backlog.commit(again)


# Object stores ------------------------------------------------------------------------------------


def sink_on_s3(kind: str, folder: Path, storage: Mapping[str, str]) -> FileTableSink:
    if kind == "delta":
        return DeltaSink(DeltaOptions(path=f"s3://{BUCKET}/table", storage_options=dict(storage)))
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.sqlite",
        "warehouse": f"s3://{BUCKET}/warehouse",
        **s3_properties(storage),
    }
    return IcebergSink(IcebergOptions(table="lake.ids", catalog="local", catalog_properties=properties))


def ids_on_s3(sink: FileTableSink, storage: dict[str, str]) -> Sequence[int]:
    if isinstance(sink, DeltaSink):
        return pl.scan_delta(sink.table_uri, storage_options=storage).collect()["id"].to_list()
    assert isinstance(sink, IcebergSink)
    properties = sink.options.catalog_properties
    options = {key: value for key, value in properties.items() if key.startswith("s3.")}
    table = SqlCatalog("local", **properties).load_table("lake.ids")
    rows = pl.scan_iceberg(table, reader_override="native", storage_options=options)
    return rows.collect()["id"].to_list()


def keys(storage: dict[str, str]) -> set[str]:
    listing = s3_client(storage).list_objects_v2(Bucket=BUCKET)
    return {found["Key"] for found in listing["Contents"] if found["Key"].endswith(".parquet")}


def test_files_in_an_object_store_are_compacted_there(
    kind: str, tmp_path: Path, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: secrets reach it, and show in no error."""
    monkeypatch.setattr("penstock.delivery.rewriting.INLINE_FILES_MAX", 1)
    sink = sink_on_s3(kind, tmp_path, s3)
    few = pa.schema([field for field in SCHEMA if field.name in ("id", "part")])
    backlog = Backlog(sink, few, batches=4)
    compacted = backlog.compact(processes=1)
    assert compacted.files == 1
    backlog.commit(compacted)
    assert sorted(ids_on_s3(sink, s3)) == list(range(32))

    before = keys(s3)
    missing = decode(backlog.merged).files[1].path.rpartition("/")[2]
    (key,) = [key for key in before if key.endswith(missing)]
    s3_client(s3).delete_object(Bucket=BUCKET, Key=key)
    with pytest.raises(RetryableError, match=missing) as raised:
        backlog.compactor(processes=1)(backlog.merged, "delivery-2")
    assert "is missing" in str(raised.value)
    assert keys(s3) == before - {key}
