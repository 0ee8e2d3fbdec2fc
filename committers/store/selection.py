"""Streams of a store by what a user calls them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigurationError
from ..safe_text import one_line
from .sql import StreamStatus

SHORT_ID_CHARS = 8


def short_id(query_id: str) -> str:
    return query_id[:SHORT_ID_CHARS]


def select(streams: Sequence[StreamStatus], text: str | None) -> list[StreamStatus]:
    """The streams that a word of the user means, or all of them.

    A query's name or id, or a table's location, means all streams that have it; the beginning of an id
    must mean one query.

    Raises:
        ConfigurationError: none, or the beginning of several ids; the message lists the candidates.
    """
    if text is None:
        return list(streams)
    exact = [stream for stream in streams if text in _words(stream)]
    if exact:
        return exact
    begun = [stream for stream in streams if stream.key.query_id.startswith(text)]
    if not begun:
        raise ConfigurationError(f"No stream {text!r} in the store.{_candidates(streams)}")
    if len({stream.key.query_id for stream in begun}) > 1:
        raise ConfigurationError(f"{text!r} is the beginning of several query ids.{_candidates(begun)}")
    return begun


def select_one(streams: Sequence[StreamStatus], text: str | None) -> StreamStatus:
    """The one stream that a word of the user means; without a word, the only stream of the store.

    Raises:
        ConfigurationError: none, or several; the message lists the candidates.
    """
    found = select(streams, text)
    if len(found) == 1:
        return found[0]
    what = "Say which stream" if text is None else f"{text!r} means several streams; give more"
    raise ConfigurationError(f'{what}: a query id, or "ID -> TABLE".{_candidates(found)}')


def is_named(stream: StreamStatus, text: str) -> bool:
    """Does a word of the user mean this stream, perhaps among others?"""
    return text in _words(stream) or stream.key.query_id.startswith(text)


def _words(stream: StreamStatus) -> tuple[str, ...]:
    named = (stream.query_name,) if stream.query_name else ()
    return (*named, stream.key.query_id, stream.key.table_uri, str(stream.key))


def _candidates(streams: Sequence[StreamStatus]) -> str:
    if not streams:
        return " It has no streams yet."
    lines = ["\n    " + one_line(f"{stream.key}  ({stream.query_name or 'no name'})") for stream in streams]
    return " Candidates:" + "".join(lines)
