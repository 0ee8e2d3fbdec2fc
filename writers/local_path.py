"""Finds out whether a location is on the local disk, and whether it is relative."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit


def local_path(uri: str) -> str | None:
    """The absolute path of a path or URL on the local disk; None for an object store."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" not in uri:
        return str(Path.cwd() / uri.removeprefix("file:"))
    return None


def is_relative(location: str) -> bool:
    """Return True if the path depends on the working directory."""
    path = PurePosixPath(location.removeprefix("file:"))
    return bool(location) and "://" not in location and not path.is_absolute()
