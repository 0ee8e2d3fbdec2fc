"""The settings of a stream in the store, and the sink that a delivery process builds from them.

Everybody who can write to the store can change these settings, and this process combines them with its
secrets. So it accepts only options that Penstock itself stores, and only the stream's own table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ..committers.dead_letters import letters_stream
from ..committers.errors import ConfigurationError, ManifestCorruptError, shown
from ..datasource.destinations import access_of, destination_type
from ..datasource.options.parsing import Option, not_storable
from ..datasource.settings import DEAD_LETTERS
from ..datasource.sink import Destination, Sink
from ..datasource.stored.table_access import TableAccess

if TYPE_CHECKING:
    from ..committers.contract import StreamKey
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus

DECOUPLED = "decoupled"
_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the newest start of the query has stored. Contains no secrets."""

    delivery: str = ""
    checkpoint: str = ""
    """Location of the checkpoint; empty if the store does not know it."""
    options: Mapping[str, str] = field(default_factory=dict)
    dead_letters: str = ""
    """Address of the dead-letter destination; empty if the query has none."""

    @classmethod
    def parse(cls, text: str) -> StreamSettings:
        """Parse the JSON in the store. The settings of a stream that was never decoupled are empty.

        Raises:
            ManifestCorruptError: the text is not the JSON that Penstock writes.
        """
        if not text:
            return cls()
        try:
            parsed = json.loads(text)
            options = dict(parsed["options"])
            if not all(isinstance(one, str) for one in (*options, *options.values())):
                raise TypeError("options are not texts")
            return cls(
                str(parsed["delivery"]),
                str(parsed.get("checkpoint") or ""),
                options,
                str(parsed.get("dead_letters") or ""),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ManifestCorruptError(
                "The settings of a stream in the manifest store are damaged. The next start of its query "
                "rewrites them."
            ) from None

    @property
    def is_decoupled(self) -> bool:
        return self.delivery == DECOUPLED

    @property
    def is_of_dead_letters(self) -> bool:
        return self.delivery == DEAD_LETTERS


def build_sink(stream: StreamStatus, settings: StreamSettings, access: TableAccess) -> Destination:
    """Build the sink of the stream's query, with the secrets of this process.

    Raises:
        ConfigurationError: the settings contain options that Penstock does not store, or another table, or
            the
            kind of the stream is unknown.
    """
    destination = destination_type(stream.key, stream.kind)
    _check_keys(stream.key, destination.options, settings.options)
    # Options deadLetter.* are not stored with those of the stream, but with the stream of its dead letters.
    letters = {"deadLetter": settings.dead_letters} if settings.dead_letters else {}
    sink = destination.sink(stream.key, {**letters, **settings.options}, access_of(stream, access))
    _check_table(stream.key, sink)
    return sink


def find_letters(
    store: SqlManifestStore, stream: StreamStatus, settings: StreamSettings
) -> StreamStatus | None:
    """Return the stream of the dead letters of a stream; None if its query has no dead-letter destination."""
    if not settings.dead_letters:
        return None
    key = letters_stream(stream.key, settings.dead_letters)
    return next(iter(store.streams(key=key)), None)


def build_letter_sink(letters: StreamStatus, stream: StreamStatus, access: TableAccess) -> Sink[Any, Any]:
    """Build the sink of a dead-letter destination. Raises as `build_sink`."""
    own = access_to_letters(letters, stream, access)
    return cast("Sink[Any, Any]", build_sink(letters, StreamSettings.parse(letters.settings), own))


def access_to_letters(letters: StreamStatus, stream: StreamStatus, access: TableAccess) -> TableAccess:
    """Return the options of this process without those that are for the destination of the stream only."""
    return access_beside(stream, letters.kind, access)


def access_beside(stream: StreamStatus, kind: str, access: TableAccess) -> TableAccess:
    """Return the options of a stream for another table of its query, without those for its destination.

    Args:
        kind: of the other table
    """
    own = access_of(stream, access)
    known = {option.name.lower() for option in destination_type(stream.key, stream.kind).options}
    is_for_both = kind == stream.kind and own.url is None
    return replace(own, storage=own.for_object_store(() if is_for_both else known), url=None)


def _check_keys(stream: StreamKey, known: tuple[Option, ...], options: Mapping[str, str]) -> None:
    keys = not_storable(known, options)
    if keys:
        more = f" and {len(keys) - _NAMED_MAX} more" if len(keys) > _NAMED_MAX else ""
        raise ConfigurationError(
            f"The settings of the stream {stream} in the manifest store contain options that this version of "
            f"Penstock does not store: {', '.join(map(shown, keys[:_NAMED_MAX]))}{more}. The table was not "
            "opened. If a newer version of Penstock runs the query, run: pip install --upgrade penstock. "
            "Otherwise somebody has changed the store: find out who can write to it. The next start of the "
            "query rewrites the settings."
        )


def _check_table(stream: StreamKey, sink: Destination) -> None:
    if sink.table_uri != stream.table_uri:
        raise ConfigurationError(
            f"The settings of query {stream.query_id} in the manifest store name the table "
            f"{shown(sink.table_uri)}, but the stream writes to {shown(stream.table_uri)}. The table was not "
            "opened. If the query has a relative path, run the delivery process in the same folder, or give "
            "the query an absolute path. Otherwise somebody has changed the store: find out who can write to "
            "it. The next start of the query rewrites the settings."
        )
