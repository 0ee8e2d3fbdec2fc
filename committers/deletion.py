"""The gate that every deletion of a table's files goes through.

Paths come from table metadata, from manifests and plans in the store, and from listings. Somebody who can
write one of these could otherwise name any file that this process may delete. The gate lets a location pass
only if it lies below the folders of the table. What does not pass is left alone, with a warning: one planted
path must not keep the clean-up from the table's other files.

Runs on the driver, in the delivery process, and on executors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from .safe_text import get_logger

logger = get_logger(__name__)

_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
_ABSOLUTE = re.compile(r"/|[a-z][a-z0-9+.-]*:/|file:", re.IGNORECASE)
_MAY_CLIMB = re.compile(r"(?:^|/)[.%]")


class DeletionGuard:
    """Lets the files pass that lie below the folders of one table.

    Args:
        folders: locations, spelled in any way
        remedy: what to do if a table's own files lie elsewhere, for the warning
    """

    def __init__(self, folders: Sequence[str], remedy: str = "") -> None:
        self._folders = tuple([f"{_normalized(folder).rstrip('/')}/" for folder in folders])
        self._remedy = remedy

    def allows(self, location: str) -> bool:
        """Return True if the location is a file below one of the folders."""
        return _is_plain(location) and self._holds(location, {})

    def allowed(self, locations: Iterable[str]) -> list[str]:
        """The locations of files that may be deleted, in their order. Warns of the others."""
        known: dict[str, str] = {}
        locations = list(locations)
        passing = [one for one in locations if _is_plain(one) and self._holds(one, known)]
        return self._warned(locations, passing)

    def allowed_below(self, folder: str, paths: Iterable[str]) -> list[str]:
        """The same for paths that are relative to `folder`."""
        known: dict[str, str] = {}
        root, paths = folder.rstrip("/"), list(paths)
        passing = [path for path in paths if is_relative(path) and self._holds(f"{root}/{path}", known)]
        return self._warned(paths, passing, f"{root}/")

    def _holds(self, location: str, known: dict[str, str]) -> bool:
        """Does the file lie below one of the folders? A link in its last place counts as the file itself.

        Args:
            known: folders that this call has resolved already
        """
        folder, slash, name = location.rpartition("/")
        if not slash:
            return False
        if folder not in known:  # with its slash: without it the root of the disk is the working directory
            known[folder] = _normalized(folder + slash).removesuffix(slash)
        return f"{known[folder]}{slash}{name}".startswith(self._folders)

    def _warned(self, asked: Sequence[str], passing: list[str], folder: str = "") -> list[str]:
        if len(passing) < len(asked):
            logger.warning(
                "Penstock did not delete %d file(s) because they do not lie below %s, for example %r. %s",
                len(asked) - len(passing),
                " or ".join(self._folders) or "a folder of the table",
                folder + min(set(asked).difference(passing)),
                self._remedy,
            )
        return passing


def is_relative(path: str) -> bool:
    """Return True if the path names a file below any folder that it is appended to."""
    return not _ABSOLUTE.match(path) and _is_plain(path)


def has_folder(location: str) -> bool:
    """Return True if the location is a folder; False for the root of a disk, a bucket or a container."""
    path = local_root(location)
    if path is not None:
        return path != "/" and location.strip("/") not in ("", "file:")
    return _is_plain(location.rstrip("/")) and bool(location.partition("://")[2].partition("/")[2].strip("/"))


def local_root(location: str) -> str | None:
    """The path of a location on the local disk, links resolved; None if it is elsewhere.

    Nothing in it is escaped.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return os.path.realpath(location)
    return os.path.realpath(rest.removeprefix("//")) if scheme.lower() == "file" else None


def _is_plain(path: str) -> bool:
    """No segment is empty at the end, or `.` or `..` after any number of decodings."""
    if not path or path.endswith("/") or "\0" in path:
        return False
    return not _MAY_CLIMB.search(path) or {".", ".."}.isdisjoint(map(_decoded, path.split("/")))


def _decoded(segment: str) -> str:
    while (decoded := unquote(segment)) != segment:
        segment = decoded
    return segment


def _normalized(location: str) -> str:
    """One spelling for one folder: links on the local disk are resolved, one scheme stands for a store."""
    path = local_root(location)
    if path is not None:
        return path.rstrip("/")
    scheme, separator, rest = location.partition("://")
    return f"{_SAME_SCHEMES.get(scheme.lower(), scheme.lower())}{separator}{rest}"
