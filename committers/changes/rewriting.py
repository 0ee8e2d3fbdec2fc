"""Files that a commit writes from the rows of others.

- Copy-on-write: files that a commit replaces by new ones without the rows that it deletes.
- A change data feed: files with the rows that it deletes, updates and inserts.
- Computed rows: see `computed_rows`.

The writers of data files are not known here: whoever opens a committer passes what writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from ..contract import DataFile, Manifest
from ..errors import ConfigurationError, TableNotSupportedError
from ..file_tables.manifest import LakeManifest
from .computed_rows import RowReader


@dataclass(frozen=True, slots=True)
class MaskedFile:
    """A data file, and the rows that are left out of it."""

    file: DataFile
    """Its path may also be the full location of a file elsewhere. Without the partition values of the table,
    its rows are split again.
    """
    masked: pa.Array
    """Their numbers (int64)."""
    stored: tuple[str, ...] = ()
    """Names of columns that the file must have: their values would be lost."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of one data file that a commit deletes, updates or inserts."""

    file: DataFile
    """With its partition values."""
    rows: pa.Array
    """Their numbers (int64), ascending."""
    kinds: pa.Array
    """What happens to each (string)."""


class RewriteFiles(Protocol):
    """Writes the rows of files into new files, without some of them."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, files: Sequence[MaskedFile]
    ) -> Sequence[DataFile]:
        """Return new files, durable and invisible, in the table partitions of the old ones.

        Raises:
            RetryableError: the storage cannot be reached now.
            PenstockError: a file is damaged.
        """
        ...


class WriteChangeData(Protocol):
    """Writes the rows of a change data feed."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, changed: Sequence[ChangedRows]
    ) -> Sequence[DataFile]:
        """Return new files, durable and invisible. Raises as `RewriteFiles`."""
        ...


ValuesOf: TypeAlias = Callable[[str], Mapping[str, "pa.Scalar | None"]]
"""Returns the values of columns that a file may not store, by its path; None: they cannot be converted."""


class TableRows(RowReader, Protocol):
    """Reads and writes rows of a table."""

    def write(self, rows: pa.Table) -> Sequence[DataFile]:
        """Write rows with all columns of the table into new files, durable and invisible.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        ...


class OpenTableRows(Protocol):
    """Opens the rows of a table in the columns that it has after a commit."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, values_of: ValuesOf, names: Mapping[str, str]
    ) -> TableRows:
        """
        Args:
            names: see `RowReader.name_of`, of all columns of the plan that the table still has
        """
        ...


class Lazy:
    """Opens the rows of the table once, if they are needed."""

    def __init__(self, open_rows: Callable[[], TableRows]) -> None:
        self._open = open_rows
        self._opened: TableRows | None = None

    def __call__(self) -> TableRows:
        if self._opened is None:
            self._opened = self._open()
        return self._opened


def only_on_read(manifest: Manifest) -> TableNotSupportedError:
    """Return the error for a table that shares its files with another one, which would lose the new ones."""
    return TableNotSupportedError(
        f"The table of {manifest.batch.stream} shares its files with another one, so changes cannot write "
        f"them again. Batch {manifest.batch.batch_id} was not committed. Let its rows be masked, with "
        "merge=on-read, for which its readers must know deletion vectors and position deletes."
    )


def cannot_rewrite(manifest: Manifest) -> ConfigurationError:
    """Return the error of a committer that has no `RewriteFiles`."""
    return ConfigurationError(
        f"Batch {manifest.batch.batch_id} of {manifest.batch.stream} changes rows in files that have to be "
        "written again, which this command cannot do. Start the query again, or run `penstock deliver "
        "--once`."
    )
