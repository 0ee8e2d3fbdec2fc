"""Which locations are on the local disk."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def local_path(uri: str) -> str | None:
    """The absolute path of a path or URL on the local disk; None for an object store."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" not in uri:
        return str(Path.cwd() / uri.removeprefix("file:"))
    return None
