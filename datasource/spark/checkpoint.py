"""Read the running batch from Spark's checkpoint directory. Driver only, read only.

Spark writes `offsets/<batch id>` before a batch runs and `commits/<batch id>` after its sink has committed.
So the newest entry in `offsets/` is the running batch, whether it is new or replayed after a crash.

Format: Spark's `OffsetSeqLog` (a version line, one line of metadata, one line per source) and, for file
sources, `FileStreamSourceLog` under `sources/<source>/`. Version 2 of the offset log (Spark 4.2) writes each
line as `<source>:<offset>`, in no fixed order. The source is its position in the query or, with source
evolution, its name. Of the commit log only the file names are read, which are the same in all versions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ...committers.cleaning.regular_files import check_input
from ...committers.error_causes import retryable
from ...committers.errors import CheckpointGoneError, ConfigurationError
from ...committers.lineage import SourceRange

if TYPE_CHECKING:
    import pyarrow.fs

NO_OFFSET = "-"

OFFSET_LOG_VERSIONS = (1, 2)
FILE_LOG_VERSIONS = (1,)

STORE_FILE = "penstock.sqlite"
"""The default manifest store, in the checkpoint directory."""


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """The running batch, as in the checkpoint."""

    query_id: str
    batch_id: int
    digest: str
    """SHA-256 over the source offsets, hex."""
    source_files: tuple[str, ...] = ()
    """Locations of the files that it reads; none of sources other than files."""
    sources: tuple[SourceRange, ...] = ()
    """What it reads of each source that has offsets."""


class Checkpoint:
    """A query's checkpoint directory.

    Args:
        filesystem: the file system of the directory
        root: the path in this file system
        location: the location as the user gave it, for messages
    """

    def __init__(self, filesystem: pyarrow.fs.FileSystem, root: str, location: str) -> None:
        self._filesystem = filesystem
        self._root = PurePosixPath(root)
        self._location = location

    def running_batch(self) -> RunningBatch:
        """Return the query id and the newest batch of the offset log.

        Raises:
            ConfigurationError: the directory is not the checkpoint of a running query.
        """
        batch_ids = self._log_entries("offsets")
        if not batch_ids:
            raise ConfigurationError(
                f"The offset log in checkpointLocation {self._location!r} contains no batch. The option must "
                "be the directory that Spark uses for this query, with its scheme if it is not on a local "
                "disk. In continuous mode (Trigger.Continuous) the log is empty because Spark never calls "
                "Python sinks: use trigger(processingTime=...) or trigger(availableNow=True)."
            )
        batch_id = max(batch_ids)
        digest, entries, sources = self._digest(batch_id)
        files = tuple(str(json.loads(entry)["path"]) for entry in entries)
        return RunningBatch(self.query_id(), batch_id, digest, files, sources)

    def last_commit(self, query_id: str | None = None) -> int:
        """Return the newest batch in Spark's commit log; -1 if there is none yet.

        Also runs in the delivery process.

        Args:
            query_id: the query to which the checkpoint must belong; None accepts any

        Raises:
            CheckpointGoneError: the checkpoint does not exist, or belongs to another query.
            RetryableError: the location cannot be read now.
        """
        try:
            self._check_whose(query_id)
            return max(self._log_entries("commits"), default=-1)
        except OSError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise retryable(error)(
                f"The checkpoint {self._location!r} cannot be read: {reason}. Penstock will try again."
            ) from error

    def _check_whose(self, query_id: str | None) -> None:
        found = self.known_query_id()
        if found is None or query_id not in (None, found):
            holds = "does not exist" if found is None else f"now belongs to the query {found}"
            raise CheckpointGoneError(
                f"The checkpoint {self._location!r} of the query {query_id or '(unknown)'} {holds}: Penstock "
                "cannot tell which of its batches Spark has finished. Restore the checkpoint. If it is lost, "
                "give up its undelivered batches with `penstock abort`."
            )

    def known_query_id(self) -> str | None:
        """Return the `query_id`; None if no query has used the directory yet."""
        return self.query_id() if self._exists("metadata") else None

    def has_batches(self) -> bool:
        """Return False if no batch has begun yet."""
        return bool(self._log_entries("offsets"))

    def query_id(self) -> str:
        """Return Spark's id of the query, which stays the same for the life of the checkpoint."""
        return str(json.loads(self._read("metadata"))["id"])

    def digest(self, batch_id: int) -> str:
        """Return the SHA-256 of a batch's source offsets, in hex. The same digest means the same rows.

        It covers start and end offsets, because a rewound checkpoint may reach the same end from another
        start. Watermark, clock and configuration are not included: they do not select rows. The offset of a
        file source is only a position in its own log, so the files listed there are included. Also included
        is the initial position of a source without an earlier offset, if the source has logged it (Kafka).

        Raises:
            ConfigurationError: a log is incomplete, or its format is unknown.
        """
        digest, _, _ = self._digest(batch_id)
        return digest

    def _digest(self, batch_id: int) -> tuple[str, list[str], tuple[SourceRange, ...]]:
        """Return the digest, the entries of the logs of file sources, and the offsets of the sources."""
        offsets = self._source_offsets(batch_id)
        before = self._source_offsets(batch_id - 1) if batch_id > 0 else {}
        digest, entries, sources = hashlib.sha256(), [], []
        for source, (line, offset) in offsets.items():
            start_line, start = before.get(source, (NO_OFFSET, NO_OFFSET))
            digest.update(f"{start_line}\n{line}\n".encode())
            for entry in self._files_between(source, start, offset):
                digest.update(entry.encode() + b"\n")
                entries.append(entry)
            is_first = start == NO_OFFSET and offset != NO_OFFSET
            initial = b""
            if is_first and _log_position(offset) is None:
                initial = self._initial_position(source)
                digest.update(initial)
            if offset != NO_OFFSET:
                begin = _initial_offset(initial) if start == NO_OFFSET else start
                sources.append(SourceRange(source, begin, offset))
        return digest.hexdigest(), entries, tuple(sources)

    def digest_of_logged(self, batch_id: int) -> str | None:
        """Return the `digest` of an earlier batch; None if the checkpoint no longer has its log entries.

        Spark retains the entries of the last hundred batches (`spark.sql.streaming.minBatchesToRetain`).
        """
        needed = [number for number in (batch_id - 1, batch_id) if number >= 0]
        if not all(self._exists(f"offsets/{number}") for number in needed):
            return None
        return self.digest(batch_id)

    def _source_offsets(self, batch_id: int) -> dict[str, tuple[str, str]]:
        """Return the line and the offset of each source, by the name of the source in the checkpoint."""
        name = f"offsets/{batch_id}"
        version, *lines = self._log_lines(name, OFFSET_LOG_VERSIONS)
        offsets = lines[1:]  # without the first line: watermark, clock and configuration
        if not lines or (version == "v2" and not all(":" in line for line in offsets)):
            raise self._incomplete(name)
        if version == "v1":
            return {str(position): (line, line) for position, line in enumerate(offsets)}
        named = [(line, *line.split(":", 1)) for line in sorted(offsets)]
        return {source: (line, offset) for line, source, offset in named}

    def _files_between(self, source: str, start: str, end: str) -> Iterator[str]:
        """Yield the entries of a file source's log after `start`, including `end`; none for other sources."""
        last = _log_position(end)
        if last is None:
            return
        before = _log_position(start)
        for position in range(0 if before is None else before + 1, last + 1):
            yield from self._file_source_entries(source, position)

    def _file_source_entries(self, source: str, position: int) -> Iterator[str]:
        folder = f"sources/{source}"
        if self._exists(f"{folder}/{position}"):
            name = str(position)
        else:
            compacted = [n for n in self._log_entries(folder, suffix=".compact") if n >= position]
            if not compacted:
                raise ConfigurationError(
                    f"{self._location}/{folder} has no entry {position}, which the offset log refers to: the "
                    "checkpoint is incomplete. Restore it, or start with a new checkpoint directory."
                )
            name = f"{min(compacted)}.compact"
        _version, *entries = self._log_lines(f"{folder}/{name}", FILE_LOG_VERSIONS)
        yield from (entry for entry in entries if json.loads(entry)["batchId"] == position)

    def _initial_position(self, source: str) -> bytes:
        """Return the initial position that the source has logged, in its own format; empty if none."""
        name = f"sources/{source}/0"
        return self._read_bytes(name) if self._exists(name) else b""

    def _log_lines(self, name: str, known: Collection[int]) -> list[str]:
        """Return the lines of a log file. The first one is the version.

        Raises:
            ConfigurationError: the file is incomplete, or its version is unknown.
        """
        lines = self._read(name).split("\n")
        number = lines[0].removeprefix("v")
        if not lines[0].startswith("v") or not number.isdecimal():
            raise self._incomplete(name)
        if int(number) not in known:
            raise ConfigurationError(
                f"{self._location}/{name} has version {number} of Spark's log format, but this release of "
                f"Penstock supports only {' and '.join(map(str, known))} and cannot compare the rows of a "
                "batch. Nothing was written. Run: pip install --upgrade penstock"
            )
        return lines

    def _incomplete(self, name: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._location}/{name} is not a complete Spark log file. Restore the checkpoint, or start "
            "with a new checkpoint directory."
        )

    def _log_entries(self, folder: str, suffix: str = "") -> list[int]:
        import pyarrow.fs as fs

        infos = self._filesystem.get_file_info(
            fs.FileSelector(str(self._root / folder), allow_not_found=True)
        )
        stems = (info.base_name.removesuffix(suffix) for info in infos if info.base_name.endswith(suffix))
        return [int(stem) for stem in stems if stem.isdecimal()]

    def _exists(self, name: str) -> bool:
        import pyarrow.fs as fs

        return bool(self._filesystem.get_file_info(str(self._root / name)).type == fs.FileType.File)

    def _read(self, name: str) -> str:
        return str(self._read_bytes(name), "utf-8")

    def _read_bytes(self, name: str) -> bytes:
        try:
            check_input(self._filesystem, str(self._root / name))
            with self._filesystem.open_input_stream(str(self._root / name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            raise ConfigurationError(
                f"{self._location}/{name} does not exist. Either checkpointLocation is not the checkpoint "
                "directory of this query, or the directory was removed while the query was running."
            ) from None


def _initial_offset(logged: bytes) -> str:
    """Return the offset at which the source begins, in a log entry of Spark's Kafka source; empty if there is
    none. Spark writes a zero byte before the version.
    """
    version, _, offset = logged.removeprefix(b"\0").partition(b"\n")
    return offset.decode(errors="replace").strip() if version == b"v1" else ""


def _log_position(offset: str) -> int | None:
    """Return the log position in a file source's offset; None for another kind of source."""
    try:
        parsed: Any = json.loads(offset)
    except (ValueError, RecursionError):
        return None
    return parsed["logOffset"] if isinstance(parsed, dict) and set(parsed) == {"logOffset"} else None
