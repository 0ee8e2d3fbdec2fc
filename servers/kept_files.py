"""Keeps what servers and programs for tests are made of in the user's cache directory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def kept(name: str, make: Callable[[Path], Path]) -> Path:
    """Return a file or folder of the cache directory, made on first use. Others never see a part of it.

    Args:
        name: of the file or folder; another name where its content differs
        make: makes it in an empty folder, and returns where it is
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
    target = cache / name
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = make(Path(folder))
            if not target.exists():  # another process may have been faster
                made.rename(target)
    return target
