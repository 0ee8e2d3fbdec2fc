"""Probes: small objects that a check creates in a destination's place and deletes again.

They show that the credentials suffice, that the storage refuses to create an object twice where commits rely
on that, and what its clock says. Runs on the driver and in commands. Readers of tables ignore their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from .error_causes import retryable
from .errors import ConfigurationError
from .texts.safe_text import one_line

if TYPE_CHECKING:
    import pyarrow.fs as pafs

PREFIX = ".penstock-check-"
"""Names of probes begin with it."""
CONTENT = b"written and deleted by penstock check"


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has found."""

    place: str
    """Where it was, without secrets."""
    is_conditional: bool
    """True: a second object of the same name was refused. False: the place has no such requests."""
    written_at: datetime | None
    """When the storage says that the object was written; None if it does not tell."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Creates an object and deletes it again.

    The functions raise OSError. The name of the object is their argument.
    """

    place: str
    create: Callable[[str], bool]
    """Return False if there is such an object."""
    delete: Callable[[str], object]
    written_at: Callable[[str], datetime | None]
    is_conditional: bool = True

    def run(self, name: str) -> Probed:
        """
        Args:
            name: of the object, which nobody else uses

        Raises:
            ConfigurationError: the storage creates an object twice.
            AccessRefusedError: it denies access.
            RetryableError: it does not answer.
        """
        name = f"{PREFIX}{name}"
        with self._errors(f"A test object {name} cannot be created in {self.place}"):
            self.create(name)
        try:
            with self._errors(f"The test object {name} in {self.place} cannot be read"):
                written_at = self.written_at(name)
            created_twice = False
            if self.is_conditional:
                with self._errors(f"A test object {name} cannot be created in {self.place}"):
                    created_twice = self.create(name)
        except BaseException:
            with suppress(OSError):
                self.delete(name)
            raise
        with self._errors(f"The test object {name} in {self.place} was created and cannot be deleted"):
            self.delete(name)
        if created_twice:
            raise ConfigurationError(
                f"The storage of {self.place} ignores the condition of a request that must only create an "
                "object, so that two processes could commit at once. Use a storage with conditional writes, "
                "or penstock.iceberg with a catalog."
            )
        return Probed(self.place, self.is_conditional, written_at)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise retryable(error)(
                f"{what}: {one_line(error)}. Check the address, the credentials and the permissions of this "
                "user to create, read and delete there."
            ) from error


def local_probe(folder: str) -> Probe:
    """Return the probe of a folder on the local disk, or of its first parent that exists: no folder is made.

    The object is a hard link to a file that is already on disk, as commits to local tables make it.
    """
    place = next(one for one in (Path(folder), *Path(folder).parents) if one.is_dir())

    def create(name: str) -> bool:
        path = place / name
        unfinished = path.with_name(f"{name}.tmp")
        try:
            with unfinished.open("xb") as file:
                file.write(CONTENT)
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(unfinished)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                unfinished.unlink()
        return True

    def written_at(name: str) -> datetime:
        return datetime.fromtimestamp((place / name).stat().st_mtime, timezone.utc)

    return Probe(str(place), create, lambda name: (place / name).unlink(), written_at)


def filesystem_probe(location: str, filesystem: pafs.FileSystem, root: str) -> Probe:
    """Return the probe of a location in a file system of Arrow, which has no conditional requests.

    Args:
        location: for messages
        root: the path in the file system; empty, or with a slash at the end
    """
    root = f"{root.rstrip('/')}/" if root else ""

    def create(name: str) -> bool:
        with filesystem.open_output_stream(f"{root}{name}") as file:
            file.write(CONTENT)
        return True

    def written_at(name: str) -> datetime | None:
        found: datetime | None = filesystem.get_file_info(f"{root}{name}").mtime
        return found

    return Probe(
        location,
        create,
        lambda name: filesystem.delete_file(f"{root}{name}"),
        written_at,
        is_conditional=False,
    )
