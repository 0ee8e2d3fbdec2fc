"""The options and credentials of one stream, from those that a command or a delivery process has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...committers.errors import shown
from ...committers.store.selection import SHORT_ID_CHARS, names_of
from ...committers.store.status import StreamStatus
from ..options.parsing import Option
from .table_access import StreamAccess, TableAccess


def merged_access(stream: StreamStatus, options: Sequence[Option], access: TableAccess) -> TableAccess:
    """Return the access to the table of a stream: the options for all streams, overridden by the entries that
    name this one.

    An entry for the stream, by name or id, is above one for its table, and that above one for the beginning
    of its address. Options are overridden one by one. But an entry with a `url` replaces all credentials of
    a service below it, because these are for another server.

    Args:
        options: all options of the stream's destination
    """
    known = frozenset(option.name.lower() for option in options)
    result = access
    for entry in _entries_for(stream, access):
        storage = result.storage if entry.url is None else result.for_object_store(known)
        result = replace(
            result,
            storage={**storage, **entry.storage},
            catalog={**result.catalog, **entry.catalog},
            url=result.url if entry.url is None else entry.url,
        )
    return result


def has_own_access(stream: StreamStatus, access: TableAccess) -> bool:
    """Return True if an entry names the stream or its table."""
    return bool(_entries_for(stream, access))


def about_unknown_names(access: TableAccess, streams: Iterable[StreamStatus], store: str) -> str:
    """Return a warning of entries that are for none of the streams of a store; empty if there are none."""
    unknown = list(access.streams)
    for stream in streams:
        unknown = [name for name in unknown if _rank(name, stream) is None]
    if not unknown:
        return ""
    return (
        f"The manifest store {store} has no stream that these entries of `streams` name: "
        f"{', '.join(map(shown, unknown))}. Compare them with the names and tables in `penstock status`. An "
        "entry may be for a query that has not started yet, or for another store."
    )


def _entries_for(stream: StreamStatus, access: TableAccess) -> list[StreamAccess]:
    """Return the entries that name the stream or its table, the most exact one last."""
    ranked = [(_rank(name, stream), entry) for name, entry in access.streams.items()]
    found = [(rank, entry) for rank, entry in ranked if rank is not None]
    return [entry for _, entry in sorted(found, key=lambda one: one[0])]


def _rank(name: str, stream: StreamStatus) -> tuple[bool, int] | None:
    """Return how exactly a name is that of the stream; None if it is not. Unlike in an argument of a command,
    a few characters of a query id are no name: credentials are for a stream that was meant.
    """
    uri = stream.key.table_uri
    if name == uri or uri.startswith(f"{name.rstrip('/')}/"):
        return False, len(name)
    is_named = name in names_of(stream) or name == stream.key.query_id[:SHORT_ID_CHARS]
    return (True, 0) if is_named else None
