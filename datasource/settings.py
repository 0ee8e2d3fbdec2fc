"""Settings in the store with which a delivery process opens a stream's table. They contain no secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..committers.dead_letters import letters_stream
from ..committers.row_log.sharing import parsed_settings
from ..committers.store.contract import Registration
from ..writers.local_path import is_relative
from .dead_letters import letter_sink_of
from .options.delivery import DeliveryOptions
from .plug_ins import INTERNAL
from .sink import Destination

if TYPE_CHECKING:
    from ..committers.contract import StreamKey
    from ..committers.store.sql import SqlManifestStore

DEAD_LETTERS = "dead letters"
"""`delivery` of a stream of dead letters, which gets a batch only when there are some."""


def is_of_dead_letters(settings: str) -> bool:
    return parsed_settings(settings).get("delivery") == DEAD_LETTERS


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
    store.register_streams(registrations(sink, stream, table_id, siblings))


def registrations(
    sink: Destination,
    stream: StreamKey,
    table_id: str = "",
    siblings: Sequence[str] = (),
    routes_of: str = "",
) -> list[Registration]:
    """Return what the store has to know of a stream, and of the one of its dead letters.

    Args:
        siblings: see `Query.siblings`
        routes_of: address of the query with routes that the stream is a table of
    """
    options, letters = sink.options, letter_sink_of(sink)
    address = "" if letters is None else letters.table_uri
    delivery = sink.kind if sink.kind in INTERNAL else None
    settings = settings_of(options, address, siblings, routes_of, delivery=delivery)
    own = Registration(stream, sink.kind, options.query_name, table_id, settings)
    if letters is None:
        return [own]
    name = f"dead letters of {options.query_name}" if options.query_name else "dead letters"
    of_letters = settings_of(letters.options, routes_of=routes_of, delivery=DEAD_LETTERS)
    key = letters_stream(stream, letters.table_uri)
    return [own, Registration(key, letters.kind, name, settings=of_letters)]


def settings_of(
    options: DeliveryOptions,
    dead_letters: str = "",
    targets: Sequence[str] = (),
    routes_of: str = "",
    *,
    delivery: str | None = None,
) -> str:
    """Return the settings as JSON, without `store`, `storage.*` and `catalog.*`, which may be secrets.

    Args:
        dead_letters: address of the dead-letter destination; empty if there is none
        targets: addresses of all targets, if the query has several
        routes_of: see `registrations`
        delivery: None: as in the options
    """
    settings = {
        "delivery": delivery or ("decoupled" if options.is_decoupled else "coupled"),
        "checkpoint": _absolute(options.checkpoint_location or ""),
        "options": dict(sorted(options.given.items())),
        **({"dead_letters": dead_letters} if dead_letters else {}),
        **({"targets": sorted(targets)} if targets else {}),
        **({"routes_of": routes_of} if routes_of else {}),
    }
    return json.dumps(settings, ensure_ascii=False)


def _absolute(location: str) -> str:
    """Return the location as an absolute path, for processes in any working directory."""
    return str(Path.cwd() / location.removeprefix("file:")) if is_relative(location) else location
