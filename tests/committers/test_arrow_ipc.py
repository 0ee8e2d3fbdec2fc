"""Arrow streams and files from untrusted sources: what Penstock writes is read, and nothing crashes."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from penstock.committers.arrow_ipc.reader import Messages, read_schema, read_stream

TYPES = (
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.binary(5)),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.decimal128(38, 3), pa.decimal256(50, 3), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns")),
    *(pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.duration("ms")),
    *(pa.list_(pa.string()), pa.large_list(pa.int8()), pa.list_(pa.float32(), 3)),
    pa.struct([pa.field("a", pa.int8(), nullable=False, metadata={"x": "y"}), ("b", pa.list_(pa.string()))]),
    pa.map_(pa.string(), pa.field("value", pa.struct([("q", pa.decimal128(5, 2))]), nullable=False)),
    pa.map_(pa.int8(), pa.int8(), keys_sorted=True),
)
SCHEMA = pa.schema(
    [pa.field(f"ü{number}", one, metadata={"k": "v"}) for number, one in enumerate(TYPES)], {"m": "n"}
)


def stream_of(rows: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue().to_pybytes())


def read(content: bytes) -> pa.RecordBatch:
    (rows,) = read_stream(content, 2**20, 100).batches
    return rows


def test_a_schema_is_read_with_all_its_details() -> None:
    assert read_schema(SCHEMA.serialize().to_pybytes()).equals(SCHEMA, check_metadata=True)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("part", [slice(0, 5), slice(0, 0), slice(1, 3)], ids=["all", "none", "some"])
def test_rows_of_every_type_are_read(part: slice, compression: str | None) -> None:
    rows = pa.record_batch([pa.nulls(5, one) for one in TYPES], schema=SCHEMA)
    rows = rows.slice(part.start, part.stop - part.start)
    assert read(stream_of(rows, compression)).equals(rows, check_metadata=True)


def test_a_string_that_is_not_utf8_is_read_as_it_is() -> None:
    """Spark casts any bytes to STRING. The destination refuses the row, and a dead letter has it."""
    broken = pa.array([[("k", b"\xff")]], pa.map_(pa.string(), pa.binary())).view(
        pa.map_(pa.string(), pa.string())
    )
    rows = pa.record_batch({"text": pa.array([b"\xff"]).view(pa.string()), "names": broken})
    found = read(stream_of(rows))
    assert found.column("text").view(pa.binary()).to_pylist() == [b"\xff"]
    assert found.column("names").view(pa.map_(pa.string(), pa.binary())).to_pylist() == [[("k", b"\xff")]]


def test_columns_that_are_not_asked_for_are_not_decoded() -> None:
    rows = pa.record_batch({"a": [1, 2], "b": [[{"c": "x"}], []], "d": ["y", None]})
    (encoded,) = Messages(pa.BufferReader(stream_of(rows, "zstd"))).batches(2)
    assert encoded.decode(1000, ["d", "a"]).to_pydict() == {"a": [1, 2], "d": ["y", None]}
    assert (encoded.decode(0, []).num_rows, encoded.decode(0, []).num_columns) == (2, 0)


NESTED = pa.record_batch({"parts": pa.array([["aa", "bb"], ["cc"]], pa.list_(pa.string()))})


@pytest.mark.parametrize(
    ("own", "crafted"),
    [
        (struct.pack("<3i", 0, 2, 3), struct.pack("<3i", 0, 2, 2**31 - 1)),
        (struct.pack("<3i", 0, 2, 3), struct.pack("<3i", -(2**20), 2, 3)),
        (struct.pack("<4i", 0, 2, 4, 6), struct.pack("<4i", 0, 2, 4, 2**30)),
        (struct.pack("<4i", 0, 2, 4, 6), struct.pack("<4i", 0, 2**20, 4, 6)),
        (struct.pack("<q", 3), struct.pack("<q", 2**40)),
        (struct.pack("<q", 3), struct.pack("<q", -1)),
    ],
    ids=["elements", "elements before", "text", "text between", "number of elements", "negative number"],
)
def test_offsets_and_lengths_outside_of_their_buffer_are_refused(own: bytes, crafted: bytes) -> None:
    content = stream_of(NESTED)
    assert own in content
    with pytest.raises(ValueError, match=r"damaged|negative|truncated|larger"):
        read(content.replace(own, crafted))


def test_a_map_with_a_null_among_its_keys_does_not_end_the_process() -> None:
    keys = pa.array(["k", None])
    pairs = pa.StructArray.from_arrays([keys, keys], ["key", "value"])
    rows = pa.record_batch({"m": pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), pairs)})
    as_map = pa.schema([("m", pa.map_(pa.string(), pa.string()))])
    content = stream_of(rows)[rows.schema.serialize().size :]  # a map has the buffers of a list of pairs
    with pytest.raises(ValueError, match="NULL among its keys"):
        read(as_map.serialize().to_pybytes() + content)


def test_limits_for_rows_and_bytes() -> None:
    content = stream_of(pa.record_batch({"id": list(range(50))}), "zstd")
    with pytest.raises(ValueError, match="more rows"):
        read_stream(content, 2**20, 49)
    with pytest.raises(ValueError, match="is larger than"):
        read_stream(content, 399, 50)
    assert read_stream(content, 400, 50).batches[0].num_rows == 50
