"""Finds streams by what the user typed."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from ..row_log.sharing import targets_in
from ..texts.safe_text import one_line
from .status import StreamStatus

SHORT_ID_CHARS = 8


def short_id(query_id: str) -> str:
    return query_id[:SHORT_ID_CHARS]


def select(streams: Sequence[StreamStatus], text: str | None) -> list[StreamStatus]:
    """Return the streams that match the user's text, or all of them.

    A query name, the name of a fan-out without that of a target, a query id or a table location selects all
    streams that have it. A query id prefix must match a single query.

    Raises:
        ConfigurationError: no match, or an ambiguous prefix; the message lists the candidates.
    """
    if text is None:
        return list(streams)
    exact = [stream for stream in streams if text in names_of(stream)]
    if exact:
        return exact
    begun = [stream for stream in streams if stream.key.query_id.startswith(text)]
    if not begun:
        raise ConfigurationError(f"The store has no stream {text!r}.{_candidates(streams)}")
    if len({stream.key.query_id for stream in begun}) > 1:
        raise ConfigurationError(f"{text!r} is the prefix of several query ids.{_candidates(begun)}")
    return begun


def select_query(streams: Sequence[StreamStatus], text: str | None) -> list[StreamStatus]:
    """Return the streams of the one query that matches the user's text: several if it is a fan-out.

    Raises:
        ConfigurationError: no match, or streams of several queries; the message lists the candidates.
    """
    found = select(streams, text)
    if len({stream.key.query_id for stream in found}) == 1:
        return found
    raise _ambiguous(text, found)


def select_one(streams: Sequence[StreamStatus], text: str | None) -> StreamStatus:
    """Return the one stream that matches the user's text; without a text, the only stream of the store.

    Raises:
        ConfigurationError: no match or several; the message lists the candidates.
    """
    found = select(streams, text)
    if len(found) == 1:
        return found[0]
    raise _ambiguous(text, found)


def _ambiguous(text: str | None, found: Sequence[StreamStatus]) -> ConfigurationError:
    asked = "Specify a stream" if text is None else f"{text!r} matches several streams; be more specific"
    return ConfigurationError(f'{asked}: a query id, or "ID -> TABLE".{_candidates(found)}')


def is_named(stream: StreamStatus, text: str) -> bool:
    """Return True if the user's text matches this stream."""
    return text in names_of(stream) or stream.key.query_id.startswith(text)


def names_of(stream: StreamStatus) -> tuple[str, ...]:
    """Return all names of a stream, except for the beginnings of its id."""
    named = [stream.query_name] if stream.query_name else []
    if targets_in(stream.settings):  # a target of a fan-out is named `<query>.<target>`
        named += [name for name in stream.query_name.rpartition(".")[:1] if name]
    return (*named, stream.key.query_id, stream.key.table_uri, str(stream.key))


def _candidates(streams: Sequence[StreamStatus]) -> str:
    if not streams:
        return " It has no streams yet."
    lines = ["\n    " + one_line(f"{stream.key}  ({stream.query_name or 'no name'})") for stream in streams]
    return " Candidates:" + "".join(lines)
