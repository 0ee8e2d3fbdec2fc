"""The steps of one commit: request the instant, put the files in their places, complete the instant.

All of it is idempotent: after a crash, the same manifest repeats the same steps with the same names. The
instant is pending only within these steps, because other writers may roll back a pending instant. If one
does, it deletes the files in their places (by the markers), but not those that the tasks have written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Sequence

from ..contract import DataFile
from ..texts.safe_text import get_logger
from .commit_metadata import extra_metadata, token_in
from .layout import Layout
from .names import (
    COMPLETIONS,
    PARTITION_METADATA,
    RESERVATIONS,
    completion_record,
    heartbeat_path,
    marker_path,
    markers_folder,
    reservation,
    visible_path,
)
from .storage import HudiStorage
from .timeline import Timeline

logger = get_logger(__name__)


class Publishing:
    """The steps for one instant.

    Args:
        completion: chooses the time of the completion; called once the files are in their places
    """

    def __init__(
        self,
        storage: HudiStorage,
        timeline: Timeline,
        instant: str,
        files: Sequence[DataFile],
        completion: Callable[[], str],
    ) -> None:
        self._storage = storage
        self._timeline = timeline
        self._layout = timeline.layout
        self._instant = instant
        self._choose_completion = completion
        self._visible = {file.path: visible_path(file.path) for file in files}

    def request(self, metadata: bytes) -> bool:
        """Make the instant pending; return False if another writer has it."""
        path = self._layout.requested(self._instant)
        if not self._storage.create(path, metadata) and self._storage.read(path) != metadata:
            return False
        self._storage.replace(heartbeat_path(self._instant))
        self._storage.create(self._layout.inflight(self._instant), metadata)
        return True

    def place_files(self) -> None:
        """Copy the files to their places, after the markers that let a rollback find them.

        Raises:
            FileNotFoundError: a staged file is missing.
        """
        self._storage.create_all([marker_path(path) for path in self._visible])
        partitions = {posixpath.dirname(path) for path in self._visible.values()}
        missing = partitions - {
            posixpath.dirname(path)
            for path in self._storage.existing(posixpath.join(one, PARTITION_METADATA) for one in partitions)
        }
        for partition in missing:
            depth = len(partition.split("/")) if partition else 0
            content = f"#partition metadata\ncommitTime={self._instant}\npartitionDepth={depth}\n"
            self._storage.create(posixpath.join(partition, PARTITION_METADATA), content.encode())
        self._storage.copy_all(self._visible)

    def complete(self, metadata: bytes) -> bool:
        """Complete the instant: the commit. Return False if it is completed already."""
        return self._storage.create(self._layout.completed(self._instant, self._completion()), metadata)

    def _completion(self) -> str:
        """Return the time that the first attempt has recorded: all attempts complete the instant by one name.

        A crash right after the record leaves an old time. Incremental readers that have read a later
        completion miss the rows then.
        """
        if not self._layout.has_completion_times:
            return ""
        path, chosen = completion_record(self._instant), self._choose_completion()
        if self._storage.create(path, chosen.encode()):
            return chosen
        recorded = (self._storage.read(path) or b"").decode()
        if not recorded.isdigit():
            raise OSError(f"{path} has no time of a completion, but {recorded!r}")
        if recorded <= self._timeline.last_completion:
            logger.warning(
                "The instant %s is completed with the time %s of an earlier attempt. Incremental queries "
                "that have read up to %s do not see its rows.",
                *(self._instant, recorded, self._timeline.last_completion),
            )
        return recorded

    def heal(self) -> None:
        """Put back files that a rollback by another writer has deleted just before the commit."""
        there = self._storage.existing(self._visible.values())
        self._storage.copy_all({staged: path for staged, path in self._visible.items() if path not in there})

    def clean_up(self) -> None:
        """Delete what only the commit needed. Called once the instant is completed.

        Reservations of earlier instants are not needed either: a new batch gets a later one than this. The
        record of a completion is needed as long as the completed instant is in the timeline.
        """
        old = [one for one in self._storage.names(RESERVATIONS) if one <= self._instant]
        self._storage.delete_all(
            [
                *self._visible,
                *map(marker_path, self._visible),
                heartbeat_path(self._instant),
                *map(reservation, old),
                *map(completion_record, self._archived_completions()),
            ]
        )
        self._storage.remove_empty_folders(markers_folder(self._instant))

    def _archived_completions(self) -> list[str]:
        if not self._layout.has_completion_times:
            return []
        recorded = self._storage.first_names(COMPLETIONS)
        return [one for one in recorded if self._timeline.is_archived(one)]


def withdraw(storage: HudiStorage, layout: Layout, instant: str) -> None:
    """Remove a pending instant of ours, and the files that its markers name. The staged files stay.

    The instant must not be completed, and nobody may be committing it. Does nothing if it is of another
    writer.
    """
    if token_in(extra_metadata(storage.read(layout.requested(instant)) or b"")) is None:
        return
    folder = markers_folder(instant)
    markers = storage.paths_below(folder)
    visible = [marker.removeprefix(f"{folder}/").rpartition(".marker.")[0] for marker in markers]
    storage.delete_all(_files_of(instant, visible))
    storage.delete_all([*markers, heartbeat_path(instant)])
    storage.delete_all([layout.inflight(instant)])
    storage.delete_all([layout.requested(instant)])
    storage.remove_empty_folders(folder)


def _files_of(instant: str, paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.endswith(f"_{instant}.parquet")]
