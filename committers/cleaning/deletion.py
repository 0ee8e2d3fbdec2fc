"""The guard that checks each deletion of a table's files, and each file that is written to a path read back.

Paths come from table metadata, from journals, from manifests and plans in the store, and from listings.
Anyone who can write these could otherwise make this process delete or write any file. A location is accepted
only if it is below the folders of the table. Other locations are not deleted and cause a warning, so that one
bad path does not stop the clean-up of the table's own files. A commit that would write one fails.

Runs on the driver, in the delivery process, and on executors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from urllib.parse import unquote

from ..errors import TableChangedError
from ..texts.safe_text import get_logger

logger = get_logger(__name__)

_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}
_ABSOLUTE = re.compile(r"/|[a-z][a-z0-9+.-]*:/|file:", re.IGNORECASE)
_MAY_CLIMB = re.compile(r"(?:^|/)[.%]")


class DeletionGuard:
    """Accepts only files below the folders of one table.

    Args:
        folders: locations in any notation
        remedy: shown in the warning; what to do if the table's own files are elsewhere
    """

    def __init__(self, folders: Sequence[str], remedy: str = "") -> None:
        self._folders = tuple([f"{_normalized(folder).rstrip('/')}/" for folder in folders])
        self._remedy = remedy

    def allows(self, location: str) -> bool:
        """Return True if the location is a file below one of the folders."""
        return _is_plain(location) and self._holds(location, {})

    def allowed(self, locations: Iterable[str]) -> list[str]:
        """Return the locations that may be deleted, in their order. Log a warning for the others."""
        known: dict[str, str] = {}
        locations = list(locations)
        passing = [one for one in locations if _is_plain(one) and self._holds(one, known)]
        return self._warned(locations, passing)

    def allowed_below(self, folder: str, paths: Iterable[str]) -> list[str]:
        """Same as `allowed`, for paths relative to `folder`."""
        known: dict[str, str] = {}
        root, paths = folder.rstrip("/"), list(paths)
        passing = [path for path in paths if is_relative(path) and self._holds(f"{root}/{path}", known)]
        return self._warned(paths, passing, f"{root}/")

    def check_below(self, folder: str, paths: Iterable[str]) -> None:
        """Check paths relative to `folder` before files are written there.

        Raises:
            TableChangedError: one of them is not a file below the folders.
        """
        known: dict[str, str] = {}
        root = folder.rstrip("/")
        for path in paths:
            if not is_relative(path) or not self._holds(f"{root}/{path}", known):
                raise TableChangedError(
                    f"Penstock does not write {root}/{path}, because it does not lie below "
                    f"{' or '.join(self._folders)}. The file or the manifest that names it is damaged or was "
                    "manipulated, or a folder on the way is a link to another place. Restore it from a "
                    "backup, or replace the link by a folder."
                )

    def _holds(self, location: str, known: dict[str, str]) -> bool:
        """Return True if the file is below one of the folders. A link is not followed if it is the last path
        segment.

        Args:
            known: folders that this call has already resolved
        """
        folder, slash, name = location.rpartition("/")
        if not slash:
            return False
        if folder not in known:  # keep the slash: without it the root directory becomes the working directory
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
    """Return True if the path names a file below any folder that it is joined to."""
    return not _ABSOLUTE.match(path) and _is_plain(path)


def has_folder(location: str) -> bool:
    """Return True if the location has a folder; False for the root of a disk, a bucket or a container."""
    path = local_root(location)
    if path is not None:
        return path != "/" and location.strip("/") not in ("", "file:")
    return _is_plain(location.rstrip("/")) and bool(location.partition("://")[2].partition("/")[2].strip("/"))


def local_root(location: str) -> str | None:
    """The path of a location on the local disk, with links resolved; None if it is not local.

    Nothing in it is percent-encoded.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return os.path.realpath(location)
    return os.path.realpath(rest.removeprefix("//")) if scheme.lower() == "file" else None


def _is_plain(path: str) -> bool:
    """Return True if no segment is empty, `.` or `..` after repeated decoding. A trailing slash is
    allowed.
    """
    if not path or path.endswith("/") or "\0" in path:
        return False
    return not _MAY_CLIMB.search(path) or {".", ".."}.isdisjoint(map(_decoded, path.split("/")))


def _decoded(segment: str) -> str:
    while (decoded := unquote(segment)) != segment:
        segment = decoded
    return segment


def _normalized(location: str) -> str:
    """Normalize a folder location: resolve links on the local disk and use one scheme per store."""
    path = local_root(location)
    if path is not None:
        return path.rstrip("/")
    scheme, separator, rest = location.partition("://")
    return f"{_SAME_SCHEMES.get(scheme.lower(), scheme.lower())}{separator}{rest}"
