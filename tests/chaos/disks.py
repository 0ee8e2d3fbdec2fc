"""Small file systems that can be filled, and folders that can be made read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

MIB = 1024 * 1024
FILLER = "filler"


@contextmanager
def small_disk(mount: Path, mib: int = 48) -> Iterator[Path]:
    """Mount a file system: ext4 in a file if there are loop devices, else tmpfs.

    Raises:
        OSError: nothing can be mounted here.
    """
    mount.mkdir(parents=True)
    if not (_mount_ext4(mount, mib) or _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", mount)):
        raise OSError("no file system can be mounted: this user is not root, or has no right to mount")
    try:
        yield mount
    finally:
        _run("umount", "--lazy", mount)


@cache
def why_no_small_disks() -> str | None:
    """Return why no small file system can be mounted here; None if one can."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder) / "disk", 4):
                return None
        except OSError as error:
            return str(error)


def unmount_leftovers(folder: Path) -> None:
    """Unmount the file systems of a campaign that was killed."""
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            mount = Path(line.split()[1])
            if folder in mount.parents:
                _run("umount", "--lazy", mount)


def _mount_ext4(mount: Path, mib: int) -> bool:
    image = mount.with_name(f"{mount.name}.img")
    with image.open("wb") as file:
        file.truncate(mib * MIB)
    made = _run("mkfs.ext4", "-q", "-F", "-m", "0", image) and _run("mount", "-o", "loop", image, mount)
    if made:
        shutil.rmtree(mount / "lost+found", ignore_errors=True)
    return made


def _run(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


# Full -------------------------------------------------------------------------------------------------


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Keep a file system full within the block, also if others free space."""
    done = threading.Event()
    filler = disk / FILLER

    def keep_full() -> None:
        while not done.wait(0.02):
            _fill(filler)

    _fill(filler)
    thread = threading.Thread(target=keep_full)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        filler.unlink()


def _fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file:
        for block in (b"\0" * MIB, b"\0" * 4096, b"\0"):
            with suppress(OSError):
                while True:
                    file.write(block)


# Read-only --------------------------------------------------------------------------------------------


@cache
def unprivileged() -> tuple[str, ...] | None:
    """Return the command prefix that makes permissions and full disks bind a program; None if there is none.

    Root without capabilities is an owner like any other.
    """
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all") if setpriv else None


def why_no_permissions() -> str | None:
    """Return why permissions cannot be revoked here; None if they can."""
    if unprivileged() is None:
        return "root may write everywhere, and setpriv, which would restrict the driver, is missing"
    return None


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder and everything in it read-only within the block."""
    modes: dict[Path, int] = {}
    try:
        for path in [folder, *folder.rglob("*")]:
            with suppress(FileNotFoundError):
                modes[path] = path.stat().st_mode & 0o7777
                path.chmod(modes[path] & ~0o222)
        yield
    finally:
        for path, mode in modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)
