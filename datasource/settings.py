"""What a delivery process must know to open a stream's table: kept in the store, without any secret."""

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
    """Make the stream known, with all that its delivery needs. Driver only."""
    options = sink.options
    store.register_stream(stream, sink.kind, options.query_name, table_id, settings=settings_of(options))


def settings_of(options: DeliveryOptions) -> str:
    """As JSON. Secrets (`store`, `storage.*`, `catalog.*`) are given to the delivery process itself."""
    settings = {
        "delivery": "decoupled" if options.is_decoupled else "coupled",
        "checkpoint": _absolute(options.checkpoint_location or ""),
        "options": dict(sorted(options.given.items())),
    }
    return json.dumps(settings, ensure_ascii=False)


def _absolute(location: str) -> str:
    """The location as processes in any working directory find it."""
    return str(Path.cwd() / location.removeprefix("file:")) if is_relative(location) else location
