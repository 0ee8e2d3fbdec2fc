"""The storage of a folder of files: what the committer needs from a local disk or an object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ..cleaning.cleanup import ListedFile
from ..probing import Probe
from .staged import StagedFiles


class JournalChangedError(Exception):
    """Another process has replaced the journal; it was not changed. Or this process has, and the response to
    its request was lost.
    """


class FileState(Enum):
    """State of one file of a batch."""

    STAGED = "staged"
    PUBLISHED = "published"
    TAKEN = "its path has a file of another writer"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class StoredJournal:
    content: bytes
    version: str
    """Changes with the content."""


class Place(Protocol):
    """A folder of files and what is staged for it. Keeps nothing between two calls.

    Paths are relative to the folder. Runs on the driver and in the delivery process.
    """

    @property
    def why_missing(self) -> str:
        """Why a staged file may be missing, for messages; empty if there is nothing to say."""
        ...

    def exists(self) -> bool: ...

    def probe(self) -> Probe:
        """Return the probe of the place."""
        ...

    def open(self, *, create: bool) -> None:
        """Prepare the place for tasks that write.

        Args:
            create: create the folder if it is new

        Raises:
            ConfigurationError: the storage cannot guarantee that each batch is committed once.
        """
        ...

    # Journals: compare and set ------------------------------------------------------------------------

    def journal_address(self, query_id: str) -> str:
        """Where the journal is, for messages."""
        ...

    def journals(self) -> Iterable[str]:
        """The ids of the queries that have a journal."""
        ...

    def read_journal(self, query_id: str) -> StoredJournal | None:
        """
        Raises:
            TableChangedError: there is a journal, but the folder was dropped.
        """
        ...

    def replace_journal(self, query_id: str, content: bytes, replaced: StoredJournal | None) -> StoredJournal:
        """Replace the journal durably, if it is still `replaced`; None: create it.

        Raises:
            JournalChangedError: it is another one.
            RetryableError: the storage has failed, and no request is on its way that replaces it later.
            CommitStateUnknownError: the storage has failed, and the journal may be replaced later.
        """
        ...

    def remove_journal(self, query_id: str) -> None:
        """Remove the journal of a query that has ended for good. Idempotent.

        Raises:
            RetryableError: the storage has failed.
        """
        ...

    # Files of a batch -----------------------------------------------------------------------------------

    def states(self, files: StagedFiles) -> Mapping[str, FileState]:
        """
        Raises:
            TableChangedError: a path is not below the folder.
        """
        ...

    def publish(self, files: StagedFiles) -> None:
        """Make staged files visible; published ones stay as they are. Never overwrites a file.

        Raises:
            TableChangedError: a file is missing, its path is taken, or it is not below the folder.
            RetryableError: the storage has failed; some files may be published.
        """
        ...

    def mark(self, markers: Mapping[str, str]) -> None:
        """Write small files with these contents; they replace those of the same paths.

        Raises:
            TableChangedError: a path is not below the folder. None is written.
            RetryableError: the storage has failed; some files may be written.
        """
        ...

    def discard(self, files: StagedFiles) -> int:
        """Delete staged files; return how many were deleted. Published ones stay, and so do those that the
        storage deletes by itself later.
        """
        ...

    # Clean-up ---------------------------------------------------------------------------------------------

    def staged(self) -> Iterator[ListedFile]:
        """Staged files that can be deleted."""
        ...

    def delete_staged(self, paths: Iterable[str]) -> int:
        """As `discard`, for files of which only the paths are known."""
        ...

    # Files of any writer ------------------------------------------------------------------------------------

    def paths(self) -> Iterator[str]:
        """Paths of the files in the folder, except hidden ones: parts of them begin with `_` or `.`."""
        ...

    def has(self, pattern: str) -> bool:
        """Return True if the folder has a path that matches the pattern, such as `metadata/*.json`."""
        ...
