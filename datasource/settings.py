"""Settings in the store with which a delivery process opens a stream's table. They contain no secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..committers.dead_letters import letters_stream
from ..writers.local_path import is_relative
from .dead_letters import letter_sink_of
from .options.delivery import DeliveryOptions
from .sink import Destination

if TYPE_CHECKING:
    from ..committers.contract import StreamKey
    from ..committers.store.sql import SqlManifestStore

DEAD_LETTERS = "dead letters"
"""`delivery` of a stream of dead letters, which gets a batch only when there are some."""


def register_stream(
    sink: Destination,
    store: SqlManifestStore,
    stream: StreamKey,
    table_id: str = "",
    siblings: Sequence[str] = (),
) -> None:
    """Register the stream, with all settings that its deliveries need. Driver only.

    Args:
        siblings: see `Query.siblings`
    """
    options, letters = sink.options, letter_sink_of(sink)
    settings = settings_of(options, "" if letters is None else letters.table_uri, siblings)
    store.register_stream(stream, sink.kind, options.query_name, table_id, settings=settings)
    if letters is not None:
        name = f"dead letters of {options.query_name}" if options.query_name else "dead letters"
        key = letters_stream(stream, letters.table_uri)
        of_letters = settings_of(letters.options, delivery=DEAD_LETTERS)
        store.register_stream(key, letters.kind, name, settings=of_letters)


def settings_of(
    options: DeliveryOptions,
    dead_letters: str = "",
    targets: Sequence[str] = (),
    *,
    delivery: str | None = None,
) -> str:
    """Return the settings as JSON, without `store`, `storage.*` and `catalog.*`, which may be secrets.

    Args:
        dead_letters: address of the dead-letter destination; empty if there is none
        targets: addresses of all targets, if the query has several
        delivery: None: as in the options
    """
    settings = {
        "delivery": delivery or ("decoupled" if options.is_decoupled else "coupled"),
        "checkpoint": _absolute(options.checkpoint_location or ""),
        "options": dict(sorted(options.given.items())),
        **({"dead_letters": dead_letters} if dead_letters else {}),
        **({"targets": sorted(targets)} if targets else {}),
    }
    return json.dumps(settings, ensure_ascii=False)


def _absolute(location: str) -> str:
    """Return the location as an absolute path, for processes in any working directory."""
    return str(Path.cwd() / location.removeprefix("file:")) if is_relative(location) else location
