"""The archive of a timeline, to which Hudi's archival moves the oldest instants.

Only Hudi writes it. Penstock searches it if nothing else shows whether a commit was made. An instant is in
the archive before its files are deleted from the timeline.

Layout 1 has log files. Source of their form: `HoodieLogFormat` (version 1) and `HoodieAvroDataBlock`
(version 3) of Hudi. Layout 2 has Parquet files, `<first instant>_<last instant>_<level>.parquet`. A manifest
names those that count; `LSMTimeline` of Hudi is the source.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .layout import Layout
from .storage import HudiStorage
from .timeline import COMPLETED

_ACTIONS = (*COMPLETED, "clustering")
_MAGIC = b"#HUDI#"
_INT = struct.Struct(">i")
_TWO_INTS = struct.Struct(">ii")
_LONG = struct.Struct(">q")
_SCHEMA = 2
"""The key of the schema in a header: `HeaderMetadataType` of Hudi."""


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


def archived_commits(storage: HudiStorage, layout: Layout, since: str, before: str) -> Mapping[str, str]:
    """Return the completed commits in the archive, with the times of their completions. In layout 1, which
    has none, they are the instants.

    Args:
        since: instant from which on
        before: instant before which

    Raises:
        OSError: the archive cannot be read.
    """
    found = (_in_files if layout.has_completion_times else _in_logs)(storage, layout.archive, since, before)
    return {
        instant: time for instant, time, action in found if action in _ACTIONS and since <= instant < before
    }


# Layout 2 -----------------------------------------------------------------------------------------


def _in_files(storage: HudiStorage, folder: str, since: str, before: str) -> Iterator[tuple[str, str, str]]:
    """Yield instant, time and action of entries."""
    names = ["instantTime", "completionTime", "action"]
    for path in _files(storage, folder, since, before):
        yield from zip(*(one.to_pylist() for one in _read(storage, path, names).select(names)), strict=True)


def _metadata(storage: HudiStorage, folder: str, instant: str) -> Iterator[bytes]:
    """Yield the metadata of the instant's entries, which is Avro without compression."""
    for path in _files(storage, folder, instant, instant):
        rows = _read(storage, path, ["instantTime", "metadata"])
        own = rows.filter(pc.equal(rows["instantTime"].cast(pa.string()), instant))
        yield from (entry or b"" for entry in own["metadata"].cast(pa.binary()).to_pylist())


def _files(storage: HudiStorage, folder: str, since: str, until: str) -> Iterator[str]:
    """Yield the files of the archive that may have instants between these two."""
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
        if first <= until and since <= last:
            yield f"{folder}/{name}"


def _read(storage: HudiStorage, path: str, columns: list[str]) -> pa.Table:
    content = storage.read(path)
    if content is None:
        raise FileNotFoundError(f"{path} is missing: Hudi has compacted the archive meanwhile")
    try:
        return pq.read_table(pa.BufferReader(content), columns=columns)
    except (pa.ArrowException, ValueError) as error:
        raise OSError(f"{path} cannot be read: {error}") from error


# Layout 1 -----------------------------------------------------------------------------------------


def _in_logs(storage: HudiStorage, folder: str, since: str, before: str) -> Iterator[tuple[str, str, str]]:
    """Read the newest files first, and then none that are older than all of these instants."""
    for content in _logs(storage, folder):
        newest = ""
        for instant, action, state in _entries_of(content, folder):
            newest = max(newest, instant)
            if state == "COMPLETED":
                yield instant, instant, action
        if newest < since:
            return


def _entries_of(content: bytes, folder: str) -> Iterator[tuple[str, str, str]]:
    """Yield instant, action and state of the entries of a log file."""
    from fastavro import parse_schema, schemaless_reader

    try:
        for block in _blocks(content):
            schema = parse_schema(json.loads(block.schema))
            for entry in _records(block.records):
                found: Any = schemaless_reader(io.BytesIO(entry), schema, None)
                yield str(found["commitTime"]), str(found["actionType"]), str(found["actionState"])
    except (ValueError, KeyError, TypeError, EOFError, IndexError, struct.error) as error:
        raise OSError(
            f"an archive file of the timeline in {folder} has an unknown form: {error!r}"
        ) from error


def _is_in_logs(storage: HudiStorage, folder: str, wanted: Sequence[bytes]) -> bool:
    """Read the whole archive, the newest files first."""
    return any(
        all(word in content for word in wanted)
        and any(all(word in entry for word in wanted) for entry in entries(content))
        for content in _logs(storage, folder)
    )


def _logs(storage: HudiStorage, folder: str) -> Iterator[bytes]:
    """Yield the content of the log files, the newest first."""
    for name in sorted(storage.names(folder), key=lambda name: (len(name), name), reverse=True):
        if not name.endswith(".crc") and (content := storage.read(f"{folder}/{name}")) is not None:
            yield content


def entries(content: bytes) -> Iterator[bytes]:
    """Yield the entries of a log file, as Avro.

    Raises:
        OSError: the file has another form.
    """
    try:
        for block in _blocks(content):
            yield from _records(block.records)
    except struct.error as error:
        raise OSError(f"an archive file of the timeline has an unknown form: {error}") from error


@dataclass(frozen=True, slots=True)
class _Block:
    schema: str
    """Of the records; empty if the block has none."""
    records: bytes


def _blocks(content: bytes) -> Iterator[_Block]:
    """Yield the blocks of a log file. One at its end that is not whole is skipped: its instants are still in
    the timeline.

    A block: magic, size, version, type, header, length of the records, records, footer, size.

    Raises:
        struct.error: the file has another form.
    """
    position = 0
    while position < len(content):
        if content[position : position + len(_MAGIC)] != _MAGIC:
            raise struct.error(f"no magic at byte {position}")
        position += len(_MAGIC)
        (size,) = _LONG.unpack_from(content, position)
        end = position + _LONG.size + size
        if end > len(content):
            return
        header, position = _header(content, position + _LONG.size + 2 * _INT.size)
        (length,) = _LONG.unpack_from(content, position)
        start = position + _LONG.size
        yield _Block(header.get(_SCHEMA, b"").decode(), content[start : start + length])
        position = end


def _header(content: bytes, position: int) -> tuple[dict[int, bytes], int]:
    """Return the values of a header by their keys, and the position after it: the number of its values, then
    of each the key, the length and the text.
    """
    found = {}
    (count,) = _INT.unpack_from(content, position)
    position += _INT.size
    for _ in range(count):
        key, length = _TWO_INTS.unpack_from(content, position)
        position += _TWO_INTS.size
        found[key] = content[position : position + length]
        position += length
    return found, position


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
