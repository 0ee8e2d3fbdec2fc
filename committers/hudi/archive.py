"""The archive of a timeline: log files to which Hudi's archival moves the oldest instants.

Only Hudi writes it. Penstock searches it if nothing else shows whether a commit was made. An instant is in
the archive before its files are deleted from the timeline. Source of the form: `HoodieLogFormat` (version 1)
and `HoodieAvroDataBlock` (version 3) of Hudi, which table version 6 uses.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from .names import META
from .properties import PATH, parse
from .storage import HudiStorage

_FOLDER = "hoodie.archivelog.folder"
_MAGIC = b"#HUDI#"
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


def has_entry(storage: HudiStorage, words: Sequence[str]) -> bool:
    """Return True if one entry of the archive contains all these words. Reads the whole archive, the newest
    files first.

    Raises:
        OSError: the archive cannot be read.
    """
    properties = parse((storage.read(PATH) or b"").decode())
    folder = f"{META}/{properties.get(_FOLDER) or 'archived'}"
    wanted = [word.encode() for word in words]
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
