"""Wheel and sdist, built twice from the last commit: whoever builds a release again gets the same bytes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .texts import git

TIMEOUT_S = 300


class NotReproducibleError(Exception):
    """Two builds of one commit differ."""


def commit_epoch(root: Path) -> str:
    """Return the time of the last commit, which is the time of every file in the archives."""
    return git(root, "log", "-1", "--format=%ct")


def reproduced(root: Path, dist: Path) -> list[Path]:
    """Build the last commit in two folders, with two masks of permissions. `dist` then has only the archives.

    Raises:
        NotReproducibleError: names the files that differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        one = built(root, Path(folder) / "one", 0o022)
        other = built(root, Path(folder) / "a" / "longer" / "path", 0o077)
        differ = [name for name in sorted(one | other) if one.get(name) != other.get(name)]
        if differ:
            raise NotReproducibleError(f"Two builds of this commit differ: {', '.join(differ)}.")
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(Path(folder) / "one" / "dist", dist)
    return sorted(dist.iterdir())


def built(root: Path, folder: Path, umask: int) -> dict[str, str]:
    """Build into `folder`/dist, and return the hashes by name."""
    tree, dist = folder / "tree", folder / "dist"
    files = subprocess.run(
        ["git", "-C", str(root), "archive", "HEAD"], capture_output=True, check=True
    ).stdout
    before = os.umask(umask)
    try:
        with tarfile.open(fileobj=io.BytesIO(files)) as archive:
            archive.extractall(tree, filter="data")
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(tree)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_epoch(root)}
        ended = subprocess.run(build, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    finally:
        os.umask(before)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {path.name: sha256(path) for path in dist.iterdir()}


def check(root: Path, built: Sequence[Path]) -> None:
    """Let twine look at what a registry would refuse."""
    twine = root / ".venv-release" / "bin" / "twine"
    subprocess.run([twine, "check", "--strict", *built], check=True, timeout=TIMEOUT_S)


def write_hashes(dist: Path) -> None:
    """Write SHA256SUMS, for `sha256sum --check`."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(dist.iterdir()) if path.name != "SHA256SUMS"]
    (dist / "SHA256SUMS").write_text("".join(lines))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
