"""The archive of a timeline, to which Hudi's archival moves the oldest instants.

Only Hudi writes it. Penstock searches it if nothing else shows whether a commit was made. An instant is in
the archive before its files are deleted from the timeline.

Layout 1 has log files. Source of their form: `HoodieLogFormat` (version 1) and `HoodieAvroDataBlock`
(version 3) of Hudi. Layout 2 has Parquet files, `<first instant>_<last instant>_<level>.parquet`. A manifest
names those that count; `LSMTimeline` of Hudi is the source.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .layout import Layout
from .storage import HudiStorage

_MAGIC = b"#HUDI#"
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


def has_entry(storage: HudiStorage, layout: Layout, instant: str, words: Sequence[str]) -> bool:
    """Return True if one entry of the archive contains all these words.

    Args:
        instant: of the entry

    Raises:
        OSError: the archive cannot be read.
    """
    wanted = [word.encode() for word in words]
    if layout.has_completion_times:
        return any(
            all(word in entry for word in wanted) for entry in _metadata(storage, layout.archive, instant)
        )
    return _is_in_logs(storage, layout.archive, wanted)


# Layout 2 -----------------------------------------------------------------------------------------


def _metadata(storage: HudiStorage, folder: str, instant: str) -> Iterator[bytes]:
    """Yield the metadata of the instant's entries, which is Avro without compression."""
    version = storage.read(f"{folder}/_version_")
    if version is None:
        return
    manifest = storage.read(f"{folder}/manifest_{version.decode().strip()}") or b""
    try:
        names = [file["fileName"] for file in json.loads(manifest)["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"the manifest {version.decode()} of {folder} cannot be read: {error!r}") from error
    for name in names:
        first, last, _ = name.split("_")
        if first <= instant <= last:
            yield from _metadata_in(storage, f"{folder}/{name}", instant)


def _metadata_in(storage: HudiStorage, path: str, instant: str) -> Iterator[bytes]:
    content = storage.read(path)
    if content is None:
        raise FileNotFoundError(f"{path} is missing: Hudi has compacted the archive meanwhile")
    try:
        found = pq.read_table(pa.BufferReader(content), columns=["instantTime", "metadata"])
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"{path} cannot be read: {error}") from error
    own = found.filter(pc.equal(found["instantTime"].cast(pa.string()), instant))
    yield from (entry or b"" for entry in own["metadata"].cast(pa.binary()).to_pylist())


# Layout 1 -----------------------------------------------------------------------------------------


def _is_in_logs(storage: HudiStorage, folder: str, wanted: Sequence[bytes]) -> bool:
    """Read the whole archive, the newest files first."""
    return any(
        all(word in content for word in wanted)
        and any(all(word in entry for word in wanted) for entry in entries(content))
        for name in sorted(storage.names(folder), key=lambda name: (len(name), name), reverse=True)
        if not name.endswith(".crc") and (content := storage.read(f"{folder}/{name}")) is not None
    )


def entries(content: bytes) -> Iterator[bytes]:
    """Yield the entries of a log file, as Avro. A block at its end that is not whole is skipped: its instants
    are still in the timeline.

    Raises:
        OSError: the file has another form.
    """
    position = 0
    try:
        while position < len(content):
            block, position = _block(content, position)
            yield from _records(block)
    except struct.error as error:
        raise OSError(f"an archive file of the timeline has an unknown form at byte {position}") from error


def _block(content: bytes, position: int) -> tuple[bytes, int]:
    """Return the records of the block, and the position after it: magic, size, version, type, header,
    length of the records, records, footer, size.
    """
    if content[position : position + len(_MAGIC)] != _MAGIC:
        raise struct.error("no magic")
    position += len(_MAGIC)
    (size,) = _LONG.unpack_from(content, position)
    end = position + _LONG.size + size
    if end > len(content):
        return b"", len(content)
    position = _after_header(content, position + _LONG.size + 2 * _INT.size)
    (length,) = _LONG.unpack_from(content, position)
    start = position + _LONG.size
    return content[start : start + length], end


def _after_header(content: bytes, position: int) -> int:
    """Skip a header: the number of its values, then the key and the length of each."""
    (count,) = _INT.unpack_from(content, position)
    position += _INT.size
    for _ in range(count):
        (length,) = _INT.unpack_from(content, position + _INT.size)
        position += 2 * _INT.size + length
    return position


def _records(block: bytes) -> Iterator[bytes]:
    """The records of a block: version, number of records, then the length and content of each."""
    if not block:
        return
    (count,) = _INT.unpack_from(block, _INT.size)
    position = 2 * _INT.size
    for _ in range(count):
        (length,) = _INT.unpack_from(block, position)
        position += _INT.size
        yield block[position : position + length]
        position += length
