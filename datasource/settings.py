"""Settings in the store with which a delivery process opens a stream's table. They contain no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..writers.local_path import is_relative
from .options.delivery import DeliveryOptions
from .sink import Destination

if TYPE_CHECKING:
    from ..committers.contract import StreamKey
    from ..committers.store.sql import SqlManifestStore


def register_stream(
    sink: Destination, store: SqlManifestStore, stream: StreamKey, table_id: str = ""
) -> None:
    """Register the stream, with all settings that its deliveries need. Driver only."""
    options = sink.options
    store.register_stream(stream, sink.kind, options.query_name, table_id, settings=settings_of(options))


def settings_of(options: DeliveryOptions) -> str:
    """Return the settings as JSON, without `store`, `storage.*` and `catalog.*`, which may be secrets."""
    settings = {
        "delivery": "decoupled" if options.is_decoupled else "coupled",
        "checkpoint": _absolute(options.checkpoint_location or ""),
        "options": dict(sorted(options.given.items())),
    }
    return json.dumps(settings, ensure_ascii=False)


def _absolute(location: str) -> str:
    """Return the location as an absolute path, for processes in any working directory."""
    return str(Path.cwd() / location.removeprefix("file:")) if is_relative(location) else location
