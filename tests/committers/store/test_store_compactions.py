"""What the store promises about prepared compactions, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.stored_batches import STREAM
from tests.support.stores import run_sql

from penstock.committers.contract import DataFile, StreamKey
from penstock.committers.errors import ManifestCorruptError, RetryableError
from penstock.committers.file_tables.compaction import Rewritten
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.committers.file_tables.prepared_compaction import (
    PreparedCompaction,
    decode_compaction,
    encode_compaction,
)
from penstock.committers.store.sql import SqlManifestStore


def test_a_compaction_is_there_until_it_is_removed(store: SqlManifestStore) -> None:
    assert store.compactions.of_stream(STREAM) is None
    store.compactions.put(STREAM, b"\x00content\xff")
    assert store.compactions.of_stream(STREAM) == b"\x00content\xff"
    assert store.compactions.of_stream(StreamKey("q", "elsewhere")) is None
    for _ in range(2):
        store.compactions.remove(STREAM)
        assert store.compactions.of_stream(STREAM) is None


def test_a_second_compaction_of_a_stream_is_refused(store: SqlManifestStore) -> None:
    """Of a process whose lease has expired."""
    store.compactions.put(STREAM, b"first")
    with pytest.raises(RetryableError, match="Another process compacts"):
        store.compactions.put(STREAM, b"second")
    assert store.compactions.of_stream(STREAM) == b"first"


def test_a_stream_with_a_compaction_is_not_forgotten(store: SqlManifestStore) -> None:
    store.compactions.put(STREAM, b"content")
    with pytest.raises(RetryableError, match="1 compactions that are not in both tables yet"):
        store.deliveries.forget(STREAM, "me")
    store.compactions.remove(STREAM)
    store.deliveries.forget(STREAM, "me")
    assert store.streams() == []


def test_a_damaged_compaction_is_an_error(store: SqlManifestStore) -> None:
    store.compactions.put(STREAM, b"content")
    run_sql(store, "UPDATE penstock_compactions SET content_sha256 = 'other'")
    with pytest.raises(ManifestCorruptError, match="does not match its checksum"):
        store.compactions.of_stream(STREAM)


def file(name: str, *values: tuple[str, str | None]) -> DataFile:
    return DataFile(f"{name}.parquet", 10, 2, values)


DELTA = LakeManifest("delta", "append", "id", 3, "{}", (), ("day",), ())
PREPARED = PreparedCompaction(
    17,
    (DELTA, replace(DELTA, kind="iceberg", partition_by=(), location="s3://bucket/table")),
    (
        Rewritten((file("a", ("day", "x")), file("b", ("day", "x"))), (file("n0", ("day", "x")),)),
        Rewritten((file("c", ("day", None)),), (file("n1", ("day", None)), file("n2", ("day", None)))),
    ),
    (
        Rewritten((file("a"), file("b")), (file("n0"),)),
        Rewritten((file("c"),), (file("n1"), file("n2"))),
    ),
)


def test_a_prepared_compaction_reads_back_as_written() -> None:
    assert decode_compaction(STREAM, encode_compaction(PREPARED)) == PREPARED


CONTENT = encode_compaction(PREPARED)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}\n", CONTENT[:-1], CONTENT.replace(b'"version": 1', b'"version": 9'), CONTENT[::-1]],
    ids=["empty", "no header", "truncated", "newer", "reversed"],
)
def test_a_compaction_that_cannot_be_read_is_an_error(content: bytes) -> None:
    with pytest.raises(ManifestCorruptError, match=r"cannot be read|unknown version"):
        decode_compaction(STREAM, content)
