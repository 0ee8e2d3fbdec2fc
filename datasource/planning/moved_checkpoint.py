"""A checkpoint with its store and row log that was moved, for example to another host.

The store has the absolute locations of the row log and of the checkpoint, as of the query's last start. If
the store is in the checkpoint directory, its own place tells where both are now.
"""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...committers.row_log.sharing import parsed_settings
from ...committers.texts.safe_text import get_logger
from ...writers.local_path import local_path
from ..spark.checkpoint import STORE_FILE

if TYPE_CHECKING:
    from ...committers.contract import StreamKey
    from ...committers.store.sql import SqlManifestStore

logger = get_logger(__name__)


def settings_here(store: SqlManifestStore, stream: StreamKey) -> str:
    """Return the settings of a stream. Locations below a checkpoint directory that is no longer there are
    replaced by those of the store's own.

    Only for a store in the checkpoint directory, and for streams of this checkpoint.

    Raises:
        RetryableError: the store does not answer.
    """
    text = store.settings(stream)
    if store.file is None or store.file.name != STORE_FILE:
        return text
    here = store.file.parent.absolute()
    settings = parsed_settings(text)
    before = local_path(str(settings.get("checkpoint") or ""))
    is_here = before is None or Path(before).exists() or posixpath.normpath(before) == str(here)
    if is_here or before is None or stream.query_id != _query_id(here):
        return text
    return json.dumps(_moved(settings, before, str(here)), ensure_ascii=False)


def follow_moved_checkpoint(store: SqlManifestStore) -> None:
    """Store the settings of `settings_here`.

    For the process that delivers: others, on a machine with other mounts, leave the store as it is.

    Raises:
        RetryableError: the store does not answer.
    """
    query_id = "" if store.file is None else _query_id(store.file.parent.absolute())
    for stream in store.streams_of(query_id) if query_id else ():
        before, now = store.settings(stream), settings_here(store, stream)
        if now == before:
            continue
        logger.warning(
            "The checkpoint of %s was moved from %s to %s. Its row log is read there.",
            stream,
            *(parsed_settings(text)["checkpoint"] for text in (before, now)),
        )
        store.change_settings(stream, now)


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
