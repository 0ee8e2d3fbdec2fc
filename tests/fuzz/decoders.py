"""The decoders of bytes from the store or from a table, with samples, and the errors that they may raise."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.committers.arrow_ipc.reader import read_schema
from penstock.committers.cleaning.deletion import is_relative
from penstock.committers.contract import AttemptId, Batch, DataFile, StreamKey, Token
from penstock.committers.database.content import TableContent
from penstock.committers.database.staging import StagingTable, staging_name
from penstock.committers.dead_letters import WRITING, dead_letter, row_in
from penstock.committers.delta import history
from penstock.committers.delta.log_entry import changes_of
from penstock.committers.duckdb.address import DuckDbAddress
from penstock.committers.duckdb.dialect import DIALECT as DUCKDB
from penstock.committers.errors import ManifestCorruptError, PenstockError, TableChangedError
from penstock.committers.file_tables import manifest as lake_manifest
from penstock.committers.files.journal import Journal
from penstock.committers.files.partitions import NewPartitions, Partition, TableName
from penstock.committers.files.staged import Upload
from penstock.committers.iceberg.reachability import ExpiredFiles, decode_expired
from penstock.committers.iceberg.table import committed_batch, token_property
from penstock.committers.postgres.address import PostgresAddress
from penstock.committers.postgres.dialect import DIALECT as POSTGRES
from penstock.committers.row_log.log import LoggedBatch, RowLog
from penstock.committers.row_log.names import CHECKSUM, row_log_path
from penstock.committers.texts.row_text import row_text
from penstock.datasource.spark.checkpoint import _log_position
from penstock.delivery.stream_settings import StreamSettings

BATCH = Batch(StreamKey("query-1", "/lake/t"), 7, "ab" * 32)


@dataclass(frozen=True)
class Decoder:
    name: str
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    expected: tuple[type[Exception], ...]
    """Other errors are found by the fuzzer."""


def manifest(files: int, partition_by: tuple[str, ...] = ("day",)) -> lake_manifest.LakeManifest:
    some = tuple(
        DataFile(
            f"day={i % 3}/{i:08d}.parquet",
            1000 + i,
            10,
            tuple((name, None if i % 3 == 0 else str(i % 3)) for name in partition_by),
            json.dumps({"numRecords": 10, "maxValues": {"id": i}}),
        )
        for i in range(files)
    )
    return lake_manifest.LakeManifest(
        "delta", "append", "id", 3, '{"fields": []}', ("new",), partition_by, some, "file:///lake/t", 2
    )


def body_of(content: lake_manifest.LakeManifest) -> bytes:
    return lake_manifest.encode(content)[lake_manifest._PREFIX.size :]


def decode_body(body: bytes, files: int | None = None) -> lake_manifest.LakeManifest:
    """Decode with a correct checksum and correct counts: who can write to the store writes them, too."""
    prefix = lake_manifest._PREFIX.pack(lake_manifest._MAGIC, lake_manifest.VERSION, zlib.crc32(body))
    sealed = replace(
        lake_manifest.build_manifest(BATCH, manifest(0)), content=prefix + body, files=files or 0
    )
    try:
        return lake_manifest.decode(sealed)
    except ManifestCorruptError as error:
        if files is None and (found := _count_in(str(error))) is not None:
            return decode_body(body, found)
        raise


def _count_in(text: str) -> int | None:
    before, separator, _ = text.partition(" files instead of")
    return int(before.rpartition(" ")[2]) if separator else None


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "replace")


def _infos(entry: bytes) -> Any:
    return [(info.digest_of(BATCH), info.is_restore) for info in history._infos(1, entry)]


def _committed(text: bytes) -> object:
    properties = {token_property("q", "main"): _text(text)}
    return committed_batch(SimpleNamespace(properties=properties), "q", "main")  # type: ignore[arg-type]


def _staged(content: bytes) -> object:
    return POSTGRES.manifests.decode(replace(STAGED, content=content))


def _staged_files(content: bytes) -> object:
    return DUCKDB.manifests.decode(replace(STAGED_FILES, content=content))


TARGET = PostgresAddress("localhost", "5432", "shop", "public", "orders")
STAGED_BATCH = replace(BATCH, stream=StreamKey(BATCH.stream.query_id, TARGET.uri))
STAGING_NAME = staging_name(AttemptId(BATCH.stream.query_id, "run", BATCH.batch_id, 0, 0), TARGET.sql)
STAGED = POSTGRES.manifests.manifest_of(
    STAGED_BATCH,
    TableContent("append", "16401", (("id", "bigint"), ("d", "numeric(9,2)"))),
    [(StagingTable("public", STAGING_NAME, 10, 100),)],
)
FILE_TARGET = DuckDbAddress("/lake.duckdb", "main", "orders")
FILE_BATCH = replace(BATCH, stream=StreamKey(BATCH.stream.query_id, FILE_TARGET.uri))
FILE_NAME = staging_name(AttemptId(BATCH.stream.query_id, "run", BATCH.batch_id, 0, 0), FILE_TARGET.sql)
STAGED_FILES = DUCKDB.manifests.manifest_of(
    FILE_BATCH,
    TableContent(
        "append", "16401", (("id", "BIGINT"), ("s", 'STRUCT(a DECIMAL(9,2)[], "b c" MAP(DATE, BLOB))'))
    ),
    [(StagingTable("query-1", FILE_NAME, 10, 100),)],
)
NOTE = json.dumps({"penstock": {"query_id": "query-1", "batch_id": 8, "digest": "ab", "merged": "6:ab,7:ab"}})
EXPIRED = ExpiredFiles((1, 2), 3, ("s3://b/a.parquet",), ("s3://b/m.avro",), ("s3://b/l.avro",))
INFO = {"operation": "WRITE", "operationParameters": {"mode": "Append"}, "userMetadata": NOTE}
EXPIRY = zlib.decompress(EXPIRED.encode())
ENTRY = b"\n".join(
    json.dumps(action).encode()
    for action in (
        {"txn": {"appId": "penstock-1", "version": 7}},
        {"metaData": {"id": "t"}},
        {"commitInfo": INFO},
    )
)
TOKEN = b'{"batch_id": 7, "digest": "abab", "snapshot_id": 9, "sequence_number": 2, "timestamp_ms": 5}'
SETTINGS = b'{"delivery": "decoupled", "checkpoint": "/cp", "options": {"path": "/lake/t"}}'


def _stream_of(rows: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _row(content: bytes) -> str:
    return row_text(row_in(content))


def read_logged(content: bytes, rows: int = 2) -> list[str]:
    """Read a file of a row log with a fitting checksum: who can write to the store writes it, too."""
    with TemporaryDirectory() as folder:
        path = row_log_path(AttemptId(BATCH.stream.query_id, "run", BATCH.batch_id, 0, 0))
        (Path(folder) / path).parent.mkdir()
        (Path(folder) / path).write_bytes(content)
        file = DataFile(path, len(content), rows, statistics=f"{CHECKSUM}{zlib.crc32(content):08x}")
        read = RowLog(folder, {}).read(LoggedBatch.of(BATCH, [file]))
        return [
            row_text(pa.Table.from_batches([some.rows.slice(row)]))
            for some in read
            for row in range(len(some.rows))
        ]


ROWS = pa.record_batch(
    {
        "id": pa.array([3, None]),
        "text": ["hello", "Müller"],
        "at": pa.array([datetime(2026, 1, 1, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 1, 1), None]),
        "price": pa.array([Decimal("1.20"), None]),
        "is_good": [True, None],
        "parts": [[{"a": 1, "b": [b"x", None]}], None],
        "names": pa.array([[("k", "v")], []], pa.map_(pa.string(), pa.string())),
        "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    }
)
"""With the types of Spark."""
LETTER = dead_letter(ROWS.slice(0, 1), WRITING, 0, 0, "does_not_fit", "").content
LOGGED = (_stream_of(ROWS, "zstd"), _stream_of(ROWS))


def _journal(content: bytes) -> None:
    journal = Journal.decode(content)
    folders = [one.folder for one in journal.partitions.partitions] if journal.partitions else []
    assert all(map(is_relative, [*journal.files, *journal.markers, *folders]))


JOURNAL = Journal(
    Token(7, "ab"),
    {"day=1/a.parquet": Upload("id", "nonce", ("etag",)), "b.parquet": None},
    markers={"day=1/_SUCCESS": ""},
    partitions=NewPartitions(TableName("hive", "a", "b"), (Partition("day=1", ("1",)),)),
)
BODIES = (body_of(manifest(3)), body_of(manifest(200)), body_of(manifest(40, ())))
CORRUPT = (ManifestCorruptError,)
NO_JOURNAL = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
DECODERS = (
    Decoder("manifest", BODIES, decode_body, CORRUPT),
    Decoder("Postgres manifest", (STAGED.content,), _staged, CORRUPT),
    Decoder("DuckDB manifest", (STAGED_FILES.content,), _staged_files, CORRUPT),
    Decoder("expiry", (EXPIRY,), lambda text: decode_expired(zlib.compress(text)), CORRUPT),
    Decoder("compressed expiry", (EXPIRED.encode(),), decode_expired, CORRUPT),
    Decoder("settings", (SETTINGS,), lambda text: StreamSettings.parse(_text(text)), CORRUPT),
    Decoder("Iceberg token", (TOKEN,), _committed, (TableChangedError,)),
    Decoder("Delta log entry", (ENTRY,), changes_of, (ValueError,)),
    Decoder("Delta commit", (ENTRY,), _infos, (ValueError,)),
    Decoder("dead letter", (LETTER,), _row, (ValueError,)),
    Decoder("row log", LOGGED, read_logged, (TableChangedError,)),
    Decoder("columns", (ROWS.schema.serialize().to_pybytes(),), read_schema, (ValueError,)),
    Decoder("journal", (JOURNAL.encode(),), _journal, NO_JOURNAL),
    Decoder("offset", (b'{"logOffset": 3}',), lambda text: _log_position(_text(text)), (PenstockError,)),
)
