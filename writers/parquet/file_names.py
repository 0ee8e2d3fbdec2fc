"""Names of data files: unique for each task attempt, and recognized by clean-up."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass

from ...committers.contract import AttemptId
from ...committers.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FileName:
    """Parsed name of a data file written by Penstock. `run` is a digest of the run id, not the id."""

    query_id: str
    run: str
    batch_id: int
    partition: int
    attempt: int
    sequence: int
    compression: str

    def __str__(self) -> str:
        return (
            f"penstock-{self.query_id}-{self.run}-{self.batch_id:08d}-{self.partition:05d}"
            f"-{self.attempt}-{self.sequence:04d}.{self.compression}.parquet"
        )


@dataclass(frozen=True, slots=True)
class FileNames:
    """File names of one task attempt, unique across all attempts and runs.

    `attempt` must be unique within the run: Spark's task attempt id, not the attempt number, which restarts
    at 0 when a stage is retried.
    """

    query_id: str
    run_id: str
    batch_id: int
    partition: int
    attempt: int
    first: int = 0
    """Sequence number of the first file, if other writers of the attempt have written files before."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9A-Za-z_-]+", self.query_id):
            raise ConfigurationError(
                f"The query id '{self.query_id}' cannot be part of a file name: use only letters, digits, "
                "'-' and '_'."
            )

    @classmethod
    def of(cls, attempt: AttemptId) -> FileNames:
        return cls(attempt.query_id, attempt.run_id, attempt.batch_id, attempt.partition, attempt.attempt)

    def name(self, sequence: int, compression: str) -> FileName:
        """The name of the file with the number `sequence`, starting at 0."""
        run = hashlib.sha256(self.run_id.encode()).hexdigest()[:8]
        return FileName(
            self.query_id,
            run,
            self.batch_id,
            self.partition,
            self.attempt,
            self.first + sequence,
            compression,
        )

    def __str__(self) -> str:
        return f"batch {self.batch_id}, partition {self.partition}, attempt {self.attempt}"


_FILE_NAME = re.compile(
    r"penstock-(?P<query_id>[0-9A-Za-z_-]+)-(?P<run>[0-9a-f]{8})-(?P<batch_id>\d{8,})"
    r"-(?P<partition>\d{5,})-(?P<attempt>\d+)-(?P<sequence>\d{4,})\.(?P<compression>[a-z0-9]+)\.parquet"
)


def parse_file_name(path: str) -> FileName | None:
    """Parse the last segment of `path` if it was made by `FileNames`; else None. Clean-up relies on this."""
    match = _FILE_NAME.fullmatch(posixpath.basename(path))
    if match is None:
        return None
    parts = match.groupdict()
    numbers = {key: int(parts[key]) for key in ("batch_id", "partition", "attempt", "sequence")}
    parsed = FileName(parts["query_id"], parts["run"], **numbers, compression=parts["compression"])
    return parsed if str(parsed) == posixpath.basename(path) else None
