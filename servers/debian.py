"""Unpacks packages of this machine's Debian or Ubuntu into a cache directory. Nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from servers.unreachable import UnreachableError


class DebianUnreachableError(UnreachableError):
    """There is no `apt-get`, or no mirror responds and the cache does not have the packages."""


def unpacked(name: str, packages: Sequence[str], *, with_libraries: bool = False) -> Path:
    """Return a directory with the files of the packages, downloaded on first use.

    Args:
        name: of the directory in the cache
        packages: with the libraries that they need
        with_libraries: also those that they need and that this machine does not have

    Raises:
        DebianUnreachableError: a test may be skipped only for this reason.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-tests"
    target = cache / name
    if target.is_dir():
        return target
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise DebianUnreachableError("Debian's packages cannot be reached: there is no apt-get on PATH")
    if with_libraries:
        packages = _with_missing_libraries(packages)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        ended = subprocess.run(
            ["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, timeout=300
        )
        if ended.returncode != 0:
            raise DebianUnreachableError(f"Debian's packages cannot be reached: {ended.stderr.strip()}")
        files = Path(folder) / "files"
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(files)], check=True)
        if not target.is_dir():  # another process may have been faster
            files.rename(target)
    return target


def _with_missing_libraries(packages: Sequence[str]) -> list[str]:
    ended = subprocess.run(
        ["apt-get", "install", "--simulate", "--no-install-recommends", "--reinstall", *packages],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if ended.returncode != 0:
        raise DebianUnreachableError(f"Debian's packages cannot be reached: {ended.stderr.strip()}")
    return [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("Inst ")]
