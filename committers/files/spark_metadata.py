"""Takes over a folder of the local disk that Spark's own file sink has written.

Spark's readers of such a folder see only the files that the sink's log lists, `_spark_metadata`. Files of
failed attempts are in the folder, too, and other readers see them. So the files that the log does not list
are moved away, and then the log. From there on, all readers list the folder, and see what Spark's readers saw
before.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..cleaning.regular_files import sync
from ..errors import RetryableError, TableNotSupportedError
from ..texts.safe_text import get_logger
from .local_folder import LocalFolder, staging_of

logger = get_logger(__name__)

LOG = "_spark_metadata"
_BATCH = re.compile(r"(\d+)(\.compact)?")
_VERSION = "v1"


def take_over(folder: str) -> None:
    """Move the log, and before it the files that it does not list, to the staging folder.

    Does nothing if there is no log. A process that dies leaves the rest to the next call.

    Raises:
        TableNotSupportedError: the log is damaged or lists files elsewhere, or the sink has written again.
        RetryableError: a file cannot be moved now.
    """
    staging = Path(staging_of(folder))
    aside = staging / "spark-file-sink"
    try:
        aside.mkdir(parents=True, exist_ok=True)
        with (staging / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the block or the process ends
            if Path(folder, LOG).is_dir():
                _move(Path(folder), aside)
    except OSError as error:
        raise RetryableError(f"{folder} could not be taken over from Spark's file sink: {error}.") from error


def _move(folder: Path, aside: Path) -> None:
    if (aside / LOG).exists():
        raise TableNotSupportedError(
            f"Spark's own file sink has written to {folder} again since it was taken over. Nothing was "
            "written. Stop that query for good, move the files that it has written since out of the folder, "
            f"and delete {folder / LOG}. {aside} has what was there at first."
        )
    listed = set(_listed(folder))
    found = LocalFolder(str(folder)).paths()
    unlisted = [path for path in found if path not in listed and not _is_own(path)]
    for path in unlisted:
        target = aside / "not-listed" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(target)
        sync(target.parent)
    (folder / LOG).rename(aside / LOG)
    sync(folder)
    sync(aside)
    logger.warning(
        "%s was taken over from Spark's file sink: %d files stay; %d that %s does not list are now in %s.",
        folder,
        len(listed),
        len(unlisted),
        LOG,
        aside,
    )


def _is_own(path: str) -> bool:
    """Earlier versions of Penstock have written to such folders."""
    return path.rpartition("/")[2].startswith("penstock-")


def _listed(folder: Path) -> Iterator[str]:
    """The files of the folder that Spark's readers see, relative to it."""
    for path in _paths(folder / LOG):
        local = Path(unquote(urlsplit(path).path))
        # The sink has its path as the query gave it, perhaps through a link.
        real = local if local.is_relative_to(folder) else Path(os.path.realpath(local.parent), local.name)
        if urlsplit(path).scheme not in ("", "file") or not real.is_relative_to(folder):
            raise TableNotSupportedError(
                f"{folder / LOG} lists files elsewhere, such as {local}: the folder was moved or copied. "
                "Nothing was written. Copy the rows that you need to another folder, and write that one."
            )
        yield real.relative_to(folder).as_posix()


def _paths(log: Path) -> dict[str, None]:
    """The files that the log lists, as it spells them. A compact file repeats all batches before it."""
    batches: dict[int, Path] = {}
    compact = 0
    for path in sorted(log.iterdir(), key=lambda path: path.name):  # `9.compact` after `9`
        if found := _BATCH.fullmatch(path.name):
            batches[int(found[1])] = path
            compact = max(compact, int(found[1]) if found[2] else 0)
    paths: dict[str, None] = {}
    try:
        for batch_id in range(compact, max(batches) + 1):
            version, *entries = batches[batch_id].read_text("utf-8").rstrip("\n").split("\n")
            if version != _VERSION:
                raise ValueError(f"version {version}")
            for entry in map(json.loads, entries):
                if entry["action"] == "add":
                    paths[str(entry["path"])] = None
                else:
                    paths.pop(str(entry["path"]), None)
    except (ValueError, KeyError, TypeError) as error:
        raise TableNotSupportedError(
            f"{log} is not a complete log of Spark's file sink ({error!r}). Nothing was written. Copy the "
            "rows that you need to another folder, and write that one."
        ) from error
    return paths
