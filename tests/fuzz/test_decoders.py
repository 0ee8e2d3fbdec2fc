"""Damaged bytes from the store or a table end in an error of ours, never in a crash or in all memory."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fuzz.decoders import BATCH, body_of, decode_body, manifest

from penstock.committers.errors import ConfigurationError, ManifestCorruptError
from penstock.committers.file_tables import manifest as lake_manifest
from penstock.committers.iceberg.reachability import decode_expired

SECONDS = 5.0
"""For each decoder at most; `make fuzz` takes longer."""


def test_a_manifest_that_an_earlier_version_has_stored_is_read() -> None:
    stored = (Path(__file__).parents[1] / "fixtures" / "manifest_v1.bin").read_bytes()
    assert decode_body(stored[lake_manifest._PREFIX.size :]) == manifest(40)


def test_no_damage_crashes_a_decoder() -> None:
    arguments = ["--seed", "1", "--damages", "2500", "--seconds", str(SECONDS)]
    fuzzer = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments], capture_output=True, text=True, timeout=120
    )
    assert fuzzer.returncode == 0, fuzzer.stdout + fuzzer.stderr


def stream_of(columns: dict[str, pa.Array], compression: str | None = None) -> bytes:
    """A manifest's stream with these columns in place of its own."""
    own = lake_manifest._to_columns(manifest(2, ()))
    arrays = {**dict(zip(own.schema.names, own.columns, strict=True)), **columns}
    schema = pa.schema([(name, array.type) for name, array in arrays.items()], own.schema.metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_batch(pa.record_batch(list(arrays.values()), schema=schema))
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize(
    "offsets",
    [(0, 22, 44, 2**31 - 1), (0, 2**30, 44, 66), (-(2**30), 22, 44, 66), (0, 44, 22, 66)],
    ids=["beyond the buffer", "a text beyond the buffer", "before the buffer", "descending"],
)
def test_offsets_outside_of_their_buffer_are_refused(offsets: tuple[int, ...]) -> None:
    body, own = body_of(manifest(3)), struct.pack("<4i", 0, 22, 44, 66)
    assert body.count(own) == 1
    with pytest.raises(ManifestCorruptError, match="cannot be read"):
        decode_body(body.replace(own, struct.pack("<4i", *offsets)))


def test_a_size_that_is_claimed_for_compressed_bytes_allocates_nothing() -> None:
    body = bytearray(body_of(manifest(200)))
    frame = body.index(b"\x28\xb5\x2f\xfd")  # zstd; the size before it is a promise
    body[frame - 8 : frame] = struct.pack("<q", 2**40)
    before = pa.total_allocated_bytes()
    with pytest.raises(ManifestCorruptError, match="larger than any stream that Penstock writes"):
        decode_body(bytes(body))
    assert pa.total_allocated_bytes() == before


def test_text_that_decompresses_to_more_than_any_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = stream_of({"statistics": pa.array(["x" * 2**24, ""], pa.large_string())}, "zstd")
    assert len(bomb) < 2**14
    monkeypatch.setattr(lake_manifest, "DECODED_BYTES_MAX", 2**24)
    with pytest.raises(ManifestCorruptError, match="larger than any stream that Penstock writes"):
        decode_body(bomb)


COLUMNS: dict[str, dict[str, pa.Array]] = {
    "another type": {"size_bytes": pa.array(["a", "b"])},
    "a dictionary": {"path": pa.array(["a", "b"]).dictionary_encode()},
    "nested": {"path": pa.array([["a"], ["b"]])},
    "one more": {"other": pa.nulls(2)},
    "a file without a path": {"path": pa.array(["a", None])},
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_columns_that_no_manifest_has_are_refused(columns: dict[str, pa.Array]) -> None:
    with pytest.raises(ManifestCorruptError, match="cannot be read"):
        decode_body(stream_of(columns))


@pytest.mark.parametrize(
    "values", [{"table_id": 1}, {"table_version": "3"}, {"new_columns": "ab"}, {"partition_by": [1]}]
)
def test_a_header_of_other_types_is_refused(values: dict[str, object]) -> None:
    columns = lake_manifest._to_columns(manifest(2, ()))
    header = json.loads(columns.schema.metadata[b"penstock"]) | values
    sink = pa.BufferOutputStream()
    schema = columns.schema.with_metadata({b"penstock": json.dumps(header)})
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(columns.replace_schema_metadata(schema.metadata))
    with pytest.raises(ManifestCorruptError, match="cannot be read"):
        decode_body(bytes(sink.getvalue().to_pybytes()))


@pytest.mark.parametrize("bound", ["FILES_MAX", "DECODED_BYTES_MAX"])
def test_what_could_not_be_read_again_is_not_written(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = manifest(40)
    decode_body(body_of(content))
    monkeypatch.setattr(lake_manifest, bound, 39)
    with pytest.raises(ConfigurationError, match=r"40 data files.*Nothing was prepared"):
        lake_manifest.build_manifest(BATCH, content)


@pytest.mark.parametrize("content", [b"", b"no zlib", b"x\x9cK\x04\x00\x00b\x00b", b"\x00" * 100])
def test_a_damaged_expiry_is_an_error_that_says_so(content: bytes) -> None:
    with pytest.raises(ManifestCorruptError, match="None of its files were deleted"):
        decode_expired(content)
