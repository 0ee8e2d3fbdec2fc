"""A checkpoint with its store and row log that was moved, for example to another host.

The store has the absolute locations of the row log and of the checkpoint, as of the query's last start. If
the store is in the checkpoint directory, its own place tells where both are now.
"""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..committers.row_log.sharing import parsed_settings
from ..committers.safe_text import get_logger
from ..datasource.checkpoint import STORE_FILE
from ..writers.local_path import local_path

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore

logger = get_logger(__name__)


def follow_moved_checkpoint(store: SqlManifestStore) -> None:
    """Replace locations below a checkpoint directory that is no longer there by those of the store's own.

    Only for a store in the checkpoint directory, and for streams of this checkpoint. For the process that
    delivers: others, on a machine with other mounts, leave the store as it is.

    Raises:
        RetryableError: the store does not answer.
    """
    if store.file is None or store.file.name != STORE_FILE:
        return
    here = store.file.parent.absolute()
    query_id = _query_id(here)
    for stream in store.streams_of(query_id) if query_id else ():
        settings = parsed_settings(store.settings(stream))
        before = local_path(str(settings.get("checkpoint") or ""))
        if before is None or Path(before).exists() or posixpath.normpath(before) == str(here):
            continue
        logger.warning(
            "The checkpoint of %s was moved from %s to %s. Its row log is read there.", stream, before, here
        )
        store.change_settings(stream, json.dumps(_moved(settings, before, str(here)), ensure_ascii=False))


def _query_id(checkpoint: Path) -> str:
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _moved(settings: dict[str, Any], before: str, here: str) -> dict[str, Any]:
    options = settings.get("options")
    moved = {**settings, "checkpoint": here}
    if isinstance(options, dict) and isinstance(options.get("rowLog"), str):
        log, below = options["rowLog"], posixpath.join(posixpath.normpath(before), "")
        if log.startswith(below):
            moved["options"] = {**options, "rowLog": posixpath.join(here, log.removeprefix(below))}
    return moved
