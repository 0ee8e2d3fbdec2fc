"""Unpacks packages of Debian or Ubuntu into a cache directory. Nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from servers.kept_files import kept
from servers.unreachable import UnreachableError

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


class DebianUnreachableError(UnreachableError):
    """There is no `apt-get`, or no mirror responds and the cache does not have the packages."""


SID = "sid"
"""The suite of Debian with the newest packages, such as MySQL, which its releases do not have."""


def unpacked(
    name: str, packages: Sequence[str], *, with_libraries: bool = False, suite: str | None = None
) -> Path:
    """Return a directory with the files of the packages, downloaded on first use.

    Args:
        name: of the directory in the cache
        packages: with the libraries that they need
        with_libraries: also those that they need and that this machine does not have
        suite: of Debian; None: that of this machine. Of another suite, all libraries are downloaded, and its
            dynamic loader runs the programs.

    Raises:
        DebianUnreachableError: a test may be skipped only for this reason.
    """

    def unpack(folder: Path) -> Path:
        if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
            raise DebianUnreachableError("Debian's packages cannot be reached: there is no apt-get on PATH")
        options = [] if suite is None else _options_of(suite, folder / "apt")
        downloads = folder / "downloads"
        downloads.mkdir()
        needed = _with_missing_libraries(packages, options) if with_libraries else packages
        _apt([*options, "download", *needed], cwd=downloads)
        files = folder / "files"
        for package in downloads.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(files)], check=True)
        return files

    return kept(name, unpack)


def _options_of(suite: str, folder: Path) -> list[str]:
    """Return options of apt-get with which it knows the packages of a suite of Debian, and none of this
    machine.
    """
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Label: Debian"], capture_output=True, text=True
    )
    if not (sites := listed.stdout.split()):
        raise DebianUnreachableError("Debian's packages cannot be reached: apt-get has no mirror of Debian")
    for made in ("lists/partial", "archives/partial"):
        (folder / made).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYS}] {sites[0]} {suite} main\n")
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
    }
    given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    _apt([*given, "update"])
    return given


def _with_missing_libraries(packages: Sequence[str], options: Sequence[str]) -> list[str]:
    simulated = "install --simulate --no-install-recommends --reinstall"
    printed = _apt([*options, *simulated.split(), *packages])
    return [line.split()[1] for line in printed.splitlines() if line.startswith("Inst ")]


def _apt(arguments: Sequence[str], cwd: Path | None = None) -> str:
    ended = subprocess.run(["apt-get", *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)
    if ended.returncode != 0:
        raise DebianUnreachableError(f"Debian's packages cannot be reached: {ended.stderr.strip()}")
    return ended.stdout
